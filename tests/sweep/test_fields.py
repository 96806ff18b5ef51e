"""A space of further fields: each run is the run of a plain spec with these fields, and every table
knows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from safetensors.torch import load_file

from raydp.analysis import configuration_means, load_points, save_points
from raydp.cli.arguments import configuration_of
from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings
from raydp.selftest.spec_subject import kinds_of_runs
from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import SweepPlan, make_plan
from raydp.sweep.tuning_record import tuning_of
from raydp.tracking import find_models
from tests.builders.specs import small_spec
from tests.sweep.trained import TrainedSpec

ONE = {"points": [[32, 3, 0.01]]}
CLIPPING, RANK, FEW_BITS = "method.max_grad_norm", "model.adapter.r", "model.quantization"


def plan_of(folder: Path, **changes: Any) -> SweepPlan:
    spec = load_spec(small_spec(folder, **changes))
    task, weight_hash = build_task(spec)
    return make_plan(spec, task.facts(), weight_hash)


def test_a_run_is_the_run_of_a_plain_spec_with_the_same_fields(tmp_path: Path) -> None:
    space = {**ONE, CLIPPING: [0.1, 1], RANK: [2, 4]}
    runs = {
        json.dumps(dict(trial.settings)): trial for trial in plan_of(tmp_path, space=space).trials
    }
    assert len(runs) == 4
    for norm in (0.1, 1.0):
        for rank in (2, 4):
            adapter = {
                "type": "lora",
                "r": rank,
                "alpha": 4,
                "target_modules": ["q_proj", "v_proj"],
            }
            plain = plan_of(
                tmp_path,
                space=ONE,
                method={"name": "dp_adam", "max_grad_norm": norm},
                model={"name": "tiny", "adapter": adapter},
            )
            own = runs[json.dumps({CLIPPING: norm, RANK: rank})]
            assert own.run_id == plain.trials[0].run_id
            assert own.noise_multiplier == plain.trials[0].noise_multiplier
            assert plain.trials[0].settings == Settings()


def test_the_record_of_a_run_has_its_own_clipping_norm_and_equal_events_are_calibrated_once(
    tmp_path: Path,
) -> None:
    told = []
    spec = load_spec(small_spec(tmp_path, space={**ONE, CLIPPING: [0.1, 0.5, 1]}))
    task, weight_hash = build_task(spec)
    plan = make_plan(
        spec, task.facts(), weight_hash, progress=lambda done, total: told.append(total)
    )
    norms = {
        trial.settings[CLIPPING]: plan.privacy[trial.run_id].mechanism.max_grad_norm
        for trial in plan.trials
    }
    assert norms == {0.1: 0.1, 0.5: 0.5, 1.0: 1.0}
    assert set(told) <= {1}, "three configurations have one event"
    assert [row[CLIPPING] for row in plan.rows()] == [0.1, 0.5, 1.0]
    tuned = tuning_of(spec, plan.trials)
    assert tuned["hyperparameters"] == {CLIPPING: [0.1, 0.5, 1.0]}
    assert tuned["elsewhere"] == [
        "other parameters of the method",
        "the adapter",
        "the data's preparation",
    ]


def test_the_card_counts_the_specs_own_value_as_tried(tmp_path: Path) -> None:
    point = {"batch_size": 32, "num_steps": 3, "learning_rate": 0.01, RANK: 4}
    spec = load_spec(small_spec(tmp_path, space={"points": [point, [32, 6, 0.01]]}))
    task, weight_hash = build_task(spec)
    tuned = tuning_of(spec, make_plan(spec, task.facts(), weight_hash).trials)
    assert tuned["hyperparameters"] == {"num_steps": [3, 6], RANK: [4, 2]} or tuned[
        "hyperparameters"
    ][RANK] == [2, 4]
    assert "the rest of the adapter" in tuned["elsewhere"]


@pytest.mark.extensions
def test_a_field_of_the_event_is_calibrated_for_itself(tmp_path: Path) -> None:
    """Correlated noise draws a batch of one band at a time: another number of bands is another
    mechanism."""
    method = {"name": "dp_mf", "max_grad_norm": 0.1}
    plan = plan_of(
        tmp_path, method=method, space={"points": [[32, 6, 0.01]], "method.num_bands": [1, 3]}
    )
    alone = {
        bands: plan_of(
            tmp_path, method={**method, "num_bands": bands}, space={"points": [[32, 6, 0.01]]}
        ).trials[0]
        for bands in (1, 3)
    }
    sigmas = {trial.settings["method.num_bands"]: trial.noise_multiplier for trial in plan.trials}
    assert sigmas == {bands: trial.noise_multiplier for bands, trial in alone.items()}
    assert sigmas[1] != sigmas[3]


def test_where_a_condition_does_not_hold_the_field_has_the_specs_own_value(tmp_path: Path) -> None:
    space = {
        "batch_size": [32], "num_steps": [3, 6], "learning_rate": [0.01], CLIPPING: [0.1, 1],
        RANK: {"values": [2, 4], "only_where": {"num_steps": 6, CLIPPING: [1.0]}},
    }  # fmt: skip
    found = sorted(
        (t.num_steps, json.dumps(dict(t.settings))) for t in plan_of(tmp_path, space=space).trials
    )
    assert found == [
        (3, '{"method.max_grad_norm": 0.1, "model.adapter.r": 2}'),
        (3, '{"method.max_grad_norm": 1.0, "model.adapter.r": 2}'),
        (6, '{"method.max_grad_norm": 0.1, "model.adapter.r": 2}'),
        (6, '{"method.max_grad_norm": 1.0, "model.adapter.r": 2}'),
        (6, '{"method.max_grad_norm": 1.0, "model.adapter.r": 4}'),
    ]


def test_a_point_sets_fields_of_its_own(tmp_path: Path) -> None:
    point = {"batch_size": 32, "num_steps": 3, "learning_rate": "1e-2", CLIPPING: 2}
    plan = plan_of(tmp_path, space={"points": [point, [32, 6, 0.01]], RANK: [2, 4]})
    assert {(t.num_steps, t.settings.text) for t in plan.trials} == {
        (3, '{"method.max_grad_norm":2.0,"model.adapter.r":2}'),
        (3, '{"method.max_grad_norm":2.0,"model.adapter.r":4}'),
        (6, '{"method.max_grad_norm":0.1,"model.adapter.r":2}'),
        (6, '{"method.max_grad_norm":0.1,"model.adapter.r":4}'),
    }


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {"method.max_grad_nrom": [1]},
            r"method: the key 'max_grad_nrom' is unknown\. Did you mean 'max_grad_norm'",
        ),
        (
            {CLIPPING: [0.1, -1]},
            r"space with max_grad_norm = -1: method\.max_grad_norm must be greater than",
        ),
        ({CLIPPING: 1}, r"space\.method\.max_grad_norm\.values must be a list, got 1"),
        (
            {CLIPPING: [1, 1]},
            r"space\.method\.max_grad_norm\.values must have distinct values, got 1 twice",
        ),
        (
            {CLIPPING: {"values": [1], "where": {RANK: 2}}},
            r"max_grad_norm\.where: the key 'where' is unknown.* only_where.*values",
        ),
        ({CLIPPING: []}, r"space\.method\.max_grad_norm\.values must have at least 1 item"),
        ({"model.name": ["tiny"]}, r"must not vary model\.name"),
        ({"task.max_length": [16]}, r"fields of method or model, got 'task\.max_length'"),
        ({"method": ["dp_sgd"]}, r"space\.method: the key 'method' is unknown"),
        ({"further": {}}, r"space\.further: the key 'further' is unknown"),
        (
            {RANK: {"values": [1, 2], "only_where": {"model.adapter.type": "lora"}}},
            "conditions on fields that vary",
        ),
        (
            {
                RANK: {"values": [1, 2], "only_where": {CLIPPING: 1}},
                CLIPPING: {"values": [1, 2], "only_where": {RANK: 1}},
            },
            r"conditions that do not depend on each other, got those of [a-z_., ]+\. Remove one\.$",
        ),
        ({"model.adapter": [{"r": 1}], RANK: [2, 3]}, "keys that do not contain each other"),
        (
            {"model.adapter.alpha": [8, 16], "model.adapter.lora_alpha": [32]},
            "keys that do not contain each other",
        ),
        (
            {
                "points": [{"batch_size": 32, "num_steps": 3, "learning_rate": 0.1, RANK: 4}],
                "model.adapter": [{"r": 2}],
            },
            "keys that do not contain each other",
        ),
        (
            {"points": [{"batch_size": 32, "num_steps": 3, "learning_rate": 0.1, "c": 4}]},
            r"got the key 'c'",
        ),
        (
            {CLIPPING: {"values": [1], "only_where": {"learning_rate": 0.03}}},
            r"conditions that can hold, got 0\.03",
        ),
        (
            {CLIPPING: [0.5, "0.5"]},
            r"space must not repeat a configuration, got max_grad_norm = 0\.5",
        ),
        ({"model.adapter": [{"r": 4, 1: 2}, {"r": 2}]}, "values whose keys are text"),
        (
            {
                "points": [[32, 3, 0.01], [64, 6, 0.1]],
                CLIPPING: {"values": [1], "only_where": {"batch_size": 32, "num_steps": 6}},
            },
            "must hold for a configuration",
        ),
        (
            {"model.adapter.type": ["lora", "ia3"]},
            r"model\.adapter\.r must be left out with type 'ia3'",
        ),
    ],
)
def test_a_field_that_cannot_vary_is_refused_by_name(
    tmp_path: Path, space: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_spec(small_spec(tmp_path, space={**ONE, **space}))


def test_a_point_with_the_specs_own_value_is_the_point_without_it(tmp_path: Path) -> None:
    space = {
        "points": [
            [32, 3, 0.01],
            {"batch_size": 32, "num_steps": 3, "learning_rate": 0.01, CLIPPING: 0.1},
        ]
    }
    with pytest.raises(
        ValueError, match=r"space must not repeat a configuration, got .*max_grad_norm=0\.1"
    ):
        plan_of(tmp_path, space=space)


DEPENDENT = [
    {
        "method.clipping": ["flat", "adaptive"],
        "method.clip_quantile": {
            "values": [0.3, 0.7],
            "only_where": {"method.clipping": "adaptive"},
        },
    },
    {
        "method.weight_decay": [0, 0.1],
        "method.decay": {
            "values": ["decoupled", "in_loss"],
            "only_where": {"method.weight_decay": "1e-1"},
        },
    },
    {"model.adapter.type": ["lora", "ia3"]},
    {
        "model.adapter.type": ["lora", "soft_prompt"],
        "model.adapter.num_virtual_tokens": {
            "values": [3, 5],
            "only_where": {"model.adapter.type": "soft_prompt"},
        },
    },
    {"model.adapter": [{"r": 2, "lora_alpha": 4}, {"type": "ia3"}], CLIPPING: [1, 2]},
]
"""Spaces whose fields are only valid together, in an order that is not that of their names."""


@pytest.mark.parametrize("space", DEPENDENT, ids=lambda space: next(iter(space)))
def test_fields_that_depend_on_each_other_are_set_together_and_a_written_spec_gives_the_same_runs(
    tmp_path: Path, space: dict[str, Any]
) -> None:
    """An audit, a shadow model and a resume read the spec that the sweep has written."""
    spec = load_spec(
        small_spec(
            tmp_path, space={**ONE, **space}, model={"name": "tiny", "adapter": {"type": "lora"}}
        )
    )
    again = load_spec(spec.model_dump(mode="json"))
    texts = [spec.settings(fields) for fields in spec.field_combinations()]
    assert len(set(texts)) == len(texts) > 1
    for text in texts:
        own = spec.of_run(text)
        for other in (again.of_run(text), own.of_run(text)):
            assert other.model.model_dump() == own.model.model_dump()
            assert other.method.params.model_dump() == own.method.params.model_dump()
    assert [again.settings(fields) for fields in again.field_combinations()] == texts


def test_a_named_space_counts_its_own_configurations(tmp_path: Path) -> None:
    space = {"name": "tofu-4", CLIPPING: [float(k) for k in range(1, 50_000)]}
    with pytest.raises(ValueError, match="must have at most 100,000 configurations"):
        load_spec(small_spec(tmp_path, space=space))


@pytest.mark.extensions
def test_every_adapter_of_the_space_must_fit_the_longest_text(tmp_path: Path) -> None:
    adapter = {"type": "soft_prompt", "num_virtual_tokens": 3}
    space = {**ONE, "model.adapter.num_virtual_tokens": [3, 4000]}
    with pytest.raises(ValueError, match=r"4000|positions"):
        plan_of(tmp_path, space=space, model={"name": "tiny", "adapter": adapter})


def test_a_configuration_of_the_command_line_has_its_fields() -> None:
    fields = {CLIPPING: 0.5, "model.adapter.target_modules": ["q_proj", "v_proj"]}
    given = configuration_of(
        f"32,3,0.01,{CLIPPING}=0.5,model.adapter.target_modules=[q_proj,v_proj]"
    )
    assert given.fields == fields
    for text in (
        "32,3,0.01,foo",
        "32,3,0.01,foo=1",
        f"32,3,0.01,{CLIPPING}",
        f"32,3,0.01,{CLIPPING}=1,",
    ):
        with pytest.raises(ValueError, match="--configuration must be"):
            configuration_of(text)


def test_a_spec_with_fields_is_written_and_read_as_it_was(tmp_path: Path) -> None:
    space = {**ONE, CLIPPING: [0.1, 1], RANK: {"values": [2, 4], "only_where": {CLIPPING: 1}}}
    spec = load_spec(small_spec(tmp_path, space=space))
    written = spec.model_dump(mode="json")
    assert written["space"][CLIPPING] == [0.1, 1]
    assert load_spec(written) == spec
    own = spec.of_run({"method.max_grad_norm": 1.0, "model.adapter.r": 4})
    assert own.method.params.max_grad_norm == 1.0
    assert own.model.adapter.r == 4
    assert own.space.further == {}


def test_the_self_test_checks_every_kind_of_run_once(tmp_path: Path) -> None:
    space = {
        **ONE,
        CLIPPING: [0.1, 1],
        RANK: [2, 4],
        "method.clipping": ["flat", "automatic"],
        FEW_BITS: [None, "nf4"],
    }
    kinds = kinds_of_runs(load_spec(small_spec(tmp_path, space=space)))
    assert [(k.method.params.clipping, k.model.quantization, k.name) for k in kinds] == [
        ("flat", None, "small, clipping = flat, quantization = null"),
        ("flat", "nf4", "small, clipping = flat, quantization = nf4"),
        ("automatic", None, "small, clipping = automatic, quantization = null"),
        ("automatic", "nf4", "small, clipping = automatic, quantization = nf4"),
    ]
    (plain,) = kinds_of_runs(load_spec(small_spec(tmp_path)))
    assert plain.name == "small"


@pytest.mark.slow
def test_the_teachers_of_pate_are_a_field_like_any_other(tmp_path: Path) -> None:
    """docs/mechanisms/pate.md at one ε: the noise of the votes is the same, and the students
    differ."""
    spec = yaml.safe_load(
        (Path(__file__).parents[2] / "docs/specs/mechanisms/pate.yaml").read_text()
    )
    spec["space"] = {
        "points": [[50, 20, 0.01]],
        "method.num_teachers": [3, 4],
        "method.num_queries": [50, 100],
    }
    spec |= {
        "storage": str(tmp_path / "runs"),
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        "seeds": [0],
    }
    spec["method"] |= {"teacher_steps": 3}  # whose noisy answers may teach nothing: no threshold
    spec["select"] |= {"min_gain_share": None}
    trained = TrainedSpec(load_spec(spec))
    trained.ending.finish()
    points = load_points(trained.folder.path / "points.csv")
    queries = [Settings.parse(text)["method.num_queries"] for text in points["settings"]]
    assert sorted(queries) == [50, 50, 100, 100]
    assert points["noise_multiplier"].nunique() == 1, "of all answers together"
    votes = [
        spec.method.params.answer_noise(trial.noise_multiplier)
        for trial in trained.trials
        for spec in [trained.spec.of_run(trial.settings)]
    ]
    noise = dict(zip(queries, votes, strict=True))
    assert noise[100] == pytest.approx(noise[50] * 2**0.5), (
        "each answer of twice as many has √2 times the noise"
    )
    assert points["epsilon"].between(7.8, 8).all()
    assert points["param.num_teachers"].tolist() == [
        Settings.parse(s)["method.num_teachers"] for s in points["settings"]
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A sweep by Ray whose runs need two models: the worker sets up each of them once."""
    folder = tmp_path_factory.mktemp("fields")
    space = {**ONE, CLIPPING: [0.1, 1], FEW_BITS: [None, "nf4"]}
    sweep = Sweep(small_spec(folder, space=space, scores=[{"name": "vmr_exact"}]))
    assert sweep.run().counts.finished == 4
    return sweep


