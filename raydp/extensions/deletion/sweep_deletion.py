"""What a sweep has left in MLflow and on disk, and its deletion."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from raydp.plugins.registries import service
from raydp.sweep.store.folder import SweepFolder
from raydp.tracking.promotions import aliases_of
from raydp.tracking.store import MODEL_ID_TAG, Store, open_store, pages

_PARENT = "tags.`mlflow.parentRunId` = '{}'"


@dataclass(frozen=True, kw_only=True)
class SweepRemains:
    """What exists of a sweep.

    Attributes:
        folder: the sweep's folder.
        store: its MLflow store.
        runs: its runs in MLflow, the sweep's own last.
        versions: its registered models, under whatever name, that will be deleted.
        kept: the versions that will stay, with their runs and files.
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
        runs = list[Run]()
        if parent is not None:
            own = store.client.get_run(parent)
            search = partial(
                store.client.search_runs,
                [own.info.experiment_id],
                filter_string=_PARENT.format(parent),
            )
            runs = [*pages(search), *([own] if own.info.lifecycle_stage == "active" else [])]
        # A version of another name belongs to the sweep by its run, or by a source in the sweep.
        every = pages(store.client.search_model_versions)
        versions = _with_copies(every, {run.info.run_id for run in runs})
        # What has the run or the source of the selected version is the same model.
        summary = folder.summary()
        selected = None if summary is None else summary.selected.model_uri
        its = {str(one.run_id) for one in versions if keep_selected and _uri(one) == selected}
        kept = _with_copies(versions, its)
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
        usual = self.folder.tracking().registered_model
        said += [
            f"will be deleted: {_uri(one)}, a model of the sweep under another name"
            for one in self.versions
            if one.name != usual
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
        staying = {_files(self.store, version) for version in self.kept}
        # Files come first: what is broken off between the two is found again.
        for version in self.versions:
            if (files := _files(self.store, version)) not in staying:
                steps.append(partial(_delete_files, self.store, files))
            steps.append(partial(client.delete_model_version, version.name, version.version))
        for run in self.going:
            steps.append(partial(_delete_files, self.store, run.info.artifact_uri))
            steps.append(partial(client.delete_run, run.info.run_id))
        settle = service("settle_deleted", needed_by=None)
        with self.folder.locked():
            # What was released stays spent.
            if settle is not None:
                settle(self.folder)
            for done, step in enumerate(steps):
                progress(done, len(steps))
                try:
                    step()
                except (MlflowException, OSError) as error:
                    raise ValueError(
                        f"the store {self.store.uri} must delete what it holds of the sweep, got: "
                        f"{str(error).rstrip('.')}. {done} of {len(steps)} steps are done and stay "
                        "so. Mend it, and repeat the command for the rest."
                    ) from error
            # The folder may be a link, which rmtree refuses.
            shutil.rmtree(self.folder.path.resolve())
            self.folder.path.unlink(missing_ok=True)


def _uri(version: ModelVersion) -> str:
    return f"models:/{version.name}/{version.version}"


def _with_copies(versions: Sequence[ModelVersion], runs: set[str]) -> list[ModelVersion]:
    """Return the versions of these runs, and those with a source of theirs or one of them as it."""
    of_runs = [one for one in versions if one.run_id in runs]
    sources = {one.source for one in of_runs} | {_uri(one) for one in of_runs}
    sources |= {f"models:/{one.tags.get(MODEL_ID_TAG)}" for one in of_runs}
    return [one for one in versions if one.run_id in runs or one.source in sources]


def _files(store: Store, version: ModelVersion) -> str:
    """Return where the files of a version lie."""
    # MLflow would look `models:/...` up in its default store; this store knows where it leads.
    if str(version.source).startswith("models:/"):
        return str(store.client.get_model_version_download_uri(version.name, version.version))
    return str(version.source)


def _delete_files(store: Store, uri: str) -> None:
    """Delete the files of a run or a model. They may have been deleted before."""
    with suppress(FileNotFoundError):
        files = get_artifact_repository(uri, tracking_uri=store.uri, registry_uri=store.uri)
        files.delete_artifacts()  # type: ignore[no-untyped-call]
        # On disk the empty folder of the run or the model stays.
        if (folder := getattr(files, "artifact_dir", None)) is not None:
            with suppress(OSError):
                Path(folder).parent.rmdir()
