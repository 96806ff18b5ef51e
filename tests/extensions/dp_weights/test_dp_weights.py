"""DP-Weights: the formulas are the paper's, the claim is wherever it shows a claim, and one record
moves the weights by far more than they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from dp_weights import epsilon_of
from scipy import stats

from raydp import Sweep, load_model
from raydp.analysis.tables.statements import Statement
from raydp.cli.show.explanation import lookup_commands
from raydp.extensions.auditing.audits import audit_spec
from raydp.extensions.auditing.source import AuditSubject
from raydp.extensions.dp_weights.formulas import claimed_noise_std, claimed_sensitivity
from raydp.extensions.dp_weights.method import DPWeights
from raydp.methods.dp import DPSGD
from raydp.models import base_models as models
from raydp.privacy import (
    AccountedEpsilon,
    Mechanism,
    NonPrivateEvent,
    PLDAccountant,
    PoissonGaussian,
    PrivacyCard,
    privacy_record,
)
from raydp.privacy.accounting.gdp import gaussian_epsilon
from raydp.privacy.records.card import card_markdown
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.api import select
from raydp.sweep.ending.finish import finish
from raydp.sweep.ending.notes import about
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.recorder import Recorder
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.tracking import find_models, promote_model
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY
from raydp.training.trial_plan import TrialPlan
from tests.builders import toys
from tests.builders.plans import NO_GUARANTEE
from tests.builders.specs import small_spec
from tests.conftest import Answer

SPEC = Path(__file__).parents[3] / "docs/specs/mechanisms/dp_weights.yaml"
PAPER = {"num_examples": 1000, "num_steps": 1000, "learning_rate": 5e-5, "max_grad_norm": 1.0}
"""Zagardo 2024, section 5: N = 1000, η = 5e-5, C = 1, 10 epochs; these are the steps of B = 10."""
PLAN = replace(toys.PLAN, stated=Statement(level="claimed", epsilon=8.0), delta=1e-5)


def std_of(formula: Any, epsilon: float, plan: TrialPlan = PLAN) -> float:
    return DPWeights(max_grad_norm=0.1, formula=formula).noise_std(plan, epsilon)


@pytest.mark.parametrize(
    ("formula", "epsilon", "expected"),
    [
        # E = 10, so ΔW = 10 · 5e-5 / (1000 · 10) = 5e-8; ln(1.25e6) = 14.03865
        ("equation_3", 1.0, math.sqrt(2 * 14.03865 * 5e-8 + 0.00976)),
        ("algorithm_2", 1.0, math.sqrt(2 * 14.03865) * 5e-8 + 0.00976),
        ("equation_3", 10.0, math.sqrt(2 * 14.03865 * 5e-9 + 0.00976 / 1.19676)),
        ("algorithm_2", 10.0, math.sqrt(2 * 14.03865) * 5e-9 + 0.00976 / 1.19676),
    ],
)
def test_the_noise_is_the_papers(formula: Any, epsilon: float, expected: float) -> None:
    """By hand, in the paper's own setting: δ = N^-2."""
    sensitivity = claimed_sensitivity(batch_size=10, **PAPER)
    assert sensitivity == pytest.approx(5e-8)
    found = claimed_noise_std(formula, epsilon=epsilon, delta=1e-6, sensitivity=sensitivity)
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_papers_two_formulas_differ_about_ten_times() -> None:
    """So at most one of them can be right; neither is."""
    for batch in (5, 10, 50, 100):
        sensitivity = claimed_sensitivity(
            batch_size=batch, **{**PAPER, "num_steps": 10_000 // batch}
        )
        for epsilon in (0.5, 1.0, 10.0, 100.0):
            large, small = (
                claimed_noise_std(formula, epsilon=epsilon, delta=1e-6, sensitivity=sensitivity)
                for formula in ("equation_3", "algorithm_2")
            )
            assert 9 < large / small < 13


def trained(method: Any, plan: TrialPlan) -> tuple[torch.Tensor, dict[float, torch.Tensor]]:
    """All weights, and those of its variants."""
    toy = toys.context()
    done = method.train(plan, toy, toys.task(), LocalComm(), TEST_KEY, None)

    def flat() -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in toy.parameters.values()])

    weights, others = flat(), {}
    for stated, put in done.variants.items():
        put()
        others[stated.epsilon] = flat()
    return weights, others


