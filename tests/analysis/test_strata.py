"""Further fields in the analysis: the paper's heuristics stay within a stratum, and surfaces see
every dimension."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import (
    configuration_means,
    heuristic_accuracy,
    hyperparameter_effects,
    predict,
    regress,
    select,
)
from raydp.analysis.selection.rules import Layout, choose
from raydp.analysis.tables.coordinates import Coordinates, varied_fields
from raydp.analysis.tables.points import check_points, configurations
from raydp.extensions.growing_pools.procedure import procedure_on_growing_pools
from raydp.extensions.hyperparameters.importance import hyperparameter_importance
from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings, settings_in_words

CLIPPING, KIND = "method.max_grad_norm", "method.second_moment"


def table(fields: list[dict[str, Any]], seeds: int = 2, **figures: Any) -> pd.DataFrame:
    """Every (b, T, η) of a small grid with every combination of fields; the score rises with c and
    with U."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "batch_size": b, "num_steps": t, "learning_rate": rate, "seed": seed, "settings": Settings(own).text,
            "utility_loss": 5 - np.log(b * t * rate) + 0.01 * rng.standard_normal(),
            "score": (b * t * rate) ** 0.5 * own.get(CLIPPING, 1.0) * np.exp(0.01 * rng.standard_normal()),
        }
        for b, t, rate in product([64, 128], [10, 20, 40], [0.01, 0.02])
        for own in fields
        for seed in range(seeds)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**figures)


NORMS = [{CLIPPING: norm} for norm in (0.5, 1.0, 2.0)]


def test_the_heuristics_count_pairs_within_each_stratum() -> None:
    together = heuristic_accuracy(table(NORMS))
    apart = [heuristic_accuracy(table([own])) for own in NORMS]
    whole = table(NORMS)
    for name, figures in together.items():
        assert figures["pairs"] == sum(one[name]["pairs"] for one in apart) > 0
        of_rows = [
            heuristic_accuracy(whole[whole["settings"] == s])[name]
            for s in whole["settings"].unique()
        ]
        assert figures["correct"] == sum(one["correct"] for one in of_rows)


def test_the_procedure_keeps_the_same_in_each_stratum_alone() -> None:
    points = table(NORMS)
    steps = select(points, rule="procedure").steps
    kept = {step.name: set(step.survivors) for step in steps}
    for own in NORMS:
        alone = select(points[points["settings"] == Settings(own).text], rule="procedure").steps
        for step in alone[:-1]:
            assert set(step.survivors) == {c for c in kept[step.name] if c.fields == own}


def test_growing_pools_agree_with_the_procedure_at_every_threshold() -> None:
    """Growing pools against the steps, on losses without any order."""
    rng = np.random.default_rng(3)
    means = configuration_means(table(NORMS, seeds=1))
    means = means.assign(utility_loss=rng.permutation(len(means)).astype(float))
    layout = Layout.of(means)
    losses = means["utility_loss"].to_numpy()
    of_growing = procedure_on_growing_pools(Layout.of(means).with_certainty(None).__class__(
        **{**vars(layout), "utility_loss": losses[None]}
    ))[0]  # fmt: skip
    by_steps = [int(choose("procedure", layout, losses <= loss)) for loss in losses]
    assert of_growing.tolist() == by_steps


def test_a_number_counts_by_its_logarithm_and_any_other_value_by_itself() -> None:
    fields = [
        {CLIPPING: 0.5, KIND: "plain"},
        {CLIPPING: 2.0, KIND: "corrected"},
        {CLIPPING: 2.0, KIND: "plain"},
    ]
    means = configuration_means(table(fields, seeds=1))
    coordinates = Coordinates.of(means)
    assert coordinates.further == ["log method.max_grad_norm", "method.second_moment = plain"]
    values = coordinates.values(means)[:, 3:]
    expected = [
        [np.log(Settings.parse(s)[CLIPPING]), float(Settings.parse(s)[KIND] == "plain")]
        for s in means["settings"]
    ]
    np.testing.assert_allclose(values, expected)
    three = [{KIND: name} for name in ("a", "b", "c")]
    assert Coordinates.of(table(three)).further == [f"{KIND} = {name}" for name in "abc"]
    assert list(Coordinates.of(table(three)).against_first(table(three))) == [
        f"{KIND} = b",
        f"{KIND} = c",
    ]


