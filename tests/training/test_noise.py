"""The noise is what the accountant was told, drawn once, and shared by nobody; the sampling is
Poisson at b/n."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raydp.methods.dp import DPSGD
from raydp.methods.method import poisson_batch
from raydp.spec.reading import load_spec
from raydp.sweep.planning.plan import make_plan
from raydp.training import sharding
from raydp.training.comm import LocalComm
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from raydp.training.noise import adding, chacha
from raydp.training.noise import stream as streams
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.lattice import NOISE_WIDENING
from raydp.training.noise.stream import KeyedStream, new_key
from tests.builders import toys
from tests.builders.specs import small_spec

OTHER_KEY = bytes(range(100, 132))
DRAWS = 200_000
LEVEL = 1e-6
"""Chance that a right scale is rejected; at 200,000 draws a scale 2 % off is found with a chance
above 0.999."""


def has_scale(samples: np.ndarray, std: float) -> bool:
    """Whether samples pass for N(0, std²): a Kolmogorov-Smirnov test, and a chi-square test of the
    variance."""
    normal = stats.kstest(samples / std, "norm").pvalue > LEVEL
    spread = (samples / std) @ (samples / std)
    tails = 2 * min(stats.chi2.cdf(spread, len(samples)), stats.chi2.sf(spread, len(samples)))
    return bool(normal and tails > LEVEL)


@pytest.mark.parametrize(
    ("true_std", "accepted"),
    [(1.0, True), (1.02, False), (0.98, False), (0.5, False), (2.0, False)],
)
def test_noise_scale_is_recognised(true_std: float, accepted: bool) -> None:
    """The check that guards the guarantee accepts the right scale and rejects 2 % off."""
    noise = KeyedStream(key=toys.KEY, run_id="scale").normal(DRAWS, step=0, purpose="noise")
    assert has_scale(noise * true_std, 1.0) is accepted


def noise_of_a_step(
    noise_multiplier: float,
    c: float,
    *,
    run_id: str = "noise",
    batch_size: int = 8,
    key: bytes = toys.KEY,
) -> np.ndarray:
    """What one DP-SGD step added to the clipped sum, recovered from the change of the weights."""
    plan = replace(
        toys.PLAN,
        run_id=run_id,
        num_steps=1,
        learning_rate=1.0,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
    )
    method, task = DPSGD(max_grad_norm=c), toys.task()
    toy = toys.context()
    before = {n: p.detach().clone() for n, p in toy.parameters.items()}
    total = {n: torch.zeros_like(p) for n, p in toy.parameters.items()}
    batch = task.batch(method.batch_indices(plan, key, 0))
    engine = ClippedGradients(toy.model, toy.parameters, Clipping(c))
    engine.accumulate(lambda: task.per_example_loss(toy.model, batch), total)
    method.train(plan, toy, task, LocalComm(), key, None)
    changed = [(before[n] - toy.parameters[n].detach()) * batch_size - total[n] for n in before]
    return torch.cat([change.flatten() for change in changed]).double().numpy()


def test_a_step_adds_noise_of_std_sigma_times_c_to_the_sum() -> None:
    samples = np.concatenate([noise_of_a_step(3.0, 0.5, run_id=f"run {k}") for k in range(40)])
    assert has_scale(samples, 1.5 * NOISE_WIDENING)
    assert not has_scale(samples, 1.5 * 1.1), "40 steps are enough to see 10 %"


def test_the_noise_of_a_step_comes_from_the_key_that_training_is_given() -> None:
    """Under two keys, neither of them the public test key."""
    shapes = {name: p.numel() for name, p in toys.context().parameters.items()}
    for key in (toys.KEY, OTHER_KEY):
        stream = KeyedStream(key=key, run_id="noise")
        drawn = [
            stream.normal(count, step=0, purpose="noise", name=name)
            for name, count in shapes.items()
        ]
        noise = noise_of_a_step(3.0, 0.5, key=key) / (1.5 * NOISE_WIDENING)
        np.testing.assert_allclose(
            noise, np.concatenate(drawn), rtol=0, atol=1e-4
        )  # fp32 rounding, and the lattice
    one, other = (noise_of_a_step(3.0, 0.5, key=key) for key in (toys.KEY, OTHER_KEY))
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(
        len(one)
    )  # chance 6e-7; shared noise is at 1


@pytest.mark.parametrize("key", [toys.KEY, OTHER_KEY], ids=["one key", "another key"])
def test_a_poisson_batch_comes_from_the_key_that_it_is_given(key: bytes) -> None:
    for step in range(20):
        mask = KeyedStream(key=key, run_id=toys.PLAN.run_id).poisson_mask(
            toys.NUM_EXAMPLES, 8, step=step
        )
        assert poisson_batch(toys.PLAN, key, step).tolist() == np.flatnonzero(mask).tolist()


def test_two_keys_draw_other_batches() -> None:
    """In no step of 100 are the batches equal. By chance two are equal with 0.68^40, or 2e-7."""
    batches = [
        [poisson_batch(toys.PLAN, key, step).tolist() for step in range(100)]
        for key in (toys.KEY, OTHER_KEY)
    ]
    assert all(one != other for one, other in zip(*batches, strict=True))


def test_the_divisor_is_the_expected_batch_size() -> None:
    """The noise scales with 1/b for the b of the plan, whatever was drawn."""
    drawn = len(DPSGD().batch_indices(replace(toys.PLAN, run_id="noise"), toys.KEY, 0))
    assert drawn != 8, "this key draws another number than b, so the test can tell the two apart"
    assert has_scale(noise_of_a_step(3.0, 0.5), 1.5 * NOISE_WIDENING)


def test_runs_steps_and_parameters_do_not_share_noise() -> None:
    def draw(run_id: str, step: int, name: str) -> np.ndarray:
        return KeyedStream(key=toys.KEY, run_id=run_id).normal(
            20_000, step=step, purpose="noise", name=name
        )

    streams = [
        draw(run, step, name) for run in ("a", "b") for step in (0, 1) for name in ("w", "v")
    ]
    correlations = np.corrcoef(streams)[np.triu_indices(len(streams), k=1)]
    assert np.abs(correlations).max() < 5.5 / np.sqrt(
        20_000
    )  # 28 pairs at 5.5 standard errors: chance 1e-6
    np.testing.assert_array_equal(draw("a", 0, "w"), draw("a", 0, "w"))


def test_no_two_runs_of_a_sweep_share_noise(tmp_path: Path) -> None:
    """Every run that a sweep plans has its own streams: across configurations, seeds, steps,
    purposes, parameters."""
    space = {"batch_size": [8], "num_steps": [2, 3], "learning_rate": [1e-3, 2e-3]}
    spec = load_spec(small_spec(tmp_path, space=space, seeds=[0, 1]))
    trials = make_plan(spec, toys.task().facts(), "weights").trials
    assert len(trials) == 8
    purposes = [("noise", "w"), ("noise", "v"), ("count", ""), ("mask", "")]
    words = [
        KeyedStream(key=toys.KEY, run_id=trial.run_id).bits(
            64, step=step, purpose=purpose, name=name
        )
        for trial, step, (purpose, name) in product(trials, range(3), purposes)
    ]
    assert (
        len(np.unique(words)) == 8 * 3 * 4 * 64
    )  # 64-bit words: two are equal by chance with 1e-12
    one, two = (noise_of_a_step(3.0, 0.5, run_id=trial.run_id) for trial in trials[:2])
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(
        len(one)
    )  # chance 6e-7; shared noise is at 1


def test_the_stream_is_chacha20() -> None:
    """RFC 8439, appendix A.1, test vectors 1 and 2: the key stream of the zero key at block
    counters 0 and 1."""
    words = streams._words(bytes(32), 0, 16).tobytes()
    assert words[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert words[64:80].hex() == "9f07e7be5551387a98ba977c732d080d"


@given(st.integers(0, 200), st.integers(0, 90))
def test_a_stream_can_be_read_from_any_position(start: int, count: int) -> None:
    stream = KeyedStream(key=toys.KEY, run_id="access")
    np.testing.assert_array_equal(
        stream.bits(count, step=1, purpose="noise", start=start),
        stream.bits(start + count, step=1, purpose="noise")[start:],
    )


@given(st.integers(0, 130), st.integers(0, 130), st.integers(0, 130))
def test_a_part_of_the_noise_is_that_part(count: int, start: int, stop: int) -> None:
    """So that a shard draws its own coordinates only; also across the pieces that normals are
    computed in."""
    stream = KeyedStream(key=toys.KEY, run_id="access")
    whole = stream.normal(count, step=1, purpose="noise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK_PAIRS", {"cpu": 16})
        part = stream.normal(count, step=1, purpose="noise", part=slice(start, stop))
    np.testing.assert_array_equal(part, whole[start:stop])


@settings(max_examples=50)
@given(st.integers(0, 2**35 - 100), st.integers(0, 90))
def test_a_device_has_the_words_of_the_stream(start: int, count: int) -> None:
    """By torch's operations, here on a CPU; `test_gpu` tests them and the kernel on a GPU."""
    stream = KeyedStream(key=toys.KEY, run_id="device")
    segment = chacha.Segment(stream._subkey(1, "noise", "w"), start, count)
    expected = stream.bits(count, step=1, purpose="noise", name="w", start=start)
    np.testing.assert_array_equal(
        chacha.words(*segment, streams.CPU).numpy().view(np.uint64), expected
    )
    uniforms = stream.uniform(count, step=1, purpose="noise", name="w", start=start)
    np.testing.assert_array_equal(chacha.uniforms([segment], streams.CPU).numpy(), uniforms)