def test_it_is_clipped_training_with_noise_at_the_end_and_other_noise_at_each_epsilon() -> None:
    """Without its noise it is DP-SGD without noise, on the same batches; the level of each test is
    1e-4."""
    weights, others = trained(
        DPWeights(max_grad_norm=0.1, formula="algorithm_2", epsilons=(0.5, 2.0)), PLAN
    )
    dp_sgd, _ = trained(DPSGD(max_grad_norm=0.1), replace(PLAN, noise_multiplier=1e-30))
    noises = {8.0: weights, **others}
    scaled = {
        e: ((w - dp_sgd).double() / std_of("algorithm_2", e)).numpy() for e, w in noises.items()
    }
    for noise in scaled.values():
        low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(noise)) / len(noise)
        assert low < np.square(noise).mean() < high
        assert not low < 1.5 * np.square(noise).mean() < high, "another scale is seen"
    first, *rest = scaled.values()
    for noise in rest:
        assert abs(np.mean(first * noise)) < 4 / math.sqrt(len(noise)), "noise of its own"
    again, _ = trained(
        DPWeights(max_grad_norm=0.1, formula="algorithm_2", epsilons=(0.5, 2.0)), PLAN
    )
    assert torch.equal(weights, again)


def distance(task: Any, without: Any, plan: TrialPlan, *, layers: Callable[[], Any]) -> float:
    """Of the weights before the noise, trained on two neighbours."""
    ends = []
    for one in (task, without):
        context = layers()
        DPSGD(max_grad_norm=1.0).train(
            replace(plan, noise_multiplier=1e-30), context, one, LocalComm(), TEST_KEY, None
        )
        ends.append(torch.cat([p.detach().flatten() for p in context.parameters.values()]))
    return float((ends[0] - ends[1]).norm())


FULL = TrialPlan(
    run_id="x", batch_size=20, num_steps=10, learning_rate=0.1, seed=0, num_examples=20, noise_multiplier=0.0,
    stated=Statement(level="claimed", epsilon=1.0), delta=1e-5,
)  # fmt: skip
"""Full batches, so that E = T."""


def test_the_audits_epsilon_is_that_of_known_pairs() -> None:
    """benchmarks/dp_weights.py publishes it: of one shift it is the Gaussian mechanism's, of a
    shift that some draws have it is the subsampled one's."""
    for shift in (0.01, 1.0, 5.0):
        assert epsilon_of(np.array([shift]), 1.0, 1e-6) == pytest.approx(
            gaussian_epsilon(shift, 1e-6), abs=1e-5
        )
    event = PoissonGaussian(sample_rate=0.3, noise_multiplier=1.0, num_steps=1)
    found = epsilon_of(np.repeat([1.0, 0.0], [3, 7]), 1.0, 1e-5)
    assert found == pytest.approx(PLDAccountant().epsilon(event, 1e-5), rel=1e-4)


def test_one_record_with_a_linear_loss_moves_the_weights_n_times_as_far_as_claimed() -> None:
    """EηC/B, where the paper takes EηC/(NB)."""
    targets = torch.ones(20, 1)
    x = torch.zeros(20, 3)
    x[0, 0] = 5.0  # beyond C; without it, a record whose gradient is 0
    apart = distance(
        LinearTask(x, targets),
        LinearTask(torch.zeros(20, 3), targets),
        FULL,
        layers=lambda: linear_training_context(3, 1, 1),
    )
    claimed = claimed_sensitivity(
        num_examples=20, batch_size=20, num_steps=10, learning_rate=0.1, max_grad_norm=1.0
    )
    assert apart == pytest.approx(10 * 0.1 * 1.0 / 20, rel=1e-5)
    assert apart / claimed == pytest.approx(20, rel=1e-5)


@dataclass(frozen=True)
class FallingTask(LinearTask):
    """The first record's loss falls everywhere; the others' is flat up to w = 1e-3, and falls
    behind it."""

    present: bool
    _lengths: ClassVar[Any] = np.ones(20, np.int64)
    _num_reference: ClassVar[int] = 0

    def per_example_loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        weight = model[0](torch.ones(len(batch.input_ids), 1))[:, 0]
        first = (batch.input_ids[:, 0] == 0).float() * float(self.present)
        return -first * 5 * weight - (1 - first) * 5 * (weight - 1e-3).relu()


