"""`raydp profile` for several configurations at once: their privacy curves by every accountant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NotRequired, cast

from raydp.extensions.calculator.calibrate import (
    Run,
    csv_rows,
    event_of,
    number,
    request,
    sigmas,
    whole_numbers,
)
from raydp.extensions.calculator.one_run import ACCOUNTANTS, delta_values
from raydp.plugins.registries import DEFAULT_ACCOUNTANT
from raydp.privacy import CalibrationRequest, PoissonGaussian, profile_rows
from raydp.privacy.accounting.accountant import Accountant
from raydp.privacy.accounting.documents import ProfileRow
from raydp.search_spaces.names import without_cells
from raydp.system.cache import cache_dir
from raydp.system.output import stderr

DELTAS = "1e-2,3e-3,1e-3,3e-4,1e-4,3e-5,1e-5,3e-6,1e-6,3e-7,1e-7,3e-8,1e-8"
RUN: tuple[Literal["n", "batch_size", "num_steps"], ...] = ("n", "batch_size", "num_steps")
TABLE_DELTAS = "1e-2,1e-4,1e-6,1e-8"
"""The δ of a printed table, by default. A page and a document have the finer DELTAS."""


class CurvesOfRun(Run):
    """The privacy curves of one run.

    Keys:
        noise_multiplier: the run's σ, if it is given.
        epsilon, delta: the run's target, if it has one.
        noise_multipliers: accountant -> σ; None if the accountant has no answer.
        curves: accountant -> ε at each δ.
    """

    noise_multiplier: NotRequired[float]
    epsilon: NotRequired[float | None]
    delta: NotRequired[float]
    noise_multipliers: dict[str, float | None]
    curves: dict[str, list[ProfileRow]]


def profiles_of_file(
    path: Path, deltas: str, accountants: Sequence[Accountant] = ACCOUNTANTS
) -> list[CurvesOfRun]:
    """Return the profiles of a CSV file's rows.

    The columns are n, batch_size, num_steps and either noise_multiplier, or epsilon and delta. If a
    target (ε, δ) is given, each accountant calibrates its own noise to it. All curves of an
    accountant therefore meet at the target (as Hu et al. 2025, Figures 11 and 26 to 28).

    Raises:
        ValueError: the file is missing, or a row is not usable. The message names the row.
    """
    # Read the rows, and check their columns.
    values = delta_values(deltas)
    rows = csv_rows(path, RUN)
    given = "noise_multiplier" in rows[0][1]
    columns = (*RUN, "noise_multiplier") if given else (*RUN, "epsilon", "delta")
    if missing := [c for c in columns if c not in rows[0][1]]:
        raise ValueError(
            "--from must have the column noise_multiplier, or epsilon and delta, got none of "
            f"{', '.join(missing)}. Add them."
        )
    if given and (also := [c for c in ("epsilon", "delta") if c in rows[0][1]]):
        raise ValueError(
            "--from must have either noise_multiplier or a target, got noise_multiplier and "
            f"{', '.join(also)}. Remove one of the two."
        )
    # Check each row, and collect the calibration requests.
    answers, requests = list[CurvesOfRun](), list[CalibrationRequest]()
    for line, row in rows:
        try:
            numbers = {name: number(name, row[name]) for name in columns}
            empty = {**whole_numbers(numbers), "noise_multipliers": {}, "curves": {}}
            answer = cast("CurvesOfRun", empty)
            if given:
                answer["noise_multiplier"] = numbers["noise_multiplier"]
                event_of(answer, numbers["noise_multiplier"])
            else:
                answer["epsilon"], answer["delta"] = numbers["epsilon"], numbers["delta"]
                requests.append(request(numbers))
        except ValueError as error:
            raise ValueError(f"line {line}: {without_cells(str(error))}") from error
        answers.append(answer)
    # Compute the curves, by accountant.
    with stderr.status("calibrating the noise and computing ε at each δ"):
        for accountant in accountants:
            noises: Iterable[float | str] = (
                [answer["noise_multiplier"] for answer in answers]
                if given
                else sigmas(requests, accountant.name)
            )
            for answer, own in zip(answers, noises, strict=True):
                _add_curve(answer, accountant, own, values)
    return answers


def profiles_of_sweep(
    source: str,
    storage: str,
    deltas: str | None,
    accountants: Sequence[Accountant] = ACCOUNTANTS,
    *,
    default: str = DELTAS,
) -> list[CurvesOfRun]:
    """Return the profiles of a sweep's distinct (b, T) at its training noise.

    Args:
        source: folder, name or spec of the sweep.
        storage: folder that sweeps are looked up in by name.
        deltas: comma-separated values of δ; None for those of default and near the sweep's own δ.
        accountants: the accountants whose curves are computed, in the order of the answers' curves.
        default: `TABLE_DELTAS` for a printed table, `DELTAS` for a page or a document.

    Raises:
        ValueError: there is no such sweep, it adds no noise, or it is a private selection.
    """
    from raydp.sweep.api import sweep_folder

    plan = sweep_folder(source, storage).plan()
    # The curves would be of one run, whose ε is below the cost of the choice.
    if plan.configurations:
        raise ValueError(
            f"SWEEP must be without private selection, got {source!r}. One run's curve is below "
            "what its choice costs: read the card of the released model, which has ε of the whole "
            "at several δ."
        )
    # A run without noise has no curve, and other runs of the same sweep may have one.
    events = {run_id: record.mechanism.event for run_id, record in plan.privacy.items()}
    private = [t for t in plan.trials if isinstance(events[t.run_id], PoissonGaussian)]
    if not private:
        raise ValueError(
            f"SWEEP must have private runs, got {source!r} without noise. It has no privacy "
            "profile."
        )
    target = plan.privacy[private[0].run_id].accounted.delta
    values = _with_target(default, target) if deltas is None else delta_values(deltas)
    distinct = {(t.batch_size, t.num_steps): t for t in private}
    answers: list[CurvesOfRun] = []
    with stderr.status("computing ε at each δ") as status:
        for position, (_, trial) in enumerate(sorted(distinct.items()), start=1):
            status.update(f"computing ε at each δ: configuration {position} of {len(distinct)}")
            accounted, event = plan.privacy[trial.run_id].accounted, events[trial.run_id]
            assert isinstance(event, PoissonGaussian), "the run is private"
            answers.append(
                {
                    "n": trial.num_examples,
                    "batch_size": trial.batch_size,
                    "num_steps": trial.num_steps,
                    "noise_multiplier": event.noise_multiplier,
                    "epsilon": accounted.target_epsilon,
                    "delta": accounted.delta,
                    "noise_multipliers": {a.name: event.noise_multiplier for a in accountants},
                    "curves": {a.name: _curve(event, values, a) for a in accountants},
                }
            )
    return answers


def _with_target(default: str, target: float) -> list[float]:
    """Return the δ of a table, or of a page or a document, with those near a run's own δ."""
    own = {target} if default == TABLE_DELTAS else {target, min(10 * target, 0.5)}
    return sorted({*delta_values(default), *own}, reverse=True)


