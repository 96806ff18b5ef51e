"""The names of `raydp` that a notebook uses, on a finished sweep."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

import raydp
from raydp import Selection, Sweep
from raydp.spec.reading import load_spec
from tests.sweep.undisturbed import Done

pytestmark = pytest.mark.xdist_group("sweep")

LONGEST = 300
"""Characters of a repr: three lines of a terminal."""


def test_the_result_of_a_sweep_holds_selections(done: Done) -> None:
    chosen, best = done.result.selected, done.result.best_utility
    assert isinstance(chosen, Selection)
    assert isinstance(best, Selection)
    assert best.utility_loss <= chosen.utility_loss
    assert chosen.model_uri in done.points["model_uri"].tolist()
    document = done.result.document()
    assert document["selected"] == chosen.to_dict()
    assert set(document) == {
        "folder",
        "counts",
        "selected",
        "best_utility",
        "reason",
        "report",
        "interrupted",
    }


def test_results_are_short_to_read_and_tables_in_a_notebook(done: Done) -> None:
    chosen = done.result.selected
    assert chosen is not None
    for shown in (chosen, done.result, done.sweep):
        assert len(repr(shown)) < LONGEST
        assert "\n" not in repr(shown)
    assert f"configuration={chosen.configuration}" in repr(chosen)
    assert "4 finished" in repr(done.result)
    for table in (chosen._repr_html_(), done.result._repr_html_()):
        assert table.startswith("<table>")
        assert str(chosen.configuration) in table
        assert "&" not in table.replace("&lt;", "").replace("&gt;", ""), "texts are escaped"


@pytest.mark.parametrize("how", ["name", "folder", "file", "spec", "mapping"])
def test_a_sweep_is_opened_by_its_name_folder_or_spec(done: Done, how: str) -> None:
    spec, folder = done.sweep.spec, done.result.folder
    source = {
        "name": spec.name,
        "folder": folder,
        "file": folder / "spec.yaml",
        "spec": spec,
        "mapping": done.spec,
    }[how]
    opened = Sweep.open(source, storage=spec.storage)
    assert opened.spec.name == spec.name
    assert opened.status().finished == 4
    assert len(opened.points()) == 4
    assert isinstance(opened.select(min_gain_share=0), Selection)


def test_a_folder_that_moved_is_opened_where_it_is(done: Done, tmp_path: Path) -> None:
    os.symlink(done.result.folder, tmp_path / "elsewhere")
    assert Sweep.open(tmp_path / "elsewhere").folder.path == tmp_path / "elsewhere"


def test_a_sweep_that_was_never_started_is_not_opened(done: Done, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SWEEP must be the folder of a sweep"):
        Sweep.open("unknown", storage=done.sweep.spec.storage)
    with pytest.raises(ValueError, match="SWEEP must be the folder of a sweep"):
        Sweep.open(load_spec({**done.spec, "name": "unknown"}))


@pytest.mark.extensions
def test_one_model_is_scored(done: Done, tmp_path: Path) -> None:
    """`logprob` on one model's folder; values of sweeps are in extensions/later_scores."""
    folder = done.result.folder / "trials" / done.points["run_id"].iloc[0] / "model"
    asked = ["vmr_exact", {"name": "vmr_exact", "label": "greedy", "top_k": 1}]
    table = raydp.score(folder, asked, task=done.result.folder / "spec.yaml")
    assert table.index.tolist() == ["vmr_exact", "greedy"]
    assert table.columns.tolist() == ["score", "value", "std_error", "num_samples"]
    assert table["value"].between(0, 1).all()
    assert table.attrs["document"]["scores"]["greedy"]["value"] == table.loc["greedy", "value"]
    with pytest.raises(ValueError, match="scores"):
        raydp.score(folder, "vmrr", task=done.result.folder / "spec.yaml")


def test_a_report_is_written(done: Done, tmp_path: Path) -> None:
    figures = raydp.report(done.result.folder, str(tmp_path / "report.html"))
    assert figures
    assert "<html" in (tmp_path / "report.html").read_text()


def test_every_name_is_there() -> None:
    assert raydp.__version__ == version("raydp-tune")
    assert {"Selection", "Sweep", "load_tokenizer", "report", "score"} <= set(raydp.__all__)
    for name in {*raydp.__all__, "__version__"} - {"score"}:
        assert getattr(raydp, name).__doc__, name


@pytest.mark.extensions
def test_the_name_of_an_extension_is_there() -> None:
    assert raydp.score.__doc__
