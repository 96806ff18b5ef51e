"""Lookup by numbers, against brute force; aliases; promotions that can be audited."""

import itertools
import math
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from raydp.tracking import find_models, promote_model, set_alias, show_model
from raydp.tracking.lookup.conditions import Conditions
from raydp.tracking.lookup.table import COLUMNS
from raydp.tracking.store import open_store, resolve_uri
from tests.marks import slow_after

from .conftest import open_tracker

EPSILONS = (1.0, 8.0, math.inf)
RATES = (5e-4, 1e-3)


@pytest.fixture(scope="module")
def catalogue(empty_store, record, tmp_path_factory):
    """Twelve models in one store and, by run_id, what they should be found with."""
    database = tmp_path_factory.mktemp("catalogue") / "raydp.db"
    database.write_bytes(empty_store.read_bytes())
    tracker = open_tracker(f"sqlite:///{database}")
    known = {}
    grid = itertools.product((64, 256), RATES, EPSILONS)
    for number, (batch_size, learning_rate, epsilon) in enumerate(grid):
        figures = {
            "utility_loss": 3.0 - number / 8,
            "score.vmr": number / 100,
            "score.logprob": number - 30.5,
        }
        private = math.isfinite(epsilon)
        privacy = {**record().privacy, "epsilon": epsilon, "certified": private and number != 0}
        privacy |= {"delta": 10.0 ** -(5 + number) if private or number % 2 else None}
        trial = record(
            f"run-{number}",
            batch_size=batch_size,
            learning_rate=learning_rate,
            metrics=figures,
            privacy=privacy,
        )
        uri = tracker.log_trial(trial)
        known[trial.run_id] = {
            "epsilon": epsilon,
            "delta": privacy["delta"],
            "certified": privacy["certified"],
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "model_uri": uri,
            **figures,
        }
    return tracker.store.uri, pd.DataFrame.from_dict(known, orient="index").astype(
        {"delta": "float64"}
    )


CONDITIONS = {
    "max_epsilon": (8.0, lambda t: t.epsilon <= 8),
    "min_epsilon": (8.0, lambda t: t.epsilon >= 8),
    "max_delta": (1e-6, lambda t: (t.delta <= 1e-6) & (t.epsilon < math.inf)),
    "max_loss": (2.5, lambda t: t.utility_loss <= 2.5),
    "max_score": (-25.5, lambda t: t["score.logprob"] <= -25.5),
    "batch_size": (256, lambda t: t.batch_size == 256),
    "learning_rate": (5e-4, lambda t: t.learning_rate == 5e-4),
    "certified": (True, lambda t: t.certified),
}


@pytest.mark.parametrize("size", slow_after(2, [0, 1, 2]))
def test_conditions_find_the_rows_of_a_brute_force_search(catalogue, size):
    """Every condition and every pair of them."""
    uri, known = catalogue
    sizes = set()
    for names in itertools.combinations(CONDITIONS, size):
        expected = known
        for name in names:
            expected = expected[CONDITIONS[name][1](expected)]
        found = find_models(uri, score="logprob", **{name: CONDITIONS[name][0] for name in names})
        assert set(found.run_id) == set(expected.index), names
        sizes.add(len(found))
    assert sizes - {0, len(known)} or size == 0, (
        "a condition that keeps all or nothing tests nothing"
    )


def test_a_row_holds_the_tracked_values(catalogue):
    uri, known = catalogue
    found = find_models(uri, score="vmr").set_index("run_id")
    assert set(COLUMNS) <= {"run_id", *found.columns}
    assert list(found["param.beta2"].unique()) == ["0.999"]
    assert list(found["method"].unique()) == ["dp_adam"]
    for column in (
        "epsilon",
        "delta",
        "utility_loss",
        "score.vmr",
        "batch_size",
        "learning_rate",
        "model_uri",
    ):
        assert found[column].reindex(known.index).tolist() == pytest.approx(
            known[column].tolist(), nan_ok=True
        ), column
    assert found.score.equals(found["score.vmr"].rename("score"))


