"""What `raydp score` is asked for by its options, and the mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydp.extensions.later_scores.requests import ScoreRequest, requests_from
from tests.security.test_fuzzed_specs import HARMFUL


def test_requests_of_a_command() -> None:
    assert [(r.label, r.plugin.name) for r in requests_from("vmr, air")] == [
        ("vmr", "vmr"),
        ("air", "air"),
    ]
    (one,) = requests_from("air", ["num_samples=100"], label="air-100")
    assert (one.label, one.plugin.params.num_samples) == ("air-100", 100)
    many: list[ScoreRequest] = requests_from("vmr,air", ["air.num_samples=5"])
    assert [r.plugin.params.num_samples for r in many] == [10, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": None}, "--score or --scores must be given"),
        ({"names": "vrm"}, "Did you mean 'vmr'"),
        ({"names": "vmr,air", "label": "x"}, "--label must go with one score"),
        ({"names": "vmr,air", "params": ["num_samples=5"]}, r"--param must be score\.key=value"),
        ({"names": "vmr", "params": ["num_samples"]}, "--param must be key=value"),
        ({"names": "vmr", "params": ["samples=5"]}, "the key"),
        ({"names": "vmr", "params": ["num_samples=0"]}, "num_samples must be greater"),
        ({"names": "vmr,vmr"}, "each score once"),
        ({"names": "vmr", "params": ["num_samples=[1"]}, "--param must have a value that is YAML"),
        ({"names": "vmr", "label": "a.b"}, "label must be up to 100 letters"),
        ({"names": "vmr", "label": "a" * 101}, "label must be up to 100 letters"),
        ({"names": "vmr", "file": Path("x")}, "got both or none"),
        ({"names": None, "file": Path("nowhere.yaml")}, "must be an existing YAML file"),
    ],
)
def test_mistakes_in_requests_are_refused_with_a_remedy(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        requests_from(**options)


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_harmful_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.yaml"
    path.write_text(HARMFUL[kind][0])
    with pytest.raises(ValueError, match="--scores must"):
        requests_from(None, file=path)
