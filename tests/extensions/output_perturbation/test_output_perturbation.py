"""Output perturbation: how far one example moves the trained weights, and that the noise is that of
the event."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize

from raydp.extensions.calculator.many_runs import profiles_of_sweep
from raydp.extensions.classification.labelled import LabelledBatch
from raydp.extensions.output_perturbation import method as output_perturbation
from raydp.extensions.output_perturbation.logistic import LogisticDescent
from raydp.extensions.output_perturbation.method import OutputPerturbation
from raydp.extensions.output_perturbation.release_checks import release_checks
from raydp.models import base_models as models
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import SweepPlan, make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.transfer import SharedFolder
from raydp.testing.points import NETWORK, NUM_EXAMPLES, network_context, points_task
from raydp.training.comm import LocalComm
from raydp.training.noise.stream import TEST_KEY
from raydp.training.trial import Paused, TrainingContext
from raydp.training.trial_plan import TrialPlan
from tests.conftest import Answer
from tests.selftest.faults import rewrite

SPEC = Path(__file__).parents[3] / "docs/specs/mechanisms/output_perturbation.yaml"
EXACT = 1e-9
"""Rounding of double precision over a sensitivity of 1e-4 or more, with weights below 1e3."""


def spec_of(**changes: Any) -> SweepSpec:
    return load_spec({**yaml.safe_load(SPEC.read_text()), **changes})


def planned(spec: SweepSpec) -> SweepPlan:
    task, weight_hash = build_task(spec)
    return make_plan(spec, task.facts(), weight_hash)


def descent_of(
    num_examples: int, batch_size: int, rate: float, decay: float, reach: float = 1.0
) -> LogisticDescent:
    """rate: of the largest learning rate."""
    batches = math.ceil(num_examples / batch_size)
    rest = {
        "max_input_norm": reach,
        "weight_decay": decay,
        "batch_size": batch_size,
        "num_batches": batches,
    }
    largest = LogisticDescent(learning_rate=1e-9, **rest).largest_learning_rate
    return LogisticDescent(learning_rate=rate * largest, **rest)


def trained(
    descent: LogisticDescent,
    x: torch.Tensor,
    y: torch.Tensor,
    start: torch.Tensor,
    num_steps: int,
    without: int | None,
) -> torch.Tensor:
    """The weights, with the place of one example empty; places in their order."""
    theta = start.clone()
    for step in range(num_steps):
        rows = np.arange(len(y))[descent.places(step)]
        rows = rows[rows != without] if without is not None else rows
        descent.step(theta, LabelledBatch(inputs=x[rows], labels=y[rows]))
    return theta


def largest_distance(
    descent: LogisticDescent, x: torch.Tensor, y: torch.Tensor, start: torch.Tensor, num_steps: int
) -> float:
    whole = trained(descent, x, y, start, num_steps, None)
    others = (trained(descent, x, y, start, num_steps, i) for i in range(len(y)))
    return max(float((whole - other).norm()) for other in others)


def worst_case(classes: int, width: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A start that is sure of class 0, and examples of class 1 beyond the input norm: each loss is
    linear, and its gradient as long as can be."""
    generator = torch.Generator().manual_seed(0)
    start = torch.zeros(classes, width + 1, dtype=torch.float64)
    start[0, -1] = 60.0
    return 1e3 * torch.randn(n, width, generator=generator), torch.ones(n, dtype=torch.int64), start


