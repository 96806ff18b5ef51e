"""The version of the installed distribution `raydp-tune`."""

from importlib.metadata import version

__version__ = version("raydp-tune")
