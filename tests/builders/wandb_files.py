"""Read the files that Weights & Biases writes offline.

The format is LevelDB's log with a header of seven bytes.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER = 32768, 7


def records(path: Path) -> list[Record]:
    """All records of one `.wandb` file."""
    content, found, part = path.read_bytes(), [], b""
    assert content.startswith(b":W&B")
    position = HEADER
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:  # the rest of a block is padding
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += HEADER
        part += content[position : position + length]
        position += length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(Record.FromString(part))
            part = b""
    return found


class WandbRun:
    """One run, as `wandb sync` would upload it.

    Attributes:
        name, group, project, host: as W&B shows them.
        config: the run's config.
        rows: the history, one row for each step.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        for record in records(path):
            if record.HasField("run"):
                run = record.run
                self.name, self.group, self.project = run.display_name, run.run_group, run.project
                self.host = run.host
                self.config |= {item.key: json.loads(item.value_json) for item in run.config.update}
            elif record.HasField("history"):
                items = record.history.item
                self.rows.append(
                    {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                )


def wandb_runs(folder: Path) -> list[WandbRun]:
    """Every run below a folder."""
    return [WandbRun(path) for path in sorted(folder.glob("offline-run-*/run-*.wandb"))]
