"""Find a sweep by its spec, which every command that reads a sweep also takes."""

from __future__ import annotations

from pathlib import Path

from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec, written_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.system.shell import shell_line

DEFAULT_STORAGE = str(SweepSpec.model_fields["storage"].default)


def is_spec(source: Path) -> bool:
    """Return whether a source is a spec, and not a sweep's folder or name, or a points file."""
    return source.suffix in {".yaml", ".yml"} and source.is_file()


def folder_of_spec(path: Path) -> SweepFolder:
    """Open the sweep that was started with a spec. Only its name and its storage are read.

    Raises:
        ValueError: the spec names no sweep, or its sweep was not started.
    """
    # This is the copy in the sweep's own folder, which a user may have moved.
    if SweepFolder.has_plan(path.parent):
        return SweepFolder.open(path.parent)
    written = written_spec(path)
    name, storage = written.get("name"), written.get("storage", DEFAULT_STORAGE)
    if not isinstance(name, str) or not isinstance(storage, str):
        spec = load_spec(path)  # raises an error that says what is wrong
        name, storage = spec.name, spec.storage
    folder = Path(storage) / name
    if not SweepFolder.is_at(folder):
        raise ValueError(
            f"SWEEP must be a sweep that was started, got {str(path)!r}, whose sweep {name!r} is "
            f"not in storage {storage!r}. Start it with `{shell_line('raydp', 'sweep', path)}`, or "
            "name another sweep."
        )
    return SweepFolder(path=folder)


def named(source: str) -> str:
    """Return the sweep's folder if the source is a spec, else the source.

    The folder says more than the name of a spec's file.
    """
    return str(folder_of_spec(Path(source)).path) if is_spec(Path(source)) else source