def test_a_field_that_only_some_configurations_set_has_a_middle_and_a_mark() -> None:
    some = table([{}, {CLIPPING: 0.5}, {CLIPPING: 2.0}], seeds=1)
    coordinates = Coordinates.of(some)
    assert coordinates.further == [f"log {CLIPPING}", f"{CLIPPING} is set"]
    for row, settings in zip(coordinates.values(some)[:, 3:], some["settings"], strict=True):
        norm = Settings.parse(settings).get(CLIPPING)
        assert row.tolist() == pytest.approx([0.0, 0.0] if norm is None else [np.log(norm), 1.0])


def test_without_further_fields_nothing_has_changed() -> None:
    plain = table([{}]).drop(columns="settings")
    assert varied_fields(plain) == {}
    assert Coordinates.of(plain).size == 3
    one = table([{CLIPPING: 1.0}])
    assert varied_fields(one) == {}, "a field with one value tells no configurations apart"


def test_the_regression_finds_the_slope_of_a_further_field() -> None:
    """ln score = ln c + 0.5 ln U by construction; the regression is of the logarithm here."""
    points = table(NORMS)
    terms = regress(points.assign(score=np.log(points["score"])))["individual"]["terms"]
    assert terms["log_method.max_grad_norm"]["coef"] == pytest.approx(1.0, abs=0.02)
    assert terms["log_batch_size"]["coef"] == pytest.approx(0.5, abs=0.02)


def test_the_effect_of_a_further_field_is_of_series_in_which_nothing_else_differs() -> None:
    effects = hyperparameter_effects(table(NORMS))
    own = effects[CLIPPING]
    assert own["series_count"] == 12
    for series in own["series"]:
        assert [point["settings"][CLIPPING] for point in series["points"]] == [0.5, 1.0, 2.0]
        assert set(series["fixed"]) == {"batch_size", "num_steps", "learning_rate"}
    for series in effects["batch_size"]["series"]:
        assert len({Settings(point["settings"]).text for point in series["points"]}) == 1
        assert series["fixed"][CLIPPING] in (0.5, 1.0, 2.0)


def test_the_field_that_decides_the_score_is_the_most_important_one() -> None:
    fields = [{CLIPPING: norm} for norm in (0.01, 1.0, 100.0)]
    shares = hyperparameter_importance(table(fields))["score"]
    assert shares is not None
    assert max(shares, key=shares.__getitem__) == CLIPPING
    kinds = table([{KIND: "plain"}, {KIND: "corrected"}])
    kinds["score"] *= np.where(kinds["settings"].str.contains("plain"), 50.0, 1.0)
    shares = hyperparameter_importance(kinds)["score"]
    assert shares is not None
    assert max(shares, key=shares.__getitem__) == KIND


def test_a_combination_that_was_not_run_is_predicted() -> None:
    points = table(NORMS)
    left_out = (points["settings"] == Settings({CLIPPING: 1.0}).text) & (points["batch_size"] == 64)
    left_out &= (points["num_steps"] == 20) & (points["learning_rate"] == 0.01)
    (row,) = predict(points[~left_out])
    assert row["settings"] == {CLIPPING: 1.0}
    low, high = row["score_interval"]
    assert low < points[left_out]["score"].mean() < high
    beyond = Configuration(
        batch_size=64, num_steps=20, learning_rate=0.01, settings=Settings({CLIPPING: 9.0})
    )
    assert predict(points, [beyond])[0]["beyond"] == [CLIPPING]


def test_null_is_a_value_and_not_the_lack_of_one() -> None:
    points = table([{}, {KIND: None}, {KIND: "corrected"}])
    assert Coordinates.of(points).further == [
        f"{KIND} = {level}" for level in ("corrected", "not set", "null")
    ]
    effect = hyperparameter_effects(points)[KIND]
    assert effect["series_count"] == 12
    assert [len(series["points"]) for series in effect["series"]] == [2] * 12
    assert effect["per_doubling"] is None


