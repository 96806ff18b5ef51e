"""The sweeps under a storage folder, each with how far it is and what it selected."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from raydp.io.output import print_table, stdout
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import counts

COUNTS = ("runs", "finished", "failed", "stopped", "skipped", "pending")
PRIVATE = "private selection: its runs are as private as the data"


def list_sweeps(storage: str) -> list[dict[str, Any]]:
    """Describe every sweep under a storage folder, the one that changed last first.

    Returns:
        One row a sweep: "sweep" (its name), "folder", the counts of its runs by status, "selected" (the configuration
        with its figures and model_uri, None before the end), "began" and "changed" (ISO 8601 times), and "note" (why a
        figure is missing, or None).

    Raises:
        ValueError: the storage is a file.
    """
    root = Path(storage)
    if root.exists() and not root.is_dir():
        raise ValueError(f"--storage must be a folder, got {storage!r}, which is a file. Name the folder of sweeps.")
    rows = [_row(SweepFolder(path=spec.parent)) for spec in root.glob("*/spec.yaml")]
    return sorted(rows, key=lambda row: (str(row["changed"]), row["sweep"]), reverse=True)


def show_sweeps(storage: str, rows: list[dict[str, Any]]) -> None:
    """Print the sweeps as a table; the configuration is the selected one."""
    if not rows:
        stdout.print(
            f"no sweep in {storage!r}: `raydp sweep SPEC` starts one, and --storage names another folder", markup=False
        )
        return
    shown = [
        {
            "sweep": row["sweep"],
            **{k: row[k] for k in COUNTS if k not in ("stopped", "skipped") or any(other[k] for other in rows)},
            **{k: (row["selected"] or {}).get(k) for k in ("batch_size", "num_steps", "learning_rate", "score")},
            "changed": row["changed"][:16].replace("T", " "),
            **({"note": row["note"] or ""} if any(other["note"] for other in rows) else {}),
        }
        for row in rows
    ]
    print_table(
        f"sweeps in {storage}, with their selected configurations", shown, keep=("changed",), spare=("score", "note")
    )


def _row(folder: SweepFolder) -> dict[str, Any]:
    row: dict[str, Any] = {"sweep": folder.path.name, "folder": folder.path, **dict.fromkeys(COUNTS), "selected": None}
    files = [folder.path / "spec.yaml", folder.path / "summary.json", *folder.path.glob("trials/*/result.json")]
    times = [file.stat().st_mtime for file in files if file.is_file()]
    row |= {"began": _time(times[0]), "changed": _time(max(times)), "note": None}
    try:
        if (summary := folder.summary()) is not None:
            row["selected"] = summary.selected.figures()
        if folder.is_private_selection():
            return {**row, "note": PRIVATE}
        counted = counts(folder)
    except (ValueError, LookupError, TypeError) as error:
        return {**row, "note": f"cannot be read: {error}"}
    return {**row, **{name: counted.numbers.get(name, 0) for name in COUNTS}}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
