"""Every analysis on random tables, as they should not be too: an answer with a reason beside every
null, or an error that says what to change; never another exception, a warning, or a number that is
none."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from point_tables import tables

from raydp import analysis
from raydp.analysis.selection.rules import rule_names
from raydp.extensions.hyperparameters.regression import ERRORS
from raydp.system.output import strict

NOT_FIGURES = {"model_uri", "max_loss", "explanation", "sweep", "score_name", "epsilon", "delta"}
"""Null where there is no such thing. A points table need not know a guarantee."""
MESSAGE = re.compile(r".+ must .+, got .+\. .+|.+ is unknown\..* Known: .*\.", re.DOTALL)

Change = Callable[[pd.DataFrame, st.DataObject], pd.DataFrame]


def secrets_of(table: pd.DataFrame) -> pd.DataFrame:
    """Values of two secrets in every run, whose mean is the score."""
    score = pd.to_numeric(table.get("score", pd.Series(0.0, index=table.index)), errors="coerce")
    sides = [
        pd.DataFrame(
            {"run_id": table["run_id"], "score": "vmr", "secret_id": name, "value": score + shift}
        )
        for name, shift in (("a", 0.25), ("b", -0.25))
    ]
    return pd.concat(sides, ignore_index=True)


def bounds_of(table: pd.DataFrame) -> pd.DataFrame:
    """An audit of every configuration."""
    one = table.reindex(columns=["batch_size", "num_steps", "learning_rate"]).drop_duplicates()
    return one.assign(epsilon_hat=np.arange(len(one)) % 4 / 4)


def sides_of(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The values by secret of a sweep with and one without."""
    rows = table[["batch_size", "num_steps", "learning_rate", "seed", "score"]].rename(
        columns={"score": "value"}
    )
    rows = pd.concat([rows.assign(secret_id=name) for name in "ab"], ignore_index=True)
    return [rows, rows.assign(value=rows["value"] * 2)]


ANALYSES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "heuristics": analysis.heuristic_accuracy,
    "verify": lambda t: analysis.verify_heuristics(t, num_permutations=100),
    "variance": analysis.score_variance,
    "effects": analysis.hyperparameter_effects,
    "confound": lambda t: analysis.utility_adjusted(t, num_resamples=30),
    **{
        f"regression {errors}": lambda t, e=errors: analysis.regress(t, errors=e)
        for errors in ERRORS
    },
    "risk": analysis.privacy_risk,
    "risk resampled": lambda t: analysis.privacy_risk(t, layout="resample", num_layouts=3),
    "trends by a column": lambda t: analysis.variance_trends(analysis.split_by(t, "group")),
    "methods": lambda t: analysis.compare_methods(
        {"a": t, "b": t.assign(score=t["score"].to_numpy()[::-1])}
    ),
    "trends of tables": lambda t: analysis.variance_trends({"a": t, "b": t}),
    **{
        f"select {rule}": lambda t, r=rule: analysis.select(t, rule=r).to_dict()
        for rule in rule_names()
    },
    "select below a loss": lambda t: analysis.select(t, max_loss=1.5).to_dict(),
    "select by gain": lambda t: analysis.select(t, min_gain_share=0.5).to_dict(),
    "select below a score": lambda t: analysis.select(t, max_score=0.5).to_dict(),
    "select at most": lambda t: analysis.select(
        t, at_most={"compute": 8, "base_utility_loss": 3}
    ).to_dict(),
    "select with secrets": lambda t: analysis.select(t, by_secret=(secrets_of(t), "vmr")).to_dict(),
    "useful": lambda t: len(analysis.useful_points(t, min_gain_share=0.9)),
    "predict": lambda t: analysis.predict(t, max_loss=1.5),
    "correlations": lambda t: analysis.score_correlations(t, num_resamples=30),
    "audit": lambda t: analysis.audit_correlations(t, bounds_of(t), num_resamples=30),
    "intervals": lambda t: analysis.score_intervals(t, secrets_of(t), num_resamples=30),
    "subsets": lambda t: analysis.secret_subsets(t, secrets_of(t), score="vmr", given=["a"]),
    "counterfactual": lambda t: analysis.counterfactual(
        *sides_of(analysis.check_points(t)), left_out=["a"]
    ),
}


def set_some(table: pd.DataFrame, data: st.DataObject, column: str, value: Any) -> pd.DataFrame:
    """Another value in some rows."""
    chosen = data.draw(st.lists(st.sampled_from(list(range(len(table)))), min_size=1, unique=True))
    values = table[column].astype(object).copy()
    values.iloc[chosen] = value
    return table.assign(**{column: values})


