"""Printed output of `raydp selftest`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from raydp.selftest.check_result import Check
from raydp.selftest.run import run_selftest
from raydp.spec.reading import load_spec
from raydp.system.console_log import is_verbose
from raydp.system.output import print_json, print_table, stderr, stdout


def selftest_command(spec: Path | None, *, json: bool) -> bool:
    """Run the self-test, and print its verdict, the failures and the rows of the spec.

    As JSON it prints {"passed", "checks"}.

    A verbose command prints the rows of all checks, too.

    Returns:
        Whether all checks passed.

    Raises:
        ValueError: the spec cannot be used.
    """
    started = time.perf_counter()
    given = load_spec(spec) if spec is not None else None
    with stderr.status("running the checks") as status:
        checks = run_selftest(given, status.update)
    failed = [c for c in checks if not c.passed]
    if json:
        print_json({"passed": not failed, "checks": [asdict(c) for c in checks]})
        return not failed
    # The verdict, and each failure in full.
    seconds = f"{time.perf_counter() - started:.0f} s"
    if failed:
        verdict = f"{len(failed)} of {len(checks)} checks failed: do not rely on an ε of this installation"
        stdout.print(f"{verdict}, {seconds}", style="red")
    else:
        stdout.print(f"all {len(checks)} checks passed, {seconds}")
    for c in failed:
        stdout.print(
            f"failed: {c.name}: {c.figure:.6g}, must be {bound_text(c)} ({c.detail})",
            style="red",
            markup=False,
        )
    # The rows.
    if given is not None and (own := [c for c in checks if f"({given.name}: " in c.name]):
        _print_rows(f"checks of {spec}", own)
    if is_verbose():
        _print_rows("all checks", checks)
    else:
        stdout.print("`-v` shows every check with its figure and bound.", markup=False)
    return not failed


def _print_rows(title: str, checks: Sequence[Check]) -> None:
    rows = [
        {"check": c.name, "figure": c.figure, "bound": bound_text(c), "passed": _word(c.passed)}
        for c in checks
    ]
    print_table(title, rows, keep=("passed",))


def bound_text(check: Check) -> str:
    """Return the bound in words. A lower end of 0 is left out."""
    low, high = check.bound
    return f"<= {high:.6g}" if low == 0 else f"{low:.4g} to {high:.4g}"


def _word(passed: bool) -> str:
    return "yes" if passed else "NO"