@pytest.mark.daily("raydp/sweep/store", "raydp/search_spaces")
def test_every_table_knows_the_fields(ran: Sweep, tmp_path: Path) -> None:
    points = load_points(ran.folder.path / "points.csv")
    settings = [f'{{"method.max_grad_norm":{norm},"model.quantization":{few}}}' for norm in (0.1, 1.0)
                for few in ('"nf4"', "null")]  # fmt: skip
    assert sorted(points["settings"]) == settings
    assert sorted(points["max_grad_norm"]) == [0.1, 0.1, 1.0, 1.0]
    assert list(configuration_means(points)["settings"]) == settings
    assert points["score"].nunique() == 4, "each run has a model of its own"
    save_points(points, tmp_path / "again.parquet")
    pd.testing.assert_frame_equal(load_points(tmp_path / "again.parquet"), points)
    chosen = ran.folder.summary().selected
    assert set(chosen.configuration.fields) == {CLIPPING, FEW_BITS}
    assert chosen.document["settings"] == chosen.configuration.fields
    page = (ran.folder.path / "report.html").read_text()
    assert "max_grad_norm" in page
    assert "quantization" in page


@pytest.mark.slow
def test_mlflow_has_the_fields_and_finds_models_by_them(ran: Sweep) -> None:
    uri = ran.spec.tracking.uri
    models = find_models(uri, where=["model.quantization = nf4", "max_grad_norm = 1"])
    (row,) = models.to_dict("records")
    assert json.loads(row["settings"]) == {CLIPPING: 1.0, FEW_BITS: "nf4"}
    assert len(find_models(uri)) == 4