def test_one_record_on_which_the_others_wait_moves_them_by_all_that_training_does() -> None:
    """TηC less the first step, where the paper takes TηC/N²: N² times as far."""
    apart = distance(
        FallingTask(present=True),
        FallingTask(present=False),
        FULL,
        layers=lambda: linear_training_context(1, 1, 1),
    )
    claimed = DPWeights()._sensitivity(FULL)
    assert apart / claimed > 0.85 * 20**2
    found = gaussian_epsilon(apart / DPWeights(formula="equation_3").noise_std(FULL, 1.0), 1e-5)
    assert found > 15, "of a claimed ε of 1"


def test_the_record_says_that_it_is_a_claim() -> None:
    method = DPWeights(formula="algorithm_2")
    accounted = AccountedEpsilon(
        epsilon=math.inf,
        delta=1e-5,
        target_epsilon=None,
        accountant="pld",
        accountant_version="not used",
    )
    record = privacy_record(
        accounted=accounted,
        mechanism=Mechanism(event=method.event(FULL, 1.0), max_grad_norm=1.0),
        unit="digit",
        noise_key="secret",
        method=method.record_fields(FULL),
        stated=FULL.stated,
    )
    assert (record.accounted.epsilon, record.certified) == (math.inf, False)
    assert record.to_json()["claimed_epsilon"] == 1.0
    assert record.not_certified_because[0].startswith("claimed ε, not certified: ")
    assert record.seed_policy.startswith("sampling masks and noise come from a secret")
    card = card_markdown(PrivacyCard(record=record, guarantee=NO_GUARANTEE))
    assert "No privacy guarantee is known: ε is infinite. (1, 1e-05) is claimed" in card
    assert "claimed ε, not certified" in card
    assert "differentially private" not in card
    event = PoissonGaussian(sample_rate=1.0, noise_multiplier=1.0, num_steps=1)
    with pytest.raises(
        ValueError, match="claimed_epsilon must be left out of a run with an epsilon"
    ):
        privacy_record(
            accounted=replace(accounted, epsilon=1.0, target_epsilon=1.0),
            mechanism=Mechanism(event=event, max_grad_norm=1.0),
            unit="digit",
            noise_key="secret",
            method=method.record_fields(FULL),
            stated=FULL.stated,
        )


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepSpec, SweepFolder]:
    """The sweep of the documentation, smaller, to its end in this process."""
    where = tmp_path_factory.mktemp("claimed")
    spec = load_spec({
        **yaml.safe_load(SPEC.read_text()),
        "space": {"batch_size": [128], "num_steps": [20, 40], "learning_rate": [1.0]},
        "storage": str(where / "runs"),
        "tracking": {"uri": f"sqlite:///{where}/mlflow.db", "experiment": "e", "registered_model": "claimed"},
    })  # fmt: skip
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    folder = SweepFolder.create(spec, lambda key: plan_to_keep(plan, "a1b2" * 4))
    runner = TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), folder.key())
    folder.commit(runner.measure_base(0))
    for trial in plan.trials:
        folder.commit(runner.run(trial, folder.files(trial.run_id), "attempt-1"))
    context = SweepContext(spec=spec, folder=folder, facts=task.facts(), weight_hash=weight_hash)
    recorder = Recorder.open(context)
    recorder.deliver_missing(list(plan.trials))
    finish(recorder)
    return spec, folder


@pytest.mark.slow
def test_the_plan_and_the_points_show_a_claim_beside_an_infinite_epsilon(
    sweep: tuple[SweepSpec, SweepFolder],
) -> None:
    spec, folder = sweep
    rows = Sweep(spec).plan().to_dict("records")
    assert {(row["epsilon"], row["claimed_epsilon"], row["noise_multiplier"]) for row in rows} == {
        ("inf", 8.0, 0.0)
    }
    points = Sweep(spec).points()
    assert set(points["epsilon"]) == {"inf"}
    assert set(points["claimed_epsilon"]) == {8.0}
    for epsilon in ("0.1", "0.5", "1", "2"):
        assert points[f"claimed.{epsilon}.utility_loss"].between(0, 1).all()
        assert points[f"claimed.{epsilon}.score.mia_outputs"].between(0, 1).all()
    losses = points[
        ["utility_loss", *(c for c in points if c.startswith("claimed.") and c.endswith("loss"))]
    ]
    assert (losses.nunique(axis=1) > 1).any(), "other noise, another model"
    assert about(folder)["card_rows"]["Claimed ε"] == "8, not certified"


