"""Noise calibration: the smallest noise multiplier at which a run meets its (ε, δ)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from raydp.plugins.registries import resolve
from raydp.privacy.accounting.accountant import Accountant, AccountantError
from raydp.privacy.accounting.cache import SolutionCache
from raydp.privacy.accounting.events import PoissonGaussian, PrivacyTarget, check_num_steps
from raydp.privacy.accounting.pld import PLDAccountant
from raydp.privacy.accounting.root_search import CalibrationError, Point, smallest_noise

LOGGER = logging.getLogger(__name__)

# Part of the cache's key: raise the number whenever a change here or in an accountant can change a
# result.
ALGORITHM_VERSION = 4
TOLERANCE = 1e-3
SERIAL_UP_TO = 3


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """One run to calibrate.

    Args:
        event: what the run releases. Its own noise_multiplier is ignored.
        target: the (ε, δ) to meet.

    Raises:
        ValueError: there are too many steps, or δ is so large that even releasing whole records
            would meet it.
    """

    event: PoissonGaussian
    target: PrivacyTarget

    def __post_init__(self) -> None:
        # Above `MAX_NUM_STEPS` the accountants' rounding is not known.
        check_num_steps(self.event.num_steps)
        if self.event.sample_rate < 1:
            # A record is sampled at least once with probability 1 - (1 - q)^T. If δ is above this
            # probability, a run without any noise would meet the target.
            seen = -math.expm1(self.event.num_steps * math.log1p(-self.event.sample_rate))
            if self.target.delta >= seen:
                raise ValueError(
                    f"target_delta must be < {seen:.3g}, the chance that a record is ever sampled, "
                    f"got {self.target.delta}. Lower it (n^-1.1 is usual): as it stands no noise "
                    "at all would meet it."
                )

    @classmethod
    def of_batches(
        cls, *, num_examples: int, batch_size: float, num_steps: int, target: PrivacyTarget
    ) -> CalibrationRequest:
        """Calibrate a run that draws its batches from its examples by Poisson sampling.

        Args:
            num_examples: n, number of records (of the privacy unit) that Poisson sampling draws
                from, >= 1.
            batch_size: expected batch size b, > 0 and <= n.
            num_steps: T >= 1.
            target: the (ε, δ) to meet.

        Raises:
            ValueError: an argument is out of its range.
        """
        if num_examples < 1:
            raise ValueError(
                f"num_examples must be >= 1, got {num_examples}. It counts the records sampled "
                "from."
            )
        if not 0 < batch_size <= num_examples:
            raise ValueError(
                f"batch_size must be > 0 and <= num_examples {num_examples}, got {batch_size}. "
                "It is the expected size of a Poisson sample."
            )
        event = PoissonGaussian(
            sample_rate=batch_size / num_examples, noise_multiplier=1.0, num_steps=num_steps
        )
        return cls(event=event, target=target)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A run with its noise, and its ε.

    Attributes:
        event: the run with its noise multiplier σ, solved for a target or given.
        epsilon: the accountant's ε of the event at delta; at most the target's, if there is one.
        delta: δ of the run.
        accountant: the accountant's registry name.
        accountant_version: library and version.
    """

    event: PoissonGaussian
    epsilon: float
    delta: float
    accountant: str
    accountant_version: str

    @property
    def noise_multiplier(self) -> float:
        """Return σ, noise standard deviation over max_grad_norm."""
        return self.event.noise_multiplier


