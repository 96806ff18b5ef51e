"""Events, accountants, calibration, profiles and privacy records.

Only this package and the accounting of an extension compute an ε. No torch. The names below are
imported on first use, so importing the package loads no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydp.privacy.accounting.accountant import Accountant as Accountant
    from raydp.privacy.accounting.accountant import AccountantError as AccountantError
    from raydp.privacy.accounting.attack import AttackBounds as AttackBounds
    from raydp.privacy.accounting.attack import attack_bounds as attack_bounds
    from raydp.privacy.accounting.calibration import Calibration as Calibration
    from raydp.privacy.accounting.calibration import CalibrationRequest as CalibrationRequest
    from raydp.privacy.accounting.calibration import calibrate as calibrate
    from raydp.privacy.accounting.calibration import calibrate_many as calibrate_many
    from raydp.privacy.accounting.events import Event as Event
    from raydp.privacy.accounting.events import NonPrivateEvent as NonPrivateEvent
    from raydp.privacy.accounting.events import PoissonGaussian as PoissonGaussian
    from raydp.privacy.accounting.events import PrivacyTarget as PrivacyTarget
    from raydp.privacy.accounting.pld import PLDAccountant as PLDAccountant
    from raydp.privacy.accounting.prv import PRVAccountant as PRVAccountant
    from raydp.privacy.accounting.rdp import RDPAccountant as RDPAccountant
    from raydp.privacy.accounting.root_search import CalibrationError as CalibrationError
    from raydp.privacy.records.card import card_markdown as card_markdown
    from raydp.privacy.records.card import remarks as remarks
    from raydp.privacy.records.card_content import PrivacyCard as PrivacyCard
    from raydp.privacy.records.card_content import ReleasedTogether as ReleasedTogether
    from raydp.privacy.records.card_content import Searched as Searched
    from raydp.privacy.records.cautions import Caution as Caution
    from raydp.privacy.records.cautions import bound_in_words as bound_in_words
    from raydp.privacy.records.cautions import cautions_of as cautions_of
    from raydp.privacy.records.cautions import cautions_together as cautions_together
    from raydp.privacy.records.cautions import stated as stated
    from raydp.privacy.records.cross_check import cross_check as cross_check
    from raydp.privacy.records.guarantee import accounted as accounted
    from raydp.privacy.records.guarantee import attack_summary as attack_summary
    from raydp.privacy.records.guarantee import composed as composed
    from raydp.privacy.records.guarantee import guarantee as guarantee
    from raydp.privacy.records.guarantee import profile_rows as profile_rows
    from raydp.privacy.records.parts import AccountedEpsilon as AccountedEpsilon
    from raydp.privacy.records.parts import ChoiceRecord as ChoiceRecord
    from raydp.privacy.records.parts import LedgerSummary as LedgerSummary
    from raydp.privacy.records.parts import Mechanism as Mechanism
    from raydp.privacy.records.parts import MethodPart as MethodPart
    from raydp.privacy.records.parts import MethodRecord as MethodRecord
    from raydp.privacy.records.parts import Procedure as Procedure
    from raydp.privacy.records.parts import ReleasedWeights as ReleasedWeights
    from raydp.privacy.records.record import PrivacyRecord as PrivacyRecord
    from raydp.privacy.records.record import composed_epsilon as composed_epsilon
    from raydp.privacy.records.record import privacy_record as privacy_record
    from raydp.privacy.records.record_check import require_unedited as require_unedited

_NAMES = {
    "accounting.attack": "AttackBounds attack_bounds",
    "accounting.accountant": "Accountant AccountantError",
    "accounting.calibration": "Calibration CalibrationRequest calibrate calibrate_many",
    "accounting.events": "Event NonPrivateEvent PoissonGaussian PrivacyTarget",
    "accounting.pld": "PLDAccountant",
    "accounting.prv": "PRVAccountant",
    "accounting.rdp": "RDPAccountant",
    "accounting.root_search": "CalibrationError",
    "records.card": "card_markdown remarks",
    "records.card_content": "PrivacyCard ReleasedTogether Searched",
    "records.cautions": "Caution bound_in_words cautions_of cautions_together stated",
    "records.cross_check": "cross_check",
    "records.guarantee": "accounted attack_summary composed guarantee profile_rows",
    "records.record_check": "require_unedited",
    "records.parts": "AccountedEpsilon ChoiceRecord LedgerSummary Mechanism MethodPart MethodRecord "
    "Procedure ReleasedWeights",
    "records.record": "PrivacyRecord composed_epsilon privacy_record",
}
"""Module of this package -> its public names."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
