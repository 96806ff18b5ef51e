"""Further seeds: which configuration gets one, when they end, and what a decision would need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import select
from raydp.analysis.seeds.allocation import SeedLimits, next_seed
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.surface.what_if import MeasuredScores
from raydp.analysis.tables.points import configuration_means, configurations
from raydp.search_spaces import Configuration

GRID = [
    Configuration(batch_size=b, num_steps=t, learning_rate=0.01)
    for b in (32, 64, 128)
    for t in (10, 20)
]
LIMITS = SeedLimits(at_most=12, compute=1e9, confidence=0.95, tolerance=0.1)
NO_CONSTRAINT = Constraints()
NUM_SECRETS = 30


def runs(scores, seeds, *, noise=0.01, losses=None, by_configuration=None, seed=0):
    """Runs of the grid's first configurations with given true scores, and their values by secret.

    Args:
        by_configuration: standard deviation of how a secret reacts to a configuration, which seeds
            do not average out.
    """
    rng = np.random.default_rng(seed)
    losses = [1.0] * len(scores) if losses is None else losses
    rows, values = [], []
    for k, configuration in enumerate(GRID[: len(scores)]):
        own = rng.normal(0, by_configuration or 0.0, NUM_SECRETS)
        own -= own.mean()
        for label in range(seeds[k] if isinstance(seeds, list) else seeds):
            side = (-1) ** label  # so that the means of an even number of seeds are exact
            score, loss = scores[k] + noise * side, losses[k] + 0.001 * side
            rows.append([*configuration.to_json().values(), label, loss, score, f"{k}-{label}"])
            values += [
                [f"{k}-{label}", "vmr", f"s{i:02}", score + own[i]] for i in range(NUM_SECRETS)
            ]
    names = [*GRID[0].to_json(), "seed", "utility_loss", "score", "run_id"]
    points = pd.DataFrame(rows, columns=names).assign(base_utility_loss=3.0)
    secrets = pd.DataFrame(values, columns=["run_id", "score", "secret_id", "value"])
    return points, (secrets, "vmr")


def begun(points):
    counts = points.groupby(list(GRID[0].to_json())).size()
    return {
        Configuration(batch_size=b, num_steps=t, learning_rate=r): int(n)
        for (b, t, r), n in counts.items()
    }


def test_seeds_go_to_the_contenders_alone():
    points, _ = runs([0.6, 0.20, 0.21, 0.7, 0.8, 0.9], 2, noise=0.03)
    chosen = set()
    for extra in range(12):  # the draws depend on the number of runs
        counts = {**begun(points), GRID[5]: 2 + extra}
        step = next_seed(points, NO_CONSTRAINT, LIMITS, begun=counts)
        chosen.add(step.configuration)
    assert chosen == {GRID[1], GRID[2]}, "they cost the same"


def test_a_clear_table_ends_as_decided_and_equal_scores_as_equivalent():
    clear, _ = runs([0.2, 0.4, 0.6, 0.7], 2, noise=0.005)
    assert next_seed(clear, NO_CONSTRAINT, LIMITS, begun=begun(clear)).state == "decided"
    assert select(clear).decision.state == "decided"
    equal, _ = runs([0.5, 0.5, 0.5, 0.5], 12, noise=0.01)
    assert next_seed(equal, NO_CONSTRAINT, LIMITS, begun=begun(equal)).state == "equivalent"
    strict = replace(LIMITS, tolerance=0.0, at_most=20)
    assert next_seed(equal, NO_CONSTRAINT, strict, begun=begun(equal)).state is None, (
        "a tolerance of 0 allows nothing"
    )
    assert select(equal).decision.state == "equivalent"
    assert select(equal, tolerance=0.0).decision.state == "undecided"


def test_the_cheaper_of_two_gets_the_seed():
    scores = [0.5, 0.9, 0.9, 0.9, 0.9, 0.5]
    points, _ = runs(scores, 3, noise=0.05)
    for extra in range(8):
        counts = begun(points)
        counts[GRID[1]] += extra
        assert next_seed(points, NO_CONSTRAINT, LIMITS, begun=counts).configuration == GRID[0], (
            "its runs cost an eighth"
        )
    counts[GRID[0]] += 8  # many are running, so that the next one would tell little
    assert next_seed(points, NO_CONSTRAINT, LIMITS, begun=counts).configuration == GRID[5]


@pytest.mark.parametrize("limits", [replace(LIMITS, at_most=2), replace(LIMITS, compute=300.0)])
def test_a_used_up_budget_names_the_remedy(limits):
    points, _ = runs([0.50, 0.55, 0.8, 0.9], 2, noise=0.05)
    limits = replace(limits, tolerance=0.0)
    step = next_seed(points, NO_CONSTRAINT, limits, begun=begun(points))
    assert (step.configuration, step.state) == (None, "budget used up")
    assert step.reason.startswith("If the means stayed as they are, about ")
    wanted = int(step.reason.split("about ")[1].split(" seeds")[0])
    means = configuration_means(points)
    more = MeasuredScores(
        means=means, of_secrets=None, over_seeds=np.full(4, np.nan), log_base=None
    )
    pool, best = np.ones(4, dtype=bool), int(means["score"].argmin())
    for seeds, decided in ((wanted, True), (wanted // 2, False)):
        lowest, _ = more.posterior(num_seeds=seeds).chances(pool, 0.0, log_base=None)
        assert (lowest[best] >= 0.95) == decided


def test_an_affordable_contender_runs_when_the_other_is_too_expensive():
    points, _ = runs([0.5, 0.9, 0.9, 0.9, 0.9, 0.5], 3, noise=0.05)
    counts = {**begun(points), GRID[0]: 12}
    assert next_seed(points, NO_CONSTRAINT, LIMITS, begun=counts).configuration == GRID[5]
    limits = replace(LIMITS, compute=float(GRID[5].batch_size * GRID[5].num_steps - 1))
    assert next_seed(points, NO_CONSTRAINT, limits, begun=counts).state == "budget used up"


def test_it_ends_where_secrets_and_not_seeds_are_short():
    points, secrets = runs([0.50, 0.52, 0.51], 4, noise=0.0005, by_configuration=0.4)
    step = next_seed(points, NO_CONSTRAINT, LIMITS, begun=begun(points), by_secret=secrets)
    assert step.state == "secrets are short"
    assert step.reason.startswith(
        "The choice of the secrets is what leaves it open: with 12 seeds of each configuration"
    )
    assert "Measure more secrets (more lines of the secrets file, or more canaries" in step.reason
    assert step.reason.endswith("times as many would decide if the means stayed as they are.")
    spent = replace(LIMITS, at_most=4)
    at_its_limit = next_seed(points, NO_CONSTRAINT, spent, begun=begun(points), by_secret=secrets)
    assert at_its_limit.state == "budget used up", (
        "that no seed may follow says nothing about seeds"
    )
    without = next_seed(points, NO_CONSTRAINT, LIMITS, begun=begun(points))
    assert without.state in ("decided", "equivalent"), "over seeds alone, the difference is clear"


def test_the_secrets_are_not_short_if_it_may_be_that_no_contender_is_useful():
    points, secrets = runs(
        [0.2, 0.2, 0.9], 3, noise=0.005, losses=[1.2, 1.2, 1.3], by_configuration=0.5
    )
    threshold = float(configuration_means(points)["utility_loss"].min()) + 1e-6
    step = next_seed(
        points, Constraints(max_loss=threshold), LIMITS, begun=begun(points), by_secret=secrets
    )
    assert step.configuration in GRID[:2]


def test_secrets_are_not_short_where_utility_alone_is_in_doubt():
    """If the lower score is useful, it is the lowest without a doubt; if not, the other one is
    alone."""
    points, secrets = runs([0.2, 0.5], 3, noise=0.005, losses=[1.2, 1.0], by_configuration=0.05)
    threshold = float(configuration_means(points)["utility_loss"].max()) - 0.0002
    step = next_seed(
        points, Constraints(max_loss=threshold), LIMITS, begun=begun(points), by_secret=secrets
    )
    assert step.configuration == GRID[0]


def test_secrets_that_vary_from_seed_to_seed_are_settled_by_seeds():
    rng = np.random.default_rng(3)
    points, (secrets, name) = runs([0.50, 0.52, 0.51], 4, noise=0.0005)
    secrets = secrets.assign(value=secrets["value"] + rng.normal(0, 0.3, len(secrets)))
    points = points.assign(
        score=secrets.groupby("run_id")["value"].mean().loc[points["run_id"]].to_numpy()
    )
    measured = MeasuredScores.of(points, (secrets, name), log_base=None)
    assert np.sqrt(measured.over_seeds).mean() == pytest.approx(0.3, rel=0.1)
    now, later = measured.posterior(), measured.posterior(num_seeds=400)
    assert later.draws.std(axis=0).max() < 0.4 * now.draws.std(axis=0).min()


def test_a_configuration_whose_utility_is_in_doubt_gets_seeds():
    points, _ = runs([0.2, 0.5], 3, noise=0.005, losses=[1.2, 1.0])
    threshold = float(configuration_means(points)["utility_loss"].max()) - 0.0002
    constraints = Constraints(max_loss=threshold)
    assert select(points, max_loss=threshold).configuration == GRID[1]
    assert next_seed(points, constraints, LIMITS, begun=begun(points)).configuration == GRID[0]
    far = Constraints(max_loss=1.1)
    assert next_seed(points, far, LIMITS, begun=begun(points)).state == "only one"


def test_no_configuration_below_the_threshold_is_an_end_with_a_reason():
    points, _ = runs([0.2, 0.5], 2)
    step = next_seed(points, Constraints(max_loss=0.5), LIMITS, begun=begun(points))
    assert step.state == "no selection"
    assert "max_loss" in step.reason


def test_scores_without_any_spread_use_the_budget():
    points, _ = runs([0.0, 0.0, 0.0], 2, noise=0.0)
    assert next_seed(points, NO_CONSTRAINT, LIMITS, begun=begun(points)).configuration in GRID[:3]
    spent = replace(LIMITS, at_most=2)
    assert next_seed(points, NO_CONSTRAINT, spent, begun=begun(points)).state == "budget used up"


def test_one_configuration_needs_no_further_seed():
    points, _ = runs([0.2], 2)
    assert next_seed(points, NO_CONSTRAINT, LIMITS, begun=begun(points)).state == "only one"


def test_a_configuration_without_a_finished_run_is_left_out():
    points, _ = runs([0.2, 0.5], 2)
    counts = {**begun(points), GRID[4]: 2}
    assert GRID[4] not in configurations(configuration_means(points))
    assert next_seed(points, NO_CONSTRAINT, LIMITS, begun=counts).state == "decided"


@pytest.mark.parametrize(
    ("name", "value"), [("confidence", 1.0), ("confidence", 0.2), ("tolerance", -0.1)]
)
def test_a_wrong_precision_is_refused(name, value):
    points, _ = runs([0.2, 0.5], 2)
    with pytest.raises(ValueError, match=f"{name} must be"):
        select(points, **{name: value})


@pytest.mark.slow
def test_further_seeds_find_the_lowest_of_two_and_stop():
    """Thirty sweeps of two close configurations: nearly all end settled, and nearly all of those
    are right."""
    right, settled = 0, 0
    for number in range(30):
        rng = np.random.default_rng(number)
        drawn = {
            c: list(0.5 + 0.06 * k + 0.04 * rng.standard_normal(12)) for k, c in enumerate(GRID[:2])
        }
        counts = dict.fromkeys(GRID[:2], 2)
        while True:
            rows = [
                [*c.to_json().values(), label, 1.0, drawn[c][label]]
                for c in GRID[:2]
                for label in range(counts[c])
            ]
            points = pd.DataFrame(
                rows, columns=[*GRID[0].to_json(), "seed", "utility_loss", "score"]
            )
            step = next_seed(points, NO_CONSTRAINT, replace(LIMITS, tolerance=0.0), begun=counts)
            if step.configuration is None:
                break
            counts[step.configuration] += 1
        if step.state == "decided":
            settled += 1
            right += select(points).configuration == GRID[0]
    assert settled >= 20
    assert right >= 0.9 * settled
