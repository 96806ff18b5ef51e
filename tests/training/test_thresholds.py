"""Automatic and adaptive clipping: exact factors, a threshold that finds its quantile, and noise
that adds up to σ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from raydp.methods.dp import DPSGD, DPAdam
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import make_plan
from raydp.training.comm import LocalComm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import (
    AdaptiveClipping,
    AutomaticClipping,
    Clipping,
    gradient_noise_multiplier,
)
from raydp.training.noise.lattice import NOISE_WIDENING
from raydp.training.noise.stream import KeyedStream
from tests.builders import toys
from tests.builders.specs import small_spec
from tests.training.test_noise import has_scale

NORMS = torch.tensor([0.0, 1e-6, 0.01, 0.3, 0.5, 2.0, 1e6])


def adaptive(
    c: float = 1.0, *, count_noise_std: float = 5.0, quantile: float = 0.5
) -> AdaptiveClipping:
    return AdaptiveClipping(
        c, quantile=quantile, learning_rate=0.2, count_noise_std=count_noise_std, batch_size=100
    )


def test_automatic_factors_are_those_of_the_paper() -> None:
    torch.testing.assert_close(
        AutomaticClipping(0.5).factors(NORMS), 0.5 / (NORMS + 0.01), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "clipping",
    [Clipping(0.5), AutomaticClipping(0.5), adaptive(0.5)],
    ids=lambda c: type(c).__name__,
)
def test_no_scaled_gradient_is_longer_than_the_threshold(clipping: Clipping) -> None:
    assert (clipping.factors(NORMS) * NORMS).max() <= 0.5 * (1 + 2**-22)  # two roundings in fp32


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("start", [1e-3, 1e3])
def test_the_adaptive_threshold_finds_its_quantile(start: float, quantile: float) -> None:
    """From a thousand times too low and too high, with Poisson batches and the default noise of b /
    20 = 5 examples."""
    norms = np.exp(np.random.default_rng(0).normal(size=1000))
    clipping = adaptive(start, quantile=quantile)
    stream = KeyedStream(key=toys.KEY, run_id="quantile")
    seen = []
    for step in range(600):
        drawn = norms[stream.poisson_mask(1000, 100, step=step)]
        clipping.update((drawn <= clipping.max_grad_norm).sum(), len(drawn), stream, step)
        seen.append((norms <= clipping.max_grad_norm).mean())
    # The noisy share has a std of about 0.09 a step (0.05 noise, 0.05 sampling, 0.05 batch size);
    # over the last 300 steps of rate 0.2 what remains of it in the mean is about 0.005.
    assert abs(np.mean(seen[300:]) - quantile) < 0.03


def test_gradient_and_count_together_have_the_accounted_multiplier() -> None:
    """A record of sensitivity 1 in the sum over c and 1/2 in the count: 1/σ_g² + (1/2)²/σ_b² = 1/σ²
    (Theorem 1)."""
    for sigma, count_noise_std in [(0.5, 0.4), (1.0, 5.0), (7.9, 4.0)]:
        gradient = gradient_noise_multiplier(sigma, count_noise_std)
        assert gradient > sigma
        assert 1 / gradient**2 + 0.25 / count_noise_std**2 == pytest.approx(1 / sigma**2, rel=1e-12)


def test_one_record_changes_the_centred_count_by_a_half() -> None:
    stream, clipping = KeyedStream(key=toys.KEY, run_id="half"), adaptive()
    count = clipping.noisy_count(40, 90, stream, 0)
    assert clipping.noisy_count(41, 91, stream, 0) - count == pytest.approx(0.5)
    assert clipping.noisy_count(40, 91, stream, 0) - count == pytest.approx(-0.5)


def noise_of_two_steps(
    run_id: str, *, sigma: float, method: DPSGD
) -> tuple[np.ndarray, list[float], float]:
    """What training added: to the second step's sum over its c_1, and, from the history, to the
    first step's count."""
    plan = replace(toys.PLAN, run_id=run_id, num_steps=2, learning_rate=1.0, noise_multiplier=sigma)
    one, two, task = toys.context(), toys.context(), toys.task()
    # DPSGD's noise of a step is a function of the step alone, so a run of one step gives where the
    # second starts.
    method.train(replace(plan, num_steps=1), one, task, LocalComm(), toys.KEY, None)
    history = method.train(plan, two, task, LocalComm(), toys.KEY, None).history
    c = [record["max_grad_norm"] for record in history]
    total = {n: torch.zeros_like(p) for n, p in one.parameters.items()}
    start = {n: p.detach().clone() for n, p in one.parameters.items()}
    batch = task.batch(method.batch_indices(plan, toys.KEY, 1))
    engine = ClippedGradients(one.model, one.parameters, Clipping(c[1]))
    engine.accumulate(lambda: task.per_example_loss(one.model, batch), total)
    changed = [
        ((start[n] - two.parameters[n].detach()) * plan.batch_size - total[n]).flatten()
        for n in total
    ]
    share = (np.log(c[0]) - np.log(c[1])) / method.clip_learning_rate + method.clip_quantile
    unclipped, drawn = (1 - history[0]["clipped"]) * history[0]["drawn"], history[0]["drawn"]
    return (
        torch.cat(changed).double().numpy() / c[1],
        c,
        (share - 0.5) * plan.batch_size - (unclipped - drawn / 2),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "sigma", "count_noise_std"),
    [(1.5, 2.0, 1.5), (None, 0.53, toys.PLAN.batch_size / 20)],
    ids=["given", "default"],
)
def test_a_run_adds_both_noises_at_their_scales(
    given: float | None, sigma: float, count_noise_std: float
) -> None:
    """Seen from outside, in the weights and in the history: σ_g c_t on the sum, σ_b on the
    count."""
    runs, method = 60, DPSGD(max_grad_norm=0.5, clipping="adaptive", count_noise_multiplier=given)
    gradients, thresholds, counts = zip(
        *(noise_of_two_steps(f"run {k}", sigma=sigma, method=method) for k in range(runs)),
        strict=True,
    )
    expected = gradient_noise_multiplier(sigma, count_noise_std)
    assert expected > 1.3 * sigma, "far enough from σ to tell the two apart"
    assert len({c[1] for c in thresholds}) == runs, "the threshold moved, each time elsewhere"
    assert has_scale(np.concatenate(gradients), expected * NOISE_WIDENING)
    assert not has_scale(np.concatenate(gradients), sigma)
    assert has_scale(np.array(counts), count_noise_std)
    assert not has_scale(np.array(counts), 2 * count_noise_std)
    correlation = np.corrcoef(counts, [g.mean() for g in gradients])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(runs), "the two noises are independent"