@pytest.mark.parametrize("bands", [1, 3])
def test_noise_of_small_parameters_drawn_together_is_that_of_each(
    bands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the same sums to the last bit, over several steps, in groups of any size."""
    sizes = {"a": 7, "b": 500, "c": 1, "d": 64, "e": 300}
    stream, strategy = (
        KeyedStream(key=toys.KEY, run_id="groups"),
        (0.8, 0.6, 0.0)[:bands] if bands > 1 else (1.0,),
    )
    released = []
    for devices, room in ((set(), 1), ({"cpu"}, 1 << 23), ({"cpu"}, 400)):
        monkeypatch.setattr(adding, "MANY_AT_ONCE", devices)
        monkeypatch.setattr(adding, "DRAWN_TOGETHER", room)
        source, sums = CorrelatedNoise(strategy), []
        for step in range(3):
            total = {name: torch.linspace(-1, 1, size) for name, size in sizes.items()}
            parts = {name: sharding.part_of(value) for name, value in total.items()}
            adding.add_noise(total, parts, stream, step, 0.7, 0.1, source)
            sums.append(torch.cat(list(total.values())))
        released.append(torch.cat(sums))
    assert torch.equal(released[0], released[1])
    assert torch.equal(released[0], released[2])


def test_normals_of_several_streams_are_those_of_each() -> None:
    stream, counts = KeyedStream(key=toys.KEY, run_id="together"), {"a": 1, "b": 101, "c": 64}
    together = stream.normals_on(streams.CPU, counts, step=3, purpose="noise").numpy()
    alone = [
        stream.normal(count, step=3, purpose="noise", name=name) for name, count in counts.items()
    ]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("count", [1, 2, 7, 101])
def test_normals_are_box_and_mullers_of_the_streams_uniforms(count: int) -> None:
    stream = KeyedStream(key=toys.KEY, run_id="normal")
    half = (count + 1) // 2
    u = stream.uniform(2 * half, step=0, purpose="noise")
    radius, angle = np.sqrt(-2 * np.log(u[:half])), 2 * np.pi * u[half:]
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    # 8 units in the last place of the largest radius, 8.7: roundings of the angle (6.3) and of each
    # function.
    np.testing.assert_allclose(
        stream.normal(count, step=0, purpose="noise"), expected, rtol=0, atol=8 * 2**-49
    )


def test_the_largest_uniform_is_one_and_its_normal_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of all ones and of all zeros, the ends of the range."""
    for word, uniform in [(2**64 - 1, 1.0), (0, 2.0**-54)]:
        monkeypatch.setattr(
            streams, "_words", lambda subkey, start, count, w=word: np.full(count, w, np.uint64)
        )
        stream = KeyedStream(key=toys.KEY, run_id="ends")
        assert stream.uniform(1, step=0, purpose="noise")[0] == uniform
        assert np.abs(stream.normal(4, step=0, purpose="noise")).max() <= 8.66


def test_labels_cannot_be_confused() -> None:
    one = KeyedStream(key=toys.KEY, run_id="a").bits(4, step=1, purpose="noise", name='x", "y')
    two = KeyedStream(key=toys.KEY, run_id="a").bits(4, step=1, purpose='noise", "x', name="y")
    assert (one != two).all()


def test_the_key_decides_and_is_never_shown() -> None:
    key = new_key()
    stream = KeyedStream(key=key, run_id="a")
    assert key.hex() not in repr(stream)
    assert repr(key) not in repr(stream)
    assert (
        stream.bits(8, step=0, purpose="noise")
        != KeyedStream(key=toys.KEY, run_id="a").bits(8, step=0, purpose="noise")
    ).any()


def test_the_public_seed_is_not_the_source_of_the_noise() -> None:
    plans = [replace(toys.PLAN, seed=seed) for seed in (0, 1)]
    masks = [toys.METHOD.batch_indices(plan, toys.KEY, 3) for plan in plans]
    np.testing.assert_array_equal(masks[0], masks[1])


def test_each_example_is_drawn_at_b_over_n_independently() -> None:
    n, b, steps = 50, 7, 20_000
    stream = KeyedStream(key=toys.KEY, run_id="mask")
    masks = np.array([stream.poisson_mask(n, b, step=step) for step in range(steps)])
    rates = masks.mean(axis=0)
    z = (rates - b / n) / np.sqrt(b / n * (1 - b / n) / steps)
    assert np.abs(z).max() < 5.5  # 50 examples at 5.5 standard errors: chance 2e-6
    sizes = masks.sum(axis=1)
    assert stats.chisquare(
        [*np.bincount(sizes, minlength=n + 1)[:16], (sizes >= 16).sum()],
        [*(steps * stats.binom.pmf(np.arange(16), n, b / n)), steps * stats.binom.sf(15, n, b / n)],
    ).pvalue > LEVEL  # fmt: skip
    pairs = np.corrcoef(masks.T)[np.triu_indices(n, k=1)]
    assert np.abs(pairs).max() < 6 / np.sqrt(steps)  # 1,225 pairs at 6 standard errors: chance 2e-6


def test_sampling_everything_and_the_rate_that_is_accounted() -> None:
    stream = KeyedStream(key=toys.KEY, run_id="mask")
    assert stream.poisson_mask(5, 5, step=0).all()
    event = toys.METHOD.event(toys.PLAN, 0.5)
    assert event.sample_rate == toys.PLAN.batch_size / toys.PLAN.num_examples
    assert event.num_steps == toys.PLAN.num_steps