@pytest.mark.slow
def test_the_model_that_is_kept_is_that_of_the_target_and_not_of_the_last_variant(
    sweep: tuple[SweepSpec, SweepFolder],
) -> None:
    spec, _ = sweep
    task, _ = build_task(spec)
    for row in Sweep(spec).points().to_dict("records"):
        model = load_model(row["model_uri"], tracking_uri=spec.tracking.uri)
        assert task.utility(model) == pytest.approx(row["utility_loss"])


def test_who_asks_for_a_guarantee_does_not_get_it(sweep: tuple[SweepSpec, SweepFolder]) -> None:
    spec, folder = sweep
    uri = spec.tracking.uri
    everything = find_models(uri)
    assert len(everything) == 4
    assert set(everything["certified"]) == {False}
    assert np.isinf(everything["epsilon"]).all()
    assert set(everything["param.claimed_epsilon"]) == {"8.0"}
    assert len(find_models(uri, max_epsilon=8)) == 0
    assert len(find_models(uri, max_epsilon=1e300)) == 0
    assert len(find_models(uri, certified=True)) == 0
    assert len(find_models(uri, where=["epsilon <= 8"])) == 0
    aliases = {alias for found in everything["aliases"] for alias in found}
    assert aliases == {"best-utility"}, "privacy-preferred is not given"
    assert "@best-utility" in " ".join(lookup_commands(spec.tracking, spec.method.name))
    with pytest.raises(
        ValueError, match=r"alias must not be privacy-preferred .*trained without a guarantee"
    ):
        promote_model("models:/claimed/1", "privacy-preferred", "because", tracking_uri=uri)
    with pytest.raises(ValueError, match="at_most epsilon must be at least inf"):
        select(folder.path, at_most={"epsilon": 8})
    with pytest.raises(ValueError, match="at_most must bound what is known, got claimed_epsilon"):
        select(folder.path, at_most={"claimed_epsilon": 8})
    assert math.isinf(folder.released().epsilon)


def test_options_that_rest_on_a_guarantee_are_refused(
    raydp: Callable[..., Answer], write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    data = yaml.safe_load(SPEC.read_text())
    tuned = {"privacy": {"target_epsilon": 8, "accountant": "rdp", "tuning": "private_selection"}}
    rest = {"seeds": [0], "select": {"score": "mia_outputs"}}
    with pytest.raises(ValueError, match=r"method\.name must be a private method .*'dp_weights'"):
        load_spec({**data, **tuned, **rest})
    answer = raydp("selftest", write_spec(method={"name": "dp_weights"}))
    assert answer.code == 2
    assert "method.name must be a private method, got 'dp_weights'" in answer.err
    sharded = {
        "method": {"name": "dp_weights"},
        "cluster": {"sharding": "full", "workers_per_trial": 2},
    }
    with pytest.raises(ValueError, match=r"cluster\.sharding must be none with method dp_weights"):
        build_task(load_spec(small_spec(tmp_path, **sharded)))
    with pytest.raises(ValueError, match="must be distinct, got"):
        DPWeights(epsilons=(1.0, 1.0))


def test_an_audit_tests_the_claim(tmp_path: Path) -> None:
    spec = load_spec(small_spec(tmp_path, method={"name": "dp_weights", "epsilons": [1.0]}))
    audit = audit_spec(
        AuditSubject(spec=spec), name="a", coins=5, num_canaries=100, confidence=0.95, seeds=(0,)
    )
    assert audit.scores[0].params.epsilon == 8.0


def test_epsilons_that_are_not_given_are_no_part_of_the_identity() -> None:
    assert "epsilons" not in DPWeights().model_dump()
    assert DPWeights().event(FULL, 1.0) == NonPrivateEvent()
