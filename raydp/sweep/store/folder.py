"""The folder of a sweep on disk, storage/name. It holds the state that a resume starts from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from raydp.spec.document import SweepSpec
from raydp.spec.sections import AdaptiveSeeds
from raydp.spec.sections.privacy import IGNORED
from raydp.sweep.store.documents import SweepDocuments
from raydp.sweep.store.noise_key import fingerprint, write_key
from raydp.sweep.store.state import Plan
from raydp.system.files import make_private, write_atomically

MOST_NAMED = 20
"""The largest number of sweeps or files that a message names."""
BASE_RUN = "base"
"""The name, in the queue and in the folder, of the measurement of the untrained base model."""
OF_START = (
    "spec.yaml",
    "plan.json",
    "sweep.key",
    "secret_counts.json",
    "budget.json",
    "driver.lock",
)
"""Files that the start of a sweep writes into its folder, beside the empty folder trials."""
PASSING = {
    "driver.lock",
    "progress.json",
    "ended.json",
    "points.csv",
    "secrets.parquet",
    "logs",
    "ray",
}
"""Entries of the folder that are not a part of its state at the end of the sweep."""
NOT_COMPARED = {"cluster", "tracking", "select", "stopping", "storage", "evaluate_every"}
"""Sections of the spec that may change before a resume: they do not change what is trained."""


@dataclass(frozen=True, kw_only=True)
class SweepFolder(SweepDocuments):
    """The folder of one sweep, storage/name, which is started, opened, locked and removed here.

    `WrittenSpec` reads spec.yaml, `RunFiles` has the files of trials/, and `SweepDocuments` the
    documents. Only the modules of `raydp.sweep.store` name and read these files.

    | file                        | written by                 | read by                  | complete when           |
    | --------------------------- | -------------------------- | ------------------------ | ----------------------- |
    | sweep.key (mode 0600)       | start                      | every run's noise        | it has 32 bytes         |
    | plan.json                   | start, a resume with seeds | all                      | written whole           |
    | spec.yaml                   | start as last, a resume    | all                      | written whole           |
    | secret_counts.json          | start                      | points, reports          | written whole           |
    | driver.lock                 | a process that writes      | other such processes     | held by a process       |
    | trials/RUN/attempt-*/       | a worker                   | commit                   | the result names it     |
    | trials/RUN/checkpoints*/    | a worker                   | a worker that resumes    | written whole           |
    | trials/RUN/result.json      | `commit`, on the driver    | all                      | written whole, once     |
    | trials/RUN/model/           | `commit`, on the driver    | MLflow, scores, audits   | before result.json      |
    | trials/RUN/tracked.json     | the driver, after MLflow   | resume, points           | written whole           |
    | tracking.json               | the driver                 | resume                   | written whole           |
    | progress.json               | the driver, every 5 s      | status                   | written whole           |
    | search.json                 | a search, at its end       | points, status, resume   | written whole           |
    | seeds.json                  | adaptive seeds, at the end | points, status, resume   | written whole           |
    | optuna.db                   | a search by Optuna         | a search by Optuna       | SQLite commits          |
    | scores/LABEL/*.json         | `raydp score`, driver      | points, reports          | written whole, each     |
    | scores/.models/             | `raydp score`              | `raydp score`            | a cache, may be removed |
    | base-*.npz                  | a command, of the base     | the same command         | written whole           |
    | trials/RUN/*.npz            | a command, of a model      | the same command         | written whole           |
    | audits.json                 | `raydp audit`              | the end of the sweep     | written whole           |
    | selected.json               | a choice that ε covers     | its release              | written whole, once     |
    | released.json               | the end of the sweep       | reports                  | written whole           |
    | budget.json                 | the ledger's entries       | `raydp budget`           | written whole           |
    | points.csv, secrets.parquet | the end, analysis commands | people, analysis         | may be written again    |
    | report.html                 | the end of the sweep       | people                   | may be written again    |
    | summary.json                | the end of the sweep       | status, list             | written whole           |
    | ended.json                  | `raydp sweep`, at the end  | resume                   | written whole           |
    | logs/tensorboard, wandb     | `tracking.loggers`         | their programs           | the run has ended       |
    | ray/                        | Ray Train and Tune         | Ray, during the sweep    | decided by Ray          |

    A folder with a spec.yaml is a sweep.
    """

    @classmethod
    def exists(cls, spec: SweepSpec) -> bool:
        """Return whether the sweep was started."""
        return cls.is_at(Path(spec.storage) / spec.name)

    @staticmethod
    def is_at(path: Path) -> bool:
        """Return whether a folder is a sweep's."""
        return (path / "spec.yaml").is_file()

    @staticmethod
    def has_plan(path: Path) -> bool:
        """Return whether a folder holds a sweep's plan."""
        return (path / "plan.json").is_file()

    @classmethod
    def of_run(cls, path: Path) -> SweepFolder | None:
        """Return the sweep whose run has this folder, SWEEP/trials/RUN_ID; None for another."""
        sweep = path.parent.parent
        return cls(path=sweep) if path.parent.name == "trials" and cls.is_at(sweep) else None

    @classmethod
    def require_new(cls, spec: SweepSpec) -> None:
        """Check that the sweep does not exist yet.

        Raises:
            ValueError: the sweep exists, or its folder holds files that a killed start of a sweep
                cannot have left.
        """
        if cls.exists(spec):
            raise ValueError(
                f"name must be new in storage {spec.storage!r}, got {spec.name!r}, which exists. "
                "Add --resume to continue it (in Python run(resume=True)), or choose another name."
            )
        path = Path(spec.storage) / spec.name
        # A start that was killed early may be repeated. Files of someone else are left alone.
        others = (
            sorted(entry.name for entry in path.iterdir() if not _is_of_start(entry))
            if path.is_dir()
            else []
        )
        if others:
            named = ", ".join(repr(name) for name in others[:MOST_NAMED])
            raise ValueError(
                f"name must be of a folder that is new or empty in storage {spec.storage!r}, got "
                f"{spec.name!r}, which holds {named}{', ...' if len(others) > MOST_NAMED else ''}. "
                "Choose another name or storage."
            )

    @classmethod
    @contextmanager
    def running(cls, spec: SweepSpec) -> Iterator[None]:
        """Keep other drivers out of the sweep's folder during the block. A kill releases the lock.

        Raises:
            ValueError: another driver runs the sweep.
        """
        path = Path(spec.storage) / spec.name
        make_private(path)
        with cls(path=path).locked():
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder during the block. A kill releases the lock.

        Raises:
            ValueError: another process has locked the folder.
        """
        lock = FileLock(self.path / "driver.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ValueError(
                f"name must be of a sweep that is not running, got {self.path.name!r} in storage "
                f"{str(self.path.parent)!r}, which another process runs. Wait for its end, or stop "
                "it first."
            ) from error
        try:
            yield
        finally:
            lock.release()

    @classmethod
    def create(cls, spec: SweepSpec, plan_fn: Callable[[bytes], Plan]) -> SweepFolder:
        """Create the folder of a new sweep, with a new key.

        Args:
            spec: the sweep.
            plan_fn: returns the plan of the sweep with this key.

        Raises:
            ValueError: the sweep exists already.
        """
        cls.require_new(spec)
        folder = cls(path=Path(spec.storage) / spec.name)
        # Until spec.yaml is written, the folder is no sweep, and the start can be repeated.
        make_private(folder.path)
        (folder.path / "trials").mkdir(exist_ok=True)
        key = write_key(folder._key_file, spec.privacy)
        folder._write_plan(replace(plan_fn(key), key_fingerprint=fingerprint(key)))
        folder._write_spec(spec)
        return folder

    def _write_spec(self, spec: SweepSpec) -> None:
        text = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "spec.yaml", text.encode(), private=True)

    @classmethod
    def resume(cls, spec: SweepSpec) -> SweepFolder:
        """Open the folder of a sweep that was started before.

        Adaptive seeds may be added, see `continue_with`.

        Raises:
            ValueError: the sweep was never started, its runs were moved away, or a part of the spec
                that defines the runs has changed.
        """
        cls.require_begun(spec)
        folder = cls.open(Path(spec.storage) / spec.name)
        folder.require_trials()
        started = folder.spec()
        # A budget bounds what is released, and changes no run.
        without = {"privacy": {"budget"}}
        before, now = (s.model_dump(mode="json", exclude=without) for s in (started, spec))
        # What is trained must not change, except that adaptive seeds may be added.
        # Where ε covers the choice, the choice may not follow from results either.
        free = NOT_COMPARED if spec.privacy.tuning == IGNORED else NOT_COMPARED - {"select"}
        changed = [k for k in now if k not in free and before[k] != now[k]]
        if _adds_seeds(started, spec):
            changed = [k for k in changed if k != "seeds"]
        names = ("experiment", "registered_model")  # the URI of the store may change
        changed += [f"tracking.{k}" for k in names if before["tracking"][k] != now["tracking"][k]]
        if changed == ["seeds"]:
            raise ValueError(
                f"seeds must hold the {len(started.seed_labels)} in "
                f"{str(folder.path / 'spec.yaml')!r}, got {len(spec.seed_labels)}. Seeds can be "
                "added as adaptive seeds, with first and at_most, and never taken back. Take those "
                "of that file, or give the sweep a new name."
            )
        if changed:
            raise ValueError(
                "SPEC must be the one that the sweep was started with, got changes in "
                f"{', '.join(changed)}. Undo them, or give the sweep a new name."
            )
        return folder

    @classmethod
    def require_begun(cls, spec: SweepSpec) -> None:
        """Check that the sweep was started.

        Raises:
            ValueError: the sweep was not started.
        """
        if not cls.exists(spec):
            raise ValueError(
                f"--resume must be of a sweep that was started, got {spec.name!r} in storage "
                f"{spec.storage!r}, where there is none. Leave --resume out, or write "
                "--start-or-resume."
            )

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """Open an existing sweep.

        Raises:
            ValueError: the folder does not hold a sweep.
        """
        if not cls.is_at(path):
            beside = sorted(other.parent.name for other in path.parent.glob("*/spec.yaml"))[
                :MOST_NAMED
            ]
            if sweeps := sorted(other.parent.name for other in path.glob("*/spec.yaml")):
                raise ValueError(
                    f"SWEEP must be the folder of a sweep, got {str(path)!r}, which holds several, as a "
                    f"study does: {', '.join(sweeps[:MOST_NAMED])}. Name one of them, or a points file."
                )
            got = (
                "a file"
                if path.is_file()
                else "a folder without spec.yaml"
                if path.is_dir()
                else "nothing there"
            )
            remedy = (
                f"Sweeps in {str(path.parent)!r}: {', '.join(beside)}."
                if beside
                else "`raydp list` names them."
            )
            raise ValueError(
                f"SWEEP must be the folder of a sweep, got {str(path)!r} ({got}). {remedy}"
            )
        return cls(path=path)

    def continue_with(self, spec: SweepSpec, plan: Plan) -> None:
        """Keep the spec of a resume, and plan the runs of the seeds that it adds.

        The runs that there are stay as they are. A new run has the noise of its configuration's
        other runs. A kill in between leaves a sweep that goes on. A sweep whose ε covers the choice
        keeps its first spec, because nothing may change it. If the runs do not fit together, nothing is
        written, and the comparison of the runs refuses the spec.

        Args:
            spec: the present spec, which `resume` has checked.
            plan: its plan.
        """
        started, kept = self.spec(), self.plan()
        runs, like = {t.run_id: t for t in kept.trials}, {t.configuration: t for t in kept.trials}
        added = [trial for trial in plan.trials if trial.run_id not in runs]
        same = started.model_dump(mode="json") == spec.model_dump(mode="json")
        # Nothing is added, or the runs do not fit together: leave everything as it is.
        if (
            spec.privacy.tuning != IGNORED
            or (same and not added)
            or len(runs) + len(added) != len(plan.trials)
        ):
            return
        # A new run takes the noise of its configuration, which is not calibrated again.
        for trial in added:
            other = like.get(trial.configuration)
            if (
                other is None
                or other.source is not None
                or not isinstance(spec.seeds, AdaptiveSeeds)
            ):
                return
            runs[trial.run_id] = replace(other, run_id=trial.run_id, seed=trial.seed)
        # The decision is open again with further seeds, or with other limits or another budget.
        if added or (started.seeds, started.privacy) != (spec.seeds, spec.privacy):
            self.seeds_end.remove()
        # Write the spec first: after a kill in between, the next resume adds the same runs.
        self._write_spec(spec)
        if added:
            records = {t.run_id: kept.privacy[like[t.configuration].run_id] for t in added}
            trials = tuple(runs[trial.run_id] for trial in plan.trials)
            self._write_plan(replace(kept, trials=trials, privacy={**kept.privacy, **records}))

    def bind_key(self) -> bool:
        """Write the fingerprint of the key into a plan of an earlier version, which has none.

        Returns:
            Whether it was written. The runs before it may have had another key, which nothing can
            tell any more.
        """
        plan = self.plan()
        if plan.key_fingerprint is not None:
            return False
        self._write_plan(replace(plan, key_fingerprint=fingerprint(self.key())))
        return True

    def lasting_files(self) -> Iterator[Path]:
        """Yield the files that are a part of the sweep's state at its end."""
        for folder, folders, names in os.walk(self.path, followlinks=True):
            # Only the top of the folder has entries that are no part of the state.
            if Path(folder) == self.path:
                folders[:] = [name for name in folders if name not in PASSING]
                names = [name for name in names if name not in PASSING]
            yield from (Path(folder, name) for name in names)

    @property
    def ray(self) -> Path:
        """Return the folder of Ray Train and Tune, as an absolute path."""
        return self.path.resolve() / "ray"

    def times(self) -> tuple[float, float]:
        """Return when the sweep began and when its results last changed (epoch seconds)."""
        # a resume may write the second one again
        started = (self._key_file, self.path / "spec.yaml")
        files = [*started, self.path / "summary.json", *self.path.glob("trials/*/result.json")]
        times = [file.stat().st_mtime for file in files if file.is_file()]
        return times[0], max(times)

    def is_untouched(self) -> bool:
        """Return whether no run has a folder.

        The sweep's key was then used for nothing that is kept.
        """
        trials = self.path / "trials"
        return trials.is_dir() and not any(trials.iterdir())

    def remove(self) -> None:
        """Remove the files that the start of a sweep wrote, with the key.

        Remove the folder if it is then empty.

        Files of the user are kept.
        """
        for made in (self.ray, self.path / "logs"):
            shutil.rmtree(made, ignore_errors=True)  # a new start refuses a folder that contains it
        # spec.yaml goes first, so that a kill in between leaves no sweep.
        (self.path / "spec.yaml").unlink(missing_ok=True)
        for entry in filter(_is_of_start, list(self.path.iterdir())):
            entry.rmdir() if entry.is_dir() else entry.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            self.path.rmdir()


def _adds_seeds(started: SweepSpec, spec: SweepSpec) -> bool:
    """Return whether a spec has adaptive seeds that include those of the sweep's start.

    The first seed stays: it is that of the untrained model's measurement.
    """
    before, now = started.seed_labels, spec.seed_labels
    return isinstance(spec.seeds, AdaptiveSeeds) and set(before) <= set(now) and before[0] == now[0]


def _is_of_start(path: Path) -> bool:
    """Return whether a start that was killed before any run may have left this file or folder."""
    if path.is_dir():
        return path.name == "trials" and not path.is_symlink() and not any(path.iterdir())
    # A write that was killed leaves a temporary file that ends in .part.
    return path.name in OF_START or any(path.match(f".{name}.*.part") for name in OF_START)
