"""The notebook of the docs runs from its first cell to its last, and draws what it says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.builders.specs import small_spec

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.slow
def test_the_notebook_runs() -> None:
    notebook = nbformat.read(DOCS / "figures.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs"
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(DOCS)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [o["data"] for o in outputs if "application/vnd.plotly.v1+json" in o.get("data", {})]
    assert len(figures) == 5
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert "best utility (b=256, T=120, η=0.005)" in printed


@pytest.mark.slow
def test_a_sweep_in_a_notebook_shows_lines_one_progress_and_its_result(tmp_path: Path) -> None:
    """No output for each line, no wish for widgets, and nothing of before is cleared (Tune's own reporter would)."""
    spec = small_spec(tmp_path, space={"points": [[16, 400, 0.01]]})
    run = f"import raydp\nprint('mine')\nresult = raydp.Sweep({spec!r}).run()\nresult"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(run)])
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = notebook.cells[0].outputs
    printed = [o["text"] for o in outputs if o["output_type"] == "stream" and o["name"] == "stdout"]
    assert printed == ["mine\n"]
    told = "".join(o["text"] for o in outputs if o["output_type"] == "stream" and o["name"] == "stderr")
    assert told.index("starting Ray\n") < told.index("Write the report\n")
    assert "\x1b" not in told
    assert "widgets" not in told
    (progress,) = [o["data"]["text/plain"] for o in outputs if o["output_type"] == "display_data"]
    assert progress.startswith("1/1 done, 0 running, 0 failed")
    assert "best utility_loss so far" in progress
    assert outputs[-1]["output_type"] == "execute_result"
    assert "SweepResult" in outputs[-1]["data"]["text/html"]
