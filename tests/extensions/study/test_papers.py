"""The studies of the papers' figures read and run, and docs/papers.md names what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp.extensions.study.document import Study
from raydp.search_spaces import space_names
from tests.conftest import Answer
from tests.sweep.without_ray import train_without_ray

ROOT = Path(__file__).parents[3]
STUDIES = sorted((ROOT / "docs/studies").glob("*20[0-9][0-9]*.yaml"))
"""The papers' studies, which their names tell by the year."""
PAGE = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
GUO = ["3.1", *(f"5.{k}" for k in range(1, 18)), "A.1", "A.2"]
ITEMS = {
    ("Hu et al. 2025", "figure"): [str(k) for k in range(1, 37)],
    ("Hu et al. 2025", "table"): [str(k) for k in range(1, 15)],
    ("Kaplan et al. 2024", "figure"): [str(k) for k in range(1, 8)],
    ("Kaplan et al. 2024", "table"): [str(k) for k in range(1, 7)],
    ("Guo 2024", "figure"): GUO,
    ("Zagardo 2024", "figure"): [str(k) for k in range(1, 8)],
    ("Zagardo 2024", "table"): [str(k) for k in range(1, 11)],
    ("Boenisch and Dziedzic 2024", "item"): ["figure 2", "table"],
}
"""Section of the page and kind -> the numbers that the paper prints."""
Raydp = Callable[..., Answer]
of_each = pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)


def rows_of(section: str, kind: str) -> list[str]:
    """Return the numbers that a table of the page has rows for, with ranges written out."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    table = text.split(f"| {kind} | shows |")[1].split("\n\n")[0]
    cells = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    return [number for cell in cells for part in cell.split(", ") for number in numbers(part)]


def numbers(part: str) -> Iterator[str]:
    """Yield the numbers of a range such as 5.2–5.7, or the part itself."""
    first, dash, last = part.partition("–")
    if not dash:
        yield first
        return
    chapter, _, start = first.rpartition(".")
    for number in range(int(start), int(last.rpartition(".")[2]) + 1):
        yield f"{chapter}.{number}" if chapter else str(number)


@pytest.mark.parametrize(("section", "kind"), ITEMS, ids=" ".join)
def test_the_page_has_every_figure_and_table_once(section: str, kind: str) -> None:
    found = rows_of(section, kind)
    assert sorted(found) == sorted(ITEMS[section, kind])


def test_the_page_names_every_study_and_no_other_file_than_those_there_are() -> None:
    linked = set(re.findall(r"\]\(studies/([^)]+)\)", PAGE))
    assert linked == {path.name for path in STUDIES}
    named = re.findall(r"(?:docs|benchmarks|tests)/[\w/.-]+\w", PAGE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_page_and_the_studies_name_known_spaces() -> None:
    text = PAGE + "".join(path.read_text(encoding="utf-8") for path in STUDIES)
    named = set(re.findall(r"space: \{name: ([\w-]+)\}|spaces show ([\w-]+)", text))
    assert {one or other for one, other in named} <= set(space_names())
    assert named


@of_each
def test_a_study_reads_as_checked_specs_under_its_own_name(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    study = Study.read(path)
    assert study.name == content["name"] == path.stem
    assert content["tracking"]["registered_model"] == study.name
    number = 1
    for values in content["axes"].values():
        number *= len(values)
    assert len(study.cells) == number
    assert all(1 <= len(cell.spec.seed_labels) <= 2 for cell in study.cells)


@of_each
def test_a_study_names_its_command_and_the_papers_size(path: Path) -> None:
    head = path.read_text(encoding="utf-8").split("\nname:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert f"`raydp study docs/studies/{path.name}`" in head
    assert "DIR" in head, "what of the paper's size the user gives"
    folders = re.findall(r"raydp_runs/([\w./-]+)", head)
    cells = {f"{path.stem}/{cell.spec.name}" for cell in Study.read(path).cells}
    assert set(folders) <= cells | {f"{path.stem}/points.csv"}


@pytest.mark.daily("docs/studies", "raydp/extensions/comparison")
@of_each
def test_a_study_runs_to_its_pictures(
    raydp: Raydp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    """Of a list of values only the ends, because each sweep costs seconds; of blocks all."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for field, values in content["axes"].items():
        if isinstance(values, list):
            content["axes"][field] = [values[0], values[-1]]
    study = tmp_path / path.name
    study.write_text(yaml.safe_dump(content), encoding="utf-8")
    train_without_ray(monkeypatch)
    answer = raydp("study", study, "--json")
    assert answer.code == 0, answer.err
    told: dict[str, Any] = json.loads(answer.out)
    assert {cell["state"] for cell in told["cells"]} == {"finished"}
    assert {cell["reason"] for cell in told["cells"]} == {None}
    page = Path(told["comparison"]).read_text(encoding="utf-8")
    assert all(cell.spec.name in page for cell in Study.read(study).cells)
    if "privacy.target_epsilon" in told["cells"][0]:
        envelope = tmp_path / "raydp_runs" / path.stem / "envelope.html"
        assert envelope.is_file() or told["epsilon"].startswith("Which ε is not known: ")
