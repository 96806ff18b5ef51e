"""The built-in accountants under the names that the registry gives them."""

from raydp.privacy.base import Accountant, AccountantError
from raydp.privacy.pld import PLDAccountant
from raydp.privacy.prv import PRVAccountant
from raydp.privacy.rdp import RDPAccountant

__all__ = ["Accountant", "AccountantError", "PLDAccountant", "PRVAccountant", "RDPAccountant"]
