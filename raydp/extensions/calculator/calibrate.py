"""Functions behind `raydp calibrate`, and rows of a CSV file that `raydp profile` reads, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from raydp.privacy import (
    AccountantError,
    Calibration,
    CalibrationError,
    CalibrationRequest,
    PoissonGaussian,
    PrivacyTarget,
    calibrate_many,
)
from raydp.privacy.accounting.events import check_num_steps
from raydp.search_spaces.names import cell_in_words, require_columns, without_cells
from raydp.system.cache import cache_dir
from raydp.system.output import stderr
from raydp.tasks.row_files import read_csv_rows

COLUMNS = ("n", "batch_size", "num_steps", "epsilon", "delta")


class Run(TypedDict):
    """A run: n examples, b and T."""

    n: int
    batch_size: int
    num_steps: int


class GapToPld(TypedDict, total=False):
    """How far prv's noise is above pld's tight noise.

    Keys:
        gap_to_pld: σ / σ_pld - 1; None if pld has no answer.
        gap_to_pld_reason: why pld has no answer.
    """

    gap_to_pld: float | None
    gap_to_pld_reason: str


class Noise(GapToPld):
    """The noise that meets a target. `epsilon` is the ε that the noise reaches."""

    noise_multiplier: float
    epsilon: float
    delta: float
    sample_rate: float
    accountant: str


class NoiseOfRow(Run, Noise):
    """A row of a file with the noise that meets its target."""

    target_epsilon: float


def calibrate_one(values: Mapping[str, float | None], accountant: str) -> Noise:
    """Calibrate one run.

    Raises:
        ValueError: a value is missing or out of range.
    """
    check_given("calibrate", values, "use --from FILE.csv")
    known = {name: value for name, value in values.items() if value is not None}
    return _solved([request(known)], accountant)[0]


def calibrate_file(path: Path, accountant: str, *, given: Mapping[str, object]) -> list[NoiseOfRow]:
    """Calibrate every row of a CSV file with the columns n, batch_size, num_steps, epsilon, delta.

    Returns:
        One answer per row, in the file's order.

    Raises:
        ValueError: the file is missing, or a row is not usable. The message names the line.
    """
    check_alone("--from", given)
    rows = csv_rows(path, COLUMNS)
    requests, given_in_rows = list[CalibrationRequest](), list[tuple[Run, float]]()
    for line, row in rows:
        # A refused cell is named by its line, and its text is left out: it may hold private data.
        try:
            numbers = {name: number(name, row[name]) for name in COLUMNS}
            requests.append(request(numbers))
        except ValueError as error:
            raise ValueError(f"line {line}: {without_cells(str(error))}") from error
        given_in_rows.append((whole_numbers(numbers), numbers["epsilon"]))
    solved = zip(given_in_rows, _solved(requests, accountant), strict=True)
    return [{**run, "target_epsilon": target, **noise} for (run, target), noise in solved]


def check_given(command: str, values: Mapping[str, object], instead: str) -> None:
    """Raise ValueError if a value is None."""
    if missing := [_option(name) for name, value in values.items() if value is None]:
        raise ValueError(
            f"{command} must be given {', '.join(missing)}, got nothing. Add them, or {instead}."
        )


def check_alone(source: str, values: Mapping[str, object]) -> None:
    """Raise ValueError if a value is not None, because a file or a sweep has its own values."""
    if also := [_option(name) for name, value in values.items() if value is not None]:
        raise ValueError(
            f"{source} must be given alone, got {', '.join(also)} too. Leave the others out."
        )


def csv_rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read the rows of --from with their lines. The rows must have the given columns.

    Raises:
        ValueError: the file is missing, has no rows, or lacks a column.
    """
    if not path.is_file():
        raise ValueError(f"--from must be an existing CSV file, got {str(path)!r}. Check the path.")
    # Names of columns may have spaces around them, as spreadsheets write them.
    rows = [
        (line, {str(k).strip(): v for k, v in row.items()})
        for line, row in read_csv_rows(path, "--from")
    ]
    if not rows:
        raise ValueError(
            f"--from must have a header and at least one row, got none in {path.name}. Add them."
        )
    require_columns("--from", columns, rows[0][1])
    return rows


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def number(name: str, cell: str) -> float:
    """Parse the number in a cell. Infinity and nan are refused."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{name} must be a number, got {cell_in_words(cell)}. Write a finite number into the "
            "cell."
        )
    return value


def _solved(requests: list[CalibrationRequest], accountant: str) -> list[Noise]:
    with stderr.status("calibrating") as status:
        solved = calibrate_many(
            requests,
            accountant,
            cache_dir=cache_dir() / "calibration",
            progress=lambda done, total: status.update(f"calibrating {done}/{total}"),
        )
    gaps: list[GapToPld] = [{}] * len(solved)
    if accountant == "prv":
        gaps = [_gap(*both) for both in zip(solved, sigmas(requests, "pld"), strict=True)]
    return [_document(c, gap) for c, gap in zip(solved, gaps, strict=True)]


def _gap(ours: Calibration, tight: float | str) -> GapToPld:
    """Return σ / σ_pld - 1: how far prv's noise is above pld's tight noise; None if unknown."""
    if isinstance(tight, str):
        return {"gap_to_pld": None, "gap_to_pld_reason": tight}
    return {"gap_to_pld": ours.noise_multiplier / tight - 1}


def sigmas(requests: Sequence[CalibrationRequest], accountant: str) -> list[float | str]:
    """Return σ of each request, or the reason why the accountant has no answer."""
    cache = cache_dir() / "calibration"
    # All at once; on failure one by one, to find the failing ones.
    with suppress(AccountantError, CalibrationError):
        return [c.noise_multiplier for c in calibrate_many(requests, accountant, cache_dir=cache)]
    answers: list[float | str] = []
    for one in requests:
        try:
            answers.append(calibrate_many([one], accountant, cache_dir=cache)[0].noise_multiplier)
        except (AccountantError, CalibrationError) as error:
            answers.append(str(error))
    return answers


def whole_numbers(row: Mapping[str, float]) -> Run:
    """Return n, batch_size and num_steps of a row as integers.

    Raises:
        ValueError: a value is not a whole number.
    """
    whole: Run = {
        "n": int(row["n"]),
        "batch_size": int(row["batch_size"]),
        "num_steps": int(row["num_steps"]),
    }
    # int() cuts off a fraction, and a run of 10.5 steps would be answered as one of 10.
    fractional = [k for k, v in whole.items() if v != row[k]]
    if fractional:
        raise ValueError(
            f"{fractional[0]} must be a whole number, got {row[fractional[0]]}. Round it."
        )
    check_num_steps(whole["num_steps"])
    return whole


def request(row: Mapping[str, float]) -> CalibrationRequest:
    """Return the calibration request of a row."""
    whole = whole_numbers(row)
    return CalibrationRequest.of_batches(
        num_examples=whole["n"],
        batch_size=whole["batch_size"],
        num_steps=whole["num_steps"],
        target=PrivacyTarget(epsilon=float(row["epsilon"]), delta=float(row["delta"])),
    )


def event_of(run: Run, noise_multiplier: float, *, field: str = "batch_size") -> PoissonGaussian:
    """Return the event of a run. The field names the batch size in the message."""
    n, batch_size = run["n"], run["batch_size"]
    if not 1 <= batch_size <= n:
        raise ValueError(
            f"{field} must be >= 1 and <= n {n}, got {batch_size}. It is the expected batch size."
        )
    return PoissonGaussian(
        sample_rate=batch_size / n, noise_multiplier=noise_multiplier, num_steps=run["num_steps"]
    )


def _document(solved: Calibration, gap: GapToPld) -> Noise:
    return {
        "noise_multiplier": solved.noise_multiplier,
        "epsilon": solved.epsilon,
        "delta": solved.delta,
        "sample_rate": solved.event.sample_rate,
        "accountant": solved.accountant,
        **gap,
    }
