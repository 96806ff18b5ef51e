"""The privacy profile of one run by every accountant, for `raydp profile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict, cast

from raydp.extensions.calculator.calibrate import Run, event_of
from raydp.plugins.registries import names, resolve, service
from raydp.privacy import attack_summary, profile_rows
from raydp.privacy.accounting.accountant import Accountant
from raydp.privacy.accounting.documents import AttackSummary, ProfileRow
from raydp.privacy.accounting.events import Event, check_delta, check_num_steps
from raydp.privacy.accounting.profile import dominating_mu
from raydp.system.output import print_table, stderr, stdout

ACCOUNTANTS: tuple[Accountant, ...] = tuple(
    resolve("accountants", name)() for name in names("accountants")
)


class Profile(TypedDict):
    """The privacy profile of one run.

    Keys:
        deltas: the requested δ.
        epsilons: ε at each δ; inf for NonPrivateEvent.
        gdp_mu: μ of a Gaussian mechanism above the whole profile; None if there is none.
        gdp_mu_reason: why there is no μ.
        accountant: registry name of the accountant of the epsilons.
    """

    deltas: list[float]
    epsilons: list[float]
    gdp_mu: float | None
    gdp_mu_reason: str | None
    accountant: str


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


def profile(event: Event, deltas: Sequence[float], accountant_name: str) -> Profile:
    """Return upper bounds on ε at each δ, and the smallest μ whose Gaussian curve dominates them.

    Args:
        event: what the run releases.
        deltas: each in (0, 1).
        accountant_name: registry name of the accountant of the epsilons. gdp_mu is always from
            'pld', the only accountant with a curve.

    Raises:
        ValueError: there are no deltas, one is not in (0, 1), or the accountant is unknown.
        AccountantError: the accountant cannot handle the event; the message names the limit.
    """
    if not deltas:
        raise ValueError(
            "deltas must hold at least one value, got none. 1e-3,1e-6 shows two ends of a profile."
        )
    for delta in deltas:
        check_delta(delta, field="deltas")
    accountant: Accountant = resolve("accountants", accountant_name, field="accountant")()
    epsilons = accountant.epsilons(event, deltas)
    mu, reason = dominating_mu(event)
    return {
        "deltas": list(deltas),
        "epsilons": epsilons,
        "gdp_mu": mu,
        "gdp_mu_reason": reason,
        "accountant": accountant.name,
    }


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

    With expected_runs, also compute ε of releasing only the best of a random number of such runs.
    The number is geometric with this mean, and the best is chosen on public data. It is computed by
    rdp if `accountant` is rdp, and by pld otherwise.

    Raises:
        ValueError: a value is out of range.
    """
    # Check the run, in the words of the options.
    values = delta_values(deltas)
    run: Run = {"n": n, "batch_size": batch_size, "num_steps": num_steps}
    check_num_steps(num_steps, field="--num-steps")
    event = event_of(run, noise_multiplier, field="--batch-size")
    # The requested accountant's answer, with μ.
    with stderr.status("computing ε at each δ"):
        own = profile(event, values, accountant)
        known: list[ProfileRow] = [
            {"delta": d, "epsilon": e} for d, e in zip(own["deltas"], own["epsilons"], strict=True)
        ]
        # All accountants' curves for comparison. The requested one is not computed twice.
        curves = {
            a.name: known if a.name == accountant else profile_rows(event, values, a)
            for a in ACCOUNTANTS
        }
        whole = {**own, "curves": curves, "attack": attack_summary(event)}
        answer = cast("WholeProfile", whole)
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
            **{f"ε by {k}": x["epsilon"] for k, x in zip(answer["curves"], r, strict=True)},
        }
        for r in by_delta
    ]
    if expected_runs is not None and "best_of" in answer:
        best_of = answer["best_of"]
        for row, epsilon in zip(rows, best_of["epsilons"], strict=True):
            row[f"ε of the best of about {expected_runs:g} ({best_of['accountant']})"] = epsilon
    print_table("ε at each δ, by accountant", rows)
    stdout.print(
        f"gdp_mu: {answer['gdp_mu'] if answer['gdp_mu'] is not None else answer['gdp_mu_reason']}"
    )
    attack = answer["attack"]
    if "reason" not in attack:
        print_table("an attacker's true positive rate at most", attack["true_positive_rates"])
