"""The package of docs/extending.md, installed and swept with, and its plug-ins in the suites of their kinds."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydp.plugins import registries
from raydp.privacy import Accountant
from raydp.tasks.base import Task
from tests.builders.packages import importable
from tests.builders.specs import small_spec
from tests.methods.conformance import MethodConformance
from tests.privacy.conformance import AccountantConformance
from tests.scores.conformance import ScoreConformance
from tests.scores.conftest import memorised, tokenizer, untrained  # noqa: F401 - fixtures of the suite of scores
from tests.search.conformance import SearchConformance
from tests.tasks.conformance import TaskConformance

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
LONGEST_EXAMPLE = 40

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


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
    command = [sys.executable, "-m", "raydp", "sweep", str(spec), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="class")
def _installed(site: Path) -> Iterator[None]:
    """Have the package in this process, and forget it afterwards."""
    with importable(site, "my_package"):
        yield


def test_examples_are_short() -> None:
    lengths = {name: len(code.splitlines()) for name, code in blocks().items()}
    assert len(lengths) == 7
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
        select={"score": "first_token", "rule": "cautious", "min_utility_gain": 0},
    )  # fmt: skip
    assert (answer["counts"]["finished"], answer["counts"]["skipped"]) == (2, 1)
    assert answer["counts"]["search"]["skipped"][0]["reason"] == "it needs more compute"
    assert answer["selected"]["rule"] == "cautious"
    assert 0 <= answer["selected"]["score"] <= 1


def test_task(site: Path, tmp_path: Path) -> None:
    answer = sweep(
        site,
        tmp_path,
        task={"name": "rings"},
        model={"name": "mlp:2:2", "adapter": {"type": "none"}},
        method={"name": "dp_sgd", "max_grad_norm": 1.0},
        space={"batch_size": [100], "num_steps": [100], "learning_rate": [1.0]},
        scores=[{"name": "mia_outputs"}],
        select={"score": "mia_outputs", "min_utility_gain": 0},
    )
    assert answer["counts"]["finished"] == 1
    assert answer["selected"]["utility_loss"] < 0.35, "0.5 is a guess"


@pytest.mark.usefixtures("_installed")
class TestFirstToken(ScoreConformance):
    name, kind = "first_token", "verbatim"

    @property
    def score(self) -> Any:
        return registries.resolve("scores", self.name)()


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
