"""A finished sweep, as the tests of sweeps share it."""

from tests.sweep.conftest import trained

__all__ = ["trained"]
