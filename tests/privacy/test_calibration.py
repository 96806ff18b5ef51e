"""Calibration: published values, the guarantee, tightness, and what is shared between requests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prv_accountant.dpsgd import DPSGDAccountant

from raydp.plugins.registries import resolve
from raydp.privacy import (
    AccountantError,
    Calibration,
    CalibrationError,
    CalibrationRequest,
    PLDAccountant,
    PoissonGaussian,
    PrivacyTarget,
    RDPAccountant,
    calibrate,
    calibrate_many,
)
from raydp.privacy.accounting.root_search import smallest_noise
from raydp.testing.accountants import gaussian_epsilon
from tests.marks import slow_after


def request(
    n: int, b: int, t: int, epsilon: float = 4.0, delta: float = 1e-6
) -> CalibrationRequest:
    """A request with Table 10's target unless said otherwise."""
    target = PrivacyTarget(epsilon=epsilon, delta=delta)
    return CalibrationRequest.of_batches(num_examples=n, batch_size=b, num_steps=t, target=target)


def event(asked: CalibrationRequest, noise_multiplier: float) -> PoissonGaussian:
    """What the calibrated run releases."""
    return PoissonGaussian(
        sample_rate=asked.event.sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=asked.event.num_steps,
    )


def check(asked: CalibrationRequest, solved: Calibration) -> None:
    """The guarantee and the tightness, recomputed with the accountant that was asked for."""
    accountant = resolve("accountants", solved.accountant)()
    recomputed = accountant.epsilon(event(asked, solved.noise_multiplier), asked.target.delta)
    assert recomputed == solved.epsilon <= asked.target.epsilon
    less_noise = event(asked, solved.noise_multiplier / 1.003)
    assert accountant.epsilon(less_noise, asked.target.delta) > asked.target.epsilon, (
        "more than 0.3 % above tight"
    )


def agrees(sigma: float, printed: str) -> bool:
    """Within half a unit of the last printed digit and 0.5 % (HU's 1.91 in Table 10 is rounded up
    from 1.9035)."""
    unit = 10.0 ** -len(printed.split(".")[1])
    return abs(sigma - float(printed)) <= unit / 2 + 0.005 * float(printed)


@pytest.mark.parametrize(
    ("sigma", "accepted"), [(1.9035, True), (1.91, True), (1.89, False), (1.93, False)]
)
def test_agreement_with_a_printed_value_rejects_one_percent(sigma: float, accepted: bool) -> None:
    assert agrees(sigma, "1.91") is accepted


@pytest.mark.parametrize(
    ("accountant", "batch_size", "num_steps", "sigma"),
    slow_after(
        3,
        [
            ("rdp", 4096, 500, "1.01"),
            ("rdp", 4096, 2000, "1.50"),
            ("pld", 4096, 500, "0.962"),
            ("pld", 2048, 1000, "0.814"),
            ("pld", 4096, 1000, "1.14"),
            ("pld", 8192, 1000, "1.91"),
            ("prv", 2048, 1000, "0.814"),
            ("prv", 4096, 1000, "1.14"),
            ("prv", 8192, 1000, "1.91"),
        ],
    ),
)
def test_table_10(accountant: str, batch_size: int, num_steps: int, sigma: str) -> None:
    """Hu et al. 2025, Table 10: n = 180,000, target (4, 1e-6)."""
    assert agrees(
        calibrate(request(180_000, batch_size, num_steps), accountant).noise_multiplier, sigma
    )


@pytest.mark.parametrize(
    ("accountant", "batch_size", "num_steps", "sigma"),
    slow_after(
        1,
        [
            ("pld", 4096, 250, "1.09"),
            ("pld", 4096, 500, "1.36"),
            ("pld", 4096, 1000, "1.77"),
            ("prv", 4096, 250, "1.09"),
            ("prv", 1024, 500, "0.672"),
            ("prv", 2048, 500, "0.890"),
            ("rdp", 2048, 500, "0.933"),
        ],
    ),
)
def test_table_11(accountant: str, batch_size: int, num_steps: int, sigma: str) -> None:
    """Hu et al. 2025, Table 11: n = 50,000, target (8, 5e-6)."""
    asked = request(50_000, batch_size, num_steps, 8.0, 5e-6)
    assert agrees(calibrate(asked, accountant).noise_multiplier, sigma)


