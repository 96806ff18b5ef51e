"""A folder of solved problems, one JSON file each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydp.system.files import write_atomically


class SolutionCache:
    """Maps a problem (a flat dict of everything that matters) to its solution, on disk.

    Writes are atomic (temporary file, fsync, rename), so concurrent writers and kills leave
    complete files. An entry that is damaged (truncated, edited, or of another problem) counts as
    absent.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def load(self, problem: Mapping[str, object]) -> dict[str, Any] | None:
        """Return the solution of a problem; None if there is no intact entry."""
        try:
            text = self._path(problem).read_text(encoding="utf-8")
            entry = json.loads(text)
        except (FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            # A truncated or edited file is no error: the problem is solved again, and the file is
            # replaced.
            return None
        # The digest could collide, and a file could be renamed: compare the whole problem.
        if not isinstance(entry, dict) or entry.get("problem") != problem:
            return None
        solution = entry.get("solution")
        if entry.get("sha256") != _digest({"problem": problem, "solution": solution}):
            return None
        return solution if isinstance(solution, dict) else None

    def save(self, problem: Mapping[str, object], solution: Mapping[str, object]) -> None:
        """Store a solution."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, object] = {"problem": problem, "solution": solution}
        content["sha256"] = _digest(content)
        write_atomically(
            self._path(problem), json.dumps(content, indent=1, sort_keys=True).encode()
        )

    def _path(self, problem: Mapping[str, object]) -> Path:
        """Return the file of a problem."""
        return self.folder / f"{_digest(problem)}.json"


def _digest(content: Mapping[str, object]) -> str:
    """Return the SHA-256 of the canonical JSON. Floats are written exactly."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
