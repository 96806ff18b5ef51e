"""Selection rules against Algorithm 1 as printed, thresholds, warnings and records."""

from __future__ import annotations

import json
import math
import re

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from point_tables import NAIVE_RULES, naive_means, naive_procedure, naive_select, tables

from raydp.analysis import check_points, select, useful_points
from raydp.analysis.tables.old_names import warn_of_old_name
from raydp.search_spaces import exact, grid
from tests.marks import slow_after

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def as_point(configuration):
    return configuration.batch_size, configuration.num_steps, exact(configuration.learning_rate)


def full_grid(loss=lambda c: 3 - c.compute * c.learning_rate):
    return pd.DataFrame(
        [
            (c.batch_size, c.num_steps, c.learning_rate, 0, loss(c), 0.5)
            for c in grid([2, 4], [1, 2, 4], ["0.1", "0.2"])
        ],
        columns=COLUMNS,
    )


@settings(max_examples=30)
@given(table=tables(), data=st.data())
@pytest.mark.parametrize("rule", slow_after(1, NAIVE_RULES))
def test_rules_agree_with_their_naive_definitions(rule, table, data):
    means = naive_means(table)
    max_loss = data.draw(st.none() | st.sampled_from([loss for loss, _ in means.values()]))
    pool = {
        p: figures for p, figures in means.items() if max_loss is None or figures[0] <= max_loss
    }
    selection = select(table, rule=rule, max_loss=max_loss)
    chosen = naive_select(rule, pool)
    assert as_point(selection.configuration) == chosen
    assert (selection.utility_loss, selection.score) == means[chosen]
    assert select(
        table.sample(frac=1, random_state=1), rule=rule, max_loss=max_loss
    ).configuration == (selection.configuration)


@pytest.mark.slow
@settings(max_examples=40)
@given(table=tables())
def test_the_record_shows_the_survivors_of_every_step(table):
    steps = select(table, rule="procedure").steps
    survivors, _ = naive_procedure(naive_means(table))
    assert [step.name for step in steps] == ["updates", "compute", "individual", "worst utility"]
    assert [set(map(as_point, step.survivors)) for step in steps[:3]] == survivors
    before = set(naive_means(table))
    for step in steps:
        assert set(map(as_point, step.dropped)) == before - set(map(as_point, step.survivors))
        before = set(map(as_point, step.survivors))


@pytest.mark.slow
@settings(max_examples=40)
@given(table=tables(), share=st.sampled_from([0, 0.25, 0.5, 0.75, 1]))
def test_min_gain_share_is_a_share_of_the_best_gain(table, share):
    means, base = naive_means(table), 3.0
    best = max(base - loss for loss, _ in means.values())
    # The shares are dyadic but means over three seeds are not: stay clear of the one boundary that
    # rounding decides.
    gains = {p: base - loss for p, (loss, _) in means.items()}
    assume(all(gain == best or abs(gain - share * best) > 1e-9 for gain in gains.values()))
    kept = {p for p, gain in gains.items() if gain >= share * best}
    points = useful_points(table, min_gain_share=share, base_utility_loss=base)
    assert set(naive_means(points)) == kept
    selection = select(table, rule="procedure", min_gain_share=share, base_utility_loss=base)
    assert as_point(selection.configuration) == naive_select(
        "procedure", {p: means[p] for p in kept}
    )
    in_table = select(table.assign(base_utility_loss=base), rule="procedure", min_gain_share=share)
    assert in_table.configuration == selection.configuration


def test_a_gain_on_the_boundary_counts_despite_rounding():
    """Exactly 90 % of the best gain: 3.1 - 0.9 * (3.1 - 1.9) is 2.0199999999999996 as floats."""
    table = pd.DataFrame([(1, 1, 0.1, 0, 2.02, 0.1), (2, 1, 0.1, 0, 1.9, 0.2)], columns=COLUMNS)
    selection = select(table, rule="oracle", min_gain_share=0.9, base_utility_loss=3.1)
    assert (selection.configuration.batch_size, selection.max_loss) == (1, 2.02)
    above = select(table, rule="oracle", min_gain_share=0.9000001, base_utility_loss=3.1)
    assert above.configuration.batch_size == 2


