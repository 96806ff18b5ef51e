"""Checks before a sweep starts: name, storage, tracking store, and machine or cluster.

`raydp sweep` and `raydp plan` do the same checks. A check that fails leaves no files behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from raydp.models.lookup import check_found
from raydp.plugins.described import Plugin, listed, resolve_plugin
from raydp.plugins.parameters import light_model
from raydp.plugins.registries import service
from raydp.privacy.records.cautions import Caution
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.machine import check_address, check_machine
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.transfer import exchange_at
from raydp.system.imports import imported
from raydp.system.locations import is_uri
from raydp.tasks.row_files import FILE_SUFFIXES, check_column, existing_file
from raydp.tasks.users import BY_COLUMN
from raydp.tracking import UnreachableError, check_store, load_signer

TASK_FILES = ("path", "heldout_path", "secrets", "controls")
"""Parameters of tasks that may name a file."""


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
        A warning for each problem that may end without a change of the spec, such as a server that
        does not answer.

    Raises:
        ValueError: a problem that prevents the sweep until the spec is changed.
    """
    for check in _lasting(spec, elsewhere=elsewhere):
        check()
    warnings = []
    # A server may answer at another time, so its silence is a warning and no error of the plan.
    for check in () if elsewhere else _passing(spec):
        try:
            check()
        except ValueError as error:
            value = f"a refusal: {str(error).removesuffix('.')}"
            warnings.append(
                Caution(
                    rule="`raydp sweep` should start now", value=value, remedy="Then plan again."
                )
            )
    return warnings


def _lasting(spec: SweepSpec, *, elsewhere: bool = False) -> list[Callable[[], None]]:
    """Return the checks of the spec and of this machine."""
    here = (
        []
        if elsewhere or spec.cluster.address != "local"
        else [lambda: check_machine(spec.cluster)]
    )
    loggers = [] if elsewhere else spec.tracking.loggers
    driver = [lambda: service("check_loggers", needed_by="tracking.loggers")(loggers)]
    hook = spec.tracking.webhook
    return [
        lambda: check_storage(spec.storage),
        lambda: _check_users(spec),
        lambda: _check_files(spec),
        lambda: check_found(spec.model),
        lambda: _check_store(spec),
        lambda: load_signer(spec.tracking.signing_key),
        lambda: _check_working_dir(spec.cluster.working_dir),
        *(driver if loggers else []),
        *(
            []
            if elsewhere or hook is None
            else [lambda: service("webhook_address", needed_by="tracking.webhook")(hook)]
        ),
        *here,
    ]


def _passing(spec: SweepSpec) -> list[Callable[[], None]]:
    """Return the checks of servers, which may answer at another time."""
    exchange = exchange_at(spec.cluster.exchange)
    return [
        lambda: check_store(spec.tracking.uri),
        lambda: check_address(spec.cluster.address),
        *([] if exchange is None else [exchange.check]),
    ]


def _check_files(spec: SweepSpec) -> None:
    """Check that the task's files exist and can be read, before the training code is imported.

    Files of an object store and data sets are checked when they are read, and so are the rows of
    large files.
    """
    for task in _tasks(spec):
        params = dict(task.params)
        given = {
            name: str(value) for name, value in params.items() if isinstance(value, str | Path)
        }
        files = {
            name: given[name] for name in TASK_FILES if name in given and not is_uri(given[name])
        }
        for name, path in files.items():
            if path.endswith(FILE_SUFFIXES) and not Path(path).is_dir():
                existing_file(path, f"task.{name}")
        if (path := files.get("path", "")).endswith(FILE_SUFFIXES) and Path(path).is_file():
            for column in (name for name in ("column", "user_column") if name in given):
                check_column(path, given[column], "task.path", column_field=f"task.{column}")
        # A draft knows where the look is from the generated files, without the task's module.
        if (place := getattr(task.params, "early_check", None)) is not None:
            module, _, function = place.partition(":")
            getattr(imported(module), function)(params, files)


def _check_users(spec: SweepSpec) -> None:
    """Check that a spec that protects users names them; `Task.by_user` decides on the data."""
    if spec.privacy.unit != "user":
        return
    for task in _tasks(spec):
        params = dict(task.params)
        if "user_column" in params and params["user_column"] is None:
            raise ValueError(
                f"privacy.unit must be example without task.user_column, got user. {BY_COLUMN}, or "
                "leave unit out."
            )


def _tasks(spec: SweepSpec) -> Iterator[Plugin]:
    """Yield the task, and the tasks that it is made of. A draft holds the parameters as written."""
    waiting, problems = [spec.task], list[str]()
    while waiting:
        task = waiting.pop()
        yield task
        params = dict(task.params)
        # Wrappers have their inner tasks under these names.
        for name in ("of", "reference"):
            if params.get(name) is not None:
                inner = resolve_plugin("tasks", f"task.{name}", params[name], problems, light_model)
                waiting += [] if inner is None else [inner]
        if problems:
            raise ValueError(listed(problems))


def _check_store(spec: SweepSpec) -> None:
    """Check the tracking store, except whether its server answers."""
    with suppress(UnreachableError):
        check_store(spec.tracking.uri)


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
    # The nearest folder that exists must take the others.
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir():
        raise ValueError(
            f"storage must be a folder, got {storage!r}, of which {str(there)!r} is a file. Name "
            "another."
        )
    # Only a trial write shows quotas, read-only mounts and permissions.
    try:
        tempfile.TemporaryDirectory(dir=there, prefix=".raydp-").cleanup()
    except OSError as error:
        raise ValueError(
            f"storage must be a folder that can be written to, got {storage!r}: nothing can be "
            f"made in {str(there)!r} ({error.strerror}). Change its permissions, or name another "
            "folder."
        ) from error


def _check_working_dir(working_dir: str | None) -> None:
    if working_dir is not None and not is_uri(working_dir) and not Path(working_dir).is_dir():
        raise ValueError(
            "cluster.working_dir must be an existing folder or the URI of a zip file, got "
            f"{working_dir!r}. Check it."
        )
