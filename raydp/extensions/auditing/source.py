"""The subject of `raydp audit`: a spec, a sweep, one of its runs, or a registered model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.api import sweep_folder
from raydp.sweep.store.folder import SweepFolder

SUFFIX = "-audit"


@dataclass(frozen=True, kw_only=True)
class AuditSubject:
    """The subject of an audit.

    Attributes:
        spec: spec of the sweep.
        only: the one configuration to audit; None for all.
        run_id: run of the named model, None if no single model was named.
    """

    spec: SweepSpec
    only: Configuration | None = None
    run_id: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the audit's own sweep, without a number."""
        return self.spec.name + SUFFIX + (f"-{self.run_id}" if self.run_id else "")

    @property
    def folder(self) -> Path:
        """Return the folder of the audited sweep, which need not have run yet."""
        return Path(self.spec.storage) / self.spec.name


def source_of(what: str, *, storage: str, tracking_uri: str, spec: Path | None) -> AuditSubject:
    """Find the subject of an audit.

    Args:
        what: a YAML file; a sweep's folder or name; SWEEP/trials/RUN_ID; or models:/NAME/VERSION,
            models:/NAME@ALIAS.
        storage: folder that sweeps are looked up in by name.
        tracking_uri: the store of registered models.
        spec: spec of a registered model whose sweep's folder is not in storage.

    Raises:
        ValueError: the subject does not exist, or an option does not fit it.
    """
    path = Path(what)
    if what.startswith("models:/"):
        return _registered(what, storage, tracking_uri, spec)
    if spec is not None:
        raise ValueError(
            f"spec must be left out, got {str(spec)!r}: it is for a registered model (models:/...)."
        )
    if path.is_file():
        return AuditSubject(spec=load_spec(path))
    # A folder below a sweep's trials is one run, and so one configuration.
    if (folder := SweepFolder.of_run(path)) is not None:
        for trial in folder.plan().trials:
            if trial.run_id == path.name:
                return AuditSubject(
                    spec=_where_it_is(folder), only=trial.configuration, run_id=path.name
                )
        raise ValueError(
            f"MODEL must be a run of its sweep, got {what!r}. `raydp points` lists their run_id."
        )
    if not path.exists() and not SweepFolder.is_at(Path(storage) / path):
        raise ValueError(
            "SPEC|MODEL must be a spec, a sweep, SWEEP/trials/RUN_ID or models:/NAME/VERSION, got "
            f"{what!r}. Check the path, or name the folder of sweeps by --storage."
        )
    return AuditSubject(spec=_where_it_is(sweep_folder(what, storage)))


def numbers(text: str | None) -> tuple[int, ...] | None:
    """Parse comma-separated seeds."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(
            f"seeds must be whole numbers with commas, got {text!r}. Write 0,1,2."
        ) from error


def _registered(uri: str, storage: str, tracking_uri: str, spec: Path | None) -> AuditSubject:
    from raydp.tracking import show_model

    shown = show_model(uri, tracking_uri=tracking_uri)
    folder = Path(storage) / str(shown.get("sweep"))
    if spec is None and not SweepFolder.is_at(folder):
        raise ValueError(
            f"spec must be given for {uri}, got none: its sweep {shown.get('sweep')!r} is not in "
            f"{storage!r}. Add --spec FILE, or --storage."
        )
    of_model = _where_it_is(SweepFolder.open(folder)) if spec is None else load_spec(spec)
    # Another spec would train other models than the registered one.
    if of_model.name != shown.get("sweep"):
        raise ValueError(
            f"spec must be that of the sweep {shown.get('sweep')!r} for {uri}, got "
            f"{of_model.name!r}. Give the one that the model was trained by."
        )
    # The registry holds the configuration, so the plan of the sweep is not needed.
    only = Configuration(
        batch_size=int(shown["batch_size"]),
        num_steps=int(shown["num_steps"]),
        learning_rate=float(shown["learning_rate"]),
        settings=Settings.parse(str(shown.get("settings") or "")),
    )
    return AuditSubject(spec=of_model, only=only, run_id=str(shown["run_id"]))


def _where_it_is(folder: SweepFolder) -> SweepSpec:
    """Return the sweep's spec with its current storage folder."""
    return folder.spec().model_copy(update={"storage": str(folder.path.parent)})
