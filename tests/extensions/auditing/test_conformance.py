"""The task with canaries runs the suite of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydp.testing.tasks import TaskConformance
from tests.extensions.classification import test_conformance as classes
from tests.tasks import test_conformance as tasks


class TestAudited(tasks.Wrapping):
    name = "audited"

    def options(self) -> dict[str, Any]:
        return {"num_canaries": 12, "prefix_tokens": 3, "seed": 1}


class TestAuditedClasses(TaskConformance):
    name, bad = "audited", {"num_canaries": 1}

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        of = {"name": "tabular", **classes.TestTabular().written(folder, changed=changed)}
        return {"of": of, "num_canaries": 12, "seed": 1}
