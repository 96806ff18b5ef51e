"""`find --where` finds what brute force finds, lets MLflow decide what it can, and puts no text
into its filter."""

import itertools
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.utils.search_logged_model_utils import parse_filter_string

from raydp.tracking import find_models, set_alias
from raydp.tracking.lookup.conditions import Conditions, Where
from raydp.tracking.lookup.search import Lookup
from tests.marks import slow_after

from .conftest import open_tracker

NASTY = [
    "it's",
    'say "hi"',
    "a' OR '1' = '1",
    "x`y",
    "100 %",
    "a_b",
    "ünï cödé",
    "semi;colon",
    "back\\slash",
    "-- no",
]


@pytest.fixture(scope="module")
def catalogue(empty_store, record, tmp_path_factory):
    """Eight models, one of them not private, with notes that a filter could choke on."""
    database = tmp_path_factory.mktemp("where") / "raydp.db"
    database.write_bytes(empty_store.read_bytes())
    tracker = open_tracker(f"sqlite:///{database}", "name with spaces")
    rows = []
    for number in range(8):
        epsilon = math.inf if number == 7 else float(number + 1)
        metrics = {"utility_loss": 3 - number / 8, "score": number / 100, "score.vmr": number / 100}
        metrics |= {"score.logprob": number - 4.5} if number % 2 else {}
        params = {"method": "dp_adam" if number else "dp_sgd", "task_hash": "c0ffee", "max_grad_norm": 0.5,
                  "note": NASTY[number]}  # fmt: skip
        privacy = {**record().privacy, "epsilon": epsilon, "certified": number != 3}
        trial = record(
            f"run-{number}",
            batch_size=2**number,
            seed=number,
            metrics=metrics,
            params=params,
            privacy=privacy,
        )
        tracker.log_trial(trial)
        rows.append({**metrics, **params, "epsilon": epsilon, "batch_size": 2**number, "seed": number,
                     "certified": str(number != 3).lower(), "run_id": f"run-{number}"})  # fmt: skip
    set_alias("name with spaces", "best-utility", 8, tracking_uri=tracker.store.uri)
    return tracker.store.uri, rows


COMPARE = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, "=": lambda a, b: a == b, "!=": lambda a, b: a != b,
           ">=": lambda a, b: a >= b, ">": lambda a, b: a > b}  # fmt: skip


@pytest.mark.parametrize("operator", COMPARE)
@pytest.mark.parametrize(
    ("column", "value"),
    slow_after(4, [("score.vmr", 0.03), ("score.logprob", -1.5), ("epsilon", 4), ("epsilon", math.inf),
     ("batch_size", 16), ("seed", 3), ("utility_loss", 2.5), ("score", 0.03), ("max_grad_norm", 0.5)]),
)  # fmt: skip
def test_a_comparison_finds_the_rows_of_a_brute_force_search(catalogue, column, value, operator):
    uri, rows = catalogue
    expected = {
        row["run_id"] for row in rows if column in row and COMPARE[operator](row[column], value)
    }
    found = find_models(uri, where=[f"{column} {operator} {value}"], score="vmr")
    if column != "epsilon":
        assert set(found.run_id) == expected
    else:  # asks for a guarantee, which all have
        assert (set(found.run_id), found.attrs["left_out"]) == (expected, {})


@pytest.mark.parametrize("operator", COMPARE)
@pytest.mark.parametrize(
    ("column", "values", "value"),
    [("epsilon", [4.0, math.nan, 9.0], "4"), ("score", [None, None, 0.1], "0.3")],
)
def test_an_undefined_number_meets_no_condition(column, values, value, operator):
    """Also where the table, and not MLflow, decides: NaN != 4 is true in floating point."""
    kept = Where.parse(f"{column} {operator} {value}").keep(pd.DataFrame({column: values}))
    defined = [
        v is not None and not math.isnan(v) and COMPARE[operator](v, float(value)) for v in values
    ]
    assert kept.tolist() == defined


@pytest.mark.parametrize("operator", ["=", "!="])
def test_an_undefined_text_meets_no_condition(operator):
    kept = Where.parse(f"method {operator} dp_adam").keep(
        pd.DataFrame({"method": ["dp_adam", None, "dp_sgd"]})
    )
    assert kept.tolist() == [operator == "=", False, operator == "!="]


