"""The pages of `raydp profile -o`: one profile, or the curves of many runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydp.extensions.calculator.grids import ProfileCurve, write_profile_grid
from raydp.extensions.calculator.many_runs import CurvesOfRun
from raydp.extensions.calculator.one_run import WholeProfile
from raydp.extensions.calculator.profiles import write_profiles


def write_profile(answer: WholeProfile, path: Path, title: str) -> None:
    """Write the profile as a page with a figure."""
    curves = {
        name: [(row["delta"], row["epsilon"]) for row in rows]
        for name, rows in answer["curves"].items()
    }
    # The figure's notes: whether one μ stands for the profile, and an attacker's limits.
    mu, attack = answer["gdp_mu"], answer["attack"]
    notes = [
        f"The whole profile lies below that of a Gaussian mechanism with μ = {mu:.4g} (δ >= 1e-10)."
        if mu is not None
        else f"No single μ stands for the whole profile: {answer['gdp_mu_reason']}."
    ]
    rates = []
    if "reason" not in attack:
        rates = [
            (row["false_positive_rate"], row["bound"]) for row in attack["true_positive_rates"]
        ]
        notes.append(f"The advantage of an attacker is at most {attack['advantage']:.4g}.")
    write_profiles(curves, path, title=title, attack=rates, notes=notes)


def write_profile_page(answers: Sequence[CurvesOfRun], path: Path, title: str) -> None:
    """Write a page with one panel of all curves per accountant, and the tables of figures."""
    # One panel for each accountant, with a curve for each run.
    panels = {
        accountant: [
            ProfileCurve(
                label=f"n = {a['n']}, b = {a['batch_size']}, T = {a['num_steps']}",
                noise_multiplier=a["noise_multipliers"][accountant],
                points=[(row["delta"], row["epsilon"]) for row in a["curves"][accountant]],
            )
            for a in answers
        ]
        for accountant in answers[0]["curves"]
    }
    # The target is drawn only if all curves meet in one.
    targets = {(a.get("delta"), a.get("epsilon")) for a in answers}
    ((delta, epsilon),) = targets if len(targets) == 1 else [(None, None)]
    target = None if delta is None or epsilon is None else (delta, epsilon)
    write_profile_grid(panels, path, title=title, target=target)
