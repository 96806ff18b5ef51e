"""Compare a record that a file kept with the record of today: an edited guarantee is refused."""

from __future__ import annotations

from collections.abc import Callable

from raydp.analysis.tables.statements import stated_columns
from raydp.privacy.records.record import PrivacyRecord

ROUNDING = 1e-6
"""Largest relative excess of a recomputed ε over a kept one.

Another machine may round the last bits otherwise.
"""


def require_unedited(
    kept: PrivacyRecord, now: PrivacyRecord, epsilon_fn: Callable[[], float]
) -> None:
    """Check that a kept record still holds. Its noise may be that of another version's calibration.

    Args:
        kept: the record in a file.
        now: the record of the same run, calibrated now.
        epsilon_fn: computes ε at the kept noise. It is called if the kept record has less noise
            than `now`, or less ε.

    Raises:
        ValueError: another part of the guarantee than noise and ε differs, or ε is too small for
            the kept noise.
    """
    if kept == now:
        return
    # Whatever a user could edit to make the guarantee look stronger must be as planned now.
    for name, value in _stated(kept).items():
        if value != (wanted := _stated(now)[name]):
            raise ValueError(f"{name} of a privacy record must be {wanted!r}, got {value!r}")
    # Noise and ε may differ, because another version calibrates otherwise. Then ε must hold at the
    # kept noise: an edited σ or ε fails here.
    epsilon = kept.accounted.epsilon
    if (
        kept.mechanism.noise_multiplier >= now.mechanism.noise_multiplier
        and epsilon >= now.accounted.epsilon
    ):
        return  # ε falls with more noise
    computed = epsilon_fn()
    if not computed <= epsilon * (1 + ROUNDING):
        raise ValueError(
            f"epsilon of a privacy record must be at least {computed:.6g} at its noise, got "
            f"{epsilon:.6g}"
        )


def _stated(record: PrivacyRecord) -> dict[str, object]:
    """Return what a record states, without numbers that a calibration decides and without prose."""
    mechanism, accounted, choice = record.mechanism, record.accounted, record.choice
    return {
        "sample_rate": mechanism.sample_rate,
        "num_steps": mechanism.num_steps,
        "max_grad_norm": mechanism.max_grad_norm,
        "clipping": mechanism.clipping,
        "accountant": accounted.accountant,
        "delta": accounted.delta,
        "target_epsilon": accounted.target_epsilon,
        **stated_columns(record.stated),
        "unit": record.unit,
        "certified": record.certified,
        "tuning": record.tuning,
        record.tuning: None if choice is None else choice.terms(),
        "method's part": None if record.part is None else record.part.name,
    }
