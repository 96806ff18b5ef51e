"""The task of conversations runs the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydp.testing.tasks import TaskConformance
from tests.builders.data_files import write_json_lines
from tests.tasks.test_conformance import SECRET, mails


class TestChat(TaskConformance):
    name, bad, knows_users = "chat", {"max_length": 1}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        asked = {"role": "user", "content": "What do you write?"}
        told = ([asked, {"role": "assistant", "content": mail}] for mail in mails(changed=changed))
        rows = [{"messages": messages, "who": i % 9} for i, messages in enumerate(told)]
        path = write_json_lines(folder / "chats.jsonl", rows)
        secret = {"prompt": SECRET["prompt"], "continuation": SECRET["continuation"]}
        secrets = write_json_lines(folder / "secrets.jsonl", [secret])
        return {
            "path": str(path),
            "secrets": str(secrets),
            "template": "plain",
            "heldout_fraction": 0.2,
            "user_column": "who",
        }