def test_a_mean_computed_elsewhere_is_a_threshold_that_its_configuration_meets():
    values = [1.52, 2.02, 1.81]
    elsewhere = sum(values) / 3
    table = pd.DataFrame(
        [(1, 1, 0.1, seed, loss, 0.1) for seed, loss in enumerate(values)], columns=COLUMNS
    )
    assert select(table).utility_loss > elsewhere, (
        "the case at hand: a float sum that is rounded down"
    )
    assert select(table, max_loss=elsewhere).utility_loss == select(table).utility_loss
    with pytest.raises(ValueError, match="lowest mean utility_loss"):
        select(table, max_loss=elsewhere - 1e-12)


def test_nearly_equal_figures_are_no_ties():
    """The next double up loses, though it comes first in the order (T, b, η)."""
    table = pd.DataFrame(
        [(1, 1, 0.1, 0, 2.0000000000000004, 0.1), (2, 1, 0.1, 0, 2.0, 0.2)], columns=COLUMNS
    )
    assert select(table, rule="best-utility").configuration.batch_size == 2
    assert select(table, rule="worst-utility").configuration.batch_size == 1


def test_max_loss_overrides_the_gain():
    table = full_grid()
    by_loss = select(table, max_loss=2.5)
    with_gain = select(table, max_loss=2.5, min_gain_share=1.0, base_utility_loss=3.0)
    assert with_gain.to_dict() == by_loss.to_dict()
    assert by_loss.steps[0].name == "utility threshold"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_loss": 0.1}, r"lowest mean utility_loss, 1\.4 of \(b=4, T=4, η=0\.2\)"),
        ({"max_loss": float("nan")}, "max_loss must be finite"),
        ({"min_gain_share": 0.9}, "base_utility_loss"),
        ({"min_gain_share": 90, "base_utility_loss": 3.0}, r"in \[0, 1\], got 90"),
        ({"min_gain_share": 0.9, "base_utility_loss": 1.0}, "got 0.9 and a best gain of -0.4"),
        ({"rule": "best-utilty"}, "Did you mean 'best-utility'"),
    ],
)
def test_bad_requests_are_refused_with_a_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        select(full_grid(loss=lambda c: 3 - c.compute * c.learning_rate / 2), **arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "On a full grid without a utility threshold, .* Set max_loss or min_gain_share."),
        (
            {"max_loss": 9.0},
            "max_loss 9 excluded nothing: on a full grid .* Lower it to exclude something.",
        ),
        (
            {"min_gain_share": 0.0, "base_utility_loss": 3.0},
            "min_gain_share 0 excluded nothing: on a full grid .* Raise it to exclude something.",
        ),
    ],
)
def test_a_full_grid_of_which_nothing_is_excluded_ends_at_the_corner_and_warns(arguments, text):
    selection = select(full_grid(), rule="procedure", **arguments)
    assert selection.configuration == grid([2], [1], [0.1])[0]
    assert re.fullmatch(text, selection.warnings[0])


def test_no_warning_where_the_procedure_has_a_choice():
    def of_the_grid(*arguments, **options):
        return [
            w
            for w in select(*arguments, **{"rule": "procedure"} | options).warnings
            if "full grid" in w
        ]

    assert not of_the_grid(full_grid(), max_loss=2.3), "a threshold that excludes something"
    assert not of_the_grid(full_grid(), min_gain_share=0.5, base_utility_loss=3.0)
    assert not of_the_grid(full_grid(), rule="best-utility")
    assert not of_the_grid(full_grid()[1:]), "not a full grid"


