"""Banded matrix factorisation as a method: who is drawn, what is accounted, and that the two
fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import toeplitz

from raydp.extensions.matrix_factorisation.factorisation import banded_square_root
from raydp.extensions.matrix_factorisation.method import DPMF, cyclic_poisson_batch
from raydp.methods.dp import DPSGD
from raydp.privacy import PLDAccountant, PoissonGaussian, PrivacyCard, card_markdown
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.selftest.observe import NO_NOISE, observed_plan, summed_updates, with_sgd
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import make_plan
from raydp.training.comm import LocalComm
from tests.builders import toys
from tests.builders.plans import NO_GUARANTEE
from tests.builders.specs import small_spec

LARGER = replace(toys.PLAN, num_examples=400, batch_size=20, num_steps=50)
ROUNDING = 1e-6
"""Of sums in single precision, over c."""


def test_one_band_is_dp_sgd_bit_for_bit() -> None:
    options = {"max_grad_norm": 0.1, "momentum": 0.5, "weight_decay": 0.1}
    one, plain = DPMF(num_bands=1, **options), DPSGD(**options)
    assert toys.distance(toys.train(method=one), toys.train(method=plain)) == 0
    assert one.event(toys.PLAN, 0.7) == plain.event(toys.PLAN, 0.7)
    banded = DPMF(num_bands=3, **options)
    assert toys.distance(toys.train(method=banded), toys.train(method=plain)) > 0


def batches(num_bands: int, plan: Any = LARGER) -> list[NDArray[np.int64]]:
    return [cyclic_poisson_batch(plan, toys.KEY, step, num_bands) for step in range(plan.num_steps)]


def test_a_unit_is_drawn_in_the_turns_of_one_group_only() -> None:
    turns: dict[int, set[int]] = {}
    for step, drawn in enumerate(batches(5)):
        for unit in drawn.tolist():
            turns.setdefault(unit, set()).add(step % 5)
    assert len(turns) > 350, "about b T = 1,000 draws of 400 units"
    assert all(len(found) == 1 for found in turns.values())
    sizes = np.bincount([next(iter(found)) for found in turns.values()], minlength=5)
    assert sizes.min() > 40, "about 80 each"
    assert np.mean([len(drawn) for drawn in batches(5)]) == pytest.approx(
        20, rel=0.1
    )  # 3 standard errors


def test_one_unit_more_moves_no_other_to_another_group() -> None:
    """Groups are drawn for each unit alone: neighbours differ in the one that is added, as with the
    masks."""
    everyone = replace(
        LARGER, batch_size=80, num_steps=5
    )  # 5 x 80 = 400: the whole group whose turn it is
    one_more = replace(everyone, num_examples=401)
    for step in range(5):
        here = cyclic_poisson_batch(everyone, toys.KEY, step, 5)
        stream_of_more = cyclic_poisson_batch(replace(one_more, batch_size=80), toys.KEY, step, 5)
        assert set(stream_of_more) - {400} <= set(here)


def test_every_run_has_groups_of_its_own() -> None:
    one, two = (batches(4, replace(LARGER, run_id=name, batch_size=100)) for name in ("a", "b"))
    together = [len(np.intersect1d(x, y)) for x, y in zip(one, two, strict=True)]
    assert np.mean(together) == pytest.approx(400 / 16, rel=0.15)


def test_the_event_counts_a_step_for_every_block_of_updates() -> None:
    event = DPMF(num_bands=4).event(LARGER, 1.5)
    assert event == PoissonGaussian(sample_rate=4 * 20 / 400, noise_multiplier=1.5, num_steps=13)
    assert DPMF(num_bands=20).event(LARGER, 1.5).sample_rate == 1


@pytest.mark.parametrize(
    ("num_bands", "plan", "message"),
    [
        (21, LARGER, r"num_bands must be <= num_examples / batch_size = 400 / 20, got 21"),
        (8, replace(LARGER, num_steps=7), r"num_bands must be <= num_steps 7, got 8"),
    ],
)
def test_bands_that_do_not_fit_are_refused(num_bands: int, plan: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPMF(num_bands=num_bands).event(plan, 1.0)


def test_a_threshold_that_moves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"method.clipping must be flat or automatic with dp_mf, got adaptive"
    ):
        load_spec(small_spec(tmp_path, method={"name": "dp_mf", "clipping": "adaptive"}))


def column(num_bands: int) -> NDArray[np.float64]:
    return np.array(DPMF(num_bands=num_bands, momentum=0.5).noise_strategy(LARGER))


def test_the_strategy_knows_momentum_and_decoupled_decay() -> None:
    plan = replace(LARGER, learning_rate=0.1)
    of = banded_square_root
    np.testing.assert_array_equal(column(4), of(4, momentum=0.5))
    decaying = DPMF(num_bands=4, weight_decay=0.2).noise_strategy(plan)
    np.testing.assert_array_equal(decaying, of(4, decay=1 - 0.1 * 0.2))
    in_loss = DPMF(num_bands=4, weight_decay=0.2, decay="in_loss").noise_strategy(plan)
    np.testing.assert_array_equal(in_loss, of(4))


@pytest.mark.parametrize("num_bands", [1, 2, 4])
def test_a_record_moves_each_block_of_a_run_by_the_clipping_norm_at_most(num_bands: int) -> None:
    """A whole run without noise, with the record and without: C times the updates differs by c
    ‖column‖ in each of the record's turns, in blocks that do not meet. With one record in a batch
    the sum of the blocks is all there is."""
    n, steps, c = 8, 12, 0.5
    method = with_sgd(DPMF(max_grad_norm=c, num_bands=num_bands, momentum=0.5))
    inputs = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))

    def updates(first: float) -> NDArray[np.float64]:
        changed = inputs.clone()
        changed[0] *= first
        plan = observed_plan(
            "one",
            batch_size=n // num_bands,
            num_steps=steps,
            num_examples=n,
            noise_multiplier=NO_NOISE,
        )
        task = LinearTask(changed, torch.ones(n, 1))
        context = linear_training_context(5, 1, 1)
        return (
            torch.stack(summed_updates(method, plan, context, task, LocalComm())).double().numpy()
        )

    strategy = np.array(method.noise_strategy(observed_plan(
        "one", batch_size=1, num_steps=steps, num_examples=n, noise_multiplier=1.0
    )))  # fmt: skip
    c_matrix = toeplitz(np.pad(strategy, (0, steps - num_bands)), np.zeros(steps))
    moved = np.linalg.norm(
        c_matrix @ (updates(100.0) - updates(0.0)), axis=1
    )  # a record of gradient 0 is as none
    (turns,) = np.nonzero(np.linalg.norm(updates(100.0) - updates(0.0), axis=1))
    assert len(turns) == steps // num_bands, "q = 1: drawn in every turn of its group"
    assert (np.diff(turns) == num_bands).all()
    blocks = [np.linalg.norm(moved[turn : turn + num_bands]) for turn in turns]
    assert max(blocks) <= c * (1 + 2.0**-13 + ROUNDING)
    assert blocks[0] == pytest.approx(c, rel=1e-3), "no slack: the record is longer than c"
    assert np.linalg.norm(moved) <= c * np.sqrt(steps / num_bands) * (1 + 2.0**-13 + ROUNDING)


def test_the_plan_calibrates_the_event_and_names_the_method(tmp_path: Path) -> None:
    space = {"batch_size": [4], "num_steps": [10], "learning_rate": [1e-3]}
    method = {"name": "dp_mf", "num_bands": 4, "max_grad_norm": 0.1}
    spec = load_spec(small_spec(tmp_path, space=space, method=method))
    plan = make_plan(spec, toys.task().facts(), "weights")
    (trial, *_), (row,) = plan.trials, plan.rows()
    record = plan.privacy[trial.run_id]
    assert (row["sample_rate"], row["num_steps"]) == (4 * 4 / 40, 10)
    assert (record.mechanism.sample_rate, record.mechanism.num_steps, record.procedure.sampler) == (
        4 * 4 / 40,
        3,
        "cyclic poisson",
    )
    accounted, description = record.accounted, record.procedure.description
    assert description is not None
    assert accounted.target_epsilon is not None
    assert 0 < accounted.epsilon <= accounted.target_epsilon
    event = PoissonGaussian(sample_rate=0.4, noise_multiplier=trial.noise_multiplier, num_steps=3)
    assert PLDAccountant().epsilon(event, accounted.delta) <= accounted.target_epsilon
    for words in ("4 bands", "10 updates", "3 steps"):
        assert words in description
    card = card_markdown(PrivacyCard(record=record, guarantee=NO_GUARANTEE))
    assert f"| mechanism | {description} |" in card


def test_a_space_with_a_configuration_that_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    space = {"batch_size": [4, 16], "num_steps": [10], "learning_rate": [1e-3]}
    spec = load_spec(small_spec(tmp_path, space=space, method={"name": "dp_mf", "num_bands": 4}))
    with pytest.raises(ValueError, match=r"num_examples / batch_size = 40 / 16, got 4"):
        make_plan(spec, toys.task().facts(), "weights")
