"""Fields that hold a path: a command's parameters, and the fields of a spec that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from raydp.sweep.planning.sources import is_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.system.yaml import read_yaml, texts_in


def field_of(path: str, given: Mapping[str, object], names: Mapping[str, str]) -> str | None:
    """Return the parameter or spec field that led to a path which failed; None if none did.

    Its value is the path or the nearest folder above the path.

    Args:
        path: the path that failed.
        given: name -> value of each parameter of the command.
        names: name -> the parameter as users write it: "--output", "DATA".
    """
    parameters = [
        (names.get(name, name), value) for name, values in given.items() for value in _flat(values)
    ]
    storage = Path(str(given.get("storage") or "."))
    inside = [found for _, value in parameters for found in _fields_of_spec(Path(value), storage)]
    failed, here = Path(path).absolute(), Path.cwd()
    # The current folder is above every relative path, so it tells no field from another.
    above = set(failed.parents) - {here, *here.parents}
    fitting = [(field, Path(value).absolute()) for field, value in (*inside, *parameters) if value]
    fitting = [(field, at) for field, at in fitting if at == failed or at in above]
    # The value with the most parts is the nearest folder.
    return max(fitting, key=lambda found: len(found[1].parts), default=(None, None))[0]


def _flat(values: object) -> list[str]:
    """Return the texts and paths of a parameter that may be repeated."""
    several = values if isinstance(values, list | tuple) else [values]
    return [str(value) for value in several if isinstance(value, str | Path)]


def _fields_of_spec(source: Path, storage: Path) -> Iterator[tuple[str, str]]:
    """Yield (field, text) of a spec, given its file, or the folder or name of its sweep."""
    for file in (
        source,
        *(SweepFolder(path=path).spec_file for path in (source, storage / source)),
    ):
        if is_spec(file):
            try:
                yield from texts_in(read_yaml(file, "SPEC"))
            except (ValueError, OSError):
                continue  # the file itself is what fails