@pytest.mark.parametrize(
    ("n", "epsilon", "sigmas"),
    slow_after(
        1,
        [
            (180_000, 1.0, ("1.51", "2.34", "4.40")),
            (180_000, 2.0, ("1.05", "1.41", "2.42")),
            (180_000, 4.0, ("0.80", "0.96", "1.43")),
            (180_000, 8.0, ("0.62", "0.72", "0.96")),
            (45_000, 4.0, ("1.61", "2.60", "4.94")),
            (90_000, 4.0, ("1.05", "1.46", "2.56")),
            (360_000, 4.0, ("0.67", "0.75", "0.92")),
        ],
    ),
)
def test_table_12(n: int, epsilon: float, sigmas: tuple[str, ...]) -> None:
    """Hu et al. 2025, Table 12: b = 4096, T = 150, 500, 2000, δ = 1e-6, Connect-the-Dots."""
    asked = [request(n, 4096, t, epsilon) for t in (150, 500, 2000)]
    solved = calibrate_many(asked, "pld", max_workers=1)
    assert all(
        agrees(s.noise_multiplier, printed) for s, printed in zip(solved, sigmas, strict=True)
    )


@pytest.mark.parametrize("accountant", ["pld", "prv"])
def test_one_full_batch_step_is_the_analytic_gaussian(accountant: str) -> None:
    """Balle and Wang 2018: σ at which one Gaussian mechanism is exactly (1, 1e-5)-DP is
    3.730632."""
    solved = calibrate(request(5000, 5000, 1, 1.0, 1e-5), accountant)
    assert gaussian_epsilon(1 / 3.7306316, 1e-5) == pytest.approx(1.0, abs=1e-6)
    allowed = {"pld": 1.002, "prv": 1.013}[
        accountant
    ]  # half the tolerance; eps_error 0.01 is 1 % of ε here
    assert 3.7306316 <= solved.noise_multiplier <= 3.7306316 * allowed


@given(
    n=st.integers(3_000, 10**8),
    log_rate=st.floats(math.log(1e-5), 0.0),
    log_steps=st.floats(0.0, math.log(5_000)),
    log_epsilon=st.floats(math.log(0.1), math.log(16.0)),
    accountant=st.sampled_from(["pld", "rdp"]),
)
@settings(max_examples=10, derandomize=True)
def test_guarantee_and_tightness_hold_over_the_range(
    n: int, log_rate: float, log_steps: float, log_epsilon: float, accountant: str
) -> None:
    batch_size = max(1, round(n * math.exp(log_rate)))
    steps = round(math.exp(log_steps))
    delta = min(n**-1.1, 0.1 * steps * batch_size / n)
    asked = request(n, batch_size, steps, math.exp(log_epsilon), delta)
    check(asked, calibrate(asked, accountant))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "b", "t", "epsilon"),
    [(3600, 256, 16, 8.0), (3600, 2048, 64, 0.5), (10**6, 1000, 300, 2.0)],
)
def test_guarantee_and_tightness_hold_for_prv(n: int, b: int, t: int, epsilon: float) -> None:
    asked = request(n, b, t, epsilon, n**-1.1)
    check(asked, calibrate(asked, "prv"))


def test_prv_calibration_satisfies_the_plain_library() -> None:
    asked = request(3600, 512, 32, 8.0, 3600**-1.1)
    solved = calibrate(asked, "prv")
    library = DPSGDAccountant(
        noise_multiplier=solved.noise_multiplier,
        sampling_probability=512 / 3600,
        max_steps=32,
        eps_error=0.01,
        delta_error=asked.target.delta / 1000,
    )
    assert library.compute_epsilon(delta=asked.target.delta, num_steps=32)[2] <= 8.0


def test_pld_calibration_satisfies_the_plain_library() -> None:
    from dp_accounting.pld import privacy_loss_distribution

    asked = request(180_000, 4096, 500)
    solved = calibrate(asked, "pld")
    step = privacy_loss_distribution.from_gaussian_mechanism(
        solved.noise_multiplier, sampling_prob=4096 / 180_000, value_discretization_interval=1e-4
    )
    assert 3.98 < step.self_compose(500).get_epsilon_for_delta(1e-6) <= 4.0


def test_noise_grows_with_batch_and_steps_and_falls_with_epsilon() -> None:
    solved = calibrate_many(
        [
            request(50_000, 500, 200),
            request(50_000, 600, 200),
            request(50_000, 500, 300),
            request(50_000, 500, 200, epsilon=3.0),
            request(50_000, 500, 200, delta=1e-7),
        ],
        "rdp",
        max_workers=1,
    )
    assert all(other.noise_multiplier > 1.003 * solved[0].noise_multiplier for other in solved[1:])