@pytest.mark.parametrize(
    ("order", "column"),
    [("score", "score"), ("loss", "utility_loss"), ("epsilon", "epsilon"), ("delta", "delta")],
)
def test_order_and_limit(catalogue, order, column):
    uri, known = catalogue
    source = "score.vmr" if column == "score" else column
    found = find_models(uri, score="vmr", order_by=order, limit=5)
    assert found[column].tolist() == sorted(known[source].dropna())[:5]


def test_nothing_that_matches_is_a_table_with_its_columns(catalogue, uri):
    found = find_models(catalogue[0], max_loss=0.1)
    assert len(found) == 0
    assert set(COLUMNS) <= set(found.columns)
    assert len(find_models(uri, order_by="epsilon")) == 0


@pytest.mark.parametrize("asked", [{}, {"alias": "best-utility"}, {"max_epsilon": 8, "limit": 3}])
def test_a_registered_model_that_is_not_there_is_no_empty_answer(tracker, record, asked):
    uri = tracker.store.uri
    with pytest.raises(
        ValueError, match="registered_model must be in the registry, got 'dmo' in a store without"
    ):
        find_models(uri, registered_model="dmo", **asked)
    tracker.log_trial(record())
    with pytest.raises(
        ValueError, match=r"registered_model 'dmo' is unknown\. Did you mean 'demo'\? Known: demo"
    ):
        find_models(uri, registered_model="dmo", **asked)
    assert len(find_models(uri, registered_model="demo", max_loss=0.0001)) == 0, (
        "no model of it matches"
    )
    with pytest.raises(
        ValueError, match=r"MODEL: the registered model 'dmo' is unknown\. Did you mean 'demo'"
    ):
        show_model("models:/dmo/1", tracking_uri=uri)


def test_one_score_needs_no_name(tracker, record):
    tracker.log_trial(record())
    found = find_models(tracker.store.uri, max_score=0.02, order_by="score")
    assert found.score.tolist() == [0.01]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_epsilon": math.inf}, r"max_epsilon must be finite, got inf\. Leave it out"),
        (
            {"max_epsilon": -1, "min_epsilon": 5},
            "min_epsilon must be at most max_epsilon -1, got 5",
        ),
        ({"max_score": 0.5}, "score must be named where there are several"),
        ({"order_by": "score"}, "score must be named where there are several"),
        (
            {"score": "vrm", "max_score": 0.5},
            r"score 'vrm' is unknown\. Did you mean 'vmr'\? Known: logprob, vmr",
        ),
        ({"score": "x' OR '1"}, "score must be the name of a score"),
        ({"registered_model": "x' OR '1"}, "registered_model must not hold a quote"),
        (
            {"order_by": "utlity_loss"},
            r"order_by 'utlity_loss' is unknown\. Did you mean 'utility_loss'",
        ),
        ({"limit": 0}, "limit must be at least 1"),
    ],
)
def test_a_search_that_makes_no_sense_says_why(catalogue, arguments, message):
    with pytest.raises(ValueError, match=message):
        find_models(catalogue[0], **arguments)


def test_looking_up_makes_no_store(tmp_path):
    with pytest.raises(ValueError, match=r"tracking\.uri must name an existing store"):
        find_models(f"sqlite:///{tmp_path}/typo.db")
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_left_to_mlflow_as_far_as_it_can():
    conditions = Conditions(
        max_epsilon=8, max_delta=1e-5, score="logprob", max_score=-3e-5, learning_rate=5e-4
    )
    assert conditions.filter_string() == (
        "metrics.`epsilon` <= 8.0 AND metrics.`delta` <= 0.00001 AND metrics.`score.logprob` <= "
        "-0.00003 AND params.learning_rate = '0.0005'"
    )


