"""The notebook of the docs runs from its first cell to its last, and draws what it says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.daily("docs/figures.ipynb")
def test_the_notebook_runs() -> None:
    notebook = nbformat.read(DOCS / "figures.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs"
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(DOCS)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [o["data"] for o in outputs if "application/vnd.plotly.v1+json" in o.get("data", {})]
    assert len(figures) == 5
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert "best utility (b=256, T=120, η=0.005)" in printed
