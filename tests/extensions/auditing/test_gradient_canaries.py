"""Gradient canaries: what training adds for them, and that the auditor sees the mechanism that is
accounted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy import stats

from raydp.extensions.auditing.canaries import CanaryTask
from raydp.extensions.auditing.gradient_canaries import GradientCanaries
from raydp.models import base_models as models
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan
from raydp.training.checkpoint import CheckpointStore
from raydp.training.comm import Comm, DistributedComm, LocalComm
from raydp.training.gradients.thresholds import AutomaticClipping, Clipping
from raydp.training.observers import Step
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan
from tests.builders import toys
from tests.builders.specs import SMALL_TASK, small_spec

pytestmark = pytest.mark.xdist_group("invariants")

NUM_CANARIES = 600
COINS = np.array([True, False, True, True])
PLAN = TrialPlan(
    run_id="0" * 16,
    batch_size=3,
    num_steps=2,
    learning_rate=0.1,
    seed=0,
    num_examples=12,
    noise_multiplier=0.5,
)


def canaries(num_coordinates: int = 150) -> GradientCanaries:
    return GradientCanaries(COINS, first=9, seed=4, num_coordinates=num_coordinates, plan=PLAN)


def step_of(units: list[int], total: torch.Tensor, clipping: Clipping) -> Step:
    return Step(
        number=0,
        units=np.array(units),
        factors_fn=clipping.factors,
        threshold=clipping.max_grad_norm,
        noise_multiplier=0.5,
        total=total,
    )


def spec_of(folder: Path, **changes: Any) -> dict[str, Any]:
    task = {
        "name": "audited",
        "of": SMALL_TASK,
        "canary": "gradient",
        "num_canaries": NUM_CANARIES,
        "seed": 5,
    }
    private = {
        "target_epsilon": 4.0,
        "target_delta": 1e-4,
        "accountant": "pld",
        "noise_key": "test",
    }
    points = {"points": [[100, 10, 0.01]]}
    scores = [{"name": "one_run_audit", "delta": 1e-4, "epsilon": 4.0}]
    select = {"score": "one_run_audit", "min_gain_share": None}
    return small_spec(
        folder,
        **{
            "task": task,
            "privacy": private,
            "space": points,
            "scores": scores,
            "select": select,
            **changes,
        },
    )


def ratios_of(folder: Path, **changes: Any) -> tuple[np.ndarray, np.ndarray, TrialPlan]:
    """The ratios that an auditor of real training sees, the coins, and the plan."""
    spec = load_spec(spec_of(folder, **changes))
    task, weight_hash = build_task(spec)
    assert isinstance(task, CanaryTask)
    runner = TrialRunner(spec, task, models.load_base(spec.model), LocalComm(), bytes([7] * 32))
    (plan,) = make_plan(spec, task.facts(), weight_hash).trials
    seen = runner._task_observer(plan)
    assert seen is not None
    context = TrainingContext(
        model=runner._loaded.model,
        parameters=runner._parameters,
        observers=(seen,),
        virtual_units=seen.units,
    )
    spec.method.params.train(plan, context, task, LocalComm(), bytes([7] * 32), None)
    return seen.log_ratios, task.included, plan


def simulated(included: np.ndarray, plan: TrialPlan, *, noise: float = 1.0) -> np.ndarray:
    """The ratios of the accounted mechanism, or of one with another multiple of its noise."""
    rng, q = np.random.default_rng(11), plan.batch_size / plan.num_examples
    size, std = (plan.num_steps, len(included) + 1000), noise * plan.noise_multiplier
    seen = (rng.random(size) < q) * np.append(included, np.zeros(1000)) + std * rng.standard_normal(
        size
    )
    ratios = np.log1p(q * np.expm1((seen - 0.5) / std**2)).sum(axis=0)
    return np.asarray(ratios[: len(included)] - np.quantile(ratios[len(included) :], 0.8))


@pytest.mark.parametrize("clipping", [Clipping(0.2), AutomaticClipping(0.2)])
def test_a_drawn_canary_adds_its_coordinate_with_the_clipping_norm(clipping: Clipping) -> None:
    """The units 9, 10 and 11 are the canaries 0, 2 and 3."""
    seen, total = canaries(), torch.full((150,), 7.0)
    assert seen.units == range(9, 12)
    seen.before_noise(step := step_of([1, 8, 10, 11], total, clipping))
    added = (total - 7).double()
    assert added.abs().sort().values[-3:].tolist() == pytest.approx(
        [0, 0.2, 0.2], rel=1e-3
    )  # fp32; AUTO-S: 5e-5
    noise = 0.1 * torch.randn(150, generator=torch.Generator().manual_seed(0))
    seen.after_noise(replace(step, total=total + noise))
    assert (seen.log_ratios > 0).tolist() == [
        False,
        False,
        True,
        True,
    ]  # x is 1 +- 0.5 for the drawn, 0 +- 0.5 else


def test_a_step_without_canaries_adds_nothing() -> None:
    seen, total = canaries(), torch.ones(150)
    seen.before_noise(step_of([0, 3], total, Clipping(0.2)))
    assert torch.equal(total, torch.ones(150))


def test_controls_need_weights_of_their_own() -> None:
    message = r"canaries must be at most 3 with gradient canaries on 103 trained weights, got 4\. Take fewer"
    with pytest.raises(ValueError, match=message):
        canaries(num_coordinates=103)


@pytest.mark.slow
def test_the_auditor_sees_the_accounted_mechanism(tmp_path: Path) -> None:
    """Kolmogorov and Smirnov against 600 simulated canaries, in and out: one false alarm in a
    thousand each."""
    ratios, included, plan = ratios_of(tmp_path)
    exact, less = simulated(included, plan), simulated(included, plan, noise=0.5)
    for group in (included, ~included):
        assert stats.ks_2samp(ratios[group], exact[group]).pvalue > 1e-3
        assert (
            stats.ks_2samp(ratios[group], less[group]).pvalue < 1e-3
        )  # the test sees half of the noise


def seen_by(comm: Comm, microbatch_size: int, store: CheckpointStore | None = None) -> np.ndarray:
    """The ratios of eight canaries, of which four are the last units of the toy."""
    toy = toys.context(microbatch_size=microbatch_size)
    count = sum(parameter.numel() for parameter in toy.parameters.values())
    seen = GradientCanaries(
        np.arange(8) % 2 == 0, first=36, seed=4, num_coordinates=count, plan=toys.PLAN
    )
    context = replace(toy, observers=(seen,), virtual_units=seen.units, checkpoint_seconds=0.0)
    toys.METHOD.train(toys.PLAN, context, toys.task(), comm, toys.KEY, store)
    assert seen.steps_seen == toys.PLAN.num_steps
    return seen.log_ratios


def _two_ranks(rank: int, world_size: int, rendezvous: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    ratios = seen_by(DistributedComm("cpu"), 3)
    if rank == 0:
        np.save(Path(folder) / "ratios.npy", ratios)
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_and_micro_batches_leave_the_auditors_observations(tmp_path: Path) -> None:
    """The order of fp32 sums moves x by about 1e-6 of c, and the ratio by that over σ² = 0.25 in
    each of 6 steps."""
    reference = seen_by(LocalComm(), toys.NUM_EXAMPLES)
    assert seen_by(LocalComm(), 3) == pytest.approx(reference, abs=1e-3)
    toys.in_ranks(_two_ranks, 2, str(tmp_path / "rendezvous"), str(tmp_path))
    assert np.load(tmp_path / "ratios.npy") == pytest.approx(reference, abs=1e-3)


def test_an_audited_run_saves_no_checkpoint(tmp_path: Path) -> None:
    """It would go on without what the auditor has seen."""
    seen_by(LocalComm(), 3, CheckpointStore(folder=tmp_path / "run", run_id=toys.PLAN.run_id))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": {"name": "nonprivate"}},
            r"method\.name must be dp_sgd, .* got 'nonprivate'\. Audit it",
        ),
        (
            {"method": {"name": "dp_sgd", "clipping": "adaptive"}},
            r"method\.name must be .* without adaptive clipping .*, got 'dp_sgd'",
        ),
        (
            {
                "model": {
                    "name": "tiny",
                    "adapter": {"type": "soft_prompt", "num_virtual_tokens": 2},
                }
            },
            r"canaries must be at most 28 with gradient canaries on 128 trained weights, got 600\. Take fewer",
        ),
        (
            {"cluster": {"max_concurrent_trials": 1, "workers_per_trial": 2, "sharding": "full"}},
            r"cluster\.sharding must be none for gradient canaries, got full",
        ),
    ],
)
def test_training_without_clipped_whole_sums_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_task(load_spec(spec_of(tmp_path, **changes)))
