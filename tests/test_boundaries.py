"""Folders import downward only, and heavy libraries stay in the folders that own them
(docs/design.md)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWNERS = {
    "ray": "raydp/sweep/engine",
    "mlflow": "raydp/tracking",
    "prv_accountant": "raydp/privacy",
    "dp_accounting": "raydp/privacy",
}
ALSO = {
    # Its logs are callbacks of Tune around Tune's own loggers; a driver without loggers loads none.
    "raydp/extensions/run_logs/loggers.py": "ray",
    # Its grid is a class of Tune's, for readers that know Tune.
    "raydp/extensions/result_grid/grid.py": "ray",
    # Its actors measure trained models, with neither Tune nor Train.
    "raydp/extensions/later_scores/scorers.py": "ray",
    # It deletes runs, versions and files, which nothing else does.
    "raydp/extensions/deletion/sweep_deletion.py": "mlflow",
    # Its entries are runs of their own experiment, with no model and no sweep's form.
    "raydp/extensions/ledger/ledger.py": "mlflow",
}
"""Modules that import a library of another folder."""
LIGHT = ["analysis", "search_spaces"]
HEAVY = {"ray", "torch", "mlflow", "transformers", "peft", "opacus"}
FLOW = {
    "raydp": [
        "search_spaces",
        "analysis",
        "version",
        "system",
        "plugins",
        "data",
        "privacy",
        "spec",
        "models",
        "tasks",
        "training",
        "methods",
        "scores",
        "tracking",
        "sweep",
        "selftest",
        "cli",
        "extensions",
        "testing",
        "__main__",
        "spark",
    ],
    "raydp.privacy": ["accounting", "records"],
    "raydp.spec": ["sections", "changes", "document", "reading"],
    "raydp.tasks": [
        "users", "task", "row_files", "data_sets", "secret", "early_checks", "text", "wrappers",
    ],
    "raydp.training": [
        "comm",
        "trial_plan",
        "ledger",
        "observers",
        "checkpoint",
        "schedule",
        "corrected_adam",
        "sharding",
        "vector",
        "noise",
        "rank0",
        "gradients",
        "trial",
        "resuming",
        "batch_sum",
        "loop",
        "probe",
        "architecture",
    ],
    "raydp.scores": [
        "score",
        "words",
        "language",
        "memorisation",
    ],
    "raydp.tracking": [
        "portable",
        "address",
        "store",
        "records",
        "sealing",
        "stored_runs",
        "tracker",
        "delivery",
        "models",
        "serving",
        "standalone",
        "promotions",
        "alarms",
        "views",
        "lookup",
        "transactions",
        "trials",
        "registry",
        "runs",
        "later_scores",
    ],
    "raydp.sweep": [
        "search", "store", "deliveries", "tuning_record", "descriptions", "engine", "ending",
        "policy", "planning", "driver", "api", "reports",
    ],
    "raydp.testing": [
        "secrets", "models", "points", "surface", "tasks", "methods", "scores", "searches", "accountants",
    ],
    "raydp.selftest": [
        "check_result", "observe", "odd_layers", "linear", "ranks", "subjects", "spec_subject", "checks", "run",
    ],
    "raydp.cli": [
        "show",
        "arguments",
        "interrupts",
        "registration",
        "errors",
        "groups",
        "commands",
        "main",
    ],
    "raydp.analysis": ["entry_points", "tables", "statistics", "surface", "selection", "seeds", "figures", "report"],
}  # fmt: skip
"""In each package data flows from left to right; a part imports only from its left, and parts of
one tuple not from each other. Imports inside functions and for type checkers count."""
SHELF = "raydp.extensions"
STATE_FILE = re.compile(
    r"(plan|result|tracked|tracking|progress|search|seeds|audits|selected|released|secret_counts|measurement)\.json"
    r"|spec\.yaml|sweep\.key|report\.html|secrets\.parquet"
)
"""The files of a sweep's folder, which the store alone names."""
NAMES_OF_OTHERS = {
    "raydp/cli/commands/report.py": "report.html",  # the file that a user gets, where no name was given
    "raydp/selftest/checks/sweeps.py": "sweep.key",  # plants a wrong key
    "raydp/sweep/ending/finish.py": "secrets.parquet",  # a copy for MLflow, without the counts
    # any worker, before it may trust that the folder is the sweep's
    "raydp/sweep/engine/context.py": "plan.json",
}


def files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Modules that a file imports: at its top, inside functions, for type checkers, and by a name
    in a text."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "imported",
        ):
            yield from (
                arg.value
                for arg in node.args
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_only_by_the_folder_that_owns_it(library: str) -> None:
    for path in files("raydp", "analysis", "search_spaces"):
        also = ALSO.get(path.relative_to(ROOT).as_posix())
        if ROOT / OWNERS[library] not in path.parents and library != also:
            assert library not in {name.split(".")[0] for name in imports(path)}, path


def test_the_light_folders_import_nothing_heavy() -> None:
    for path in files(*LIGHT):
        assert not HEAVY & {name.split(".")[0] for name in imports(path)}, path
        ours = [name for name in imports(path) if name.startswith("raydp.")]
        assert all(name.split(".")[1] in LIGHT for name in ours), path


def test_nothing_depends_on_a_module_of_a_common_name() -> None:
    """A user's own `analysis` or `search_spaces` beside a script comes first in Python's path."""
    for path in files("raydp", "analysis", "search_spaces", "benchmarks", "tests", "tools"):
        assert not set(LIGHT) & {name.split(".")[0] for name in imports(path)}, path


@pytest.mark.parametrize(
    "module",
    [
        "raydp.analysis",
        "raydp.search_spaces",
        "raydp",
        "raydp.privacy",
        "raydp.cli.main",
        "raydp.tracking",
        "raydp.extensions.membership.show",
        "raydp.sweep.api",
    ],
)
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert not loaded.split()


def test_a_controller_of_ray_train_loads_no_torch() -> None:
    """Each slot has one, and its workers start when it has loaded what it unpickles."""
    code = "import sys, raydp.sweep.engine.group; print('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
        ).stdout
        == "False\n"
    )


