"""What the driver pays to write one finished run into MLflow: into a file, and through servers.

    python benchmarks/tracking.py --runs 40 --server FOLDER -o tracking.json

FOLDER is one that deploy/tracking/tracking.sh started, with PostgreSQL; without it the servers are
one on SQLite alone. A run has three steps and the shipped model's files, and is signed. Processor
time is that of this process: what a server needs beside it is not counted, but its time is in the
seconds by the clock.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from machine import describe
from many_trials import server
from registry import NAME, trial

from raydp.extensions.publishing.signing import new_key
from raydp.tracking import MLflowTracker

WARM_UP = 3
STEPS = [{"step": step, "loss": 2.0 - step, "gradient_norm": 0.5} for step in range(3)]


@contextmanager
def transactions() -> Iterator[set[int]]:
    """Collect the transactions of this process that write."""
    found: list[Any] = []  # kept, so that no two of them have one id

    def executed(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.split()[0] in ("INSERT", "UPDATE", "DELETE"):
            found.append(connection.get_transaction())
            ids.add(id(found[-1]))

    ids: set[int] = set()
    sa.event.listen(sa.Engine, "before_cursor_execute", executed)
    try:
        yield ids
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", executed)


def measure(uri: str, key: Path, runs: int) -> dict[str, float]:
    """Return milliseconds of a run, by the processor and by the clock, and its transactions in this
    process."""
    tracker = MLflowTracker(uri, "tracking", NAME, signing_key=key)
    tracker.sweep_run(f"sweep-{time.time()}", "benchmark", {}, {})
    records = [replace(trial(number), step_metrics=STEPS) for number in range(WARM_UP + runs + 1)]
    for record in records[:WARM_UP]:
        tracker.log_trial(record)
    processor, clock = time.process_time(), time.perf_counter()
    for record in records[WARM_UP:-1]:
        tracker.log_trial(record)
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    with transactions() as writing:
        tracker.log_trial(records[-1])
    return {
        "processor_ms": round(1000 * processor / runs, 1),
        "clock_ms": round(1000 * clock / runs, 1),
        "writing_transactions": len(writing),
    }


def main() -> None:
    """Measure each store, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--server", type=Path, help="folder of a running tracking.sh")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    document: dict[str, Any] = {"machine": describe(), "runs": options.runs}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        new_key(folder / "key")
        document["file"] = measure(f"sqlite:///{scratch}/file.db", folder / "key", options.runs)
        with server(folder) as uri:
            document["server on SQLite"] = measure(uri, folder / "key", options.runs)
        if options.server is not None:
            uri = (options.server / "address").read_text().strip()
            document["server on PostgreSQL"] = measure(uri, folder / "key", options.runs)
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
