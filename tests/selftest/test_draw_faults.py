"""Faults of what is drawn: noise that comes twice, that is coarse, off the lattice, or less than
the event says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raydp.methods.dp import DPSGD
from raydp.selftest.checks.adaptive import adaptive_checks
from raydp.selftest.checks.draws import (
    draw_checks,
    lattice_checks,
    repeat_checks,
    resolution_checks,
)
from raydp.selftest.checks.noise import noise_checks
from raydp.training.gradients import thresholds
from raydp.training.gradients.thresholds import AdaptiveClipping
from raydp.training.noise import adding, lattice, stream
from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.lattice import add_lattice_noise
from raydp.training.noise.stream import KeyedStream
from tests.marks import slow_after
from tests.selftest.faults import claiming, rewrite
from tests.selftest.test_faults import failed

BY_RUN, BY_STREAM = "noise drawn twice by a run", "noise drawn twice"


@pytest.mark.slow
def test_without_a_fault_nothing_fails() -> None:
    assert not failed(adaptive_checks(DPSGD(clipping="adaptive")))
    assert not failed(draw_checks(DPSGD(momentum=0.9, max_grad_norm=2.0)))


@pytest.mark.parametrize(
    ("where", "cut"),
    slow_after(
        1,
        [
            ("loop", "step % 256"),
            ("noise", "step % 2**16"),
            ("stream", "step & 0xFFFFFFFF"),
            ("stream", "step % (2**16 - 1)"),
        ],
    ),
)
def test_noise_that_repeats_after_some_steps(
    monkeypatch: pytest.MonkeyPatch, where: str, cut: str
) -> None:
    """In whichever place the counter is cut, a run has the noise of an earlier step again."""
    if where == "loop":
        rewrite(monkeypatch, adding, "add_noise", ("step=step, device", f"step={cut}, device"))
    elif where == "noise":
        rewrite(monkeypatch, CorrelatedNoise, "_row_pieces", ("step=step", f"step={cut}"))
    else:
        rewrite(monkeypatch, KeyedStream, "_subkey", ("self.run_id, step,", f"self.run_id, {cut},"))
    found = failed(repeat_checks(DPSGD()))
    assert BY_RUN in found
    assert (BY_STREAM in found) == (where != "loop")


@pytest.mark.parametrize(
    ("label", "caught"),
    slow_after(
        1,
        [
            ("[step, purpose, name]", {BY_STREAM, BY_RUN}),
            ("[self.run_id, step, purpose]", {BY_STREAM, BY_RUN}),
            ("[self.run_id, step, name]", {"words drawn twice"}),
            (
                "[hash((self.run_id, step, purpose, name)) % 4096]",
                {BY_STREAM, BY_RUN, "words drawn twice"},
            ),
        ],
    ),
    ids=["without the run", "without the parameter", "without the purpose", "a label of 12 bits"],
)
def test_streams_that_share_their_words(
    monkeypatch: pytest.MonkeyPatch, label: str, caught: set[str]
) -> None:
    rewrite(monkeypatch, KeyedStream, "_subkey", ("[self.run_id, step, purpose, name]", label))
    assert caught <= failed(repeat_checks(DPSGD()))


@pytest.mark.parametrize(
    ("name", "change"),
    slow_after(
        1,
        [
            (
                "_words",
                (
                    "block, skip = divmod(start, chacha.BLOCK_WORDS)",
                    "block, skip = divmod(start % 2**17, chacha.BLOCK_WORDS)",
                ),
            ),
            ("_words", ("block.to_bytes(16", "(block % 2**24).to_bytes(16")),
        ],
    ),
    ids=["positions of 17 bits", "blocks of 24 bits"],
)
def test_a_large_parameter_whose_positions_share_noise(
    monkeypatch: pytest.MonkeyPatch, name: str, change: tuple[str, str]
) -> None:
    rewrite(monkeypatch, stream, name, change)
    assert BY_STREAM in failed(repeat_checks(DPSGD()))


def in_single_precision(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "normals":
        whole = KeyedStream.normal
        monkeypatch.setattr(
            KeyedStream,
            "normal",
            lambda *a, **k: whole(*a, **k).astype(np.float32).astype(np.float64),
        )
    elif where == "uniforms":
        rewrite(
            monkeypatch, KeyedStream, "uniform",
            ("words >>= np.uint64(11)", "words >>= np.uint64(40)"), ("2.0**-53", "2.0**-24"),
        )  # fmt: skip
    else:
        rewrite(
            monkeypatch,
            lattice,
            "add_lattice_noise",
            ("(draws * (std", "(draws.float().double() * (std"),
        )
        monkeypatch.setattr(
            "raydp.selftest.checks.draws.add_lattice_noise", lattice.add_lattice_noise
        )


@pytest.mark.parametrize(
    ("where", "caught"),
    [
        ("normals", "normals of too few bits"),
        ("uniforms", "normals of few radii"),
        ("the sum", "noise added with too few bits"),
    ],
)
def test_normals_in_single_precision(
    monkeypatch: pytest.MonkeyPatch, where: str, caught: str
) -> None:
    in_single_precision(monkeypatch, where)
    assert caught in failed(resolution_checks())


@pytest.mark.parametrize(
    "change",
    [
        ("add_lattice_noise(gradient, noise, std=std, step=lattice)",
         "gradient += (noise * std).to(gradient).view_as(gradient)"),
        ("lattice_step(threshold,", "lattice_step(float(max(map(torch.norm, total.values()))) / 7 + 1e-3,"),
        ("sum(part.count for part in parts.values())", "1"),
    ],
    ids=["dropped", "from the data", "as if there were one coordinate"],
)  # fmt: skip
def test_a_lattice_that_is_not_there_or_not_public(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    rewrite(monkeypatch, adding, "add_noise", change)
    assert {"lattice of an update", "lattice of another data set"} & failed(lattice_checks(DPSGD()))


def test_an_event_that_claims_5_percent_more_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    claiming(monkeypatch, DPSGD, noise_multiplier=lambda sigma: 1.05 * sigma)
    assert "noise variance" in failed(noise_checks(DPSGD()))


def test_an_event_that_leaves_out_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    claiming(monkeypatch, DPSGD, num_steps=lambda steps: steps - 1)
    assert "updates that are not accounted" in failed(noise_checks(DPSGD()))


def of_step_0(
    self: AdaptiveClipping, unclipped: float, drawn: float, stream: KeyedStream, step: int
) -> float:
    return noisy_count_of_a_step(self, unclipped, drawn, stream, 0)


noisy_count_of_a_step = AdaptiveClipping.noisy_count


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    slow_after(
        1,
        [
            (thresholds, "noisy_count", lambda count, noise: count),
            (thresholds, "noisy_count", lambda count, noise: lattice.noisy_count(count, noise / 2)),
            (AdaptiveClipping, "noisy_count", of_step_0),
            (
                DPSGD,
                "_gradient_noise_multiplier",
                lambda self, plan, noise_multiplier: noise_multiplier,
            ),
            (
                DPSGD,
                "_clipping",
                ("self._count_noise_std(plan)", "self.count_noise_multiplier or 0.0"),
            ),
        ],
    ),
    ids=[
        "no noise",
        "half of it",
        "the same in every step",
        "not paid for",
        "no noise at the default",
    ],
)
def test_an_adaptive_count_that_is_not_paid_for(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any
) -> None:
    if isinstance(fault, tuple):
        rewrite(monkeypatch, owner, name, fault)
    else:
        monkeypatch.setattr(owner, name, fault)
    assert failed(adaptive_checks(DPSGD())) == {"one record"}


def test_observing_uses_the_noise_that_training_uses() -> None:
    """The checks look at the function that the loop calls, not at a copy."""
    assert adding.add_lattice_noise is add_lattice_noise
