"""Events, accountants, calibration, profiles and privacy records.

Only this package and the accounting of an extension compute an ε. No torch.
"""

from raydp.privacy.accounting.attack import AttackBounds, attack_bounds
from raydp.privacy.accounting.base import Accountant, AccountantError
from raydp.privacy.accounting.calibration import (
    Calibration,
    CalibrationRequest,
    calibrate,
    calibrate_many,
)
from raydp.privacy.accounting.events import Event, NonPrivateEvent, PoissonGaussian, PrivacyTarget
from raydp.privacy.accounting.pld import PLDAccountant
from raydp.privacy.accounting.profile import profile
from raydp.privacy.accounting.prv import PRVAccountant
from raydp.privacy.accounting.rdp import RDPAccountant
from raydp.privacy.accounting.root_search import CalibrationError
from raydp.privacy.mechanisms.data_sets import (
    DataSetsRecord,
    SetEpsilon,
    data_sets_record,
    epsilons_of_sets,
)
from raydp.privacy.mechanisms.reference import WeightedSets, excess_risk_bounds
from raydp.privacy.records.card import card_markdown, remarks
from raydp.privacy.records.card_content import (
    LedgerSummary,
    PrivacyCard,
    ReleasedTogether,
    Searched,
)
from raydp.privacy.records.cautions import Caution, cautions_of, cautions_together, stated
from raydp.privacy.records.cross_check import cross_check
from raydp.privacy.records.guarantee import attack_summary, composed, guarantee, profile_rows
from raydp.privacy.records.kept import require_kept
from raydp.privacy.records.parts import (
    AccountedEpsilon,
    ChoiceRecord,
    Mechanism,
    MethodRecord,
    Procedure,
    ReleasedWeights,
)
from raydp.privacy.records.record import PrivacyRecord, composed_epsilon, privacy_record

__all__ = [
    "Accountant",
    "AccountantError",
    "AccountedEpsilon",
    "AttackBounds",
    "Calibration",
    "CalibrationError",
    "CalibrationRequest",
    "Caution",
    "ChoiceRecord",
    "DataSetsRecord",
    "Event",
    "LedgerSummary",
    "Mechanism",
    "MethodRecord",
    "NonPrivateEvent",
    "PLDAccountant",
    "PRVAccountant",
    "PoissonGaussian",
    "PrivacyCard",
    "PrivacyRecord",
    "PrivacyTarget",
    "Procedure",
    "RDPAccountant",
    "ReleasedTogether",
    "ReleasedWeights",
    "Searched",
    "SetEpsilon",
    "WeightedSets",
    "attack_bounds",
    "attack_summary",
    "calibrate",
    "calibrate_many",
    "card_markdown",
    "cautions_of",
    "cautions_together",
    "composed",
    "composed_epsilon",
    "cross_check",
    "data_sets_record",
    "epsilons_of_sets",
    "excess_risk_bounds",
    "guarantee",
    "privacy_record",
    "profile",
    "profile_rows",
    "remarks",
    "require_kept",
    "stated",
]