def scaled(table: pd.DataFrame, column: str, factor: float) -> pd.DataFrame:
    return table.assign(**{column: table[column] * factor})


CHANGES: dict[str, Change] = {
    "as it is": lambda t, _: t,
    "rates as numbers": lambda t, _: t.assign(learning_rate=t["learning_rate"].astype(float)),
    "everything as text": lambda t, _: t.astype(dict.fromkeys(("batch_size", "seed", "score"), str)),
    "one seed": lambda t, _: t.drop_duplicates(["batch_size", "num_steps", "learning_rate"]),
    "one point": lambda t, _: t.head(1),
    "equal scores": lambda t, _: t.assign(score=0.5),
    "scores of 0": lambda t, _: t.assign(score=0.0),
    "negative scores": lambda t, _: scaled(t, "score", -1.0),
    "equal losses": lambda t, _: t.assign(utility_loss=1.25),
    "scores as large as can be": lambda t, _: scaled(t, "score", 1e99),
    "losses as large as can be": lambda t, _: scaled(t, "utility_loss", 1e99),
    "scores too large": lambda t, _: scaled(t, "score", 1e308),
    "losses too large": lambda t, _: scaled(t, "utility_loss", 5e306),
    "tiny scores": lambda t, _: scaled(t, "score", 1e-160),
    "scores that are hardly doubles": lambda t, _: scaled(t, "score", 5e-324),
    "tiny losses": lambda t, _: scaled(t, "utility_loss", 1e-320),
    "scores that differ in the last digit": lambda t, _: t.assign(score=0.1 + t["score"] * 2**-53),
    "losses that differ in the last digit": lambda t, _: t.assign(utility_loss=1.5 + t["utility_loss"] * 2**-52),
    "far apart": lambda t, d: set_some(t, d, "score", 1e100),
    "large batches": lambda t, _: t.assign(**{c: t[c].astype("int64") * 10**12 for c in ("batch_size", "num_steps")}),
    "batches too large": lambda t, d: set_some(t, d, "batch_size", 10**30),
    "tiny rates": lambda t, _: t.assign(learning_rate=t["learning_rate"].astype(float) * 1e-300),
    "large rates": lambda t, _: t.assign(learning_rate=t["learning_rate"].astype(float) * 1e300),
    "unfinished": lambda t, d: set_some(set_some(t.assign(status="finished"), d, "status", "failed"), d, "score", None),
    "none finished": lambda t, _: t.assign(status="pending"),
    "status missing": lambda t, d: set_some(t.assign(status="finished"), d, "status", None),
    "duplicates": lambda t, _: pd.concat([t, t.head(1)]),
    "index": lambda t, _: t.set_axis([7] * len(t), axis=0),
    "no rows": lambda t, _: t.head(0),
    "no column": lambda t, d: t.drop(columns=d.draw(st.sampled_from(["score", "seed", "num_steps", "score.vmr"]))),
    "no base loss": lambda t, _: t.drop(columns="base_utility_loss"),
    "a base loss missing": lambda t, d: set_some(t, d, "base_utility_loss", None),
    "a base loss as text": lambda t, d: set_some(t, d, "base_utility_loss", "low"),
    "another score missing": lambda t, d: set_some(t, d, "score.vmr", None),
    "another score as text": lambda t, d: set_some(t, d, "score.vmr", "low"),
    "a group missing": lambda t, d: set_some(t, d, "group", None),
    "a rate missing": lambda t, d: set_some(t, d, "learning_rate", None),
    "no rates": lambda t, _: t.assign(learning_rate=None),
    **{
        f"a {column} of {value!r}": lambda t, d, c=column, v=value: set_some(t, d, c, v)
        for column, values in {
            "score": (None, math.inf, "low", "", True),
            "utility_loss": (math.nan, -math.inf, "1,5"),
            "learning_rate": (0.0, -1.0, "inf", "1e-400", "one"),
            "batch_size": (0, 2.5, -4, "many"),
            "num_steps": (0, 1.5),
            "seed": (0.5, None, "first"),
        }.items()
        for value in values
    },
}  # fmt: skip


def whole(table: pd.DataFrame) -> pd.DataFrame:
    """With the columns of a sweep's own table."""
    extra = {
        "run_id": [f"run{k}" for k in range(len(table))],
        "group": ["xy"[k % 2] for k in range(len(table))],
    }
    return table.assign(
        **extra, base_utility_loss=2.5, model_uri=None, **{"score.vmr": table["score"]}
    )


