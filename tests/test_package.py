"""The package as users install it: built, in an environment and a folder of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import raydp as raydp_package
from tests.conftest import Answer

ROOT = Path(__file__).parents[1]
WORDS = [
    "offers",
    "invoices",
    "meetings",
    "reports",
    "budgets",
    "contracts",
    "visits",
    "samples",
    "parcels",
    "travel",
]


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The distributions, and an environment that has the wheel and sees the libraries of this
    one."""

    wheel: Path
    sdist: Path
    bin: Path

    def run(
        self, folder: Path, *command: str, seconds: float = 500
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder outside the repository."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel is built from the source distribution, as an installer without a wheel would."""
    folder = tmp_path_factory.mktemp("package")
    subprocess.run(
        [sys.executable, "-m", "build", "-o", folder / "dist", ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    installer = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run(installer, check=True, capture_output=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return Installed(wheel=wheel, sdist=sdist, bin=folder / "venv" / "bin")


@pytest.mark.daily("pyproject.toml")
def test_it_holds_one_package_with_its_types_and_licence(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"raydp", "raydp_tune"}
    for needed in ("raydp/py.typed", "raydp/analysis/__init__.py", "raydp/search_spaces/loader.py"):
        assert needed in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with tarfile.open(installed.sdist) as sdist:
        members = [member.name.split("/", 1)[1] for member in sdist if "/" in member.name]
    assert {"README.md", "LICENSE", "CHANGELOG.md", "docs/design.md", "tests/conftest.py"} <= set(
        members
    )


@pytest.mark.daily("pyproject.toml")
def test_from_data_to_a_choice_outside_the_repository(installed: Installed, tmp_path: Path) -> None:
    """Beside a user's own modules `analysis` and `search_spaces`."""
    (tmp_path / "analysis.py").write_text("raise ImportError('this is the user's own')\n")
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "__init__.py").write_text("")
    texts = [
        f"Letter {k} asks for {WORDS[k % 10]} and {WORDS[k // 10 % 10]} of week {k % 52}."
        for k in range(500)
    ]
    rows = [{"text": text} for text in texts]
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    began = time.monotonic()
    installed.run(
        tmp_path, "raydp", "init", "letters.jsonl", "--model", "tiny", "--hours", "0.01", "--yes"
    )
    installed.run(tmp_path, "raydp", "sweep", "sweep.yaml")
    answer = json.loads(installed.run(tmp_path, "raydp", "select", "letters", "--json").stdout)
    assert time.monotonic() - began < 500, (
        "with a minute and a half for the installation: ten minutes"
    )
    assert answer["batch_size"] > 0
    script = "import raydp; print(raydp.__file__, len(raydp.load_points('raydp_runs/letters/points.csv')))"
    (tmp_path / "script.py").write_text(script)
    file, points = installed.run(tmp_path, "python", "script.py").stdout.split()
    assert Path(file).is_relative_to(installed.bin.parent)
    assert int(points) >= 8, "4 configurations with 2 seeds"


@pytest.mark.daily("pyproject.toml")
def test_the_demo_is_in_the_package(installed: Installed, tmp_path: Path) -> None:
    """`raydp sweep` without a spec runs the demo; its plan reads the same spec, data and model."""
    assert len(json.loads(installed.run(tmp_path, "raydp", "plan", "--json").stdout)) == 18


@pytest.mark.daily("pyproject.toml")
def test_a_commit_gives_the_same_bytes_again(tmp_path: Path) -> None:
    """As `make release` builds it, from another folder and at another time."""
    sources = tmp_path / "sources"
    subprocess.run(["git", "clone", "--quiet", ROOT, sources], check=True)
    sums = []
    for folder in ("one", "two"):
        subprocess.run(
            [sys.executable, "-m", "build", "-o", tmp_path / folder, sources],
            check=True,
            capture_output=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        )
        files = sorted((tmp_path / folder).iterdir())
        sums.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
        sources = sources.rename(tmp_path / "elsewhere")
    assert sums[0] == sums[1]
    assert len(sums[0]) == 2


@pytest.mark.thorough
def test_the_demo_runs_by_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """The whole demo outside the repository, as `make demo` runs it inside. It takes minutes."""
    answer = json.loads(installed.run(tmp_path, "raydp", "sweep", "--json", seconds=1800).stdout)
    assert (answer["counts"]["failed"], answer["counts"]["pending"]) == (0, 0)
    assert answer["selected"]["decision"]["state"] in ("decided", "equivalent")
    assert (tmp_path / "raydp_runs" / "demo" / "report.html").is_file()


def test_sparks_package_of_the_same_name_is_said(
    raydp: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Spark" not in raydp("spaces", "list").err
    other = tmp_path / "site" / "raydp-1.6.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: raydp\nVersion: 1.6.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    answer = raydp("spaces", "list")
    assert answer.code == 0
    assert "Spark's RayDP (raydp 1.6.0)" in " ".join(answer.err.split())


@pytest.mark.parametrize(
    "statement",
    ["raydp.spark", "from raydp import spark", "import raydp.spark", "from raydp.spark import x"],
)
def test_sparks_module_is_said_to_be_of_another_project(statement: str) -> None:
    with pytest.raises((AttributeError, ImportError), match="another project whose import name"):
        exec(statement, {"raydp": raydp_package})
    assert not hasattr(raydp_package, "spark")


@pytest.mark.slow
def test_rays_data_frames_of_spark_say_so_too() -> None:
    import ray.data

    with pytest.raises(AttributeError, match="reads no data frames of Spark"):
        ray.data.from_spark(object())  # type: ignore[arg-type]


def test_texts_name_extras_of_the_repository_and_not_of_an_index() -> None:
    """The distribution is in no package index, so `pip install raydp-tune[...]` installs
    nothing."""
    folders = ("raydp", "analysis", "docs", "benchmarks", "deploy")
    paths = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".ipynb"}
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in [*paths, ROOT / "README.md"]}
    assert not [str(path) for path, text in texts.items() if "raydp-tune[" in text]