def test_used_names_of_rays_private_modules_are_listed() -> None:
    """docs/design.md has the one list: whoever moves Ray's upper bound looks there."""
    rows = re.findall(
        r"^\| `(ray\.[\w.]+)` \| (.+?) \| .+ \| .+ \|$",
        (ROOT / "docs/design.md").read_text(encoding="utf-8"),
        re.M,
    )
    listed = {module for module, _ in rows}
    assert listed
    private = re.compile(r"ray(\.\w+)*\._\w+|ray\.tune\.execution\b|ray\.train\.v2\b")
    sources = {path: path.read_text(encoding="utf-8") for path in files("raydp")}
    used = {
        name
        for path, source in sources.items()
        for name in (*imports(path), *re.findall(r"(?<![\w.])ray(?:\.\w+)+", source))
        if name.startswith("ray.") and private.match(name)
    }
    packages = {module.rpartition(".")[0] for module in listed}
    assert {name for name in used - packages if not name.startswith(tuple(listed))} <= {
        "ray.train.v2.api.callback", "ray.train.v2.api.callback.RayTrainCallback",
        "ray.train.v2.api.result", "ray.train.v2.api.result.Result",
        "ray.train._internal.base_worker_group",
        "ray.train._internal.base_worker_group.BaseWorkerGroup",
    }, "types alone"  # fmt: skip
    # Each listed module and name is used; the scripts of `workers` are named by a pattern.
    text = "\n".join(sources.values())
    for module, names in rows:
        if module != "ray._private.workers":
            assert any(name.startswith(module) for name in used), module
            for name in re.findall(r"`([\w.]+)`", names):
                assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), name


def test_only_the_privacy_folder_computes_an_epsilon() -> None:
    """Nothing else uses an accounting library (opacus.accountants included)."""
    for path in files("raydp", "analysis"):
        if ROOT / "raydp/privacy" not in path.parents:
            assert not any(
                "accountant" in name and not name.startswith("raydp") for name in imports(path)
            ), path


def parts(package: str) -> set[str]:
    """The modules and packages directly inside a package."""
    folder = ROOT.joinpath(*package.split("."))
    modules = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("package", FLOW)
def test_parts_of_a_package_import_from_their_left(package: str) -> None:
    rank = {
        name: at
        for at, step in enumerate(FLOW[package])
        for name in ([step] if isinstance(step, str) else step)
    }
    assert set(rank) == parts(package)
    folder = ROOT.joinpath(*package.split("."))
    for path in files(str(folder)):
        part = path.relative_to(folder).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for name in imports(path):
            other = (
                name.removeprefix(f"{package}.").split(".")[0]
                if name.startswith(f"{package}.")
                else None
            )
            if other in rank and other != part:
                assert rank[other] < rank[part], f"{path}: {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checkers count; what a package's own `__init__` imports
    does not."""
    known = {}
    for path in files("raydp", "analysis", "search_spaces"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        name = name if name.startswith("raydp.") else f"raydp.{name}"
        if not name.endswith("__init__"):
            known[name] = path
    graph = {name: set(imports(path)) & set(known) for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # a circle is an error that names it


def test_only_the_store_names_the_files_of_a_sweep() -> None:
    for path in files("raydp", "analysis"):
        name = str(path.relative_to(ROOT))
        if name.startswith("raydp/sweep/store/"):
            continue
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and STATE_FILE.fullmatch(node.value)
        }
        assert texts <= {NAMES_OF_OTHERS.get(name)}, name


def test_a_module_says_in_its_first_line_what_it_holds() -> None:
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in files("raydp", "analysis", "search_spaces")
    }
    assert [path for path, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_a_class_shares_its_name_with_no_other() -> None:
    """Except the two rows of a record, which exist as the type of a dict and as the schema of the
    same dict."""
    owners: dict[str, list[str]] = {}
    for path in files("raydp", "analysis", "search_spaces"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(str(path))
    shared = {name: paths for name, paths in owners.items() if len(paths) > 1}
    assert shared.keys() == {"AttackRow", "ProfileRow"}, shared


def test_the_attacks_and_searches_on_numbers_load_no_heavy_library() -> None:
    attacks = ("classifier", "likelihood", "metrics", "neural", "outputs", "shadows")
    for path in (
        *(ROOT / f"raydp/extensions/membership/{name}.py" for name in attacks),
        *files("raydp/extensions/searches"),
        ROOT / "raydp/sweep/search.py",
    ):
        assert not {"torch", "ray"} & {name.split(".")[0] for name in imports(path)}, path
