"""The core works where no extension is installed: a copy of the package without raydp/extensions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml

from raydp.analysis.entry_points import OWN
from raydp.tracking import new_key
from tests.builders.specs import small_spec
from tests.extensions.finer_measurement.test_measured_again import SPEC

ROOT = Path(__file__).parents[1]
SHELF = "raydp.extensions."

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the core as pip would install it without the extensions.

    Python takes the first distribution of a name, so this one stands in the place of the whole.
    """
    folder = tmp_path_factory.mktemp("core")
    without = shutil.ignore_patterns("extensions", "__pycache__")
    shutil.copytree(ROOT / "raydp", folder / "raydp", ignore=without)
    installed = distribution(OWN)
    about = folder / f"raydp_tune-{installed.version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(installed.read_text("METADATA") or "", encoding="utf-8")
    points = (installed.read_text("entry_points.txt") or "").splitlines()
    of_core = [line for line in points if SHELF not in line]
    assert len(of_core) < len(points), "the extensions register by entry points"
    (about / "entry_points.txt").write_text("\n".join(of_core), encoding="utf-8")
    return folder


def run(core: Path, *arguments: str, code: int = 0) -> str:
    """What a command of the core prints, its errors included where it must fail."""
    environment = {**os.environ, "PYTHONPATH": str(core)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        cwd=core,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_copy_is_used_and_holds_no_extension(core: Path) -> None:
    script = core / "where.py"
    script.write_text(
        "import importlib.util, raydp\nprint(raydp.__file__)\n"
        "print(importlib.util.find_spec('raydp.extensions'))\n"
    )
    place, extensions = run(core, "where").split()
    assert Path(place).parents[1] == core
    assert extensions == "None"


def commands(core: Path, *group: str) -> set[str]:
    """The names of the commands that a help lists."""
    return set(re.findall(r"^│ (\w+)", run(core, "raydp", *group, "--help"), re.M))


def test_commands_of_extensions_are_not_there(core: Path) -> None:
    assert {"sweep", "plan", "select", "selftest", "analyze"} <= commands(core)
    added = {"pate", "mia", "import", "init", "score", "audit", "secrets", "data"}
    assert not {*added, "calibrate", "profile"} & commands(core)
    assert "promote" in commands(core, "models")
    assert not {"export", "push", "keygen", "seal"} & commands(core, "models")


def test_the_embedded_sweep_is_planned_as_with_the_extensions(core: Path) -> None:
    whole = subprocess.run(
        [sys.executable, "-m", "raydp", "plan", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run(core, "raydp", "plan", "--json")) == json.loads(whole.stdout)


def test_a_sweep_runs_to_its_decision(core: Path) -> None:
    spec = core / "spec.yaml"
    spec.write_text(yaml.safe_dump(small_spec(core)))
    answer = json.loads(run(core, "raydp", "sweep", str(spec), "--json"))
    assert answer["counts"]["finished"] == 2
    assert answer["selected"]["decision"]["state"]


@pytest.mark.daily("raydp/sweep/engine")
def test_adaptive_seeds_go_on_and_a_finer_measurement_is_not_resumed(core: Path) -> None:
    content = small_spec(core, name="seeds", **SPEC)
    spec = core / "seeds.yaml"
    spec.write_text(yaml.safe_dump(content))
    answer = json.loads(run(core, "raydp", "sweep", str(spec), "--json"))
    end = answer["counts"]["seeds"]
    assert end["state"] == "budget used up"
    assert end["measured_again"] is None
    folder = Path(answer["folder"])
    (folder / "scores" / "logprob").mkdir(parents=True)
    (folder / "scores" / "logprob" / "measurement.json").write_text("{}")
    (folder / "ended.json").unlink()
    said = run(core, "raydp", "sweep", str(spec), "--resume", code=2)
    assert "the finer measurement scores/logprob of this sweep must be left out" in said
    assert "'finer_measurement', which is not installed. Install raydp-tune whole." in said


def test_a_plug_in_of_an_extension_is_unknown(core: Path) -> None:
    spec = core / "pate.yaml"
    spec.write_text(yaml.safe_dump(small_spec(core, method={"name": "pate"})))
    said = run(core, "raydp", "plan", str(spec), code=2)
    assert "method.name" in said
    assert "'pate'" in said


def test_a_field_of_an_extension_is_unknown(core: Path) -> None:
    method = {"name": "dp_sgd", "reference_weight": 0.5}
    spec = core / "weighted.yaml"
    spec.write_text(yaml.safe_dump(small_spec(core, method=method)))
    assert "reference_weight" in run(core, "raydp", "plan", str(spec), code=2)


def test_a_tuning_of_an_extension_says_that_it_is_not_installed(core: Path) -> None:
    privacy = {"target_epsilon": 8, "tuning": "private_selection", "num_runs": {"mean": 3}}
    spec = core / "selection.yaml"
    spec.write_text(yaml.safe_dump(small_spec(core, privacy=privacy)))
    said = run(core, "raydp", "plan", str(spec), code=2)
    assert "privacy.tuning must be 'ignored', got 'private_selection'" in said
    assert "an extension that is not installed" in said


def test_a_spec_with_loggers_says_that_their_extension_is_not_installed(
    core: Path, tmp_path: Path
) -> None:
    spec = tmp_path / "logged.yaml"
    tracking = {"uri": f"sqlite:///{tmp_path}/logged.db", "loggers": ["tensorboard"]}
    spec.write_text(yaml.safe_dump(small_spec(tmp_path, tracking=tracking)))
    for command in ("plan", "sweep"):
        said = run(core, "raydp", command, str(spec), code=2)
        assert "tracking.loggers must be left out without the extension" in said
        assert "not installed" in said


def test_a_spec_with_a_signing_key_says_that_its_extension_is_not_installed(
    core: Path, tmp_path: Path
) -> None:
    spec = tmp_path / "signed.yaml"
    new_key(tmp_path / "team.key")
    tracking = {"uri": f"sqlite:///{tmp_path}/m.db", "signing_key": str(tmp_path / "team.key")}
    spec.write_text(yaml.safe_dump(small_spec(tmp_path, tracking=tracking)))
    for command in ("plan", "sweep"):
        said = run(core, "raydp", command, str(spec), code=2)
        assert "tracking.signing_key must be left out without the extension" in said
        assert "not installed" in said


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("plan", "--simulate", "nodes=2"), "--simulate"),
        (
            ("models", "find", "--uri", "sqlite:///store.db", "--trusted-key", "ed25519:AAAA"),
            "--trusted-key",
        ),
    ],
)
def test_an_option_of_an_extension_says_that_it_is_not_installed(
    core: Path, command: tuple[str, ...], option: str
) -> None:
    shutil.copy(ROOT / "docs/results/demo.csv", core / "points.csv")
    (core / "store.db").touch()
    said = run(core, "raydp", *command, code=2)
    assert option in said
    assert "not installed" in said


