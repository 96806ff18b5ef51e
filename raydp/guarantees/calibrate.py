"""Functions behind `raydp calibrate` and `raydp profile`.

They check arguments, call `raydp.privacy` and return plain data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NotRequired, TypedDict

from raydp.io.cache import cache_dir
from raydp.io.output import print_table, stderr, stdout
from raydp.plugins.registries import service
from raydp.privacy import (
    AccountantError,
    Calibration,
    CalibrationError,
    CalibrationRequest,
    PLDAccountant,
    PoissonGaussian,
    PrivacyTarget,
    PRVAccountant,
    RDPAccountant,
    attack_summary,
    calibrate_many,
    profile,
    profile_rows,
)
from raydp.privacy.accounting.documents import AttackSummary, Profile, ProfileRow
from raydp.privacy.accounting.events import check_num_steps
from raydp.search_spaces.names import cell_in_words, without_cells
from raydp.tasks.reading import read_csv_rows

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


class BestOf(TypedDict):
    """ε, at each δ, of releasing only the best of a random number of runs with this mean."""

    expected_runs: float
    distribution: str
    accountant: str
    epsilons: list[float]


class WholeProfile(Profile):
    """The privacy profile of one run by every accountant.

    Keys:
        curves: accountant -> ε at each δ.
        attack: bounds on an attacker.
        best_of: ε of releasing only the best of several such runs, if it was asked for.
    """

    curves: dict[str, list[ProfileRow]]
    attack: AttackSummary
    best_of: NotRequired[BestOf]


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
    missing = [c for c in columns if c not in rows[0][1]]
    if missing:
        raise ValueError(
            f"--from must have the columns {', '.join(columns)}, got none of {', '.join(missing)}. "
            "Add them."
        )
    return rows


def delta_values(deltas: str) -> list[float]:
    """Parse the values of --deltas.

    Raises:
        ValueError: the text is not a list of numbers separated by commas.
    """
    try:
        return [float(d) for d in deltas.split(",")]
    except ValueError as error:
        raise ValueError(
            f"--deltas must be numbers with commas between, got {deltas!r}. Write 1e-3,1e-6."
        ) from error


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


def profile_of(
    n: int,
    batch_size: int,
    num_steps: int,
    noise_multiplier: float,
    deltas: str,
    accountant: str,
    expected_runs: float | None = None,
) -> WholeProfile:
    """Compute one run's guarantee by every accountant: ε at each δ, μ, and an attacker's limits.

    Args:
        n, batch_size, num_steps, noise_multiplier: the run.
        deltas: comma-separated values of δ.
        accountant: the accountant of the main answer.
        expected_runs: also compute ε of releasing only the best of a random number of such runs.
            The number is geometric with this mean, and the best is chosen on public data. It is
            computed by rdp if `accountant` is rdp, and by pld otherwise.

    Raises:
        ValueError: a value is out of range.
    """
    # Check the run, in the words of the options.
    values = delta_values(deltas)
    if not 1 <= batch_size <= n:
        raise ValueError(
            f"--batch-size must be >= 1 and <= n {n}, got {batch_size}. It is the expected batch "
            "size."
        )
    check_num_steps(num_steps, field="--num-steps")
    event = PoissonGaussian(
        sample_rate=batch_size / n, noise_multiplier=noise_multiplier, num_steps=num_steps
    )
    # The requested accountant's answer, with μ.
    with stderr.status("computing ε at each δ"):
        own = profile(event, values, accountant)
        known: list[ProfileRow] = [
            {"delta": d, "epsilon": e} for d, e in zip(own["deltas"], own["epsilons"], strict=True)
        ]
        # All accountants' curves for comparison. The requested one is not computed twice.
        curves = {
            a.name: known if a.name == accountant else profile_rows(event, values, a)
            for a in (PRVAccountant(), PLDAccountant(), RDPAccountant())
        }
        answer: WholeProfile = {
            "deltas": own["deltas"],
            "epsilons": own["epsilons"],
            "gdp_mu": own["gdp_mu"],
            "gdp_mu_reason": own["gdp_mu_reason"],
            "accountant": own["accountant"],
            "curves": curves,
            "attack": attack_summary(event),
        }
        # The cost of choosing among such runs, if it was asked for.
        if expected_runs is not None:
            best_of = service("best_of", needed_by="--expected-runs")
            answer["best_of"] = best_of(event, expected_runs, values, accountant)
        return answer


def show_profile(answer: WholeProfile, expected_runs: float | None) -> None:
    """Print the profile of one run: ε by δ and accountant, μ, and the limits of an attacker."""
    # One row for each δ, one column for each accountant.
    by_delta = zip(*answer["curves"].values(), strict=True)
    rows: list[dict[str, float | None]] = [
        {
            "delta": r[0]["delta"],
            **{k: x["epsilon"] for k, x in zip(answer["curves"], r, strict=True)},
        }
        for r in by_delta
    ]
    if expected_runs is not None and "best_of" in answer:
        best_of = answer["best_of"]
        for row, epsilon in zip(rows, best_of["epsilons"], strict=True):
            row[f"best of about {expected_runs:g} ({best_of['accountant']})"] = epsilon
    print_table("ε at each δ, by accountant", rows)
    stdout.print(
        f"gdp_mu: {answer['gdp_mu'] if answer['gdp_mu'] is not None else answer['gdp_mu_reason']}"
    )
    attack = answer["attack"]
    if "reason" not in attack:
        print_table("an attacker's true positive rate at most", attack["true_positive_rates"])


def _solved(requests: list[CalibrationRequest], accountant: str) -> list[Noise]:
    with stderr.status("calibrating") as status:
        solved = calibrate_many(
            requests,
            accountant,
            cache_dir=cache_dir() / "calibration",
            progress=lambda done, total: status.update(f"calibrating {done}/{total}"),
        )
    gaps: list[GapToPld] = (
        _gaps_to_pld(requests, solved) if accountant == "prv" else [{}] * len(solved)
    )
    return [_document(c, gap) for c, gap in zip(solved, gaps, strict=True)]


def _gaps_to_pld(requests: list[CalibrationRequest], solved: list[Calibration]) -> list[GapToPld]:
    """Compute σ / σ_pld - 1: how far prv's noise is above pld's tight noise; None if unknown."""
    cache = cache_dir() / "calibration"
    # Fills the cache in parallel; the loop below reads it.
    with suppress(AccountantError, CalibrationError):
        calibrate_many(requests, "pld", cache_dir=cache)
    gaps: list[GapToPld] = []
    # One by one, so that a request without a tight answer does not hide the others.
    for request, ours in zip(requests, solved, strict=True):
        try:
            (tight,) = calibrate_many([request], "pld", cache_dir=cache)
        except (AccountantError, CalibrationError) as error:
            gaps.append({"gap_to_pld": None, "gap_to_pld_reason": str(error)})
        else:
            gaps.append({"gap_to_pld": ours.noise_multiplier / tight.noise_multiplier - 1})
    return gaps


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


def _document(solved: Calibration, gap: GapToPld) -> Noise:
    return {
        "noise_multiplier": solved.noise_multiplier,
        "epsilon": solved.epsilon,
        "delta": solved.delta,
        "sample_rate": solved.event.sample_rate,
        "accountant": solved.accountant,
        **gap,
    }