def test_several_conditions_all_hold(catalogue):
    uri, rows = catalogue
    parts = [
        "score.vmr < 0.06",
        "epsilon<=5",
        "batch_size >= 2",
        "method = 'dp_adam'",
        "certified = true",
    ]
    keep = {"score.vmr < 0.06": lambda r: r["score.vmr"] < 0.06, "epsilon<=5": lambda r: r["epsilon"] <= 5,
            "batch_size >= 2": lambda r: r["batch_size"] >= 2, "certified = true": lambda r: r["certified"] == "true",
            "method = 'dp_adam'": lambda r: r["method"] == "dp_adam"}  # fmt: skip
    for size in (2, 5):
        for chosen in itertools.combinations(parts, size):
            expected = {row["run_id"] for row in rows if all(keep[part](row) for part in chosen)}
            assert set(find_models(uri, where=list(chosen)).run_id) == expected, chosen


@pytest.mark.parametrize("number", range(8))
def test_a_text_is_compared_as_it_is(catalogue, number):
    """Quotes, back ticks, percent signs and letters of other alphabets."""
    uri, _ = catalogue
    for form in ("param.note = {}", "note = {}", "param.note={}"):
        assert find_models(uri, where=[form.format(NASTY[number])]).run_id.tolist() == [
            f"run-{number}"
        ], form
    assert len(find_models(uri, where=[f"param.note != {NASTY[number]}"])) == 7


@given(
    text=st.text(max_size=40),
    column=st.sampled_from(["param.note", "method", "run_id", "sweep", "score.vmr", "seed"]),
)
def test_no_text_changes_the_comparison_of_a_filter(text, column):
    """Whatever is written is one comparison on that column, or is not pushed down at all."""
    try:
        where = Where.parse(f"{column} = {text}")
    except ValueError:
        return
    pushed = where.pushed()
    if pushed is not None:
        (comparison,) = parse_filter_string(pushed)
        assert comparison.entity.key == column.removeprefix("param.")
        allowed = comparison.value if isinstance(comparison.value, tuple) else (comparison.value,)
        assert where.value in allowed or where.number in {float(value) for value in allowed}


def test_conditions_that_mlflow_can_decide_are_left_to_it():
    where = [
        "score.vmr < 5e-5",
        "epsilon <= 8",
        "delta<1e-4",
        "batch_size = 256",
        "learning_rate = 5e-4",
        "seed != 1",
    ]
    conditions = Conditions(where=tuple(map(Where.parse, where)), score="vmr")
    assert conditions.filter_string() == (
        "metrics.`score.vmr` < 0.00005 AND metrics.`epsilon` <= 8.0 AND metrics.`delta` < 0.0001 "
        "AND params.`batch_size` IN ('256', '256.0') AND params.`learning_rate` IN ('0.0005', "
        "'5e-4')"
    )
    assert Where.parse("epsilon > 8").pushed() is None, "an infinite ε is greater, and no metric"


def test_few_calls_whatever_the_number_of_models(catalogue, monkeypatch):
    from mlflow import MlflowClient

    calls = []
    for name in ("search_experiments", "search_logged_models", "search_model_versions", "search_registered_models",
                 "get_registered_model", "get_model_version", "get_logged_model"):  # fmt: skip
        method = getattr(MlflowClient, name)
        monkeypatch.setattr(
            MlflowClient, name, lambda *a, _m=method, _n=name, **k: calls.append(_n) or _m(*a, **k)
        )
    found = find_models(catalogue[0], where=["score.vmr < 0.5"], order_by="loss", limit=5)
    assert len(found) == 5
    assert len(calls) <= 6 + 2, calls  # two open a SQLite file
    assert not {"get_registered_model", "get_logged_model"} & set(calls)


@pytest.mark.parametrize("limit", [1, 3, 8, 100])
@pytest.mark.parametrize(
    "order",
    slow_after(
        1, ["loss", "score", "epsilon", "score.logprob", "noise_multiplier", "run_id", None]
    ),
)
def test_the_first_rows_are_those_of_the_whole(catalogue, limit, order):
    """With ties (noise_multiplier is the same for all) and undefined figures, over pages of few
    models."""
    uri, _ = catalogue
    whole = find_models(uri, order_by=order, score="vmr").head(limit)
    assert (
        find_models(uri, order_by=order, score="vmr", limit=limit).run_id.tolist()
        == whole.run_id.tolist()
    )


@pytest.mark.slow
def test_ties_are_cut_by_version_over_several_pages(uri, record, monkeypatch):
    monkeypatch.setattr("raydp.tracking.lookup.search.PAGE", 4)
    tracker = open_tracker(uri)
    for number in range(14):
        tracker.log_trial(record(f"run-{number}", seed=number))
    assert find_models(uri, order_by="loss", limit=3).version.tolist() == [1, 2, 3]
    assert len(find_models(uri)) == 14


