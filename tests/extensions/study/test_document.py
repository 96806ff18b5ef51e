"""A study's axes, and the specs of its sweeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from raydp.extensions.study.document import Study
from raydp.search_spaces.settings import settings_in_words
from raydp.spec.reading import load_spec
from tests.builders.specs import small_spec


def study(folder: Path, axes: Any, **changes: Any) -> Study:
    return Study.read({**small_spec(folder, **changes), "axes": axes})


def test_each_combination_is_a_sweep_with_its_own_folder_and_models(tmp_path: Path) -> None:
    lora = {"type": "lora", "r": 4, "alpha": 4, "target_modules": ["q_proj"]}
    blocks = {"small": {"name": "tiny"}, "high": {"name": "tiny", "adapter": lora}}
    axes = {"privacy.target_epsilon": [1, 8], "model": blocks}
    made = study(tmp_path, axes)
    assert made.folder == tmp_path / "runs/small"
    assert [cell.spec.name for cell in made.cells] == [
        "target_epsilon-1-model-small", "target_epsilon-1-model-high",
        "target_epsilon-8-model-small", "target_epsilon-8-model-high",
    ]  # fmt: skip
    specs = [cell.spec for cell in made.cells]
    assert {spec.storage for spec in specs} == {str(made.folder)}
    assert len({spec.tracking.registered_model for spec in specs}) == 4
    assert len({spec.tracking.experiment for spec in specs}) == 4
    assert [spec.privacy.target_epsilon for spec in specs] == [1, 1, 8, 8]
    assert [spec.model.adapter.r for spec in specs] == [2, 4, 2, 4]
    assert settings_in_words(made.cells[1].values) == "model = high, target_epsilon = 1"


def test_a_block_takes_the_place_of_the_keys_that_it_names(tmp_path: Path) -> None:
    """What the section has beside them stays."""
    made = study(tmp_path, {"method": {"sgd": {"name": "dp_sgd"}, "adam": {"name": "dp_adam"}}})
    base = small_spec(tmp_path)["method"]
    for cell, name in zip(made.cells, ("dp_sgd", "dp_adam"), strict=True):
        assert cell.spec.method.name == name
        assert cell.spec.method.params.max_grad_norm == base["max_grad_norm"]


def test_an_axis_of_noise_takes_the_place_of_the_target(tmp_path: Path) -> None:
    made = study(tmp_path, {"privacy.noise_multiplier": [0.5, 2]})
    assert [cell.spec.privacy.noise_multiplier for cell in made.cells] == [0.5, 2]
    assert {cell.spec.privacy.target_epsilon for cell in made.cells} == {None}


def test_cells_share_no_part_of_the_spec(tmp_path: Path) -> None:
    written = {**small_spec(tmp_path), "axes": {"privacy.target_epsilon": [1, 2]}}
    before = repr(written)
    Study.read(written)
    assert repr(written) == before


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({}, "axes must be a mapping with an axis"),
        ([1, 2], "axes must be a mapping with an axis"),
        ({"privacy.target_epsilon": 8}, "axes.privacy.target_epsilon must be a list of values"),
        ({"privacy.target_epsilon": []}, "axes.privacy.target_epsilon must be a list of values"),
        ({"privacy.target_epsilon": [1, math.nan]}, "must be a list of values, got [1, nan]"),
        ({"privacy.target_epsilon": [8, 8]}, "must have each value once, got 8 twice"),
        ({"epsilon": [1]}, "axes: the axis 'epsilon' is unknown"),
        ({"seeds": [1]}, "axes: the axis 'seeds' is unknown"),
        ({"model": ["tiny"]}, "axes.model must be named blocks"),
        ({"model": {"a": "tiny"}}, "axes.model must be named blocks"),
        (
            {"privacy.target_epsilon": [1], "privacy.noise_multiplier": [1]},
            "axes must give ε or σ",
        ),
        (
            {"model": {"a": {"name": "tiny"}}, "model.dtype": ["float32"]},
            "axes must vary a section or its fields, got model and model.dtype",
        ),
        ({"privacy.target_epsilon": list(range(1, 1002))}, "must give at most 200 sweeps"),
        (
            {"model": {"a": {"name": "tiny"}, "b": {"name": "tiny"}}},
            "axes must give different sweeps, got model = a and model = b, which are equal",
        ),
        ({"privacy.unit": ["example", "person"]}, "unit = person: privacy.unit must be"),
        ({"privacy.target_epsilon": [1, -2]}, "target_epsilon = -2: privacy.target_epsilon must"),
    ],
)
def test_mistakes_of_axes_are_refused(tmp_path: Path, axes: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked
        study(tmp_path, axes)
    assert words in str(caught.value)


def test_a_mistake_of_every_sweep_is_said_once(tmp_path: Path) -> None:
    space = {"batch_size": [-1], "num_steps": [2], "learning_rate": [0.1]}
    with pytest.raises(ValueError, match=r"\Aspace\.") as caught:
        study(tmp_path, {"privacy.target_epsilon": [1, 2]}, space=space)
    assert str(caught.value).count("batch_size") == 1


def test_a_spec_without_axes_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a spec without axes is for `raydp sweep`"):
        Study.read(small_spec(tmp_path))


def test_a_study_given_as_a_spec_is_told_its_command(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        (Path(__file__).parents[3] / "docs/studies/demo.yaml").read_text("utf-8"), "utf-8"
    )
    with pytest.raises(ValueError, match=r"got a study with axes .*Run `raydp study`"):
        load_spec(path)