def test_models_of_others_are_left_alone(tracker, record):
    tracker.log_trial(record())
    client = tracker.store.client
    client.create_registered_model("foreign")
    client.create_model_version("foreign", source="s3://bucket/model")
    assert find_models(tracker.store.uri).name.tolist() == ["demo"]
    with pytest.raises(ValueError, match="MODEL must be one that raydp registered"):
        show_model("models:/foreign/1", tracking_uri=tracker.store.uri)


def test_mlflows_own_numeric_search_works(catalogue):
    """What a user types into MLflow."""
    uri, known = catalogue
    client = open_store(uri).client
    experiment = client.get_experiment_by_name("experiment").experiment_id
    found = client.search_logged_models(
        [experiment], "metrics.score.vmr < 0.05 AND params.batch_size = '64'"
    )
    expected = known[(known["score.vmr"] < 0.05) & (known.batch_size == 64)]
    assert {model.tags["run_id"] for model in found} == set(expected.index)


def test_every_form_of_uri_names_the_same_model(tracker, record):
    tracker.log_trial(record("run-0"))
    tracker.log_trial(record("run-1"))
    uri = tracker.store.uri
    set_alias("demo", "best-utility", 2, tracking_uri=uri)
    by_version = resolve_uri(tracker.store, "models:/demo/2")
    assert resolve_uri(tracker.store, "models:/demo@best-utility") == by_version
    assert resolve_uri(tracker.store, f"models:/{by_version.model_id}") == by_version
    assert find_models(uri).aliases.tolist() == [(), ("best-utility",)]
    set_alias("demo", "best-utility", 1, tracking_uri=uri)
    assert find_models(uri).aliases.tolist() == [("best-utility",), ()]


@pytest.mark.parametrize(
    "model_uri",
    slow_after(
        2,
        [
            "demo/1",
            "models:/demo",
            "models:/demo/9",
            "models:/demo@nobody",
            "models:/nobody/1",
            f"models:/m-{'0' * 32}",
        ],
    ),
)
def test_a_uri_that_names_nothing_is_a_clear_error(tracker, record, model_uri):
    tracker.log_trial(record())
    with pytest.raises(
        ValueError, match=r"MODEL must .*raydp models find|the registered model 'nobody' is unknown"
    ):
        show_model(model_uri, tracking_uri=tracker.store.uri)


def test_show_model_holds_the_guarantee(tracker, record):
    privacy = {
        **record().privacy,
        "adjacency": "add-remove",
        "epsilon": math.inf,
        "certified": False,
    }
    tracker.log_trial(record(privacy=privacy))
    shown = show_model("models:/demo/1", tracking_uri=tracker.store.uri)
    assert shown["privacy"] == {**privacy, "epsilon": "inf"}
    assert shown["epsilon"] == math.inf
    assert shown["base"] == {"name": "tiny-llama", "weight_hash": record().base["weight_hash"]}
    assert shown["model_uri"] == "models:/demo/1"
    assert shown["promotions"] == []


@pytest.mark.parametrize(
    ("columns", "least", "most"), [("60", 40, 60), ("140", 100, 140), (None, 80, 100)]
)
def test_a_model_is_shown_in_the_columns_of_the_terminal(
    tracker, record, raydp, monkeypatch, columns, least, most
):
    """Also in a pipe. Without COLUMNS a pipe has those of a page."""
    tracker.log_trial(record())
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    lines = raydp("models", "show", "models:/demo/1", "--uri", tracker.store.uri).out.splitlines()
    widest = max(len(line) for line in lines if len(line.split()) > 2)
    assert least < widest <= most