def test_an_alias_names_its_models(catalogue, record):
    uri, _ = catalogue
    for more in ({}, {"registered_model": "name with spaces"}, {"where": ["score.vmr < 1"]}):
        assert find_models(uri, alias="best-utility", **more).run_id.tolist() == ["run-7"]
    assert find_models(uri, alias="best-utility", max_loss=0.1).empty
    assert find_models(uri, alias="nobody").empty
    assert find_models(uri, alias="x' OR '1").empty


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("score.vmr", "where must be COLUMN OPERATOR VALUE"),
        ("< 3", "where must be COLUMN OPERATOR VALUE"),
        ("score.vmr <", "where must be COLUMN OPERATOR VALUE"),
        ("score.vmr` < 3", "where must be COLUMN OPERATOR VALUE"),
        ("score.vmr < nan", "where must compare by size with a number"),
        ("score.vmr = high", "where must compare by size with a number"),
        ("method > dp_adam", "where must compare by size with a number"),
        ("score.vrm < 1", r"where 'score\.vrm' is unknown\. Did you mean 'score\.vmr'"),
        ("batchsize = 3", r"where 'batchsize' is unknown\. Did you mean 'batch_size'"),
        ("aliases = best-utility", "where 'aliases' is unknown"),
        ("batch_size = big", "where must compare batch_size with a number, got 'big'"),
    ],
)
def test_a_condition_that_makes_no_sense_says_why(catalogue, where, message):
    with pytest.raises(ValueError, match=message):
        find_models(catalogue[0], where=[where])


def test_a_bad_tag_of_one_model_does_not_end_a_lookup(uri, record):
    tracker = open_tracker(uri)
    tracker.log_trial(record())
    tracker.log_trial(record("run-1"))
    client = tracker.store.client
    model_id = client.get_model_version("demo", "1").tags["model_id"]
    client.set_logged_model_tags(model_id, {"epsilon": "eight", "raydp.seal": "x" * 3000})
    assert find_models(uri, max_epsilon=8).version.tolist() == [2]
    assert find_models(uri).version.tolist() == [1, 2]


def test_the_command_prints_rows_on_stdout_and_omissions_on_stderr(uri, record, raydp):
    tracker = open_tracker(uri)
    tracker.log_trial(record())
    tracker.log_trial(record("run-1"))
    model_id = tracker.store.client.get_model_version("demo", "1").tags["model_id"]
    tracker.store.client.delete_logged_model_tag(model_id, "raydp.seal")
    answer = raydp(
        "models",
        "find",
        "--uri",
        uri,
        "--where",
        "epsilon <= 8",
        "--where",
        "score.vmr<0.5",
        "--json",
    )
    assert (answer.code, [row["version"] for row in answer.json()]) == (0, [2])
    *_, left_out = answer.err.splitlines()  # a slow machine says what it waits for
    assert left_out == "left out 1, whose guarantee does not hold: 1 without a sealed privacy card"
    assert raydp("models", "find", "--uri", uri, "--where", "nonsense").code == 2


def test_a_file_read_whole_gives_the_rows_that_mlflow_finds(tracker, record, monkeypatch):
    """Deleted versions and models, several names, aliases, seals and undefined values are among
    them."""
    uri, client = tracker.store.uri, tracker.store.client
    for number in range(5):
        privacy = {**record().privacy, "epsilon": math.inf if number == 1 else 1.0 + number}
        tracker.log_trial(record(f"run-{number}", seed=number, privacy=privacy))
    other = open_tracker(uri, name="other", sweep="sweep-1")
    other.log_trial(record("run-0", metrics={"utility_loss": 1.0, "score.air": math.inf}))
    tracker.fail_trial("run-9", "out of memory")
    set_alias("demo", "best-utility", 4, tracking_uri=uri)
    client.delete_model_version("demo", "3")
    client.delete_logged_model(client.get_model_version("demo", "5").tags["model_id"])
    monkeypatch.setattr(
        Lookup, "_few", lambda self: None
    )  # as if there were more than fifty versions
    searched = [
        find_models(uri, limit=100, registered_model=name, verify=True)
        for name in (None, "demo", "other")
    ]
    assert [len(found) for found in searched] == [4, 3, 1]

    def unused(*args, **options):
        raise AssertionError("thousands of models are read by plain SQL")

    monkeypatch.setattr(MlflowClient, "search_logged_models", unused)
    monkeypatch.setattr(MlflowClient, "search_model_versions", unused)
    for name, expected in zip((None, "demo", "other"), searched, strict=True):
        pd.testing.assert_frame_equal(
            find_models(uri, registered_model=name, verify=True), expected
        )
