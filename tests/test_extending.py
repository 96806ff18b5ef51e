"""The package of docs/extending.md, installed and swept with, and its plug-ins in the suites of
their kinds."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp.analysis import load_points
from raydp.plugins import registries
from raydp.privacy import Accountant
from raydp.tasks.task import Task
from raydp.testing.accountants import AccountantConformance
from raydp.testing.methods import MethodConformance
from raydp.testing.searches import SearchConformance
from raydp.testing.tasks import TaskConformance
from tests.builders.packages import importable
from tests.builders.specs import small_spec

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
LONGEST_EXAMPLE = 40

pytestmark = [pytest.mark.daily("docs/extending.md", "raydp/testing"), pytest.mark.timeout(300)]


def blocks() -> dict[str, str]:
    """Name of a file -> its content, from the page."""
    return dict(re.findall(r"```(?:python|ini)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that has my_package, as pip would install it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    about = folder / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    for name, code in blocks().items():
        (about / name if name == "entry_points.txt" else folder / name).write_text(code)
    return folder


def sweep(site: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """What `raydp sweep --json` says of a small sweep."""
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(small_spec(folder, **changes)))
    answer: dict[str, Any] = json.loads(raydp(site, folder, "sweep", str(spec), "--json"))
    return answer


def raydp(site: Path, folder: Path, *arguments: str) -> str:
    """Return what a command prints where the package is installed."""
    return run_python(site, folder, "raydp", *arguments)


def run_python(site: Path, folder: Path, module: str, *arguments: str) -> str:
    """Return what a module prints that is run as a program where the package is installed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="class")
def _installed(site: Path) -> Iterator[None]:
    """Have the package in this process, and forget it afterwards."""
    with importable(site, "my_package"):
        yield


def test_examples_are_short() -> None:
    lengths = {name: len(code.splitlines()) for name, code in blocks().items()}
    assert len(lengths) == 12
    assert max(lengths.values()) <= LONGEST_EXAMPLE


def test_score_method_accountant_search_and_rule(site: Path, tmp_path: Path) -> None:
    answer = sweep(
        site,
        tmp_path,
        method={"name": "dp_adagrad", "max_grad_norm": 0.1},
        privacy={"target_epsilon": 8, "delta_exponent": 1.1, "accountant": "smaller", "noise_key": "test"},
        space={
            "batch_size": [32], "num_steps": [3, 4, 6], "learning_rate": [0.01],
            "search": {"name": "cheapest", "num_configurations": 2},
        },
        scores=[{"name": "first_token"}],
        select={"score": "first_token", "rule": "cautious", "min_gain_share": 0},
    )  # fmt: skip
    assert (answer["counts"]["finished"], answer["counts"]["skipped"]) == (2, 1)
    assert answer["counts"]["search"]["skipped"][0]["reason"] == "it needs more compute"
    assert answer["selected"]["rule"] == "cautious"
    assert 0 <= answer["selected"]["score"] <= 1


def test_policy_shares_the_target_among_the_configurations(site: Path, tmp_path: Path) -> None:
    privacy = {"target_epsilon": 8, "noise_key": "test", "tuning": "shared", "most": 2}
    spec = tmp_path / "shared.yaml"
    spec.write_text(yaml.safe_dump(small_spec(tmp_path, privacy=privacy)))
    rows = json.loads(raydp(site, tmp_path, "plan", str(spec), "--json"))
    assert len(rows) == 2
    assert all(3.9 < row["epsilon"] <= 4 for row in rows)
    spec.write_text(yaml.safe_dump(small_spec(tmp_path, privacy=privacy, seeds=[0, 1])))
    with pytest.raises(AssertionError, match=r"seeds must be left out with privacy\.tuning shared"):
        raydp(site, tmp_path, "plan", str(spec))


def test_command(site: Path, tmp_path: Path) -> None:
    assert "Print the mean utility loss" in raydp(site, tmp_path, "--help")
    table = PAGE.parent / "results" / "demo.csv"
    assert "utility_loss" in raydp(site, tmp_path, "losses", str(table))
    command = tmp_path / "broken"
    shutil.copytree(site, command)
    (command / "my_package" / "command.py").write_text("import of_nobody\n")
    assert "losses" not in raydp(command, tmp_path, "--help"), "a broken command stops no other"


def test_section_of_the_report_and_function_of_the_analysis(site: Path, tmp_path: Path) -> None:
    table = PAGE.parent / "results" / "demo.csv"
    raydp(site, tmp_path, "report", str(table), "-o", str(tmp_path / "report.html"))
    assert "The mean scores lie" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with importable(site, "my_package"):
        assert importlib.import_module("raydp.analysis").spread(load_points(table)) > 0


def test_rule_of_a_file(site: Path, tmp_path: Path) -> None:
    table, rule = PAGE.parent / "results" / "demo.csv", f"{site / 'my_rule.py'}:safest"
    chosen = json.loads(raydp(site, tmp_path, "select", str(table), "--rule", rule, "--json"))
    assert (chosen["rule"], len(chosen["steps"][-1]["survivors"])) == ("safest", 1)


def test_task(site: Path, tmp_path: Path) -> None:
    answer = sweep(
        site,
        tmp_path,
        task={"name": "rings"},
        model={"name": "mlp:2:2", "adapter": {"type": "none"}},
        method={"name": "dp_sgd", "max_grad_norm": 1.0},
        space={"batch_size": [100], "num_steps": [100], "learning_rate": [1.0]},
        scores=[{"name": "mia_outputs"}],
        select={"score": "mia_outputs", "min_gain_share": 0},
    )
    assert answer["counts"]["finished"] == 1
    assert answer["selected"]["utility_loss"] < 0.35, "0.5 is a guess"


def test_score_passes_suite_from_installed_package(site: Path, tmp_path: Path) -> None:
    """The page's own test file, in a folder without raydp's tests."""
    out = run_python(
        site, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", str(site / "my_package")
    )
    assert re.search(r"^1\d passed", out, re.M), out


@pytest.mark.usefixtures("_installed")
class TestDPAdagrad(MethodConformance):
    name, written = "dp_adagrad", {"max_grad_norm": 0.1}


@pytest.mark.usefixtures("_installed")
class TestSmallerOfTwo(AccountantConformance):
    excess = 1e-4  # of pld, see test_accountants.py

    @property
    def accountant(self) -> Accountant:
        return registries.resolve("accountants", "smaller")()


@pytest.mark.usefixtures("_installed")
class TestCheapest(SearchConformance):
    name, written = "cheapest", {"num_configurations": 7}


@pytest.mark.usefixtures("_installed")
class TestRings(TaskConformance):
    name, bad = "rings", {"num_examples": 1}

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {"num_examples": 40}

    def changed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
        """It makes its own data: the first point is moved."""
        module = importlib.import_module("my_package.task")
        made = module.classification_task

        def moved(train: Any, *rest: Any, **options: Any) -> Task:
            train.inputs[0] += 1
            return made(train, *rest, **options)

        monkeypatch.setattr(module, "classification_task", moved)
        return super().changed(folder, monkeypatch)
