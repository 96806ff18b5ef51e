"""Functions behind `raydp pate`: read stored votes, call `raydp.privacy`, return plain data."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from raydp.extensions.pate.release_cost import Release, smooth_cost
from raydp.extensions.pate.votes_cost import epsilon_at, pate_cost
from raydp.privacy import stated
from raydp.search_spaces.names import cell_in_words, is_number
from raydp.sweep.store.folder import SweepFolder
from raydp.system.output import print_table, stdout

PRIVATE = (
    "epsilon, order, the reference, expected_answers and a suggestion depend on the votes and are "
    "as private as the votes: use them to decide, and publish only epsilon_data_independent, or "
    "epsilon_sanitised once"
)


class EpsilonAtOrder(TypedDict):
    """ε by the Rényi divergence of one order."""

    epsilon: float
    order: float


class Suggestion(TypedDict):
    """Values for --publish."""

    order: float
    beta: float
    noise_multiplier: float


class Recorded(TypedDict, total=False):
    """ε in the record of a run, and its accountant."""

    recorded_epsilon: float
    recorded_accountant: str


class Published(TypedDict, total=False):
    """The additions of --publish: a noisy ε, or a suggestion of its values."""

    suggestion: Suggestion
    epsilon_sanitised: float


class PateAnswer(EpsilonAtOrder, Recorded, Published):
    """The privacy cost of answering queries; see `raydp.extensions.pate.votes_cost.PateCost`.

    Keys:
        teachers: the largest number of votes, over all classes, on one query.
    """

    epsilon_data_independent: float
    reference: EpsilonAtOrder
    queries: int
    classes: int
    teachers: int
    expected_answers: float
    delta: float
    note: str


@dataclass(frozen=True, kw_only=True)
class NoisyVotes:
    """Counts of votes [queries, classes], with the noise of the answers and δ of the guarantee."""

    counts: NDArray[np.int64]
    sigma: float
    delta: float
    threshold: float | None
    sigma1: float | None


def pate_of(
    path: Path,
    *,
    sigma: float | None = None,
    delta: float | None = None,
    threshold: float | None = None,
    sigma1: float | None = None,
    publish: str | None = None,
) -> PateAnswer:
    """Compute the privacy cost of answering the queries of a CSV file, or of a run of method pate.

    Args:
        path: the file, or a run's folder SWEEP/trials/RUN_ID, which provides all other arguments
            but publish.
        sigma: standard deviation of the noise on each count.
        delta: δ of the guarantee.
        threshold, sigma1: threshold of Confident-GNMax, and standard deviation of the noise on the
            largest count.
        publish: "ORDER,BETA,NOISE" to release a noisy ε, or "suggest" to propose these three
            values.

    Raises:
        ValueError: the file does not hold counts, or an argument is out of its range.
    """
    # The votes with their noise: from a run's folder, or from a file with options.
    read = _of_run if path.is_dir() else _of_file
    votes, recorded = read(path, sigma, delta, threshold, sigma1)
    # The cost of these votes, and the cost of any votes.
    cost = pate_cost(
        votes.counts,
        sigma=votes.sigma,
        delta=votes.delta,
        threshold=votes.threshold,
        sigma1=votes.sigma1,
    )
    # A figure that may be published, if one was asked for.
    published: Published = (
        {} if publish is None else _published(votes, publish, cost.independent.order)
    )
    return {
        "epsilon": cost.dependent.epsilon,
        "order": cost.dependent.order,
        "epsilon_data_independent": cost.independent.epsilon,
        "reference": {"epsilon": cost.reference.epsilon, "order": cost.reference.order},
        "queries": len(votes.counts),
        "classes": votes.counts.shape[1],
        "teachers": int(votes.counts.sum(axis=1).max()),
        "expected_answers": cost.expected_answers,
        "delta": votes.delta,
        **recorded,
        **published,
        "note": PRIVATE,
    }


def _of_file(
    path: Path,
    sigma: float | None,
    delta: float | None,
    threshold: float | None,
    sigma1: float | None,
) -> tuple[NoisyVotes, Recorded]:
    """Read a file of votes, whose noise and δ are given."""
    counts = read_votes(path)
    if sigma is None or delta is None:
        raise ValueError(
            f"--{'sigma' if sigma is None else 'delta'} must be given with a file of votes, "
            "got none. Add it."
        )
    votes = NoisyVotes(counts=counts, sigma=sigma, delta=delta, threshold=threshold, sigma1=sigma1)
    return votes, {}


def _published(votes: NoisyVotes, publish: str, independent_order: float) -> Published:
    """Return the noisy ε that may be published, or values to publish it with.

    Args:
        independent_order: an order that does not depend on the votes.
    """
    # The order must not come from the votes, or the release would tell of them.
    given = None if publish == "suggest" else _release_of(publish)
    order = independent_order if given is None else given.order
    smooth = smooth_cost(
        votes.counts, sigma=votes.sigma, order=order, threshold=votes.threshold, sigma1=votes.sigma1
    )
    if given is None:
        best = smooth.suggestion()
        return {
            "suggestion": {
                "order": best.order,
                "beta": best.beta,
                "noise_multiplier": best.noise_multiplier,
            }
        }
    # Noise from the operating system: nobody can know it.
    shown = smooth.published(given, SystemRandom().gauss(0.0, 1.0))
    return {"epsilon_sanitised": epsilon_at(shown, given.order, votes.delta)}


def _of_run(folder: Path, *options: float | None) -> tuple[NoisyVotes, Recorded]:
    """Read a run's votes with their noise, its δ, and the ε in its record."""
    names = ("sigma", "delta", "threshold", "sigma1")
    if given := [k for k, v in zip(names, options, strict=True) if v is not None]:
        raise ValueError(
            f"--{given[0]} must be left out with a run's folder, which says it, got one. Remove it."
        )
    sweep = SweepFolder.of_run(folder)
    result = None if sweep is None else sweep.result(folder.name)
    details: Mapping[str, Any] = {} if result is None else result.details
    if sweep is None or "votes" not in details:
        raise ValueError(
            "VOTES must be a CSV file, or the folder of a finished run of method pate, got "
            f"{str(folder)!r}. Give SWEEP/trials/RUN_ID."
        )
    plan = sweep.plan()
    record = plan.privacy[folder.name].accounted
    votes = NoisyVotes(
        counts=np.array(details["votes"]),
        sigma=details["sigma"],
        delta=plan.delta,
        threshold=details["threshold"],
        sigma1=details["sigma1"],
    )
    return votes, {"recorded_epsilon": record.epsilon, "recorded_accountant": record.accountant}