def test_a_value_that_was_not_measured_cannot_be_predicted() -> None:
    asked = Configuration(
        batch_size=64, num_steps=20, learning_rate=0.01, settings=Settings({KIND: "other"})
    )
    for fields in ([{KIND: "plain"}, {KIND: "corrected"}], [{KIND: "plain"}]):
        with pytest.raises(
            ValueError,
            match=r"method\.second_moment must be a value that was measured .*, got other",
        ):
            predict(table(fields), [asked])
    with pytest.raises(
        ValueError,
        match=r"that the measured configurations set \(method\.max_grad_norm\), got method",
    ):
        predict(table(NORMS), [asked])


def test_another_value_of_a_field_that_was_the_same_for_all_is_an_extrapolation() -> None:
    points = table([{CLIPPING: 0.5}])
    asked = [
        Configuration(
            batch_size=64,
            num_steps=20,
            learning_rate=0.01,
            settings=Settings({CLIPPING: norm}),
        )
        for norm in (0.5, 5.0)
    ]
    assert [row["beyond"] for row in predict(points, asked)] == [[], [CLIPPING]]


def test_left_out_configurations_are_predicted_within_their_stratum() -> None:
    """A field that varies at one learning rate alone is not predicted at the other one."""
    points = table([{}, {KIND: "corrected"}])
    points = points[(points["settings"] == "") == (points["learning_rate"] == 0.01)]
    assert predict(points) == []


def test_a_coordinate_that_others_determine_is_left_out_of_the_regression() -> None:
    points = table([{}, {CLIPPING: 0.5}, {CLIPPING: 2.0}])
    points = points[(points["settings"] == "") == (points["learning_rate"] == 0.01)]
    terms = regress(points)["individual"]["terms"]
    assert f"log_{CLIPPING}" in terms
    assert f"{CLIPPING} is set" not in terms, "it is set where the learning rate is 0.02"
    assert all(term["coef"] is not None for term in terms.values())
    together = table(
        [
            {KIND: "plain", "model.adapter.type": "lora"},
            {KIND: "corrected", "model.adapter.type": "ia3"},
        ]
    )
    assert Coordinates.of(together).further == [f"{KIND} = plain"], (
        "two fields that change together count once"
    )


def test_the_selected_configuration_has_its_fields_and_ties_go_by_them() -> None:
    points = table(NORMS)
    chosen = select(points, rule="oracle").configuration
    assert chosen.fields == {CLIPPING: 0.5}
    assert "max_grad_norm=0.5" in str(chosen)
    equal = select(points.assign(score=1.0, utility_loss=2.0), rule="oracle").configuration
    assert equal.key == min(c.key for c in configurations(points))


@pytest.mark.parametrize("cell", ["{", "[1]", "{}", "null", "x"])
def test_a_cell_that_is_no_settings_is_refused_by_its_row(cell: str) -> None:
    points = table(NORMS)
    points.loc[2, "settings"] = cell
    with pytest.raises(
        ValueError, match=r"settings must be empty, or JSON of the fields .* It is in row 3"
    ):
        check_points(points)


def test_the_text_of_settings_has_one_form() -> None:
    text = Settings({"b.c": [1, 2], "a.b": "x"}).text
    assert text == '{"a.b":"x","b.c":[1,2]}'
    assert dict(Settings.parse(text)) == {"a.b": "x", "b.c": [1, 2]}
    assert Settings({}).text == ""
    points = table(NORMS)
    points["settings"] = [
        f' {{ "{CLIPPING}" : {Settings.parse(s)[CLIPPING]} }}' for s in points["settings"]
    ]
    assert set(check_points(points)["settings"]) == {Settings(own).text for own in NORMS}
    names = {"method.max_grad_norm": 0.5, "model.adapter.r": 4, "other.r": None}
    assert settings_in_words(names) == "max_grad_norm = 0.5, adapter.r = 4, other.r = null"
