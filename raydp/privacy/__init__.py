"""The only room that computes an ε: events, accountants, calibration, profiles and privacy records. No torch."""

from raydp.privacy.accountants import Accountant, AccountantError, PLDAccountant, PRVAccountant, RDPAccountant
from raydp.privacy.calibration import Calibration, CalibrationRequest, calibrate, calibrate_many
from raydp.privacy.events import Event, NonPrivate, PoissonGaussian, PrivacyTarget
from raydp.privacy.profile import profile
from raydp.privacy.record import composed_epsilon, privacy_record
from raydp.privacy.search import CalibrationError

__all__ = [
    "Accountant",
    "AccountantError",
    "Calibration",
    "CalibrationError",
    "CalibrationRequest",
    "Event",
    "NonPrivate",
    "PLDAccountant",
    "PRVAccountant",
    "PoissonGaussian",
    "PrivacyTarget",
    "RDPAccountant",
    "calibrate",
    "calibrate_many",
    "composed_epsilon",
    "privacy_record",
    "profile",
]
