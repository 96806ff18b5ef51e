"""Printed output of `raydp selftest`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from raydp.io.output import print_json, print_table, stderr, stdout
from raydp.selftest.base import Check
from raydp.selftest.run import run_selftest
from raydp.spec.reading import load_spec


def selftest_command(spec: Path | None, *, json: bool) -> bool:
    """Run the self-test and print a table, or {"passed", "checks"} as JSON. Return whether all checks passed.

    Raises:
        ValueError: the spec cannot be used.
    """
    started = time.perf_counter()
    with stderr.status("starting") as status:
        checks = run_selftest(load_spec(spec) if spec is not None else None, status.update)
    failed = [c for c in checks if not c.passed]
    if json:
        print_json({"passed": not failed, "checks": [asdict(c) for c in checks]})
        return not failed
    rows = [{"check": c.name, "figure": c.figure, "bound": bound_text(c), "passed": _word(c.passed)} for c in checks]
    print_table("selftest", rows, keep=("passed",))
    for c in failed:
        stdout.print(f"failed: {c.name}: {c.figure:.6g}, must be {bound_text(c)} ({c.detail})", style="red")
    verdict = "all passed" if not failed else f"{len(failed)} failed: do not rely on an ε of this installation"
    stdout.print(f"{len(checks)} checks, {verdict}, {time.perf_counter() - started:.0f} s")
    return not failed


def bound_text(check: Check) -> str:
    """Return the bound in words. A lower end of 0 is left out."""
    low, high = check.bound
    return f"<= {high:.6g}" if low == 0 else f"{low:.4g} to {high:.4g}"


def _word(passed: bool) -> str:
    return "yes" if passed else "NO"
