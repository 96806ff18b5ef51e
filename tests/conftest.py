"""What tests of several folders share: the command, and a cache folder of their own."""

from __future__ import annotations

import gc
import json
import math
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tests.builders.specs import small_spec
from tests.marks import WHOLE

if TYPE_CHECKING:
    from tests.sweep.undisturbed import Done
    from tests.tracking.real_server import RealServer


# How long an example takes says nothing on a machine that is shared.
settings.register_profile(
    "shared",
    deadline=None,
    max_examples=100 if WHOLE else 10,  # the copy without extensions runs the tests a second time
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared")
gc.set_threshold(
    50_000, 20, 50
)  # a search for garbage looks at all libraries that the tests have imported
HERE = Path(__file__).parent
ROOT = HERE.parent
NEEDS_EXTENSIONS = re.compile(
    r"^from raydp\.(extensions|testing\.(methods|tasks|points))", re.MULTILINE
)
"""Marks a file that needs an extension. The suites of tasks and methods train classifiers too."""
SECONDS: dict[str, float] = json.loads((HERE / "seconds.json").read_text())
"""Group of tests -> the time it took. `pytest --write-seconds` writes the file."""


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


@cache
def group_of(path: str) -> str:
    """Return the name of the tests that one process runs together: those of a file.

    Files with the same mark `xdist_group` share a sweep or a server, so they are one group. The
    mark is read from the text: xdist 3.8 finds no mark under pytest 9.2, and does not say so.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    mark = re.search(r'^pytestmark = .*xdist_group\("(\w+)"\)', text, re.MULTILINE)
    return mark[1] if mark else path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--alone",
        action="store_true",
        help="read the files with the mark `alone` only, which saves the imports of the others",
    )
    parser.addoption(
        "--due",
        action="store_true",
        help="leave out the `daily` tests that need not run again; see tools/daily.py",
    )
    parser.addoption(
        "--write-seconds",
        action="store_true",
        help="write what each file took to tests/seconds.json, from which the order follows",
    )
    parser.addoption(
        "--write-snapshots",
        action="store_true",
        help="write the outputs of commands to tests/snapshots, which a person then reads",
    )
    parser.addoption(
        "--write-screenshots",
        action="store_true",
        help="write pictures of MLflow's pages to docs/images, which a person then looks at",
    )
    parser.addoption(
        "--failed-again",
        type=int,
        metavar="MOST",
        help="run the tests that failed once more, without others beside them, if at most MOST did",
    )


SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
def as_read(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """Return a check that an output is the one that a person has read.

    Numbers, names of models and widths of columns may differ; words and lines may not.
    """

    def compare(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        # A program that is not on the shell's path is named by its own.
        text = re.sub(r"\S*/(?=(?:python|raydp) )", "", text)
        if pytestconfig.getoption("write_snapshots"):
            path.write_text(text, encoding="utf-8")
        assert masked(text) == masked(path.read_text(encoding="utf-8"))

    return compare


def masked(text: str) -> str:
    """Return a text without what differs from machine to machine, line by line."""
    return re.sub(r"\s+(?=\S)", " ", re.sub(r"-?\d[\d.,]*(?:e[+-]?\d+)?", "N", text)).strip()


@cache  # asked once for each file
def failed_before(config: pytest.Config) -> set[str]:
    """Return the names of the tests that failed in the last run."""
    cache = config.cache.get("cache/lastfailed", {}) if config.cache else {}
    return set(cache)


def needs_extensions(item: pytest.Item) -> bool:
    """Return whether a test needs an extension. The mark may name parts of the cases' ids."""
    mark = item.get_closest_marker("extensions")
    case = getattr(getattr(item, "callspec", None), "id", "")
    return mark is not None and (not mark.args or any(part in case for part in mark.args))


def guarded_files(item: pytest.Item, named: tuple[str, ...]) -> list[str]:
    """Return the files that a daily test guards: its mark's, its own, and its extension's."""
    own = item.path.relative_to(ROOT)
    if own.parts[1] == "extensions":
        subject = own.parts[2]
        return [*named, f"tests/extensions/{subject}", f"raydp/extensions/{subject}"]
    return [*named, own.as_posix()]


def leave_out_passed(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the daily tests that have passed and whose files have not changed since."""
    from daily import changed_files, is_due  # tools are not in the copy without extensions

    changed, due, passed = changed_files(), [], []
    for item in items:
        mark = item.get_closest_marker("daily")
        run = mark is None or is_due(guarded_files(item, mark.args), changed)
        (due if run else passed).append(item)
    if passed:
        items[:] = due
        config.hook.pytest_deselected(items=passed)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of which no test is asked for: with --alone and with --failed-again.

    Without the extensions, the files that import one are left out too.
    """
    if not collection_path.name.startswith("test_"):
        return None
    if not WHOLE and NEEDS_EXTENSIONS.search(collection_path.read_text(encoding="utf-8")):
        return True
    if config.getoption("failed_again"):
        files = {file_of(name) for name in failed_before(config)}
        return None if str(collection_path.relative_to(config.rootpath)) in files else True
    if config.getoption("alone") and "pytest.mark.alone" not in collection_path.read_text():
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before the expression after -m is applied
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The group that takes longest starts first: the short ones fill what is left of the time.

    A group that has not been timed starts first. With --failed-again only those that failed start.
    A test that is `daily` or runs `alone` is `slow`, too.
    """
    for item in items:
        if item.get_closest_marker("daily") or item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.slow)
    if config.getoption("due"):
        leave_out_passed(config, items)
    if most := config.getoption("failed_again"):
        failed = failed_before(config)
        if not 0 < len(failed) <= most:
            pytest.exit(f"{len(failed)} tests failed. At most {most} are tried again.", 1)
        items[:] = [item for item in items if item.nodeid in failed]
        assert len(items) == len(failed), f"not found: {failed - {item.nodeid for item in items}}"
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line("\n  ".join(["Tried again, since they failed:", *sorted(failed)]))
    if not WHOLE:
        items[:] = [item for item in items if not needs_extensions(item)]
    items.sort(key=lambda item: -SECONDS.get(group_of(file_of(item.nodeid)), math.inf))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole files of tests, and one process all files of an `xdist_group`."""
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(file_of(nodeid))

    return ByGroup(config, log)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write the time of each group of tests, if that is asked for; others keep theirs."""
    if not config.getoption("write_seconds"):
        return
    seconds: Counter[str] = Counter()
    for report in (r for reports in terminalreporter.stats.values() for r in reports):
        if isinstance(report, pytest.TestReport):
            seconds[group_of(file_of(report.nodeid))] += report.duration
    known = {**SECONDS, **{group: round(taken, 1) for group, taken in seconds.items()}}
    text = json.dumps(dict(sorted(known.items())), indent=0)
    (HERE / "seconds.json").write_text(text + "\n")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _copied_schemas() -> None:
    """The tables of a new tracking database on SQLite are copied from the first one that MLflow
    made here: its migrations take a second of a processor each time."""
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
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A sweep that nobody disturbed; it is run once.

    Tests that run alone compare points with it and nothing else. For them it trains without Ray.
    """
    from tests.sweep.undisturbed import Done
    from tests.sweep.without_ray import train_without_ray

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("alone"):
            train_without_ray(patch)
        return Done(tmp_path_factory.mktemp("undisturbed"))


@dataclass(frozen=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its document."""
        return json.loads(
            self.out, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON")
        )


@pytest.fixture(autouse=True)
def no_store_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mlflow.set_tracking_uri` also sets the variable that look-ups without a store read."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def raydp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
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
    """The command as a process of its own, in a session of its own, which Ctrl-C ends also where
    the tests run in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "raydp.cli.main", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture(scope="session")
def real_server() -> Iterator[RealServer]:
    """A running server with PostgreSQL and S3; tests share it, so each takes names of its own."""
    from tests.tracking.real_server import new_server, remove

    server = new_server()
    try:
        server.start()
        yield server
    finally:
        remove(server)