@pytest.mark.slow
def test_the_models_differ_as_the_fields_say(ran: Sweep) -> None:
    weights = {}
    for trial in ran.folder.plan().trials:
        (file,) = (ran.folder.trial(trial.run_id) / "model").glob("*.safetensors")
        weights[trial.settings] = load_file(file)
    assert (
        len({tuple(values.sum().item() for values in own.values()) for own in weights.values()})
        == 4
    )


@pytest.mark.daily("raydp/extensions/later_scores")
def test_a_score_that_is_measured_later_uses_each_runs_own_base(ran: Sweep, raydp: Any) -> None:
    """The values are those that training measured: a model on 4 bits is measured on 4 bits."""
    raydp("score", str(ran.folder.path), "--score", "vmr_exact", "--label", "again")
    points = load_points(ran.folder.path / "points.csv")
    assert points["score.again"].tolist() == pytest.approx(
        points["score.vmr_exact"].tolist(), rel=1e-6
    )


@pytest.mark.slow
def test_the_finished_sweep_is_read_by_the_commands(ran: Sweep, raydp: Any) -> None:
    chosen = raydp("select", str(ran.folder.path), "--json").json()
    assert Configuration.from_json(chosen).fields == chosen["settings"]
    predicted = raydp("predict", str(ran.folder.path), "--json").json()
    assert predicted == [], "the table lacks no combination"
    effects = raydp("analyze", "effects", str(ran.folder.path), "--json").json()
    assert effects[CLIPPING]["series_count"] == 2
    assert effects[FEW_BITS]["per_doubling"] is None
    assert "no positive numbers" in effects[FEW_BITS]["reason"]
    regression = raydp("analyze", "regression", str(ran.folder.path), "--json").json()
    assert "log_method.max_grad_norm" in regression["individual"]["terms"]
