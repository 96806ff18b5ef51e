"""The task without some examples runs the suite of tasks."""

from __future__ import annotations

from typing import Any

from tests.tasks import test_conformance as tasks


class TestWithout(tasks.Wrapping):
    name = "without"

    def options(self) -> dict[str, Any]:
        return {"secrets": "all"}