@given(
    n=st.integers(1, 9),
    batch=st.integers(1, 9),
    steps=st.integers(1, 25),
    rate=st.sampled_from([0.01, 0.5, 1.0]),
    decay=st.sampled_from([0.0, 1e-3, 0.1, 3.0]),
    reach=st.sampled_from([0.3, 1.0, 5.0]),
    scale=st.sampled_from([0.0, 1.0, 100.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=150)
def test_no_example_moves_the_weights_by_more_than_the_sensitivity(
    n: int, batch: int, steps: int, rate: float, decay: float, reach: float, scale: float, seed: int
) -> None:
    """Brute force: every data set with one example less, at up to the largest learning rate, from
    starts near and far. Inputs repeat and oppose each other, so that gradients agree and Hessians
    vanish."""
    generator = torch.Generator().manual_seed(seed)
    descent = descent_of(n, min(batch, n), rate, decay, reach)
    x = (
        torch.randn(n, 3, generator=generator)
        * torch.tensor([1e-3, 1.0, 1e6])[torch.randint(3, (n, 1), generator=generator)]
    )
    x[: n // 2] = x[0] * torch.randint(-1, 2, (n // 2, 1), generator=generator)
    y = torch.randint(3, (n,), generator=generator)
    start = scale * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    bound = descent.sensitivity(steps)
    assert largest_distance(descent, x, y, start, steps) <= bound * (1 + EXACT) + descent.rounding(
        start, steps
    )


@pytest.mark.parametrize(("n", "batch"), [(6, 6), (6, 2), (7, 3), (5, 1)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("steps", [1, 7, 12])
def test_an_example_can_move_them_by_as_much(n: int, batch: int, decay: float, steps: int) -> None:
    """So the bound cannot be smaller: not the divisor, not λ, not the number of uses."""
    descent = descent_of(n, batch, 1e-3, decay)
    x, y, start = worst_case(4, 5, n)
    assert largest_distance(descent, x, y, start, steps) / descent.sensitivity(
        steps
    ) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "batch", "steps"), [(10, 10, 5), (10, 3, 17), (10, 4, 3), (10, 1, 10), (10, 9, 40)]
)
@pytest.mark.parametrize("decay", [0.0, 1e-3, 0.3])
def test_the_sensitivity_is_that_of_the_recurrence(
    n: int, batch: int, steps: int, decay: float
) -> None:
    """δ ← (1 - ηλ) δ, plus ηL/b when the example's batch is used; the largest of all places."""
    descent = descent_of(n, batch, 0.7, decay, 2.0)
    eta, ends = descent.learning_rate, []
    for place in range(descent.num_batches):
        delta = 0.0
        for step in range(steps):
            used = step % descent.num_batches == place
            delta = (1 - eta * decay) * delta + used * eta * math.sqrt(2) * math.sqrt(
                2.0**2 + 1
            ) / batch
        ends.append(delta)
    assert descent.sensitivity(steps) == pytest.approx(max(ends), rel=1e-12)


def test_trained_to_the_end_it_is_the_sensitivity_of_the_minimiser() -> None:
    """L / (nλ), and minimisers of neighbours, found by another solver, are no further apart
    (Chaudhuri et al. 2011, Corollary 8, whose 2 is for a record that is replaced)."""
    n, decay = 6, 1.0
    descent = descent_of(n, n, 1.0, decay)
    limit = descent.lipschitz / (n * decay)
    assert descent.sensitivity(10**6) == pytest.approx(limit, rel=1e-9)
    rng = np.random.default_rng(0)
    x, y = np.c_[rng.normal(size=(n, 2)), np.ones(n)], rng.integers(0, 2, n)
    x[:, :2] /= np.maximum(1, np.linalg.norm(x[:, :2], axis=1, keepdims=True))

    def minimiser(rows: np.ndarray) -> np.ndarray:
        def objective(flat: np.ndarray) -> float:
            logits = x[rows] @ flat.reshape(2, 3).T
            nll = np.logaddexp(logits[:, 0], logits[:, 1]) - logits[np.arange(len(rows)), y[rows]]
            return nll.sum() / n + decay / 2 * flat @ flat

        return minimize(objective, np.zeros(6), tol=1e-14).x

    whole = minimiser(np.arange(n))
    start = torch.zeros(2, 3, dtype=torch.float64)
    ours = trained(descent, torch.tensor(x[:, :2]), torch.tensor(y), start, 2000, None)
    np.testing.assert_allclose(ours.flatten(), whole, atol=1e-5)
    apart = [np.linalg.norm(whole - minimiser(np.delete(np.arange(n), i))) for i in range(n)]
    assert 0.3 * limit < max(apart) <= limit


def test_a_step_is_the_gradient_step_of_the_loss() -> None:
    """Against autograd, on inputs within the norm and beyond it."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 2, 3, generator=generator), torch.tensor([0, 2, 1, 2])
    theta = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    descent = descent_of(10, 5, 0.8, 0.2, 2.0)
    flat = x.flatten(1).double()
    norms = flat.norm(dim=1)
    assert 0 < (norms > 2).sum() < 4
    flat = torch.where(norms[:, None] > 2, 2 * flat / norms[:, None], flat)
    leaf = theta.clone().requires_grad_(True)
    logits = flat @ leaf[:, :-1].T + leaf[:, -1]
    nll = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    (nll / 5 + 0.1 * leaf.square().sum()).backward()
    expected = theta - descent.learning_rate * leaf.grad
    loss = descent.step(theta, LabelledBatch(inputs=x, labels=y))
    torch.testing.assert_close(theta, expected, rtol=1e-12, atol=1e-12)
    assert loss == pytest.approx(float(nll.detach()))


def test_beyond_the_largest_learning_rate_steps_part_neighbours() -> None:
    """Its reason: at 1.2 / (β/2 + λ) two points near 0 along the example move apart, at the largest
    they do not."""
    x, y = torch.tensor([[1e9]]), torch.tensor([0])
    close = 1e-4 * torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    for rate, inside in ((1.0, True), (2.1, False)):
        descent = descent_of(1, 1, 1.0, 0.1)
        object.__setattr__(descent, "learning_rate", rate * descent.learning_rate)
        ends = [start.clone() for start in (close, -close)]
        for end in ends:
            descent.step(end, LabelledBatch(inputs=x, labels=y))
        factor = float((ends[0] - ends[1]).norm() / (2 * close).norm())
        assert (factor <= 1 - descent.learning_rate * 0.1 + 1e-6) == inside, factor
    with pytest.raises(
        ValueError,
        match=r"space\.learning_rate must be at most 1\.667 with method\.max_input_norm 1",
    ):
        descent_of(1, 1, 1.001, 0.1)


def test_the_error_of_rounding_is_bounded() -> None:
    """Against the same steps in the platform's long double (64 bits of mantissa)."""
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("long double is double here")
    rng = np.random.default_rng(0)
    descent, steps = descent_of(30, 10, 0.9, 1e-3, 3.0), 500
    x, y = rng.normal(size=(30, 20)).astype(np.float32), rng.integers(0, 4, 30)
    start = torch.from_numpy(rng.normal(size=(4, 21)))
    features = np.c_[x.astype(np.longdouble), np.ones(30)]
    norms = np.sqrt((features[:, :-1] ** 2).sum(axis=1, keepdims=True))
    features[:, :-1] *= 3 / np.maximum(norms, 3)
    theta = start.numpy().astype(np.longdouble)
    for step in range(steps):
        rows = descent.places(step)
        grown = np.exp(features[rows] @ theta.T)
        errors = grown / grown.sum(axis=1, keepdims=True) - np.eye(4)[y[rows]]
        theta = theta - descent.learning_rate * (errors.T @ features[rows] / 10 + 1e-3 * theta)
    ours = trained(descent, torch.from_numpy(x), torch.from_numpy(y), start, steps, None).numpy()
    off = float(np.linalg.norm((ours - theta).astype(np.float64)))
    assert 0 < off < descent.rounding(start, steps) / 2
    assert descent.rounding(start, steps) < 1e-6 * descent.sensitivity(steps)


@pytest.mark.parametrize(
    "method",
    [
        OutputPerturbation(),
        OutputPerturbation(max_input_norm=4, weight_decay=0),
        OutputPerturbation(max_input_norm=0.1, weight_decay=2),
    ],
    ids=str,
)
def test_the_self_test_passes(method: OutputPerturbation) -> None:
    assert [c for c in release_checks(method) if not c.passed] == []


def test_the_noise_on_the_weights_comes_from_the_key_that_training_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batches are those of one key, so that the noise alone can differ."""
    monkeypatch.setattr(
        output_perturbation, "_order", lambda plan, key: np.arange(plan.num_examples)
    )
    plan = TrialPlan(
        run_id="key", batch_size=12, num_steps=8, learning_rate=0.05, seed=0, num_examples=NUM_EXAMPLES,
        noise_multiplier=1.0,
    )  # fmt: skip

    def weights(key: bytes) -> list[float]:
        context = network_context(NETWORK)
        OutputPerturbation().train(plan, context, points_task(), LocalComm(), key, None)
        return torch.cat([p.detach().flatten() for p in context.parameters.values()]).tolist()

    keys = (TEST_KEY, bytes(range(32)), bytes(range(100, 132)))
    released = [weights(key) for key in keys]
    assert released == [weights(key) for key in keys]
    assert len(set(map(str, released))) == len(keys)


WEIGHTS, WORKERS = " (trained weights)", "noise variance, 2 workers (trained weights)"


@pytest.mark.parametrize(
    ("owner", "name", "old", "new", "caught"),
    [
        (LogisticDescent, "sensitivity", "/ self.batch_size", "/ (self.batch_size * self.num_batches)", "one record"),
        (LogisticDescent, "sensitivity", "uses if log_shrink == 0 else", "1 if True else", "one record"),
        (LogisticDescent, "sensitivity", "-(-num_steps // self.num", "(num_steps // self.num", "one record"),
        (LogisticDescent, "step", "/ self.batch_size", "/ len(errors)", "one record"),
        (LogisticDescent, "features", "self.max_input_norm / norms", "2 * self.max_input_norm / norms", "one record"),
        (OutputPerturbation, "_noise_std", "multiplier * sensitivity", "multiplier", "noise variance"),
        (OutputPerturbation, "_fit", "purpose=\"noise\"", "purpose=\"x\"", None),
        (OutputPerturbation, "_fit", "run_id=plan.run_id)", "run_id='r')", "noise of two runs"),
        (OutputPerturbation, "_fit", "key=key, run_id", "key=bytes(32), run_id", "noise of two keys"),
        (OutputPerturbation, "train", "if comm.rank == 0 else []", "", None),
        (LogisticDescent, "places", "+ self.batch_size", "+ self.batch_size + 1", "uses of a place in a pass"),
    ],
)  # fmt: skip
def test_a_fault_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str, caught: str | None
) -> None:
    """Each by its check; two changes that are no fault are not."""
    rewrite(monkeypatch, owner, name, (old, new))
    failed = {
        c.name.removesuffix(WEIGHTS)
        for c in release_checks(OutputPerturbation(max_input_norm=2))
        if not c.passed
    }
    assert (caught in failed) if caught else not failed


def test_a_bound_without_the_bias_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        LogisticDescent, "lipschitz", property(lambda self: math.sqrt(2) * self.max_input_norm)
    )
    failed = [c.name for c in release_checks(OutputPerturbation()) if not c.passed]
    assert failed == ["one record (trained weights)"]


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
def test_the_noise_gives_the_epsilon_by_the_analytic_gaussian_mechanism(accountant: str) -> None:
    """Balle and Wang 2018, Theorem 8, for sensitivity 1 and std σ; 0.5 % is what calibration
    leaves, RDP more."""
    for epsilon in (0.5, 8.0):
        privacy = {"target_epsilon": epsilon, "target_delta": 1e-5, "accountant": accountant}
        plan = planned(
            spec_of(privacy=privacy, space={"points": [[1438, 50, 0.1], [100, 50, 0.1]]})
        )
        (sigma,) = {trial.noise_multiplier for trial in plan.trials}

        def delta(eps: float, sigma: float = sigma) -> float:
            return float(
                stats.norm.cdf(0.5 / sigma - eps * sigma)
                - math.exp(eps) * stats.norm.cdf(-0.5 / sigma - eps * sigma)
            )

        assert delta(epsilon) <= 1e-5 < delta(epsilon * (0.75 if accountant == "rdp" else 0.97))


def test_the_plan_and_the_record_name_the_release() -> None:
    privacy = {"target_epsilon": 2, "delta_exponent": 1.1, "accountant": "pld"}
    plan = planned(spec_of(privacy=privacy, space={"points": [[128, 100, 0.2]]}))
    trial, (row,) = plan.trials[0], plan.rows()
    record = plan.privacy[trial.run_id]
    assert (record.certified, record.mechanism.sample_rate, record.mechanism.num_steps) == (
        True,
        1.0,
        1,
    )
    assert str(record.procedure.sampler).startswith("none: fixed batches")
    assert record.procedure.divisor == "batch size"
    released = record.procedure.released_weights
    assert released is not None
    assert released.sensitivity is not None
    # 12 batches of at most 128, so each is used 9 times in 100 steps: 9 η sqrt(2 (R² + 1)) / b at
    # most
    assert 0.9 < released.sensitivity / (9 * 0.2 * math.sqrt(2 * 17) / 128) < 1
    assert released.noise_std == pytest.approx(
        trial.noise_multiplier * released.sensitivity, rel=3e-4
    )
    assert (row["sample_rate"], row["noise_multiplier"]) == (1.0, trial.noise_multiplier)
    assert record.accounted.epsilon <= 2


def test_its_profile_is_that_of_one_release_whatever_the_steps(tmp_path: Path) -> None:
    spec = spec_of(storage=str(tmp_path), space={"points": [[1438, 50, 0.1], [100, 70, 0.1]]})
    plan = planned(spec)
    folder = SweepFolder.create(spec, lambda key: plan_to_keep(plan, "a1b2" * 4))
    answers = profiles_of_sweep(str(folder.path), "", None)
    assert len(answers) == 2
    for answer in answers:
        at = {row["delta"]: row["epsilon"] for row in answer["curves"]["pld"]}
        assert 3.9 < at[plan.delta] <= 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "mlp:1x8x8:10", "adapter": {"type": "none"}}}, r"model\.name must be a linear network"),
        ({"model": {"name": "linear:1x8x8:10"}}, r"model\.adapter\.type must be none for 'linear:1x8x8:10'"),
        ({"cluster": {"sharding": "full", "workers_per_trial": 2}}, r"cluster\.sharding must be none for 'linear"),
        ({"stopping": {}}, r"stopping must be left out with method output_perturbation"),
        ({"evaluate_every": 5}, r"evaluate_every must be left out with method output_perturbation"),
        ({"space": {"points": [[128, 10, 3.0]]}}, r"space\.learning_rate must be at most 0\.2352"),
    ],
)  # fmt: skip
def test_settings_without_a_guarantee_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(spec_of(**changes))


def test_a_language_model_is_refused(
    raydp: Callable[..., Answer], write_spec: Callable[..., Path]
) -> None:
    answer = raydp("plan", write_spec(method={"name": "output_perturbation"}))
    assert answer.code == 2
    assert (
        "model.name must be a linear network with method output_perturbation, got 'tiny'"
        in answer.err
    )


def one_run(
    spec: SweepSpec, folder: Path, trial: TrialPlan
) -> tuple[RunResult, dict[str, torch.Tensor]]:
    task, _ = build_task(spec)
    runner = TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), TEST_KEY)
    result = runner.run(trial, SharedFolder(folder=folder, run_id=trial.run_id), "a")
    return result, {name: p.detach().clone() for name, p in runner._parameters.items()}


def test_a_run_learns_and_starts_again_to_the_same_weights(tmp_path: Path) -> None:
    spec = spec_of(space={"points": [[1438, 100, 0.2]]})
    trial = planned(spec).trials[0]
    result, weights = one_run(spec, tmp_path / "a", trial)
    assert result.loss < 0.2, "0.9 is a guess"
    assert (result.ledger["executions"], result.ledger["noisy_steps"]) == (1, 1)
    assert [row["drawn"] for row in result.history] == [1438] * 100
    again, same = one_run(spec, tmp_path / "a", trial)
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert (again.ledger["executions"], again.ledger["replays"]) == (2, 1)
    lattice = output_perturbation.lattice_step(
        spec.method.params.descent(trial).sensitivity(100), sum(w.numel() for w in weights.values())
    )
    assert all(bool((w.double() / lattice % 1 == 0).all()) for w in weights.values()), (
        "the weights lie on the lattice"
    )
    _, other = one_run(
        spec, tmp_path / "b", replace(trial, noise_multiplier=2 * trial.noise_multiplier)
    )
    assert not torch.equal(weights["layers.1.weight"], other["layers.1.weight"])


def test_asked_to_pause_it_leaves_nothing(tmp_path: Path) -> None:
    spec = spec_of(space={"points": [[1438, 100, 0.2]]})
    task, _ = build_task(spec)
    trial = planned(spec).trials[0]
    model = models.load_base(spec.model).model
    context = TrainingContext(
        model=model, parameters=dict(model.named_parameters()), pause_fn=lambda: True
    )
    with pytest.raises(Paused):
        spec.method.params.train(trial, context, task, LocalComm(), TEST_KEY, None)


def test_where_double_precision_is_not_enough_nothing_is_trained() -> None:
    spec = spec_of(
        method={"name": "output_perturbation", "max_input_norm": 1000, "weight_decay": 0}
    )
    task, _ = build_task(spec)
    plan = TrialPlan(
        run_id="x",
        batch_size=1,
        num_steps=10**9,
        learning_rate=3e-6,
        seed=0,
        num_examples=1438,
        noise_multiplier=1.0,
    )
    model = models.load_base(spec.model).model
    with pytest.raises(
        ValueError, match=r"method\.max_input_norm must be so small that rounding adds at most"
    ):
        spec.method.params.train(
            plan,
            TrainingContext(model=model, parameters=dict(model.named_parameters())),
            task,
            LocalComm(),
            TEST_KEY,
            None,
        )
