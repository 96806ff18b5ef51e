"""Print the daily targets of make that are due: `python tools/daily.py`.

Daily checks guard pages, the demo, the lowest versions of libraries, the built package, the script
for Slurm and uses of extensions. None guards a guarantee. `make daily` runs them all, and
`python tools/daily.py --passed COMMIT` writes the commit at which they passed into `.ci/daily`, a
file of the repository.

A check is due unless HEAD descends from that commit and is at most a day younger. A check whose
files have changed since that commit is due in any case. A copy without history runs them all.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
STAMP = ".ci/daily"
DAY_SECONDS = 24 * 60 * 60
TARGETS = {
    "demo": ("raydp/data",),
    "lowest": ("pyproject.toml", "tools/lowest_versions.py"),
}
"""Target of make -> the files that it guards."""


def git(root: Path, *arguments: str) -> str:
    """Return what a command of git prints. Raises CalledProcessError."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def changed_files(root: Path = ROOT) -> list[str] | None:
    """Return the files that differ from the commit at which all daily checks passed.

    None means that every check is due: they have not passed within a day before HEAD.
    """
    try:
        commit = (root / STAMP).read_text(encoding="utf-8").strip()
        git(root, "merge-base", "--is-ancestor", commit, "HEAD")
        passed, head = (
            int(git(root, "show", "--no-patch", "--format=%ct", name)) for name in (commit, "HEAD")
        )
        if head - passed > DAY_SECONDS:
            return None
        return git(root, "diff", "--name-only", commit).splitlines()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


def is_due(guarded: Iterable[str], changed: list[str] | None) -> bool:
    """Return whether a check is due that guards these files and folders."""
    folders = [(path, f"{path}/") for path in guarded]
    return changed is None or any(
        file == path or file.startswith(folder) for file in changed for path, folder in folders
    )


def main() -> None:
    """Print the targets that are due, or note that all daily checks passed at a commit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passed", metavar="COMMIT", help="note that they passed at this commit")
    commit = parser.parse_args().passed
    if commit is None:
        changed = changed_files()
        print(" ".join(target for target, files in TARGETS.items() if is_due(files, changed)))
        return
    if git(ROOT, "status", "--porcelain") or git(ROOT, "rev-parse", "HEAD") != commit:
        parser.error("the tree must be that of the commit that was tested. Commit, and test again.")
    (ROOT / STAMP).write_text(f"{commit}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
