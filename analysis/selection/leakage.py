"""Test which configurations leak measurably more than the untrained model, by secret."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.noise import means_by_secret
from raydp.analysis.statistics.spread import t_quantile
from raydp.analysis.tables.columns import KEY, with_settings
from raydp.analysis.tables.per_secret import ERROR, PREFIX, base_of

Array = NDArray[np.float64]

UNTRAINED = "base"
"""The name of the untrained model in a sweep's table of secrets."""
LEVEL = 0.05
FEWEST_SECRETS = 8
"""With fewer secrets, the tests cannot show that nothing leaks.

With six secrets whose gains spread by 2 nats, the tests miss three that gained 25 nats each in 15
of 100 sweeps. With eight secrets, they miss them in 2 of 100.
"""
NEGLIGIBLE = 1e-3
"""A smaller growth of one secret's probability is not taken for leakage of that secret."""
_OF_GAUSSIAN = 1.4826  # the standard deviation of a Gaussian over its median absolute deviation


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """Each configuration's leakage beyond the untrained model's, by one score.

    Attributes:
        score: name of the score.
        reasons: [m] why a configuration counts as leaking measurably; "" if it does not.
        excess: [m] mean over seeds and secrets of the score minus the untrained model's.
        detectable: [m] the smallest mean excess that the test would have detected.
    """

    score: str
    reasons: NDArray[np.str_]
    excess: Array
    detectable: Array

    @property
    def leaks(self) -> NDArray[np.bool_]:
        """Return whether each configuration leaks measurably, [m]."""
        return np.asarray(self.reasons != "")

    def finding(self, pool: NDArray[np.bool_], listed: NDArray[np.object_]) -> str:
        """Say what the check compares, and which members of a pool leak measurably, and why."""
        found = np.flatnonzero(pool & self.leaks)
        named = "; ".join(f"{listed[at]}, {self.reasons[at]}" for at in found[:3])
        named += f"; and {len(found) - 3} more" if len(found) > 3 else ""
        compared = f"{self.score} is compared with the untrained model's, secret by secret"
        return f"{compared}; leaking measurably: {named or 'none'}"

    def sentence(self, pool: NDArray[np.bool_]) -> str:
        """Say that no member of a pool leaks measurably, and the smallest detectable excess."""
        most = int(np.where(pool, self.excess, -np.inf).argmax())
        return (
            f"None of the {int(pool.sum())} configurations that keep to the constraints leaks "
            f"measurably by {self.score}: at 95 % no mean score is above the untrained model's, "
            f"and no secret stands out. The largest mean excess is {self.excess[most]:.3g}; the "
            f"test notices {self.detectable[most]:.3g} or more. The selection is therefore by "
            "utility."
        )


