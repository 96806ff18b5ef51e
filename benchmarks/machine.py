"""What every benchmark says of where it ran: date, hardware, versions."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe(*packages: str) -> dict[str, Any]:
    """Date (UTC), processor, number of usable CPUs, and versions of Python and the named
    distributions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {"cpu": cpu_name(), "cpus": len(os.sched_getaffinity(0))},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
    }


def cpu_name() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine()
