"""A spec is read as it is meant and survives being written; its schema knows every plug-in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp.analysis.tables.old_names import warn_of_left_rule, warn_of_old_name
from raydp.plugins import registries
from raydp.spec.reading import json_schema, load_spec
from tests.builders.specs import small_spec
from tests.marks import WHOLE
from tests.test_spec_values import SELECTION


def test_numbers_written_as_5e_4_are_numbers(tmp_path: Path) -> None:
    text = yaml.safe_dump(small_spec(tmp_path)).replace("- 0.01", "- 5e-4")
    assert "5e-4" in text
    (tmp_path / "spec.yaml").write_text(text)
    assert load_spec(tmp_path / "spec.yaml").space.learning_rate == (5e-4,)


def test_a_spec_survives_being_written(tmp_path: Path) -> None:
    spec = load_spec(small_spec(tmp_path))
    assert load_spec(spec.model_dump(mode="json")) == spec


def test_an_adapter_dumps_only_the_fields_of_its_type(tmp_path: Path) -> None:
    """The dump is part of a run's identity: those of LoRA and full fine-tuning are as they always
    were."""
    lora = {
        "type": "lora",
        "r": 8,
        "alpha": 16.0,
        "target_modules": ["q_proj", "v_proj"],
        "layers_to_transform": None,
    }
    prompt = {"type": "soft_prompt", "num_virtual_tokens": 20}
    for adapter, expected in (
        ({}, lora),
        ({"type": "none"}, lora | {"type": "none"}),
        ({"type": "soft_prompt"}, prompt),
        ({"type": "prefix"}, prompt | {"type": "prefix"}),
    ):
        spec = load_spec(small_spec(tmp_path, model={"name": "tiny", "adapter": adapter}))
        dumped = spec.model_dump(mode="json")
        assert dumped["model"]["adapter"] == expected
        assert load_spec(dumped) == spec


@pytest.mark.extensions
@pytest.mark.parametrize("num_runs", [{}, {"distribution": "poisson", "mean": 3}, None])
def test_a_private_selection_survives_being_written_with_its_defaults(
    tmp_path: Path, num_runs: Any
) -> None:
    spec = load_spec(
        small_spec(
            tmp_path, privacy={**SELECTION, "num_runs": num_runs}, select={"score": "vmr_exact"}
        )
    )
    assert (spec.select.rule, spec.select.min_gain_share) == ("best-utility", None)
    assert load_spec(spec.model_dump(mode="json")) == spec
    assert spec.privacy.model_dump()["num_runs"]["mean"] == (num_runs or {}).get("mean", 10)


def test_tuning_that_is_ignored_is_not_part_of_a_spec(tmp_path: Path) -> None:
    """Runs of before keep their identities, and sweeps of before can be resumed."""
    assert not {"tuning", "num_runs"} & set(load_spec(small_spec(tmp_path)).privacy.model_dump())


def test_the_schema_knows_every_plug_in() -> None:
    schema: dict[str, Any] = json_schema()
    *known, of_a_file = (
        choice["properties"]["name"] for choice in schema["properties"]["task"]["anyOf"]
    )
    names = [choice["const"] for choice in known]
    assert names == registries.names("tasks")
    assert re.search(of_a_file["pattern"], "folder/my_task.py:Rings")
    assert not any(re.search(of_a_file["pattern"], name) for name in names)
    assert {"builtin", "planted", "text"} <= set(names)
    assert schema["additionalProperties"] is False


def properties(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of a JSON Schema, with its path."""
    if isinstance(node, list):
        for position, child in enumerate(node):
            yield from properties(child, f"{path}[{position}]")
    elif isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield from ((f"{path}.{name}", each) for name, each in node["properties"].items())
        for key, child in node.items():
            yield from properties(child, f"{path}.{key}")


def test_every_field_of_the_schema_is_described() -> None:
    fields = dict(properties(json_schema()))
    assert len(fields) > (300 if WHOLE else 100)
    for path, field in fields.items():
        text = field.get("description", "")
        name = path.rpartition(".")[2].replace("_", " ")
        words = re.findall(r"\w+", text.lower())
        assert len(words) >= 3, f"{path}: {text!r}"
        assert words != name.split(), f"{path} only says its name again"
        assert text.endswith((".", ")")), f"{path}: {text!r}"
        assert "\n" not in text, f"{path}: {text!r}"


def test_spec_reads_the_rule_predicted_score_as_informed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_left_rule.cache_clear()
    select = {"score": "vmr_exact", "rule": "predicted-score"}
    assert load_spec(small_spec(tmp_path, select=select)).select.rule == "informed"
    assert "select names the rule predicted-score of earlier versions" in caplog.text


def test_old_name_of_the_gain_share_is_read_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_old_name.cache_clear()
    spec = load_spec(small_spec(tmp_path, select={"score": "vmr_exact", "min_utility_gain": 0.7}))
    assert spec.select.min_gain_share == 0.7
    assert "min_utility_gain of select is now called min_gain_share" in caplog.text
    assert "min_utility_gain" not in str(spec.model_dump(mode="json"))
    both = {"score": "vmr_exact", "min_utility_gain": 0.7, "min_gain_share": 0.7}
    with pytest.raises(ValueError, match="got both"):
        load_spec(small_spec(tmp_path, select=both))
