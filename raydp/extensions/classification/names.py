"""The form of a network's name, and the type in its config.json. It imports no torch."""

from __future__ import annotations

import re

FORM = re.compile(r"([a-z0-9-]+):(\d+(?:x\d+)*):(\d+)")
"""Form of a network's name: architecture, shape of an input, classes."""
MODEL_TYPE = "raydp_network"
