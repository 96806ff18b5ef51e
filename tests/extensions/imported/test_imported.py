"""Models that others trained: scored, tracked and selected like ours, and never taken for a
guarantee."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from raydp.extensions.imported.foreign_adapters import adapter_section, check_fits
from raydp.extensions.imported.method import WHY_STATED, read_runs
from raydp.extensions.imported.spec import imported_spec
from raydp.models import base_models as models
from raydp.spec.reading import load_spec
from raydp.spec.sections import ModelSpec
from raydp.sweep.api import Sweep
from raydp.sweep.ending.notes import card_of
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan, plan_to_keep
from raydp.tracking import find_models, load_model
from tests.builders.data_files import write_json_lines
from tests.builders.specs import small_spec

ROOT = Path(__file__).parents[3]
IDS = torch.tensor([[5, 6, 7, 8]])


def adapter(folder: Path, seed: int, **options: Any) -> Path:
    """A LoRA adapter of peft's own, with random weights."""
    torch.manual_seed(seed)
    base = models.load_base(ModelSpec(name="tiny")).model
    config = LoraConfig(
        **{"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], **options}
    )
    model = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.02 * (1 + seed))
    model.save_pretrained(str(folder))
    return folder


def table(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(
            stream, fieldnames=list(dict.fromkeys(key for row in rows for key in row))
        )
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(model: str, **changes: Any) -> dict[str, Any]:
    plain = {"model": model, "batch_size": 32, "num_steps": 10, "learning_rate": 0.01}
    return {**plain, "epsilon": 8, "delta": 1e-4, **changes}


def rest(folder: Path) -> dict[str, Any]:
    """A spec without what the table decides."""
    spec = small_spec(folder)
    for section in ("method", "space", "seeds"):
        del spec[section]
    del spec["model"]["adapter"]
    return spec


@pytest.mark.slow
def test_they_are_scored_tracked_and_selected_and_never_found_by_a_guarantee(
    tmp_path: Path,
) -> None:
    """Three of the four runs of two configurations; the ε of one row follows from its σ."""
    for number in range(3):
        adapter(tmp_path / f"m{number}", number)
    runs = table(
        tmp_path,
        [
            row("m0", seed=0, library="opacus"),
            row("m1", seed=1, library="opacus"),
            row(
                "m2",
                batch_size=64,
                seed=1,
                epsilon="",
                delta="",
                noise_multiplier=1.5,
                library="jax_privacy",
            ),
        ],
    )
    sweep = Sweep(imported_spec(runs, rest(tmp_path)))
    result = sweep.run()
    points = sweep.points()
    assert (result.counts.runs, result.counts.finished) == (3, 3), (
        "a row that is not there is no run"
    )
    assert set(points["epsilon"]) == {"inf"}
    stated = dict(zip(points["batch_size"], points["claimed_epsilon"], strict=True))
    assert stated[32] == 8
    assert 0 < stated[64] < 8, "of Poisson batches with the stated σ"
    assert sorted(points["stated.library"]) == ["jax_privacy", "opacus", "opacus"]
    assert set(points["noise_multiplier"]) == {0.0, 1.5}
    # The model in the registry is the one that was given.
    store = rest(tmp_path)["tracking"]["uri"]
    asks: list[dict[str, Any]] = [
        {"max_epsilon": 1e6},
        {"max_delta": 0.5},
        {"certified": True},
        {"where": ["epsilon < 9"]},
    ]
    for asked in asks:
        assert find_models(store, **asked).empty, "a look-up that asks for a guarantee"
    found = find_models(store, registered_model="small")
    assert len(found) == 3
    loaded = load_model(found[found["batch_size"] == 64]["model_uri"].iloc[0], tracking_uri=store)
    given = PeftModel.from_pretrained(
        models.load_base(ModelSpec(name="tiny")).model, str(tmp_path / "m2")
    ).eval()
    with torch.inference_mode():
        assert torch.equal(loaded(IDS).logits, given(IDS).logits)
    # The card says that nothing is certified.
    card = sweep.folder.plan().record
    assert not card.certified
    assert WHY_STATED in card.not_certified_because
    assert "unknown: the model was trained elsewhere" in (card.seed_policy, card.procedure.sampler)


def test_the_section_of_an_adapter_is_pefts_own_configuration(tmp_path: Path) -> None:
    given = adapter(
        tmp_path / "a", 0, r=5, lora_alpha=7, target_modules=["up_proj"], layers_to_transform=[1]
    )
    section = adapter_section(given)
    assert section == {
        "type": "lora", "r": 5, "alpha": 7, "use_rslora": False, "use_dora": False, "target_modules": ["up_proj"],
        "layers_to_transform": [1],
    }  # fmt: skip
    check_fits(ModelSpec.model_validate({"name": "tiny", "adapter": section}), [given])
    for field, value in (
        ("layers_to_transform", [0]),
        ("alpha", 8),
        ("r", 4),
        ("use_rslora", True),
    ):
        other = ModelSpec.model_validate({"name": "tiny", "adapter": {**section, field: value}})
        with pytest.raises(ValueError, match=rf"got 'a' with {field} .* in place of"):
            check_fits(other, [given])
    weights = load_file(given / "adapter_model.safetensors")
    weights.pop(next(iter(weights)))
    save_file(weights, given / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"got 'a' without 'base_model.*; its shape must be"):
        check_fits(ModelSpec.model_validate({"name": "tiny", "adapter": section}), [given])


def test_a_whole_model_must_be_the_base_and_nothing_more(tmp_path: Path) -> None:
    spec = ModelSpec.model_validate({"name": "tiny", "adapter": {"type": "none"}})
    base = models.load_base(ModelSpec(name="tiny")).model
    base.save_pretrained(tmp_path / "whole")
    check_fits(spec, [tmp_path / "whole"])
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    save_file(
        {**weights, "lm_head.weight": weights["model.embed_tokens.weight"] * 2},
        tmp_path / "whole" / "model.safetensors",
    )
    with pytest.raises(
        ValueError, match=r"with 'lm_head\.weight' .*; nothing of that name is trained"
    ):
        check_fits(spec, [tmp_path / "whole"])
    save_file(
        {**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()},
        tmp_path / "whole" / "model.safetensors",
    )
    check_fits(spec, [tmp_path / "whole"])


@pytest.mark.slow
def test_stated_values_and_the_adapters_scale_are_part_of_the_identity(tmp_path: Path) -> None:
    def identity(folder: str = "m", **stated: Any) -> str:
        adapter(tmp_path / folder, 0, lora_alpha=stated.pop("alpha", 6))
        spec = load_spec(imported_spec(table(tmp_path, [row(folder, **stated)]), rest(tmp_path)))
        task, weight_hash = build_task(spec)
        (trial,) = make_plan(spec, task.facts(), weight_hash).trials
        return trial.run_id

    assert identity() == identity() == identity("moved")
    assert len({identity(), identity(epsilon=2), identity(delta=1e-5), identity(alpha=60)}) == 4


def test_canaries_that_the_models_have_not_seen_are_refused(tmp_path: Path) -> None:
    adapter(tmp_path / "m", 0)
    spec = imported_spec(table(tmp_path, [row("m")]), rest(tmp_path))
    planted = {"name": "planted", "of": spec["task"], "copies": {4: 2}}
    with pytest.raises(
        ValueError, match=r"task\.name must not plant canaries with method imported, got 'planted'"
    ):
        build_task(load_spec({**spec, "task": planted}))


def test_the_card_of_a_sweep_shows_the_range_of_stated_values(tmp_path: Path) -> None:
    adapter(tmp_path / "m", 0)
    rows = [row("m", seed=k, epsilon=e) for k, e in enumerate((1, 4, "inf"))]
    spec = load_spec(imported_spec(table(tmp_path, rows), rest(tmp_path)))
    task, weight_hash = build_task(spec)
    plan = plan_to_keep(make_plan(spec, task.facts(), weight_hash), "0" * 16)
    assert card_of(plan)["Claimed ε"] == "1 to 4, for 2 of 3 models, not certified"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "gone"}, r"model must be a folder, .* got none in line 2"),
        ({"batch_size": 3.5}, r"batch_size must be a whole number > 0 in line 2"),
        ({"learning_rate": "fast"}, r"learning_rate must be a number > 0 in line 2"),
        ({"num_steps": ""}, r"in every row, got line 2 without"),
        (
            {"epsilon": ""},
            r"must state noise_multiplier, or epsilon and delta, .* line 2 with neither",
        ),
        ({"delta": ""}, r"delta must be below 1 and stated with epsilon, got line 2"),
        ({"delta": 2}, r"delta must be below 1"),
        ({"noise_multiplier": -1}, r"noise_multiplier must be a number >= 0 in line 2"),
        (
            {"noise_multiplier": 0},
            r"noise_multiplier must be > 0 with a finite epsilon, got 0 in line 2",
        ),
        (
            {"noise_multiplier": 1e300},
            r"noise_multiplier must be at most 1,000,000, got more in line 2",
        ),
        ({"batch_size": "inf"}, r"batch_size must be a whole number > 0 in line 2"),
        ({"seed": 1e20}, r"seed must be a whole number >= 0 in line 2"),
        ({"epsilon": "", "delta": 2, "noise_multiplier": 1}, r"delta must be below 1"),
    ],
)
def test_a_wrong_row_is_refused_by_its_number(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(ValueError, match=message):
        read_runs(table(tmp_path, [{**row("m"), **changes}]))


def test_a_wrong_table_or_spec_is_refused(tmp_path: Path) -> None:
    adapter(tmp_path / "m", 0)
    with pytest.raises(ValueError, match=r"RUNS must be an existing CSV file"):
        read_runs(tmp_path / "gone.csv")
    with pytest.raises(ValueError, match=r"a table without learning_rate"):
        read_runs(table(tmp_path, [{"model": "m", "batch_size": 1, "num_steps": 1}]))
    with pytest.raises(
        ValueError, match=r"one row for each configuration and seed, .* again in line 3"
    ):
        read_runs(table(tmp_path, [row("m", seed=0), row("m", seed=0)]))
    runs = table(tmp_path, [row("m"), row("m")])
    assert [run.seed for run in read_runs(runs)] == [0, 1], "rows without a seed are numbered"
    with pytest.raises(ValueError, match=r"SPEC must leave .* to RUNS, got method, space, seeds"):
        imported_spec(runs, small_spec(tmp_path))
    ranks = adapter(tmp_path / "ranks", 0, rank_pattern={"q_proj": 2})
    with pytest.raises(ValueError, match=r"got 'ranks' with rank_pattern\. Merge it"):
        adapter_section(ranks)
    changed = json.loads((ranks / "adapter_config.json").read_text()) | {
        "rank_pattern": {},
        "init_lora_weights": "pissa",
    }
    (ranks / "adapter_config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"got 'ranks' with init_lora_weights\. Merge it"):
        adapter_section(ranks)
    (ranks / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"a whole adapter_config\.json, got 'ranks'"):
        adapter_section(ranks)
    with pytest.raises(ValueError, match=r"adapter_config\.json or a config\.json"):
        adapter_section(tmp_path)


def test_cells_without_a_column_and_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    runs = tmp_path / "runs.csv"
    header, cells = "model,batch_size,num_steps,learning_rate,epsilon,delta", "m,8,5,0.01,8,1e-4"
    runs.write_text(f"{header}\n{cells}\n{cells},0.1,x\n")
    with pytest.raises(
        ValueError, match=r"a cell for each column in every row, got 2 more in line 3"
    ):
        read_runs(runs)
    runs.write_text(f"model,{header}\nm,{cells}\n")
    with pytest.raises(ValueError, match=r"each column once, got 'model' 2 times"):
        read_runs(runs)
    runs.write_text(f"{header},,\n{cells},,,\n")
    assert len(read_runs(runs)) == 1, "a table program wrote empty cells"


def test_weights_that_are_not_finite_are_refused_by_their_folder(tmp_path: Path) -> None:
    file = adapter(tmp_path / "a", 0) / "adapter_model.safetensors"
    spec = ModelSpec.model_validate({"name": "tiny", "adapter": adapter_section(file.parent)})
    check_fits(spec, [file.parent])
    weights = load_file(file)
    next(iter(weights.values()))[0, 0] = float("nan")
    save_file(weights, file)
    with pytest.raises(
        ValueError, match=r"model must have finite weights, got 'a' with nan or inf in 'base_model"
    ):
        check_fits(spec, [file.parent])


def test_a_base_that_is_recorded_as_a_number_is_refused(tmp_path: Path) -> None:
    config = adapter(tmp_path / "a", 0) / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": 5}))
    with pytest.raises(
        ValueError, match=r"record its base as a text, got .* base_model_name_or_path in .* of 'a'"
    ):
        imported_spec(table(tmp_path, [row("a")]), rest(tmp_path))


def test_a_stated_epsilon_far_below_that_of_its_noise_is_remarked_on_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapter(tmp_path / "m", 0)
    rows = [
        row("m", seed=0, noise_multiplier=0.5, epsilon=0.1),
        row("m", seed=1, noise_multiplier=50),
    ]
    rows.append({**rows[0], "seed": 2})
    spec = load_spec(imported_spec(table(tmp_path, rows), rest(tmp_path)))
    task, weight_hash = build_task(spec)
    for _ in range(2):
        make_plan(spec, task.facts(), weight_hash)
    (message,) = [
        record.getMessage() for record in caplog.records if "RUNS states" in record.getMessage()
    ]
    assert message.startswith(
        "RUNS states epsilon 0.1 for (b=32, T=10, η=0.01), and by the accountant "
    )
    assert "noise_multiplier 0.5 has epsilon " in message


@pytest.mark.daily
def test_a_model_trained_by_opacus_in_a_plain_script_is_imported(
    tmp_path: Path, raydp: Callable[..., Any]
) -> None:
    sentences = [
        {"text": f"Ticket {k}: please call me back about order {k * 37 % 1000}."}
        for k in range(400)
    ]
    data = write_json_lines(tmp_path / "mails.jsonl", sentences)
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "opacus_runs.py"),
        str(data),
        "--steps",
        "3",
        "--seeds",
        "1",
    ]
    subprocess.run(
        [*script, "--rates", "0.01", "-o", str(tmp_path / "trained")], check=True, cwd=tmp_path
    )
    secrets = write_json_lines(
        tmp_path / "secrets.jsonl",
        [
            {
                "id": "s",
                "prompt": "Ticket 7: please call me back about order ",
                "continuation": "259",
            }
        ],
    )
    spec = rest(tmp_path)
    spec["task"] = {"name": "text", "path": str(data), "secrets": str(secrets)}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    answer = raydp("import", "trained/runs.csv", "--spec", "spec.json", "--json")
    assert answer.code == 0, answer.err
    assert answer.json()["counts"]["finished"] == 2
    assert answer.json()["selected"] is not None
