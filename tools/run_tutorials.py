"""Executes the tutorials in a new folder and writes their outputs into docs/tutorials.

python tools/run_tutorials.py                     # all of them, in order: the later ones read the first one's sweep
python tools/run_tutorials.py own_task_and_score  # one that stands alone
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
NAMES = ("private_corpus", "choose_and_defend", "registry_for_services", "own_task_and_score")
"""In the order in which they run. The second and the third one read the sweep of the first one."""
SECONDS = 600
"""Longest time of a cell."""
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def execute(name: str, folder: Path) -> nbformat.NotebookNode:
    """Execute a tutorial in a folder and return it with all its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with _commands_found():
        NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    return notebook


def printed(notebook: nbformat.NotebookNode) -> str:
    """Return everything that a notebook's cells printed, and their last values as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs
    )


def tidied(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook with what a reader needs: no standard error, no colours, no time stamps of
    cells."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _joined(output for output in cell.outputs if not _is_noise(output))
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def _is_noise(output: nbformat.NotebookNode) -> bool:
    """Return whether an output is progress: standard error, or what rich displays while it
    waits."""
    return output.get("name") == "stderr" or output["output_type"] == "display_data"


def _joined(outputs: Iterable[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return the outputs with the pieces of one stream as one output without colours."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if "text" in output and joined and "text" in joined[-1]:
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    for output in joined:
        if "text" in output:
            output["text"] = ANSI.sub("", output["text"])
    return joined


@contextmanager
def _commands_found() -> Iterator[None]:
    """Let a notebook's shell find the `raydp` of this environment, and libraries use one thread a
    process."""
    before = dict(os.environ)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "names", nargs="*", default=NAMES, metavar="NAME", help=f"some of {', '.join(NAMES)}"
    )
    chosen = parser.parse_args().names
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            started = time.perf_counter()
            notebook = tidied(execute(name, Path(folder)))
            nbformat.write(notebook, TUTORIALS / f"{name}.ipynb")
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
