"""Records say what a sweep tuned and on what data it chooses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp.spec.reading import load_spec
from raydp.sweep.tuning_record import tuning_of
from tests.builders import toys
from tests.builders.specs import small_spec

TRIALS = [
    replace(toys.PLAN, run_id=f"{steps} {rate} {seed}", num_steps=steps, learning_rate=rate, seed=seed)
    for steps in (8, 4) for rate in (0.01, 0.02) for seed in (0, 1)
]  # fmt: skip


def said(folder: Path, **select: Any) -> dict[str, Any]:
    chosen = {"score": "vmr_exact", "min_gain_share": None, **select}
    return tuning_of(load_spec(small_spec(folder, seeds=[0, 1], select=chosen)), TRIALS)


def test_only_fields_with_several_values_were_searched(tmp_path: Path) -> None:
    answer = said(tmp_path)
    assert answer["hyperparameters"] == {"num_steps": [4, 8], "learning_rate": [0.01, 0.02]}
    assert (answer["configurations"], answer["seeds"]) == (4, [0, 1])


@pytest.mark.parametrize(
    ("select", "on"),
    [
        ({"rule": "procedure"}, ["utility_loss"]),
        ({"rule": "informed"}, ["utility_loss", "vmr_exact"]),
        ({"rule": "best-utility"}, ["utility_loss"]),
        ({"rule": "oracle"}, ["vmr_exact"]),
        ({"rule": "oracle", "min_gain_share": 0.9}, ["utility_loss", "vmr_exact"]),
        ({"rule": "oracle", "max_loss": 2.0}, ["utility_loss", "vmr_exact"]),
    ],
)
def test_it_names_the_figures_that_the_rule_looks_at(
    tmp_path: Path, select: dict[str, Any], on: list[str]
) -> None:
    answer = said(tmp_path, **select)
    assert answer["rule"] == select["rule"]
    assert [figure.split(" of ")[0] for figure in answer["chosen_on"]] == on