def of_two(selected, best):
    """Two configurations that pass, with their scores by seed; the procedure selects the first, the
    second is better, and a third has a loss that no threshold lets pass."""
    scores = {1: selected, 2: best, 8: [0.5, 0.5]}
    losses = {1: 2.0, 2: 1.5, 8: 9.0}
    rows = [
        (b, 1, 0.1, seed, losses[b], score)
        for b, of in scores.items()
        for seed, score in enumerate(of)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.mark.parametrize(
    ("selected", "best", "verdict", "warning"),
    [
        (
            [0.10, 0.14],
            [0.15, 0.19],
            "undecided",
            r"may be any of the 2, .* By the model of the scores no further seeds are needed",
        ),
        ([0.10, 0.11], [0.30, 0.31], "supported", None),
        (
            [0.30, 0.31],
            [0.10, 0.11],
            "contradicted",
            r"speak against the choice: .* the lowest is among \(b=2,",
        ),
        (
            [0.1, 0.3],
            [0.2, 0.2001],
            "undecided",
            r"about \d+ seeds of each of the \d+ compared configurations would decide",
        ),
        ([0.2, 0.2], [0.2, 0.2], "unknown", "no score differs between two seeds"),
        ([0.2], [0.1], "unknown", "no configuration has two seeds"),
    ],
)
def test_an_open_decision_is_named(selected, best, verdict, warning):
    table = of_two(selected, best)
    if len(selected) == 1:
        table = table[table["seed"] == 0]
    selection = select(table, rule="procedure", max_loss=2.5)
    assert selection.configuration.batch_size == 1
    assert selection.contenders.verdict == verdict
    few, *others = selection.warnings
    assert few.startswith("Only 2 of 3 configurations ")
    assert others[:1] == [] if warning is None else re.search(warning, others[0])


def test_nothing_is_left_open_where_nothing_was_asked_or_only_one_passes():
    assert not select(of_two([0.1, 0.3], [0.2, 0.29]), rule="best-utility").warnings
    (few,) = select(of_two([0.1, 0.3], [0.2, 0.29]), max_loss=1.6).warnings
    assert few.startswith("Only 1 of 3 configurations ")


def test_the_document_is_the_contract():
    table = full_grid().assign(model_uri=[f"models:/m/{k}" for k in range(12)], status="finished")
    table.loc[0, "status"] = "failed"
    document = json.loads(json.dumps(select(table, max_loss=2.5).to_dict(), allow_nan=False))
    assert list(document) == [
        "batch_size", "num_steps", "learning_rate", "sweep", "epsilon", "delta", "utility_loss", "score", "score_name",
        "scores", "rule", "max_loss", "explanation", "steps", "model_uri", "warnings", "uncertainty", "decision",
        "threshold_changes",
    ]  # fmt: skip
    assert list(document["uncertainty"]) == [
        "verdict", "confidence", "levels", "configurations", "further_seeds", "reason",
    ]  # fmt: skip
    assert document["steps"][-1]["survivors"] == [
        {k: document[k] for k in ("batch_size", "num_steps", "learning_rate")}
    ]
    row = table.merge(pd.DataFrame(document["steps"][-1]["survivors"])).iloc[0]
    assert document["model_uri"] == row["model_uri"]
    assert (
        document["warnings"][0]
        == "The table has rows that are not finished and were left out: 1 failed."
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(table=tables())
@pytest.mark.parametrize(
    "rule", slow_after(1, ["procedure", "worst-utility", "best-utility", "oracle"])
)
def test_a_choice_that_another_beats_in_both_says_so(rule, table):
    selection = select(table, rule=rule)
    chosen = selection.utility_loss, selection.score
    beaten = [
        p
        for p, (loss, score) in naive_means(table).items()
        if loss < chosen[0] and score < chosen[1]
    ]
    said = [w for w in selection.cautions if "less loss and a lower score" in w]
    assert len(said) == bool(beaten)
    if said:
        assert said[0].startswith(f"{len(beaten)} of ")
        assert rule in ("procedure", "worst-utility")


@pytest.mark.parametrize(("value", "seeds"), [(0.1, 3), (0.7, 6), (0.7, 7), (2.3, 6)])
def test_a_column_that_is_the_bound_everywhere_keeps_to_it(value, seeds):
    """Plain sums of these, divided by their number, are larger than each."""
    rows = [(2, 1, 0.1, seed, 1.0, 0.5) for seed in range(seeds)]
    table = pd.DataFrame(rows, columns=COLUMNS).assign(x=value)
    assert select(table, at_most={"x": value}).utility_loss == 1.0


def test_compute_beyond_64_bits_is_no_small_one():
    table = pd.DataFrame([(2**52, 2**52, 0.1, 0, 1.0, 0.5)], columns=COLUMNS)
    with pytest.raises(ValueError, match=r"at_most compute must be at least 2\.028\d*e\+31"):
        select(table, at_most={"compute": 1})


def test_a_bound_that_a_message_names_is_one_that_holds():
    table = full_grid(lambda c: 2.954760000004321)
    with pytest.raises(ValueError, match="at least the lowest") as refused:
        select(table, max_loss=1.0)
    named = float(re.search(r"utility_loss, ([\d.]+) of", str(refused.value))[1])
    assert select(table, max_loss=named).utility_loss == 2.954760000004321


def test_old_name_of_the_share_is_read_with_a_warning(caplog):
    points = full_grid().assign(base_utility_loss=3.0)
    warn_of_old_name.cache_clear()
    old = select(points, rule="procedure", min_utility_gain=0.9)
    assert old.to_dict() == select(points, rule="procedure", min_gain_share=0.9).to_dict()
    assert "now called min_gain_share" in caplog.text
    with pytest.raises(ValueError, match="got both"):
        select(points, rule="procedure", min_utility_gain=0.9, min_gain_share=0.8)


@pytest.mark.parametrize("fields", ["", '{"method.max_grad_norm":0.5}'])
@pytest.mark.parametrize("unprotected", [[0], [0, 1, 2]])
def test_a_choice_without_a_guarantee_is_warned_of(fields: str, unprotected: list[int]) -> None:
    """The table names no further field, or one; all seeds have an infinite ε, or one of them."""
    rows = [
        {"batch_size": b, "num_steps": 4, "learning_rate": 0.1, "settings": fields, "seed": seed,
         "utility_loss": 1.0, "score": 0.1 * b + 0.01 * seed, "run_id": f"{b}-{seed}",
         "status": "finished", "epsilon": math.inf if b == 2 and seed in unprotected else 8.0}
        for b in (2, 4) for seed in range(3)
    ]  # fmt: skip
    selection = select(check_points(pd.DataFrame(rows)))
    assert selection.configuration.batch_size == 2
    said = [caution.short for caution in selection.cautions]
    assert "no privacy guarantee: its ε is infinite" in said
    protected = select(check_points(pd.DataFrame(rows)), at_most={"epsilon": 8})
    assert not [c for c in protected.cautions if "guarantee" in str(c.short)]


@pytest.mark.parametrize(("base", "warned"), [(0.9, True), (1.0, False), (1.1, False)])
@pytest.mark.parametrize("scored", [True, False])
def test_a_choice_warns_of_a_loss_above_the_untrained_models(
    base: float, warned: bool, scored: bool
) -> None:
    rows = [
        {"batch_size": b, "num_steps": 4, "learning_rate": 0.1, "seed": seed, "utility_loss": 1.0,
         "score": 0.1 * b + 0.01 * seed if scored else None, "run_id": f"{b}-{seed}",
         "status": "finished", "base_utility_loss": base}
        for b in (2, 4) for seed in range(2)
    ]  # fmt: skip
    table = check_points(pd.DataFrame(rows), scored=False)
    chosen = select(table, rule="informed" if scored else "procedure")
    harm = [c for c in chosen.cautions if str(c).startswith("Training did harm")]
    assert bool(harm) == warned
