"""What a sweep has left in MLflow and on disk, and its deletion."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from raydp.sweep.store.folder import SweepFolder
from raydp.tracking.promotions import aliases_of
from raydp.tracking.store import Store, open_store, pages

_PARENT = "tags.`mlflow.parentRunId` = '{}'"


@dataclass(frozen=True, kw_only=True)
class SweepRemains:
    """What exists of a sweep.

    Attributes:
        folder: the sweep's folder.
        store: its MLflow store.
        runs: its runs in MLflow, the sweep's own last.
        versions: its registered models.
        kept: the versions that will stay, with their runs.
    """

    folder: SweepFolder
    store: Store
    runs: tuple[Run, ...]
    versions: tuple[ModelVersion, ...]
    kept: tuple[ModelVersion, ...]

    @classmethod
    def of(cls, folder: SweepFolder, *, keep_selected: bool) -> SweepRemains:
        """Find a sweep's runs and models.

        Raises:
            ValueError: there is no store at the sweep's address, or no server answers.
        """
        store, parent = open_store(folder.tracking().uri), folder.tracking_run()
        runs, versions = list[Run](), list[ModelVersion]()
        if parent is not None:
            own = store.client.get_run(parent)
            search = partial(
                store.client.search_runs,
                [own.info.experiment_id],
                filter_string=_PARENT.format(parent),
            )
            runs = [*pages(search), *([own] if own.info.lifecycle_stage == "active" else [])]
        # A version names its run, whatever registered model it was put under.
        for run in runs:
            of_run = partial(
                store.client.search_model_versions, filter_string=f"run_id = '{run.info.run_id}'"
            )
            versions += pages(of_run)
        summary = folder.summary()
        selected = None if summary is None else summary.selected.model_uri
        kept = [one for one in versions if keep_selected and _uri(one) == selected]
        return cls(
            folder=folder,
            store=store,
            runs=tuple(runs),
            versions=tuple(one for one in versions if one not in kept),
            kept=tuple(kept),
        )

    @property
    def going(self) -> tuple[Run, ...]:
        """Return the runs that will be deleted. The run of a model that stays, stays with it."""
        staying = {one.run_id for one in self.kept}
        return tuple(run for run in self.runs if run.info.run_id not in staying)

    @property
    def sentences(self) -> list[str]:
        """Say what is deleted, what stays, and why."""
        files = [path for path in self.folder.path.rglob("*") if path.is_file()]
        size = sum(path.lstat().st_size for path in files) / 2**20
        said = [
            f"will be deleted: {len(self.versions)} registered models with their weights and aliases",
            f"will be deleted: {len(self.going)} runs in the MLflow store {self.store.uri}, with their files",
            f"will be deleted: the folder {self.folder.path} ({len(files)} files, {size:.1f} MiB), with the "
            "key of its noise; no run can be repeated or resumed without it",
        ]
        said += [f"will stay: {_uri(one)} and its run, the selected model" for one in self.kept]
        said += [
            f"will be without a model: the alias {alias} of {name}. `raydp models promote` gives it "
            "to another one"
            for name, alias in self._lost_aliases()
        ]
        return [
            *said,
            "will stay: the data, the MLflow experiment, and whatever was exported or pushed elsewhere",
            "will stay: in MLflow the parameters and metrics of deleted runs, until `mlflow gc`",
            "The ε of a model that somebody has used or copied stays spent.",
        ]

    def _lost_aliases(self) -> list[tuple[str, str]]:
        """Return the registered model and the name of each alias that goes with its version."""
        going = {(one.name, str(one.version)) for one in self.versions}
        return [
            (name, alias)
            for name in sorted({one.name for one in self.versions})
            for alias, version in sorted(aliases_of(self.store, name).items())
            if (name, version) in going
        ]

    def delete(self, progress: Callable[[int, int], None]) -> None:
        """Delete what is not kept, the folder last: a deletion that was broken off can go on.

        Args:
            progress: called with (steps done, steps in all).

        Raises:
            ValueError: another process runs the sweep, or the store has refused a deletion.
        """
        client, steps = self.store.client, list[Callable[[], object]]()
        for version in self.versions:
            steps += [
                partial(client.delete_model_version, version.name, version.version),
                partial(_delete_files, self.store, version.source),
            ]
        for run in self.going:
            steps += [
                partial(_delete_files, self.store, run.info.artifact_uri),
                partial(client.delete_run, run.info.run_id),
            ]
        with self.folder.locked():
            for done, step in enumerate(steps):
                progress(done, len(steps))
                try:
                    step()
                except (MlflowException, OSError) as error:
                    raise ValueError(
                        f"the store {self.store.uri} must delete what it holds of the sweep, got: "
                        f"{error}. The rest is as it was. Mend it, and repeat the command."
                    ) from error
            shutil.rmtree(self.folder.path)


def _uri(version: ModelVersion) -> str:
    return f"models:/{version.name}/{version.version}"


def _delete_files(store: Store, uri: str | None) -> None:
    """Delete the files of a run or a model. They may have been deleted before."""
    assert uri is not None, "raydp registers models with a source"
    with suppress(FileNotFoundError):
        files = get_artifact_repository(uri, tracking_uri=store.uri, registry_uri=store.uri)
        files.delete_artifacts()  # type: ignore[no-untyped-call]
        # On disk the empty folders stay, up to that of the run or the model.
        if (folder := getattr(files, "artifact_dir", None)) is not None:
            with suppress(OSError):
                Path(folder).rmdir()
            with suppress(OSError):
                Path(folder).parent.rmdir()