def _release_of(text: str) -> Release:
    try:
        order, beta, noise_multiplier = map(float, text.split(","))
    except ValueError as error:
        raise ValueError(
            f"--publish must be 'suggest' or ORDER,BETA,NOISE, got {text!r}. Write it as "
            "10,0.04,20."
        ) from error
    return Release(order=order, beta=beta, noise_multiplier=noise_multiplier)


def read_votes(path: Path) -> NDArray[np.int64]:
    """Read counts [queries, classes] from a CSV file with one row per query.

    A first row without numbers is a header.

    Raises:
        ValueError: the file is missing or does not hold counts. The message names the line.
    """
    if not path.is_file():
        raise ValueError(f"VOTES must be an existing CSV file, got {str(path)!r}. Check the path.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"VOTES must be CSV in UTF-8, got {str(path)!r}, which is not. Save it as such."
        ) from error
    # A header is a first row without any number.
    if rows and not any(map(is_number, rows[0][1])):
        rows = rows[1:]
    if not rows:
        raise ValueError(
            f"VOTES must have a row of counts per query, got none in {str(path)!r}. Add them."
        )
    width = len(rows[0][1])
    # Check each cell: the formulas hold for counts alone.
    for number, row in rows:
        if len(row) != width or width < 2:
            raise ValueError(
                f"VOTES must have as many counts in each row, at least 2, got {len(row)} in line "
                f"{number} of {str(path)!r}, {width} in its first. Give each class a column."
            )
        for cell in row:
            if (
                not is_number(cell)
                or not 0 <= float(cell) <= 2**53
                or float(cell) != int(float(cell))
            ):
                raise ValueError(
                    f"VOTES must hold whole numbers >= 0, got {cell_in_words(cell)} in line "
                    f"{number} of {str(path)!r}. Write how many teachers chose the class."
                )
    return np.array([[int(float(cell)) for cell in row] for _, row in rows])


def show_pate(answer: PateAnswer) -> None:
    """Print the cost for people."""
    # First the three figures, which depend on the votes.
    print_table(
        f"{answer['queries']} queries, {answer['teachers']} teachers, {answer['classes']} classes, "
        f"δ = {answer['delta']:g}; expected to be answered: {answer['expected_answers']:.1f}",
        [
            {"cost": "by the votes", "epsilon": answer["epsilon"], "order": answer["order"]},
            {
                "cost": "whatever the votes",
                "epsilon": answer["epsilon_data_independent"],
                "order": None,
            },
            {
                "cost": "as Papernot et al. 2018 print it",
                "epsilon": answer["reference"]["epsilon"],
                "order": answer["reference"]["order"],
            },
        ],
    )
    # Then what may be published, and what the run's record states.
    if "suggestion" in answer:
        best = answer["suggestion"]
        suggested = ",".join(
            f"{value:.3g}" for value in (best["order"], best["beta"], best["noise_multiplier"])
        )
        stdout.print(f"suggested by the votes: --publish {suggested}", markup=False)
    if "epsilon_sanitised" in answer:
        shown = f"ε = {answer['epsilon_sanitised']:.4g}"
        stdout.print(
            f"to publish, an estimate with noise, which may lie below the true one: {shown}",
            markup=False,
        )
    if "recorded_epsilon" in answer:
        stdout.print(
            f"the run's record states ε = {stated(answer['recorded_epsilon'])} whatever the votes, by "
            f"accountant {answer['recorded_accountant']}; the figures above are by Rényi "
            "divergences, which bound it less tightly",
            markup=False,
        )
    stdout.print(f"note: {answer['note']}", markup=False)
