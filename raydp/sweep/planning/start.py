"""Checks before a sweep starts: its name, its storage, its tracking store and the machine or cluster.

`raydp sweep` and `raydp plan` do the same checks. A check that fails leaves no files behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from raydp.io.locations import is_uri
from raydp.models.finding import check_found
from raydp.plugins.described import Plugin, listed, resolve_plugin
from raydp.plugins.parameters import light_model
from raydp.privacy.records.cautions import Caution
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.machine import check_address, check_machine
from raydp.sweep.run_logs import check_loggers
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.transfer import check_exchange
from raydp.tasks.chat.conversations import Form, conversation_of, form_of
from raydp.tasks.reading import FILE_SUFFIXES, check_column, existing_file, read_rows, string_of
from raydp.tasks.users import BY_COLUMN
from raydp.tracking import UnreachableError, check_signing_key, check_store

TASK_FILES = ("path", "heldout_path", "secrets", "controls")
"""Parameters of tasks that may name a file."""
ROWS_OF, SECRETS_OF = ("text", "chat"), ("text", "enron", "chat")
"""Tasks whose files hold texts or conversations, and tasks with files of secrets."""
MOST_BYTES = 1 << 25
"""Size of the largest file whose rows are all looked at first, which takes about a second."""


def check_start(spec: SweepSpec, *, resume: bool = False) -> None:
    """Check that a sweep can start, or be resumed, here and now.

    Args:
        spec: a spec, or a draft of `draft_spec`, because the plug-ins are not checked.

    Raises:
        ValueError: the first check that fails. Nothing was written.
    """
    (SweepFolder.require_begun if resume else SweepFolder.require_new)(spec)
    for check in (*_lasting(spec), *_passing(spec)):
        check()


def check_plan(spec: SweepSpec, *, elsewhere: bool = False) -> list[Caution]:
    """Check that a planned sweep can start. A plan needs no new name.

    Args:
        elsewhere: whether the sweep will run on other hardware than this machine.

    Returns:
        A warning for each problem that may end without a change of the spec, such as a server that does not answer.

    Raises:
        ValueError: a problem that prevents the sweep until the spec is changed.
    """
    for check in _lasting(spec, elsewhere=elsewhere):
        check()
    warnings = []
    for check in () if elsewhere else _passing(spec):
        try:
            check()
        except ValueError as error:
            value = f"a refusal: {str(error).removesuffix('.')}"
            warnings.append(Caution(rule="`raydp sweep` should start now", value=value, remedy="Then plan again."))
    return warnings


def _lasting(spec: SweepSpec, *, elsewhere: bool = False) -> list[Callable[[], None]]:
    """Return the checks of the spec and of this machine."""
    here = [] if elsewhere or spec.cluster.address != "local" else [lambda: check_machine(spec.cluster)]
    driver = [] if elsewhere else [lambda: check_loggers(spec.tracking.loggers)]
    return [
        lambda: check_storage(spec.storage),
        lambda: _check_users(spec),
        lambda: _check_files(spec),
        lambda: check_found(spec.model),
        lambda: _check_store(spec),
        lambda: check_signing_key(spec.tracking.signing_key),
        lambda: _check_working_dir(spec.cluster.working_dir),
        *driver,
        *here,
    ]


def _passing(spec: SweepSpec) -> list[Callable[[], None]]:
    """Return the checks of servers, which may answer at another time."""
    return [
        lambda: check_store(spec.tracking.uri),
        lambda: check_address(spec.cluster.address),
        lambda: check_exchange(spec.cluster.exchange),
    ]


def _check_files(spec: SweepSpec) -> None:
    """Check that the task's files exist and can be read, before the training code is imported.

    Files of an object store and data sets are checked when they are read, and so are the rows of large files.
    """
    for task in _tasks(spec):
        params = dict(task.params)
        given = {name: str(value) for name, value in params.items() if isinstance(value, str | Path)}
        files = {name: given[name] for name in TASK_FILES if name in given and not is_uri(given[name])}
        for name, path in files.items():
            if path.endswith(FILE_SUFFIXES) and not Path(path).is_dir():
                existing_file(path, f"task.{name}")
        if (path := files.get("path", "")).endswith(FILE_SUFFIXES) and Path(path).is_file():
            for column in (name for name in ("column", "user_column") if name in given):
                check_column(path, given[column], "task.path", column_field=f"task.{column}")
        if task.name in ROWS_OF:
            _check_rows({name: files[name] for name in ("path", "heldout_path") if name in files}, params)
        if task.name in SECRETS_OF:
            _check_secrets({name: files[name] for name in ("secrets", "controls") if name in files}, task.name)


def _check_rows(files: Mapping[str, str], params: Mapping[str, Any]) -> None:
    """Check the rows of files of texts or conversations, unless this takes long."""
    for name, path in files.items():
        is_light = path.endswith(FILE_SUFFIXES) and not path.endswith(".parquet") and Path(path).is_file()
        if not is_light or Path(path).stat().st_size > MOST_BYTES:
            continue
        form: Form | None = params.get("form")
        for line, row in islice(read_rows(path, f"task.{name}"), params.get("max_rows")):
            place = f"{Path(path).name}, line {line}"
            if "column" in params:
                string_of(row, params["column"], f"task.{name}", place)
            else:
                form = form or form_of(list(row), f"task.{name}")
                conversation_of(row, form, f"task.{name}", place)


def _check_secrets(files: Mapping[str, str], task: str) -> None:
    """Check files of secrets. Prompts of conversations may be messages, but not those of controls."""
    from raydp.tasks.chat.secrets import check_secrets  # imports numpy, which takes longer than a look at a spec

    for name, path in files.items():
        check_secrets(path, f"task.{name}", messages=task == "chat" and name == "secrets")


def _check_users(spec: SweepSpec) -> None:
    """Check that a spec that protects users names them. `Task.by_user` decides once the data are read."""
    if spec.privacy.unit != "user":
        return
    for task in _tasks(spec):
        params = dict(task.params)
        if "user_column" in params and params["user_column"] is None:
            raise ValueError(
                f"privacy.unit must be example without task.user_column, got user. {BY_COLUMN}, or leave unit out."
            )


def _tasks(spec: SweepSpec) -> Iterator[Plugin]:
    """Yield the task, and the tasks that it is made of. A draft holds the parameters as written."""
    waiting, problems = [spec.task], list[str]()
    while waiting:
        task = waiting.pop()
        yield task
        params = dict(task.params)
        for name in ("of", "reference"):
            if params.get(name) is not None:
                inner = resolve_plugin("tasks", f"task.{name}", params[name], problems, light_model)
                waiting += [] if inner is None else [inner]
        if problems:
            raise ValueError(listed(problems))


def _check_store(spec: SweepSpec) -> None:
    """Check the tracking store, except whether its server answers."""
    try:
        check_store(spec.tracking.uri)
    except UnreachableError:
        return


def check_storage(storage: str) -> None:
    """Check that sweeps can be kept in a folder, which does not have to exist yet.

    Raises:
        ValueError: a part of the path is not a folder, or the folder cannot be written to.
    """
    path = Path(storage).absolute()
    try:
        str(path).encode()  # Ray's paths and JSON are UTF-8
    except UnicodeEncodeError as error:
        raise ValueError(
            f"storage must be a folder whose path is UTF-8, got {str(path)!r}. Name another folder."
        ) from error
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir():
        raise ValueError(f"storage must be a folder, got {storage!r}, of which {str(there)!r} is a file. Name another.")
    try:
        tempfile.TemporaryDirectory(dir=there, prefix=".raydp-").cleanup()
    except OSError as error:
        raise ValueError(
            f"storage must be a folder that can be written to, got {storage!r}: nothing can be made in {str(there)!r} "
            f"({error.strerror}). Change its permissions, or name another folder."
        ) from error


def _check_working_dir(working_dir: str | None) -> None:
    if working_dir is not None and not is_uri(working_dir) and not Path(working_dir).is_dir():
        raise ValueError(
            f"cluster.working_dir must be an existing folder or the URI of a zip file, got {working_dir!r}. Check it."
        )
