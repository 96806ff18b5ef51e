"""The built-in accountants, re-exported for the registry."""

from raydp.privacy.accounting.base import Accountant, AccountantError
from raydp.privacy.accounting.pld import PLDAccountant
from raydp.privacy.accounting.prv import PRVAccountant
from raydp.privacy.accounting.rdp import RDPAccountant

__all__ = ["Accountant", "AccountantError", "PLDAccountant", "PRVAccountant", "RDPAccountant"]