def calibrate(
    request: CalibrationRequest, accountant_name: str, *, cache_dir: Path | str | None = None
) -> Calibration:
    """Return the smallest noise multiplier, up to 0.3 %, that meets a target under an accountant.

    Args:
        request: the run.
        accountant_name: registry name: "prv", "pld", "rdp" or another accountant's.
        cache_dir: folder of solved calibrations; None computes always.

    Guarantee:
        `accountant.epsilon(calibration.event, delta) <= target.epsilon`, evaluated with the
        requested accountant at exactly the returned event.

    Raises:
        CalibrationError: no noise multiplier in the supported range meets the target; the message
            names the range.
        AccountantError: the accountant cannot handle the run; the message names the limit. No other
            accountant replaces it.

    Source: Doroshenko et al. 2022 (pld); Gopi et al. 2021 (prv); Mironov et al. 2019 (rdp).
    """
    return calibrate_many([request], accountant_name, cache_dir=cache_dir, max_workers=1)[0]


def calibrate_many(
    requests: Sequence[CalibrationRequest],
    accountant_name: str,
    *,
    cache_dir: Path | str | None = None,
    max_workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Calibration]:
    """Calibrate many runs in parallel. Each distinct (q, T, ε, δ) is solved once.

    Args:
        requests: the runs.
        accountant_name: registry name.
        cache_dir: folder of solved calibrations; None computes always.
        max_workers: number of processes; by default one per available CPU, and none for three
            problems or fewer. Processes are spawned, so a script that uses more than one needs the
            `if __name__ == "__main__"` guard.
        progress: called as progress(done, total) over distinct problems.

    Returns:
        One calibration per request, in the order of the requests; the guarantee of `calibrate`
        holds for each.

    Raises:
        ValueError: max_workers is below 1, or the accountant is unknown.
        CalibrationError, AccountantError: as `calibrate`, for the first problem that fails; solved
            problems are cached.
    """
    if max_workers is not None and max_workers < 1:
        raise ValueError(
            f"max_workers must be >= 1, got {max_workers}. Leave it out for one per CPU."
        )
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    store = None if cache_dir is None else SolutionCache(cache_dir)
    # Collect the distinct problems, and take their solutions from the cache.
    keys = [_key(request) for request in requests]
    distinct = dict(zip(keys, requests, strict=True))
    solved: dict[tuple[float, ...], Calibration] = {}
    for key, request in distinct.items():
        cached = None if store is None else store.load(_problem(request, accountant))
        if cached is not None:
            solved[key] = _calibration(request, accountant, cached)
            LOGGER.debug("%s, from the cache", _in_words(solved[key]))
    if progress is not None and solved:
        progress(len(solved), len(distinct))
    # Solve the others, and cache each solution as soon as it is known.
    pending = {key: request for key, request in distinct.items() if key not in solved}
    for key, solution in _solve_all(pending, accountant_name, max_workers):
        if store is not None:
            store.save(_problem(pending[key], accountant), solution)
        solved[key] = _calibration(pending[key], accountant, solution)
        LOGGER.debug("%s, calibrated", _in_words(solved[key]))
        if progress is not None:
            progress(len(solved), len(distinct))
    return [solved[key] for key in keys]


def _in_words(solved: Calibration) -> str:
    """Return a solution for the log."""
    event = solved.event
    run = f"q = {event.sample_rate:.4g}, T = {event.num_steps}"
    return f"σ = {event.noise_multiplier:.5g} for {run}: ε = {solved.epsilon:.5g} at δ = {solved.delta:.3g}"


def _key(request: CalibrationRequest) -> tuple[float, ...]:
    """Return what requests with the same solution have in common."""
    return (
        request.event.sample_rate,
        request.event.num_steps,
        request.target.epsilon,
        request.target.delta,
    )


def _problem(request: CalibrationRequest, accountant: Accountant) -> dict[str, object]:
    """Return the cache's key: the problem, and the code and library that solve it."""
    return {
        "algorithm": ALGORITHM_VERSION,
        "accountant": accountant.name,
        "accountant_version": accountant.version,
        "sample_rate": request.event.sample_rate,
        "num_steps": request.event.num_steps,
        "target_epsilon": request.target.epsilon,
        "target_delta": request.target.delta,
    }