NOT_ROOMS = {"builders", "cluster", "deploy", "extensions"}
"""Folders without quick tests of the core: helpers, hosts, manifests, and the extensions' own."""
OF_THE_REPOSITORY = {
    "boundaries", "code_blocks", "daily", "docs", "extending", "gpu_benchmarks", "imports", "mechanisms",
    "notebook", "package", "site", "troubleshooting", "tutorials", "without_extensions",
}  # fmt: skip
"""Files of tests/ that read the source, the pages or the whole package."""
READ_ONLY: dict[str, tuple[str, ...]] = {
    "numbers of a table, whatever has made it": (
        "analysis/test_changes", "analysis/test_contenders", "analysis/test_decision", "analysis/test_equivalents",
        "analysis/test_hierarchy", "analysis/test_leakage", "analysis/test_outlook", "analysis/test_risk",
        "analysis/test_rounded_means", "analysis/test_sampler", "analysis/test_seeds", "analysis/test_selection",
        "analysis/test_unknown_errors", "analysis/test_variance",
        "analysis/test_verification",
    ),
    "sums and draws by the core's own classes": (
        "data/test_tiny", "privacy/test_accountants", "privacy/test_calibration", "selftest/test_accounting_faults",
        "selftest/test_cut_faults", "selftest/test_draw_faults", "selftest/test_faults", "training/test_clipping",
        "training/test_invariants", "training/test_memory", "training/test_noise", "training/test_pause",
        "training/test_thresholds",
    ),
    "whole sweeps and resumes, of which this file runs some": (
        "sweep/test_folder", "sweep/test_further_seeds", "sweep/test_python_api", "sweep/test_reopened",
        "sweep/test_sweep", "sweep/test_unscored_sweep", "sweep/test_waits",
    ),
    "a store that fails, or that several write to": (
        "tracking/test_bad_stores", "tracking/test_killed_drivers", "tracking/test_lost_stores",
        "tracking/test_stores", "tracking/test_threads", "tracking/test_where",
    ),
}  # fmt: skip
"""Reason -> files of tests that take long and name no plug-in that others do not name. They are
imported and not run. A name stands for all files that begin with it."""
QUICK = "not gpu and not thorough and not alone and not cluster and not browser and not slow"


def chosen() -> list[str]:
    """The arguments of pytest that name the core's quick tests, but for those that are only read."""
    tests = ROOT / "tests"
    rooms = [p for p in tests.iterdir() if p.is_dir() and any(p.glob("test_*.py"))]
    files = [
        p for p in tests.glob("test_*.py") if p.stem.removeprefix("test_") not in OF_THE_REPOSITORY
    ]
    named = [p.relative_to(ROOT) for p in (*rooms, *files) if p.name not in NOT_ROOMS]
    read_only = [name for names in READ_ONLY.values() for name in names]
    assert all((tests / f"{name}.py").is_file() for name in read_only)
    return [*sorted(map(str, named)), *(f"--deselect=tests/{name}" for name in read_only)]


@pytest.mark.daily("tests/conftest.py")
@pytest.mark.timeout(1800)
def test_the_cores_own_tests_pass_without_the_extensions(core: Path, tmp_path: Path) -> None:
    """Tests that need an extension have the mark `extensions`, or import one."""
    for folder in ("tests", "docs", "analysis", "search_spaces", "tools", "benchmarks"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("extensions")
        )
    for name in ("raydp", *(path.name for path in core.glob("*.dist-info"))):
        shutil.copytree(core / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", QUICK, *chosen()],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-4000:]
    assert passed
    assert int(passed[1]) > 1500


def test_the_self_test_passes_without_the_extensions(core: Path) -> None:
    assert "passed" in run(core, "raydp", "selftest")
