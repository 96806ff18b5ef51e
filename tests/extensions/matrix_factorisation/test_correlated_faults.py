"""Faults of correlated noise and of batches drawn by turns: each is caught by the check that is
there for it."""

from __future__ import annotations

import pytest

from raydp.extensions.matrix_factorisation import method as mf
from raydp.extensions.matrix_factorisation.method import DPMF
from raydp.selftest.checks.adaptive import adaptive_checks
from raydp.selftest.checks.cuts import cut_checks
from raydp.selftest.checks.draws import draw_checks, repeat_checks
from raydp.selftest.checks.noise import noise_checks
from raydp.selftest.checks.sampling import sampling_checks
from raydp.selftest.checks.sweeps import sweep_checks
from raydp.training.noise.correlated import CorrelatedNoise
from tests.marks import slow_after
from tests.selftest.faults import claiming, rewrite
from tests.selftest.test_draw_faults import BY_RUN
from tests.selftest.test_faults import failed

BANDED = DPMF(num_bands=4, momentum=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", slow_after(1, [BANDED, DPMF(num_bands=1), DPMF(num_bands=40)]), ids=["4", "1", "40"]
)
def test_without_a_fault_nothing_fails(method: DPMF) -> None:
    """Also where more bands are asked for than examples or steps that the checks begin with."""
    assert not failed([*noise_checks(method), *sampling_checks(method)])


@pytest.mark.parametrize(
    ("owner", "name", "change", "caught"),
    [
        (CorrelatedNoise, "normal", ("if not self._below:", "if True:"), "noise of two steps"),
        (CorrelatedNoise, "normal", ("for coefficient, before in", "for coefficient, before in [] and"),
         "noise variance"),
        (CorrelatedNoise, "normal", (" / self._diagonal\n", "\n"), "noise variance"),
        (CorrelatedNoise, "normal", ("zip(self._below, past,", "zip(self._below, reversed(past),"),
         "noise of two steps"),
        (mf, "banded_square_root", ("column / np.linalg.norm(column)", "column"),
         "longest column of the noise's strategy"),
    ],
    ids=["independent", "the last steps forgotten", "the diagonal forgotten", "the oldest taken for the newest",
         "columns that are too long"],
)  # fmt: skip
def test_wrong_correlated_noise(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, change: tuple[str, str], caught: str
) -> None:
    rewrite(monkeypatch, owner, name, change)
    assert caught in failed(noise_checks(BANDED))


def test_noise_that_a_resumed_run_draws_without_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(
        monkeypatch, CorrelatedNoise, "normal", ("range(done, step + 1)", "range(step, step + 1)")
    )
    assert not failed(noise_checks(BANDED)), (
        "a run in one go cannot tell; tests/training/test_correlated.py does"
    )


@pytest.mark.parametrize(
    ("change", "caught"),
    slow_after(1, [
        (("step=0, purpose", "step=step, purpose"), "updates between two draws of an example"),
        (("& (groups == step % num_groups)", "| (groups == step % num_groups)"), "sampling rate"),
        ((" & (groups == step % num_groups)", ""), "updates between two draws of an example"),
        (("groups == step % num_groups", "groups == step // 2 % num_groups"),
         "updates between two draws of an example"),
        (("num_groups * plan.batch_size", "plan.batch_size"), "sampling rate"),
    ]),
    ids=["other groups in each step", "everyone in turn", "no groups", "a turn of two steps", "the rate of one step"],
)  # fmt: skip
def test_groups_that_are_not_in_turn(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], caught: str
) -> None:
    rewrite(monkeypatch, mf, "cyclic_poisson_batch", change)
    assert caught in failed(sampling_checks(BANDED))


@pytest.mark.slow
def test_without_a_fault_no_check_of_draws_cuts_and_sweeps_fails() -> None:
    checks = (adaptive_checks, draw_checks, cut_checks, sweep_checks)
    assert not failed(each for of_method in checks for each in of_method(BANDED))


def test_correlated_noise_that_repeats_after_256_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(monkeypatch, CorrelatedNoise, "_row_pieces", ("step=step", "step=step % 256"))
    assert BY_RUN in failed(repeat_checks(BANDED))


def test_an_event_that_claims_5_percent_more_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    claiming(monkeypatch, DPMF, noise_multiplier=lambda sigma: 1.05 * sigma)
    assert "noise variance" in failed(noise_checks(BANDED))