def _calibration(
    request: CalibrationRequest, accountant: Accountant, solution: dict[str, float]
) -> Calibration:
    """Return the calibration of a request from its solution."""
    assert solution["epsilon"] <= request.target.epsilon, "a solution above its target"
    return Calibration(
        event=request.event.with_noise(solution["noise_multiplier"]),
        epsilon=solution["epsilon"],
        delta=request.target.delta,
        accountant=accountant.name,
        accountant_version=accountant.version,
    )


def _solve_all(
    pending: dict[tuple[float, ...], CalibrationRequest],
    accountant_name: str,
    max_workers: int | None,
) -> Iterator[tuple[tuple[float, ...], dict[str, float]]]:
    """Yield solutions as they are found, in this process or in spawned ones."""
    default = 1 if len(pending) <= SERIAL_UP_TO else len(os.sched_getaffinity(0))
    workers = min(max_workers or default, len(pending))
    if workers <= 1:
        # Few problems are solved here: a spawned process takes longer to start than one solution
        # takes.
        for key, request in pending.items():
            yield key, _solve(request, accountant_name)
        return
    # Spawned, not forked: the caller may hold threads and locks of torch or Ray.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {
            pool.submit(_solve, request, accountant_name): key for key, request in pending.items()
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # The first failure ends the call. Problems that are being solved end, others never
            # start.
            pool.shutdown(wait=True, cancel_futures=True)


def _solve(request: CalibrationRequest, accountant_name: str) -> dict[str, float]:
    """Return the noise multiplier of one problem, and the accountant's ε at it."""
    # Only the name crosses to another process, so an accountant need not pickle.
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    # A fast approximation finds where to start. The guarantee rests only on the evaluations of the
    # accountant itself.
    exact = accountant.tight_target(request.target)
    guess = _approximate(request, exact)
    # Start half a tolerance below the target, where the search itself aims, so that one evaluation
    # usually ends it.
    start = guess.towards(exact.epsilon * math.exp(0.5 * TOLERANCE * guess.slope))
    point = smallest_noise(
        lambda sigma: accountant.epsilon(request.event.with_noise(sigma), request.target.delta),
        target=request.target.epsilon,
        start=start,
        slope=guess.slope,
        tolerance=TOLERANCE,
    )
    return {"noise_multiplier": math.exp(point.log_sigma), "epsilon": point.epsilon}


def _approximate(request: CalibrationRequest, target: PrivacyTarget) -> Point:
    """Return an approximate solution: by a coarse grid of losses, or else by the central limit."""
    from raydp.privacy.accounting.gdp import gaussian_mu  # loads scipy

    # The central limit theorem for DP-SGD (Bu et al. 2020) gives σ in closed form. From there a
    # coarse pld search corrects it.
    per_step = gaussian_mu(target) / math.sqrt(request.event.num_steps)
    if request.event.sample_rate == 1:
        log_sigma = -math.log(per_step)
    else:  # μ = q sqrt(T (e^(1/σ²) - 1)) (Bu et al. 2020, Corollary 5.4), solved for σ
        log_sigma = -0.5 * math.log(math.log1p((per_step / request.event.sample_rate) ** 2))
    # Rounding losses to multiples of h adds h²/6 to the variance of one step's loss, which is
    # per_step² in the limit: 2e-4 in σ at h = 0.05 per_step. The second term keeps the grid below
    # 200,000 cells if σ is small.
    precision = math.exp(-log_sigma)
    interval = max(min(0.05 * per_step, 5e-3), (10 * precision + precision**2 / 2) / 200_000)
    coarse = PLDAccountant(interval)
    try:
        return smallest_noise(
            lambda sigma: coarse.epsilon(request.event.with_noise(sigma), target.delta),
            target=target.epsilon,
            start=log_sigma,
            slope=-1.5,
            tolerance=TOLERANCE,
        )
    except (AccountantError, CalibrationError):
        # The coarse grid can be too large at a small σ. The central limit then serves alone.
        return Point(log_sigma=log_sigma, epsilon=target.epsilon, slope=-1.5)