def test_show_model_warns_of_a_guarantee_that_nobody_should_rely_on(tracker, record):
    """Also of the models that are released together, if the card knows them."""
    weak = {
        **record().privacy,
        "epsilon": 12.0,
        "delta": 0.01,
        "released_together": {"epsilon": 48.0, "models": 24, "accountant": "rdp"},
    }
    for number, privacy in enumerate(
        [record().privacy, weak, {**weak, "released_together": "another's form"}]
    ):
        tracker.log_trial(record(f"run-{number}", privacy=privacy))
    sound, *others = (
        show_model(f"models:/demo/{version}", tracking_uri=tracker.store.uri)["warnings"]
        for version in (1, 2, 3)
    )
    assert sound == []
    assert [[warning.split(" should")[0] for warning in warnings] for warnings in others] == [
        [
            "privacy: delta",
            "privacy: epsilon",
            "privacy: the joint epsilon of all 24 models by accountant rdp",
        ],
        ["privacy: delta", "privacy: epsilon"],
    ]


def test_a_promotion_can_be_audited(tracker, record):
    tracker.log_trial(record("run-0"))
    tracker.log_trial(record("run-1"))
    uri = tracker.store.uri
    promote_model(
        "models:/demo/1", "privacy-preferred", "lowest VMR above 90 % utility", tracking_uri=uri
    )
    promote_model("models:/demo/2", "privacy-preferred", "fixed data", tracking_uri=uri)
    last = promote_model(
        "models:/demo/1", "privacy-preferred", "rolled back — η too large", tracking_uri=uri
    )
    assert last["previous_version"] == "2"
    shown = show_model("models:/demo@privacy-preferred", tracking_uri=uri)
    assert shown["version"] == 1
    assert [(p["reason"], p["previous_version"]) for p in shown["promotions"]] == [
        ("lowest VMR above 90 % utility", None),
        ("rolled back — η too large", "2"),
    ]
    at = datetime.fromisoformat(shown["promotions"][-1]["at"])
    assert timedelta(0) <= datetime.now(UTC) - at < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("alias", "reason", "message"),
    [
        ("privacy-preferred", " ", "reason must say why"),
        ("v2", "because", "alias must be letters"),
        ("privacy preferred", "because", "alias must be letters"),
    ],
)
def test_a_promotion_without_sense_changes_nothing(tracker, record, alias, reason, message):
    tracker.log_trial(record())
    with pytest.raises(ValueError, match=message):
        promote_model("models:/demo/1", alias, reason, tracking_uri=tracker.store.uri)
    shown = show_model("models:/demo/1", tracking_uri=tracker.store.uri)
    assert (shown["promotions"], shown["aliases"]) == ([], ())


@pytest.mark.slow
def test_the_table_for_people_has_the_sweep_and_its_aliases_as_text(
    tracker, record, monkeypatch, capsys
):
    from raydp.cli import main as cli

    uri = tracker.log_trial(record())
    tracker.log_trial(record("run-1", seed=1))
    name, version = uri.removeprefix("models:/").split("/")
    for alias in ("best-utility", "privacy-preferred"):
        set_alias(name, alias, version, tracking_uri=tracker.store.uri)
    monkeypatch.setattr("sys.argv", ["raydp", "models", "find", "--uri", tracker.store.uri])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    _, header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["model_uri", "sweep"]
    assert first.split()[:2] == [uri, "demo"]
    assert first.rstrip().endswith("best-utility, privacy-preferred")
    assert not {"(", "'"} & set(first + second)


def test_a_look_up_without_a_store_reads_mlflows_variable(catalogue, raydp, monkeypatch, tmp_path):
    """As MLflow's own tools do; a store that is named wins, and without either it is raydp.db
    here."""
    uri, known = catalogue
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"got 'sqlite:///raydp\.db'"):
        find_models()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert len(find_models()) == len(known)
    model = known["model_uri"].iloc[0]
    assert (
        show_model(model)["run_id"]
        == show_model(model, tracking_uri=uri)["run_id"]
        == known.index[0]
    )
    answer = raydp("models", "find", "--score", "vmr", "--json")
    assert answer.code == 0, answer.err
    assert len(answer.json()) == len(known)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///another.db")
    assert len(raydp("models", "find", "--score", "vmr", "--uri", uri, "--json").json()) == len(
        known
    )
