"""The core does without the extensions, and each of them without the others, but for those that it
builds on (docs/design.md)."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from raydp.plugins.parameters import KINDS
from raydp.plugins.registries import (
    BUILTIN,
    Kind,
    at,
    file_of,
    own_names,
    resolve,
    target,
)
from tests.builders.packages import importable
from tests.builders.registered import of_extensions
from tests.test_boundaries import ROOT, SHELF, files, imports, parts

TESTED_APART = {
    "imported": "extensions/imported/test_imported.py",  # trains nothing
    "mia_outputs": "extensions/membership/test_mia_outputs.py",
    "mia_outputs_of_reference": "extensions/membership/test_mia_outputs.py",
    "model_distance": "extensions/model_distance/test_model_distance.py",  # needs several models
    "one_run_audit": "extensions/auditing/test_one_run_audit.py",
    "twin_audit": "extensions/auditing/test_twin_audit.py",
}
"""Plug-ins that the suite of their kind does not fit, with their own tests."""
FOLDER = ROOT / "raydp/extensions"
SUITES = ROOT / "raydp/testing"
"""The suites of plug-ins, which the core does not import: they train on classification too."""
WORDS = {
    "auditing": r"canar(y|ies)",
    "claims": r"\bclaimed[ _](ε|epsilon)|['\"]claimed\b",
    "membership": r"membership inference|\bmia\b|shadow models?\b",
    "pate": r"\bPATE\b",
    "reference_data": r"\breference data\b|\bWERM\b|\badvreg|\bMMD\b",
}
"""Subject of the shelf -> words that a module of the core must not hold.

`claims` are the methods `dp_weights` and `imported`, which state an ε without a proof.
"""
SEAMS: dict[str, set[str]] = {
    "auditing": {
        "analysis/surface/outlook.py",
        "raydp/tasks/wrappers/planted_task.py",
        "raydp/tasks/wrappers/twins.py",
    },
    "claims": {
        "analysis/tables/statements.py",
        "raydp/privacy/records/schema.py",
    },
    "membership": {
        "analysis/report/profiles.py",
        "analysis/tables/per_secret.py",
        "raydp/cli/registration.py",
        "raydp/privacy/accounting/attack.py",
        "raydp/spec/sections/privacy.py",
    },
    "pate": set(),
    "reference_data": {
        "raydp/tasks/task.py",
        "raydp/tasks/text/language.py",
    },
}
"""Modules of the core that may hold a subject's words.

Planted texts, whose canaries stand for secrets, are of the core. So are the levels of an ε that a
method states without an accountant. A task says how many of its units are reference data, and a
text task refuses to add examples to them or to sort them by user.
"""


def subject(path: Path) -> str:
    return path.relative_to(FOLDER).parts[0].removesuffix(".py")


def test_the_core_names_no_extension() -> None:
    """Neither by an import nor in a text."""
    for path in files("raydp", "analysis", "search_spaces"):
        if {FOLDER, SUITES} & set(path.parents):
            continue
        assert not any(name.startswith("raydp.testing") for name in imports(path)), path
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        named = {text for text in texts.union(imports(path)) if f"{SHELF}." in text}
        assert not named, path


@pytest.mark.parametrize("name", sorted(WORDS))
def test_the_core_holds_the_words_of_a_subject_in_its_seams_alone(name: str) -> None:
    """In names, comments, docstrings and messages."""
    words = re.compile(WORDS[name], re.IGNORECASE)
    holding = {
        path.relative_to(ROOT).as_posix()
        for path in files("raydp", "analysis", "search_spaces")
        if not {FOLDER, SUITES} & set(path.parents)
        and words.search(path.read_text(encoding="utf-8"))
    }
    assert holding <= SEAMS[name], "word it in general, or move it to the extension"


def described(name: str) -> str:
    """The docstring of an extension."""
    text = (FOLDER / name / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


def foundations(name: str) -> set[str]:
    """The extensions that an extension says it builds on."""
    said = re.search(r"^It builds on: (.+)\.$", described(name), re.M)
    return set(said[1].split(", ")) if said else set()


def test_an_extension_imports_those_alone_that_it_builds_on_and_no_program() -> None:
    for path in files(str(FOLDER)):
        known = {subject(path), *foundations(subject(path))} if path.parent != FOLDER else set()
        for name in imports(path):
            assert not name.startswith("raydp.cli.main"), path
            if name.startswith(f"{SHELF}."):
                assert name.split(".")[2] in known, f"{path}: {name}"


def test_no_two_extensions_build_on_each_other() -> None:
    built = {name: foundations(name) for name in parts(SHELF)}
    assert set().union(*built.values()) <= set(built)
    TopologicalSorter(built).prepare()  # refuses a circle


def test_each_extension_names_its_page() -> None:
    for name in parts(SHELF):
        words = [word.strip("().,") for word in described(name).split()]
        pages = [word for word in words if word.endswith(".md")]
        assert pages, name
        assert all((ROOT / page).is_file() for page in pages), name


def test_each_plug_in_of_an_extension_runs_the_suite_of_its_kind() -> None:
    modules = [
        *(ROOT / "tests").glob("*/test_conformance.py"),
        *Path(__file__).parent.glob("*/test_conformance.py"),
    ]
    suites = {
        getattr(suite, "name", None)
        for path in modules
        for suite in vars(
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        ).values()
    }
    kinds: tuple[Kind, ...] = ("tasks", "methods", "scores", "searches")
    names = set[str]().union(*(of_extensions(kind) for kind in kinds))
    assert names - set(TESTED_APART) <= suites
    assert all((ROOT / "tests" / TESTED_APART[name]).is_file() for name in TESTED_APART)


def test_no_other_package_takes_the_name_of_an_extension(tmp_path: Path) -> None:
    """Else it would take the place of a method that has a guarantee."""
    info = tmp_path / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    names = ("dp_mf", "dp_sgd", "nonprivate")
    taken = "".join(f"{name} = foreign:Method\n" for name in (*names, "foreign"))
    (info / "entry_points.txt").write_text(f"[raydp.methods]\n{taken}")
    ours = {name: target("methods", name) for name in names}
    with importable(tmp_path, "foreign"):
        assert {name: target("methods", name) for name in ours} == ours
        assert target("methods", "foreign") == "foreign:Method"
        assert "foreign" not in own_names("methods")


def test_what_stands_in_for_a_plug_in_of_the_core_only_adds_fields() -> None:
    added = {
        (kind, name): (resolve(kind, name), at(place))
        for kind in KINDS
        for name, place in BUILTIN[kind].items()
        if target(kind, name) != place
    }
    assert added, "dp_sgd has the weight of reference data"
    for whole, own in added.values():
        assert issubclass(whole, own)
        assert set(whole.model_fields) > set(own.model_fields)
        assert whole().model_dump() == own().model_dump()
        assert whole.model_validate(own().model_dump()).traits == own().traits


def test_each_extension_describes_its_plug_ins_in_a_file_of_its_own() -> None:
    """A core without the extension knows nothing of it, and a spec is checked without its import."""
    for kind in KINDS:
        for name in of_extensions(kind):
            path = file_of(kind, name)
            assert path is not None
            assert FOLDER in path.parents, name
            assert path.is_file(), name