@pytest.mark.slow
def test_equal_problems_are_solved_once_and_answered_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[float | None] = []
    original = PLDAccountant.epsilon

    def counted(self: PLDAccountant, *arguments: object) -> float:
        calls.append(self.interval)
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PLDAccountant, "epsilon", counted)
    small, large = request(10_000, 100, 50), request(10_000, 400, 50)
    seen: list[tuple[int, int]] = []
    one = calibrate_many([small, large], "pld", max_workers=1)
    alone = len(calls)
    same_rate = request(20_000, 200, 50)
    many = calibrate_many(
        [large, small, same_rate, large],
        "pld",
        max_workers=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert len(calls) == 2 * alone
    assert many == [one[1], one[0], one[0], one[1]]
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.slow
def test_processes_agree_with_one_process() -> None:
    asked = [request(10_000, b, 30) for b in (50, 100)]
    assert calibrate_many(asked, "pld", max_workers=2) == calibrate_many(
        asked, "pld", max_workers=1
    )


def test_no_requests_is_no_work() -> None:
    assert calibrate_many([], "pld") == []


def test_the_limit_of_the_accountant_that_was_asked_for_is_the_answer() -> None:
    """At δ = 1e-16 'pld' has no answer; 'rdp' has, and must not be used in its place."""
    asked = request(10_000, 100, 50, 4.0, 1e-16)
    with pytest.raises(AccountantError, match=r"accountant 'pld'"):
        calibrate(asked, "pld")
    check(asked, calibrate(asked, "rdp"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_examples": 0}, "num_examples must be >= 1, got 0"),
        ({"batch_size": 1001}, "batch_size must be > 0 and <= num_examples 1000, got 1001"),
        ({"batch_size": 0}, "batch_size must be > 0 and <= num_examples 1000, got 0"),
        ({"num_steps": 0}, "num_steps must be an integer >= 1, got 0"),
        (
            {"target": PrivacyTarget(epsilon=1.0, delta=0.7)},
            "target_delta must be < 0.651.*got 0.7",
        ),
    ],
)
def test_requests_are_validated(arguments: dict[str, object], message: str) -> None:
    valid = {
        "num_examples": 1000,
        "batch_size": 100,
        "num_steps": 10,
        "target": PrivacyTarget(epsilon=1, delta=1e-4),
    }
    with pytest.raises(ValueError, match=message):
        CalibrationRequest.of_batches(**(valid | arguments))  # type: ignore[arg-type]


def test_unknown_accountant_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"accountant 'prw' is unknown. Did you mean 'prv'\?"):
        calibrate(request(1000, 100, 10), "prw")


def test_workers_are_validated() -> None:
    with pytest.raises(ValueError, match=r"max_workers must be >= 1, got 0"):
        calibrate_many([request(1000, 100, 10)], "pld", max_workers=0)


@pytest.mark.parametrize("start", [-4.0, 0.0, 3.0, 10.0])
@pytest.mark.parametrize("power", [1.0, 2.0, 9.0])
def test_search_ends_just_below_the_target_from_anywhere(start: float, power: float) -> None:
    """On ε = σ^-power with plateaus of inf and 0, as accountants have them, the answer is known: σ
    = 2^(-1/power)."""

    def epsilon(sigma: float) -> float:
        value = sigma**-power
        return math.inf if value > 1e3 else 0.0 if value < 1e-3 else value

    point = smallest_noise(epsilon, target=2.0, start=start, slope=-1.5, tolerance=1e-3)
    tight = 2.0 ** (-1 / power)
    assert tight <= math.exp(point.log_sigma) <= tight * 1.003
    assert point.epsilon == epsilon(math.exp(point.log_sigma)) <= 2.0


@pytest.mark.parametrize("constant", [0.0, math.inf])
def test_search_says_so_when_no_noise_is_tight(constant: float) -> None:
    with pytest.raises(
        CalibrationError,
        match=r"noise_multiplier must be between 0.01 and 1e\+06: epsilon 2 is not",
    ):
        smallest_noise(lambda sigma: constant, target=2.0, start=0.0, slope=-1.5, tolerance=1e-3)


@pytest.mark.parametrize(
    ("batch_size", "num_examples"), [(7, 49), (3, 41), (1, 49), (250, 3_000_017), (4, 4)]
)
def test_an_event_is_calibrated_with_its_own_sampling(batch_size: int, num_examples: int) -> None:
    """Also where b/n · n is not b in floating point; the event's own noise does not count."""
    asked = PoissonGaussian(
        sample_rate=batch_size / num_examples, noise_multiplier=1e-6, num_steps=9
    )
    target = PrivacyTarget(epsilon=2, delta=1e-9)
    solved = calibrate(CalibrationRequest(event=asked, target=target), "rdp")
    assert solved.event == asked.with_noise(solved.noise_multiplier)
    assert RDPAccountant().epsilon(solved.event, 1e-9) == solved.epsilon <= 2
    by_batches = CalibrationRequest.of_batches(
        num_examples=num_examples, batch_size=batch_size, num_steps=9, target=target
    )
    assert calibrate(by_batches, "rdp") == solved