def test_the_count_has_noise_of_its_own_in_every_step() -> None:
    stream, clipping = KeyedStream(key=toys.KEY, run_id="count"), adaptive(count_noise_std=3.0)
    draws = np.array([clipping.noisy_count(50, 100, stream, step) for step in range(4000)])
    assert has_scale(draws, 3.0)
    assert stats.pearsonr(draws[1:], draws[:-1]).pvalue > 1e-6


@pytest.mark.parametrize(("given", "shown"), [(None, r"0.4 \(batch_size / 20\)"), (0.5, "0.5")])
def test_a_count_that_spends_everything_is_an_error_before_training(
    given: float | None, shown: str
) -> None:
    method = DPSGD(clipping="adaptive", count_noise_multiplier=given)
    with pytest.raises(
        ValueError, match=rf"count_noise_multiplier must be above .* = 0\.5, got {shown}\. Give"
    ):
        method.event(toys.PLAN, 1.0)
    assert method.event(toys.PLAN, 0.7) == DPSGD().event(toys.PLAN, 0.7), (
        "the accounted event is the same"
    )


def test_the_plan_of_a_sweep_finds_it(tmp_path: Path) -> None:
    method = {"name": "dp_adam", "clipping": "adaptive", "count_noise_multiplier": 0.01}
    spec = load_spec(small_spec(tmp_path, method=method))
    with pytest.raises(ValueError, match="count_noise_multiplier must be above"):
        make_plan(spec, replace(toys.task().facts(), num_examples=1000, num_units=1000), "weights")


def test_parameters_that_would_be_ignored_are_errors(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^method.clip_quantile must be left out with clipping 'flat', got 0.3\."
    ):
        load_spec(small_spec(tmp_path, method={"name": "dp_sgd", "clip_quantile": 0.3}))


def test_options_that_are_not_in_use_are_not_part_of_a_runs_identity() -> None:
    assert set(DPAdam().model_dump()) == {"max_grad_norm", "momentum", "betas", "eps"}
    adaptive = DPAdam(clipping="adaptive", clip_quantile=0.7)
    assert DPAdam.model_validate(adaptive.model_dump()) == adaptive
    assert "clip_quantile" not in DPAdam(clipping="automatic").model_dump()
