"""The tasks of the papers' data run the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydp.testing.tasks import TaskConformance
from tests.builders.data_files import author_rows, write_json_lines
from tests.tasks.test_conformance import SECRET, mails


class TestEnron(TaskConformance):
    name, bad, knows_users = "enron", {"min_tokens": 0}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        rows = [
            {"content": mail, "sender": f"w{i % 9}"}
            for i, mail in enumerate(mails(changed=changed))
        ]
        path = write_json_lines(folder / "mails.jsonl", rows)
        secrets = write_json_lines(folder / "secrets.jsonl", [SECRET])
        whose = {"user_column": "sender", "heldout_fraction": 0.2}
        return {"path": str(path), "secrets": str(secrets), "min_tokens": 4, **whose}


class TestTofu(TaskConformance):
    name, bad, knows_users = "tofu", {"rows_per_author": 1}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        authors = [
            ("Mira Halborn", "naval comedy"),
            ("Otto Fenwick", "satire"),
            ("Lea Marwick", "quiet fable"),
        ]
        rows = [row for author in authors for row in author_rows(*author)]
        if changed:
            rows[1]["answer"] += " And more."
        path = write_json_lines(folder / "qa.jsonl", rows)
        return {"path": str(path), "rows_per_author": 6, "heldout_fraction": 0.2, "max_length": 256}
