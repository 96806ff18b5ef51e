"""The tutorials run from their first cell to their last, and the outputs in the repository are
those of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from run_tutorials import NAMES, TUTORIALS, execute, printed, tidied

LARGEST_BYTES = 60_000
MACHINE = re.compile(r"/(tmp|work|home|root|Users)/|\x1b|ipywidgets|Traceback")
"""What an output must not hold: paths of a machine, colours, progress, errors."""


def committed(name: str) -> Any:
    """Return a tutorial as it lies in the repository."""
    return nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4)


def test_the_folder_holds_these_tutorials() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
class TestCommitted:
    def test_it_was_run_in_order(self, name: str) -> None:
        code = [cell for cell in committed(name).cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
            "run tools/run_tutorials.py"
        )
        assert any(cell.outputs for cell in code)

    def test_outputs_are_short_and_of_no_machine(self, name: str) -> None:
        assert (TUTORIALS / f"{name}.ipynb").stat().st_size < LARGEST_BYTES
        outputs = [output for cell in committed(name).cells for output in cell.get("outputs", [])]
        assert [
            output.get("name") for output in outputs if output["output_type"] == "stream"
        ].count("stderr") == 0
        assert MACHINE.search(printed(committed(name))) is None


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The first tutorial's folder, which two others read, and what the tutorial printed."""
    folder = tmp_path_factory.mktemp("tutorials")
    return folder, printed(tidied(execute("private_corpus", folder)))


def assert_lines_one_progress_and_the_result(outputs: list[Any]) -> None:
    """A sweep in a notebook has no output for each line, no wish for widgets, and clears nothing of
    before (Tune's own reporter would)."""
    assert [o for o in outputs if o["output_type"] == "stream" and o["name"] == "stdout"] == []
    told = "".join(o["text"] for o in outputs if o["output_type"] == "stream")
    assert told.index("starting Ray\n") < told.index("writing the report\n")
    assert "\x1b" not in told
    assert "widgets" not in told
    (progress,) = [o["data"]["text/plain"] for o in outputs if o["output_type"] == "display_data"]
    assert progress.startswith("8/8 done, 0 running, 0 failed")
    assert "best utility_loss so far" in progress
    assert outputs[-1]["output_type"] == "execute_result"
    assert "SweepResult" in outputs[-1]["data"]["text/html"]


@pytest.mark.daily("docs/tutorials", "tools/run_tutorials.py")
@pytest.mark.timeout(900)
class TestExecuted:
    def test_a_private_corpus_becomes_a_model(self, corpus: tuple[Path, str]) -> None:
        folder, text = corpus
        assert "✓ 8 runs finished" in text
        assert len(re.findall(r"greedy decoding says \d+ of 12 extensions", text)) == 2
        assert (folder / "raydp_runs" / "mails" / "report.html").exists()

    def test_a_choice_is_defended(self, corpus: tuple[Path, str]) -> None:
        text = printed(tidied(execute("choose_and_defend", corpus[0])))
        assert "probability that it leaks least" in text
        assert "certified: True" in text
        assert "all 8 models together" in text

    def test_a_service_finds_and_loads_a_model(self, corpus: tuple[Path, str]) -> None:
        text = printed(tidied(execute("registry_for_services", corpus[0])))
        assert "files differ from the card's: adapter_model.safetensors" in text, (
            "one bit was changed"
        )
        assert "PeftModelForCausalLM" in text
        assert "From: Vera Nordale x" in text

    def test_an_own_task_and_score_are_swept(self, tmp_path: Path) -> None:
        notebook = execute("own_task_and_score", tmp_path)
        text = printed(tidied(notebook))
        assert "task.contradictions must be less than 0.5, got 0.7" in text
        assert "runs=8 finished, 0 failed, 0 pending" in text
        (swept,) = [cell.outputs for cell in notebook.cells if ".run()" in cell.source]
        assert_lines_one_progress_and_the_result(swept)