def table_rows(answers: Sequence[CurvesOfRun], accountant: str) -> list[dict[str, object]]:
    """Return the printed rows of one accountant's curves; of many δ only `TABLE_DELTAS`."""
    # A wide table is cut to a few δ, unless the user chose none of them.
    deltas, few = (
        [row["delta"] for row in answers[0]["curves"][accountant]],
        delta_values(TABLE_DELTAS),
    )
    columns = deltas if len(deltas) <= len(few) + 1 or not set(few) & set(deltas) else few
    return [
        {
            **{name: answer[name] for name in RUN},
            "noise_multiplier": answer["noise_multipliers"][accountant],
            **{
                f"ε at δ={row['delta']:.4g}": row["epsilon"]
                for row in answer["curves"][accountant]
                if row["delta"] in columns
            },
        }
        for answer in answers
    ]


def accountant_of(source: str, storage: str) -> str:
    """Return the accountant that calibrated a sweep if it has curves here, else the default one."""
    from raydp.sweep.api import sweep_folder

    own = sweep_folder(source, storage).privacy().accountant
    return own if own in {accountant.name for accountant in ACCOUNTANTS} else DEFAULT_ACCOUNTANT


def _add_curve(
    answer: CurvesOfRun, accountant: Accountant, sigma: float | str, deltas: list[float]
) -> None:
    """Add the curve at σ to an answer. If σ is a text, it is the reason why there is no curve."""
    if isinstance(sigma, str):
        answer["noise_multipliers"][accountant.name] = None
        answer["curves"][accountant.name] = [
            {"delta": d, "epsilon": None, "reason": sigma} for d in deltas
        ]
    else:
        answer["noise_multipliers"][accountant.name] = sigma
        answer["curves"][accountant.name] = _curve(event_of(answer, sigma), deltas, accountant)


def _curve(event: PoissonGaussian, deltas: list[float], accountant: Accountant) -> list[ProfileRow]:
    """Return ε at each δ, from the user's cache if it is there."""
    return profile_rows(event, deltas, accountant, cache_dir=cache_dir() / "profiles")