def unexplained(document: Any, path: str = "", explained: bool = False) -> Iterator[str]:
    """Where a figure is null, or not a number, without a reason beside it or around it."""
    if isinstance(document, Mapping):
        explained = explained or bool(document.get("reason"))
        for key, value in document.items():
            if key not in NOT_FIGURES:
                own = bool(document.get(f"{key.removesuffix('_std')}_reason"))
                yield from unexplained(value, f"{path}.{key}", explained or own)
    elif isinstance(document, list | tuple):
        for k, value in enumerate(document):
            yield from unexplained(value, f"{path}[{k}]", explained)
    elif (document is None and not explained) or (
        isinstance(document, float) and not math.isfinite(document)
    ):
        yield f"{path} = {document}"


def answer_or_message(of: Callable[[pd.DataFrame], Any], table: pd.DataFrame) -> Any:
    try:
        return of(table)
    except ValueError as error:
        return "Linear algebra failed" if isinstance(error, np.linalg.LinAlgError) else str(error)


def check_answer(name: str, table: pd.DataFrame) -> None:
    before = table.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = answer_or_message(ANALYSES[name], table)
    pd.testing.assert_frame_equal(table, before)
    if isinstance(answer, str):
        assert MESSAGE.fullmatch(answer), answer
        return
    assert (missing := list(unexplained(answer))) == [], missing
    json.dumps(strict(answer), allow_nan=False)


@st.composite
def changed_tables(draw: st.DrawFn) -> pd.DataFrame:
    table = whole(draw(tables(min_seeds=draw(st.sampled_from([1, 2])))))
    names = draw(st.lists(st.sampled_from(list(CHANGES)), min_size=1, max_size=2, unique=True))
    for name in names:
        try:
            table = CHANGES[name](table, draw(st.data()))
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
        ):  # the second cannot be made of what the first has left
            break
    return table


QUICK = (
    *(
        "heuristics",
        "variance",
        "regression hc3",
        "risk",
        "trends of tables",
        "predict",
        "audit",
        "intervals",
    ),
    *("select informed", "select best-utility"),
)


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=15, derandomize=True)
@given(table=changed_tables())
def test_an_answer_or_a_clear_error(name: str, table: pd.DataFrame) -> None:
    check_answer(name, table)


BY_RULE = [f"select {rule}" for rule in rule_names()]
"""The rules select from one fit of the model, so that the same table is given to all."""


@pytest.mark.daily("analysis")
@pytest.mark.parametrize(
    "names", [BY_RULE, *([name] for name in ANALYSES if name not in BY_RULE)], ids=" ".join
)
@settings(max_examples=40, derandomize=True)
@given(table=changed_tables())
def test_an_answer_or_a_clear_error_on_many_tables(names: list[str], table: pd.DataFrame) -> None:
    for name in names:
        check_answer(name, table)


@pytest.mark.parametrize("factor", [1e-200, 1e99])
@pytest.mark.parametrize(
    "name",
    [
        "variance",
        "effects",
        "confound",
        "regression hc3",
        "regression mixed",
        "select best-utility",
    ],
)
def test_change_of_unit_scales_figures_of_tiny_and_huge_scores(name: str, factor: float) -> None:
    """Squares of either are no doubles; a power of two near the factor changes no digit of the
    figures. Some scores exceed 1: rates below 1 have log-odds, which a unit would change."""
    unit = 2.0 ** round(math.log2(factor))
    rng = np.random.default_rng(0)
    listed = [(b, t, 0.1) for b in (1, 2, 4) for t in (1, 2, 4)]
    rows = [
        (*c, seed, 2 - 0.1 * k + 0.01 * rng.random(), 4 * rng.random())
        for k, c in enumerate(listed)
        for seed in (0, 1)
    ]
    table = pd.DataFrame(
        rows, columns=["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    )
    plain, other = (whole(table.assign(score=table["score"] * by)) for by in (1.0, unit))
    expected, found = (dict(leaves(ANALYSES[name](t))) for t in (plain, other))
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        assert found[path] == pytest.approx(value) or found[path] == pytest.approx(value * unit), (
            path
        )


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a document."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(document, list | tuple):
        for k, value in enumerate(document):
            yield from leaves(value, f"{path}[{k}]")
    elif isinstance(document, float):
        yield path, document
