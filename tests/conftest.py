"""What tests of several folders share: the command, and a cache folder of their own."""

from __future__ import annotations

import gc
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.builders.specs import small_spec

if TYPE_CHECKING:
    from tests.sweep.undisturbed import Done


gc.set_threshold(50_000, 20, 50)  # a search for garbage looks at all libraries that the tests have imported
HERE = Path(__file__).parent
ALONE = {
    *("autoscaling", "hosts", "slurm_sweep"),
    *("sigterm", "slots", "sweep_kills"),
    "memory",
}
"""Tests of faults at a chosen moment, also of hosts, and of limits on memory have the machine to themselves."""
SHARED = {
    "sweep": {"exchange", "healthy_hosts", "python_api", "stopping", "store", "sweep", "sweep_resumed", "waits"},
    "scoring": {"scoring", "scoring_one_model", "scoring_progress", "terminal"},
    "real_server": {"real_server", "server_away", "serving"},
    "tune": {"run_logs", "tune"},
    "invariants": {"gradient_canaries", "invariants", "pause", "prefix_shares", "sharding"},
}
"""Files that use the sweep `done`, `trained` or `explored`, the server `real_server` or the processes of `forked`. One
process runs all files of a set, so that what they share is made once. A set has the name of one of its files."""
FIRST = (
    *(
        "sweep",
        "real_server",
        "random_tables",
        "scoring",
        "tutorials",
        "mechanisms",
        "fields",
        "extending",
        "audits",
        "shadows",
    ),
    *(
        "report",
        "further_seeds",
        "private_files",
        "tune",
        "search_kills",
        "tiny",
        "accountants",
        "selection",
        "selftest",
    ),
    *("contenders", "calibration", "private_selection", "planted_secrets", "report_in_browser", "ray_token", "faults"),
    *("invariants", "sharding", "adaptive", "sweep_workers", "filter", "seals", "cut_faults", "cli"),
)
"""The files that take longest, in the order in which they start: the short ones fill what is left of the time."""


def group_of(path: Path) -> str:
    """The name of the set that a file belongs to, or the file's own name without `test_`."""
    name = path.stem.removeprefix("test_")
    return next((group for group, files in SHARED.items() if name in files), name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--alone", action="store_true", help="read the files of ALONE only, which saves their imports")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that have no test with the mark `alone`, if that is asked for."""
    name = collection_path.stem
    others = name.startswith("test_") and name.removeprefix("test_") not in ALONE
    return True if config.getoption("alone") and others else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of tests that are not `alone` run side by side (see the Makefile)."""
    for item in items:
        if item.path.stem.removeprefix("test_") in ALONE:
            item.add_marker(pytest.mark.alone)
    order = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(group_of(item.path), len(FIRST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole files of tests, and one process all those of a set of `SHARED`."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            group = group_of(Path(file))
            return group if group in SHARED else file

    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _copied_schemas() -> None:
    """The tables of a new tracking database on SQLite are copied from the first one that MLflow made here: its
    migrations take a second of a processor each time."""
    utils = sys.modules.get("mlflow.store.db.utils")
    if utils is not None and not isinstance(utils._initialize_tables, CopiedTables):
        utils._initialize_tables = CopiedTables(utils._initialize_tables)


class CopiedTables:
    """Makes the tables of a database, as MLflow does; on SQLite only the first time."""

    def __init__(self, create_fn: Callable[[Any], None]) -> None:
        self._create_fn = create_fn
        self._made: sqlite3.Connection | None = None

    def __call__(self, engine: Any) -> None:
        if engine.dialect.name != "sqlite" or self._made is None:
            self._create_fn(engine)
        if engine.dialect.name != "sqlite":
            return
        with closing(sqlite3.connect(engine.url.database)) as database:
            if self._made is None:
                self._made = sqlite3.connect(":memory:", check_same_thread=False)
                database.backup(self._made)
            else:
                self._made.backup(database)


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A sweep that nobody disturbed; it is run once."""
    from tests.sweep.undisturbed import Done

    return Done(tmp_path_factory.mktemp("undisturbed"))


@dataclass(frozen=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its document."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))


@pytest.fixture(autouse=True)
def no_store_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mlflow.set_tracking_uri` also sets the variable that look-ups without a store read."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def raydp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run the command in this process, in an empty folder."""
    from raydp.cli import main as cli

    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["raydp", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def write_spec(tmp_path: Path) -> Callable[..., Path]:
    """Write the small spec with changes to a file."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(small_spec(tmp_path, **changes), sort_keys=False))
        return path

    return write


def start_raydp(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """The command as a process of its own, in a session of its own, which Ctrl-C ends also where the tests run in the
    background."""
    return subprocess.Popen(
        [sys.executable, "-m", "raydp.cli.main", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
