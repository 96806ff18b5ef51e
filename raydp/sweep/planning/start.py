"""What must be so before a sweep starts: its name, its storage, its tracking store and the machine or cluster. `raydp
sweep` and `raydp plan` ask the same function, and nothing is left behind where the answer is no."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from raydp.io.locations import is_uri
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.machine import check_address, check_machine
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.transfer import check_exchange
from raydp.tracking import UnreachableError, check_signing_key, check_store


def check_start(spec: SweepSpec, *, resume: bool = False) -> None:
    """Check that a sweep can start, or be resumed, here and now.

    Args:
        spec: also one of `draft_spec`: the plug-ins do not matter here.

    Raises:
        ValueError: the first thing that prevents it; nothing was written then.
    """
    (SweepFolder.require_begun if resume else SweepFolder.require_new)(spec)
    for check in (*_lasting(spec), *_passing(spec)):
        check()


def check_plan(spec: SweepSpec, *, elsewhere: bool = False) -> list[str]:
    """The same for a plan, which needs no new name.

    Args:
        elsewhere: the sweep is to run on other hardware than what is here.

    Returns:
        What prevents a start now and may not later, such as a server that does not answer: a warning for each.

    Raises:
        ValueError: what prevents the sweep until the spec is changed.
    """
    for check in _lasting(spec, elsewhere=elsewhere):
        check()
    warnings = []
    for check in () if elsewhere else _passing(spec):
        try:
            check()
        except ValueError as error:
            warnings.append(f"`raydp sweep` would not start now: {error}")
    return warnings


def _lasting(spec: SweepSpec, *, elsewhere: bool = False) -> list[Callable[[], None]]:
    """Checks of the spec and of this machine."""
    here = [] if elsewhere or spec.cluster.address != "local" else [lambda: check_machine(spec.cluster)]
    return [
        lambda: check_storage(spec.storage),
        lambda: _check_store(spec),
        lambda: check_signing_key(spec.tracking.signing_key),
        lambda: _check_working_dir(spec.cluster.working_dir),
        *here,
    ]


def _passing(spec: SweepSpec) -> list[Callable[[], None]]:
    """Checks of what may answer at another time."""
    return [
        lambda: check_store(spec.tracking.uri),
        lambda: check_address(spec.cluster.address),
        lambda: check_exchange(spec.cluster.exchange),
    ]


def _check_store(spec: SweepSpec) -> None:
    """The tracking store, but for a server that does not answer."""
    try:
        check_store(spec.tracking.uri)
    except UnreachableError:
        return


def check_storage(storage: str) -> None:
    """Check that sweeps can be kept in a folder, which need not exist.

    Raises:
        ValueError: a part of its path is no folder, or nothing can be written there.
    """
    path = Path(storage).absolute()
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
