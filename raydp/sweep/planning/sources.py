"""A sweep by its spec: every command that reads a sweep takes the file that it was started with."""

from __future__ import annotations

from pathlib import Path

from raydp.spec.document import SweepSpec, load_spec, written_spec
from raydp.sweep.store.folder import SweepFolder

DEFAULT_STORAGE = str(SweepSpec.model_fields["storage"].default)


def is_spec(source: Path) -> bool:
    """Whether a source is a spec rather than a sweep's folder, its name or a points file."""
    return source.suffix in {".yaml", ".yml"} and source.is_file()


def folder_of_spec(path: Path) -> SweepFolder:
    """Open the sweep that was started with a spec; only the name and the storage are read from it.

    Raises:
        ValueError: the spec names no sweep, or its sweep was not started.
    """
    if (path.parent / "plan.json").is_file():  # the copy in the sweep's own folder, which may have been moved
        return SweepFolder.open(path.parent)
    written = written_spec(path)
    name, storage = written.get("name"), written.get("storage", DEFAULT_STORAGE)
    if not isinstance(name, str) or not isinstance(storage, str):
        spec = load_spec(path)  # says what is wrong
        name, storage = spec.name, spec.storage
    folder = Path(storage) / name
    if not (folder / "spec.yaml").is_file():
        raise ValueError(
            f"SWEEP must be a sweep that was started, got {str(path)!r}, whose sweep {name!r} is not in storage "
            f"{storage!r}. Start it with `raydp sweep {path}`, or name another sweep."
        )
    return SweepFolder(path=folder)


def named(source: str) -> str:
    """A source that is a spec as the folder of its sweep, which tells more than the file's name; others as they are."""
    return str(folder_of_spec(Path(source)).path) if is_spec(Path(source)) else source