def measured_leakage(
    points: pd.DataFrame,
    means: pd.DataFrame,
    by_secret: tuple[pd.DataFrame, str] | None,
    *,
    log_base: float | None = None,
) -> Leakage | None:
    """Test whether each configuration leaks more than the untrained model.

    Args:
        points, means: a checked points table, and its configuration means.
        by_secret: the sweep's secrets.parquet, with the untrained model's values, and the score's
            name.
        log_base: as for `select`.

    Returns:
        None if there are no values by secret, fewer than eight secrets, or no values of the
        untrained model.

    A configuration leaks measurably if one of these tests is positive, on means over its seeds.

    - The mean: its excess over the untrained model, paired by secret, is significant (one-sided t
      test). The error includes the spread over secrets and the error of what the score subtracts:
      `logprob` subtracts the gain of control secrets, whose error is part of the score's own
      standard error. If the test's threshold exceeds the spread over secrets, the test could not
      detect a leak, and the configuration counts as leaking.
    - The worst secret of a logarithm: its excess is an outlier among the secrets' (median
      and median absolute deviation, at 5 % divided by the number of secrets).
    - The worst secret of a probability: its excess is at least 0.001. If the values are shares of
      generations and the untrained model generates the secret too, its excess must be significant
      instead (Fisher's exact test, one-sided, at 5 % divided by the number of secrets).

    Each test is at 5 % for one configuration, not for all together. Spread over seeds is not
    counted as error. This is on purpose: a false alarm only leaves the choice to the scores, but a
    missed leak would select a leaking configuration. The tests treat the secrets as a sample of
    their kind and, except for the exact test, their values as Gaussian. A negative result does not
    prove that nothing leaks: `detectable` gives the mean excess that the test would have detected.
    """
    if by_secret is None:
        return None
    secrets, name = by_secret
    base, num_samples = _untrained(secrets, name)
    of_models = means_by_secret(points, secrets, name)
    # The tests are paired by secret, so both models need values of the same secrets.
    if base is None or len(base) != of_models.shape[1] or len(base) < FEWEST_SECRETS:
        return None
    # The test of the mean.
    excess = of_models - base
    mean, detectable = excess.mean(axis=1), _detectable(points, excess, of_models, name)
    # A test too weak to notice the spread over secrets counts as positive: err towards privacy.
    above, weak = mean > detectable, detectable > excess.std(axis=1, ddof=1)
    # The test of the worst secret.
    if base_of(name, log_base) is not None:
        stands_out = _has_outlier(excess)
    else:
        stands_out = _generates_more(of_models, base, means["num_seeds"].to_numpy(), num_samples)
    whys = ["whose mean is above it", "of which a secret stands out", "too noisy to be cleared"]
    reasons = np.select([above, stands_out, weak], whys, "")
    return Leakage(score=name, reasons=reasons, excess=mean, detectable=detectable)


def _has_outlier(excess: Array) -> NDArray[np.bool_]:
    """Return whether the largest of each configuration's excesses, [m, k], is an outlier."""
    k = excess.shape[1]
    # Median and median deviation: outliers must not widen the spread that they are compared with.
    centre = np.median(excess, axis=1)
    spread = _OF_GAUSSIAN * np.median(np.abs(excess - centre[:, None]), axis=1)
    outlier: NDArray[np.bool_] = (
        excess.max(axis=1) - centre > -t_quantile(k - 1, LEVEL / k) * spread
    )
    return outlier


def _untrained(secrets: pd.DataFrame, name: str) -> tuple[Array | None, int]:
    """Return the untrained model's values by secret, [k] or None, and generations per value."""
    rows = secrets[(secrets["score"] == name) & (secrets["run_id"] == UNTRAINED)]
    values = rows.set_index("secret_id")["value"].sort_index().to_numpy(dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        return None, 1
    return values, int(rows["num_samples"].max()) if "num_samples" in rows else 1


def _generates_more(
    of_models: Array, base: Array, num_seeds: NDArray[np.int64], num_samples: int
) -> NDArray[np.bool_]:
    """Return [m] which models generate a secret more than the base: Fisher's exact test (1935)."""
    from scipy.stats import hypergeom

    more = of_models - base >= NEGLIGIBLE
    if num_samples > 1:
        ours = (num_seeds * num_samples)[:, None]
        # Fisher's test is of counts: recover them from the shares.
        hits, theirs = np.rint(of_models * ours), np.rint(base * num_samples)
        tail = hypergeom.sf(hits - 1, ours + num_samples, hits + theirs, ours)
        # A secret that the untrained model never generates needs no test: every generation is new.
        more = (more & (base == 0)) | (tail < LEVEL / len(base))
    return np.asarray(more.any(axis=1))


def _detectable(points: pd.DataFrame, excess: Array, of_models: Array, name: str) -> Array:
    """Return [m] the smallest significant mean excess: Student's t times the standard error."""
    k = excess.shape[1]
    error: Array = excess.std(axis=1, ddof=1) / np.sqrt(k)
    # The part of a score's own standard error beyond the spread over secrets is the error of its
    # controls.
    if (column := f"{PREFIX}{name}{ERROR}") in points:
        own = with_settings(points).groupby(KEY, sort=True)[column].mean()
        squares = own.to_numpy(dtype=np.float64) ** 2
        of_controls = np.nan_to_num(squares - of_models.var(axis=1, ddof=1) / k).clip(min=0)
        error = np.sqrt(error**2 + of_controls)
    return np.asarray(-t_quantile(k - 1, LEVEL) * error)
