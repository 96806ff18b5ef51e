"""A sweep with twins, as the tests of sweeps share it."""

from tests.sweep.conftest import trained

__all__ = ["trained"]
