"""What a sweep keeps on disk, in storage/name: the state that a resume starts from."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from raydp.files import write_atomically
from raydp.reading_yaml import read_yaml
from raydp.sections import PrivacySpec, SelectSpec
from raydp.spec import SweepSpec, load_spec
from raydp.sweep.exchange import SharedFolder

S = TypeVar("S", bound=BaseModel)

MOST_NAMED = 20
"""So many sweeps are named in a message."""

BASE_RUN = "base"
"""The name, in the queue and in the folder, of the measurement of the untrained base model."""
NOT_COMPARED = {"cluster", "tracking", "select", "stopping", "storage"}
"""Sections of the spec that may change between a run and its resume: they do not change what is trained."""


@dataclass(frozen=True, kw_only=True)
class SweepFolder:
    """The folder of one sweep.

    plan.json and spec.yaml are written once, spec.yaml last: it makes the folder a sweep. sweep.key has mode 0600;
    trials/<run_id>/result.json commits a run.
    """

    path: Path

    @classmethod
    def exists(cls, spec: SweepSpec) -> bool:
        """Whether the sweep was begun."""
        return (Path(spec.storage) / spec.name / "spec.yaml").is_file()

    @classmethod
    def require_new(cls, spec: SweepSpec) -> None:
        """Check that the sweep does not exist yet.

        Raises:
            ValueError: it does.
        """
        if Path(spec.storage).exists() and not Path(spec.storage).is_dir():
            raise ValueError(f"storage must be a folder, got {spec.storage!r}, which is a file. Name another one.")
        if cls.exists(spec):
            raise ValueError(
                f"name must be new in storage {spec.storage!r}, got {spec.name!r}, which exists. Add --resume to go on "
                "with it, or choose another name."
            )

    @classmethod
    @contextmanager
    def running(cls, spec: SweepSpec) -> Iterator[None]:
        """Keep other drivers out of the sweep's folder for the time of the block; a kill lets them in again.

        Raises:
            ValueError: another driver runs the sweep.
        """
        path = Path(spec.storage) / spec.name
        path.mkdir(parents=True, exist_ok=True)
        with cls(path=path).locked():
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder for the time of the block; a kill lets them in again.

        Raises:
            ValueError: another one writes there.
        """
        lock = FileLock(self.path / "driver.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ValueError(
                f"name must be of a sweep that is not running, got {self.path.name!r} in storage "
                f"{str(self.path.parent)!r}, which another process runs. Wait for its end, or stop it first."
            ) from error
        try:
            yield
        finally:
            lock.release()

    @classmethod
    def create(cls, spec: SweepSpec, plan_fn: Callable[[bytes], Any]) -> SweepFolder:
        """A new sweep's folder, with a key of its own.

        Args:
            plan_fn: key -> JSON data for plan.json.

        Raises:
            ValueError: there is one already.
        """
        cls.require_new(spec)
        folder = cls(path=Path(spec.storage) / spec.name)
        (folder.path / "trials").mkdir(parents=True, exist_ok=True)
        folder._make_key(spec)
        folder.write_json("plan.json", plan_fn(folder.key()))
        text = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_atomically(folder.path / "spec.yaml", text.encode())
        return folder

    @classmethod
    def resume(cls, spec: SweepSpec) -> SweepFolder:
        """The folder of a sweep that was started before.

        Raises:
            ValueError: it was never started, or the spec has changed in what defines the runs.
        """
        if not cls.exists(spec):
            raise ValueError(
                f"--resume must be of a sweep that was started, got {spec.name!r} in storage {spec.storage!r}, where "
                "there is none. Leave --resume out, or write --start-or-resume."
            )
        folder = cls.open(Path(spec.storage) / spec.name)
        before, now = folder.spec().model_dump(mode="json"), spec.model_dump(mode="json")
        changed = [k for k in now if k not in NOT_COMPARED and before[k] != now[k]]
        names = ("experiment", "registered_model")  # the store itself may move
        changed += [f"tracking.{k}" for k in names if before["tracking"][k] != now["tracking"][k]]
        if changed:
            raise ValueError(
                f"SPEC must be the one that the sweep was started with, got changes in {', '.join(changed)}. "
                "Undo them, or give the sweep a new name."
            )
        return folder

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """An existing sweep.

        Raises:
            ValueError: the folder does not hold one.
        """
        if not (path / "spec.yaml").is_file():
            beside = sorted(other.parent.name for other in path.parent.glob("*/spec.yaml"))[:MOST_NAMED]
            there = f"{str(path.parent)!r} has: {', '.join(beside)}" if beside else f"{str(path.parent)!r} has none"
            raise ValueError(
                f"SWEEP must be the folder of a sweep, got {str(path)!r}. It has no spec.yaml; {there}. Name one."
            )
        return cls(path=path)

    def spec(self) -> SweepSpec:
        """The spec that the sweep was started with."""
        return load_spec(self.path / "spec.yaml")

    def _section(self, name: str, cls: type[S]) -> S:
        """One section of that spec. The whole imports its plug-ins, which takes seconds."""
        try:
            return cls.model_validate(self._written()[name])
        except (ValidationError, LookupError, TypeError):
            self.spec()  # says what is wrong
            raise

    def select(self) -> SelectSpec:
        """How the sweep selects."""
        return self._section("select", SelectSpec)

    def is_private_selection(self) -> bool:
        """Whether the choice of the released model is part of its guarantee."""
        return self._section("privacy", PrivacySpec).selects

    def method(self) -> dict[str, Any]:
        """The method as it is written in that spec: its name and parameters."""
        return dict(self._written()["method"])

    def _written(self) -> Any:
        return read_yaml(self.path / "spec.yaml", "SPEC")

    def key(self) -> bytes:
        """The sweep's secret key."""
        return (self.path / "sweep.key").read_bytes()

    def write_json(self, name: str, document: Any) -> None:
        """Write a JSON file of the sweep, whole or not at all."""
        write_atomically(self.path / name, (json.dumps(document, indent=1) + "\n").encode())

    def read_json(self, name: str) -> Any | None:
        """A JSON file of the sweep, or None where it does not exist."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"SWEEP must have whole files, got {str(path)!r} that is not JSON ({error}). If it is in trials/, "
                "delete it and go on with --resume; if in scores/, delete it and run `raydp score` again; without "
                "plan.json a sweep cannot go on."
            ) from error

    def trial(self, run_id: str) -> Path:
        """The folder of one run."""
        return self.path / "trials" / run_id

    def files(self, run_id: str) -> SharedFolder:
        """The files of one run that a worker writes, where it sees this folder."""
        return SharedFolder(folder=self.trial(run_id), run_id=run_id)

    def result(self, run_id: str) -> dict[str, Any] | None:
        """The committed result of a run, None before it has one."""
        return self.read_json(f"trials/{run_id}/result.json")

    def is_finished(self, run_id: str) -> bool:
        """Whether a run has a result, went to its last step and did not fail."""
        return (self.result(run_id) or {}).get("status") == "finished"

    def has_ended(self, run_id: str) -> bool:
        """Whether a run is not to be run again: it has finished, or was stopped for being hopeless."""
        return (self.result(run_id) or {}).get("status") in ("finished", "stopped")

    def commit(self, run_id: str, result: dict[str, Any]) -> None:
        """Commit a run's result, once: a second call changes nothing. Unless it failed, attempts and checkpoints go.

        Raises:
            FileNotFoundError: the model of the attempt that the result names is not (yet) to be seen here.
        """
        folder = self.trial(run_id)
        if self.has_ended(run_id):
            return
        folder.mkdir(parents=True, exist_ok=True)
        attempt = result.pop("attempt", None)
        model = folder / str(attempt) / "model"
        if model.is_dir():  # not so where a call of before broke off after this
            shutil.rmtree(folder / "model", ignore_errors=True)
            model.rename(folder / "model")
        elif attempt is not None and not (folder / "model").is_dir():
            raise FileNotFoundError(errno.ENOENT, "the trained model is not there", str(model))
        self.write_json(f"trials/{run_id}/result.json", result)
        if result["status"] != "failed":
            for leftover in [*folder.glob("attempt-*"), *folder.glob("checkpoints*")]:
                shutil.rmtree(leftover, ignore_errors=True)

    def _make_key(self, spec: SweepSpec) -> None:
        from raydp.training.stream import TEST_KEY, new_key  # brings torch along

        key = TEST_KEY if spec.privacy.noise_key == "test" else new_key()
        path = self.path / "sweep.key"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(key)
