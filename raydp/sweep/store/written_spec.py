"""The spec.yaml of a sweep's folder, whole or section by section."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.spec.sections import (
    AdaptiveSeeds,
    PrecisionArguments,
    PrivacySpec,
    SelectSpec,
    TrackingSpec,
)
from raydp.system.yaml import read_yaml

S = TypeVar("S", bound=BaseModel)


@lru_cache(maxsize=16)
def _spec_of(file: Path, *state: int) -> Any:
    """Return the content of a spec.yaml.

    A command needs it some thirty times, and YAML is read slowly.

    Args:
        file: the file.
        state: size, time of the last change and inode, so that a file that was written again is
            read again.
    """
    return read_yaml(file, "SPEC")


@dataclass(frozen=True, kw_only=True)
class WrittenSpec:
    """The part of `SweepFolder` that reads the spec that the sweep was started with."""

    path: Path

    @property
    def spec_file(self) -> Path:
        """Return the file of the spec that the sweep was started with."""
        return self.path / "spec.yaml"

    def spec(self) -> SweepSpec:
        """Return the spec that the sweep was started with."""
        return load_spec(self.spec_file, stored=True)

    def _section(self, name: str, cls: type[S]) -> S:
        """Read one section of the spec: the whole would import plug-ins, which takes seconds."""
        try:
            return cls.model_validate(self._written()[name])
        except (ValidationError, LookupError, TypeError):
            self.spec()  # raises an error that names the mistakes
            raise

    def select(self) -> SelectSpec:
        """Return the section `select` of the sweep's spec."""
        return self._section("select", SelectSpec)

    def precision(self) -> PrecisionArguments:
        """Return the confidence and tolerance that the spec gives to its decision, if any."""
        seeds = self._written().get("seeds")
        return self._section("seeds", AdaptiveSeeds).precision() if isinstance(seeds, dict) else {}

    def first_seeds(self) -> tuple[int, ...] | None:
        """Return the seeds of the first pass; None if the sweep's seeds are a list."""
        adaptive = isinstance(self._written().get("seeds"), dict)
        return self._section("seeds", AdaptiveSeeds).first_labels if adaptive else None

    def tracking(self) -> TrackingSpec:
        """Return the section `tracking` of the sweep's spec."""
        written = "tracking" in self._written()
        return self._section("tracking", TrackingSpec) if written else TrackingSpec()

    def privacy(self) -> PrivacySpec:
        """Return the section `privacy` of the sweep's spec."""
        return self._section("privacy", PrivacySpec)

    def method(self) -> dict[str, object]:
        """Return the method as the spec has it: its name and parameters."""
        return dict(self._written()["method"])

    def scores(self) -> list[dict[str, object]]:
        """Return the scores of the sweep's spec: their names and parameters."""
        return list(self._written().get("scores", ()))

    def names(self) -> dict[str, str | None]:
        """Return the names of "sweep", "model", "task", "method" and "search" (None for a grid)."""
        written = self._written()
        search = written["space"].get("search")
        return {
            "sweep": written["name"],
            **{section: written[section]["name"] for section in ("model", "task", "method")},
            "search": search["name"] if isinstance(search, dict) else None,
        }

    def _written(self) -> Any:
        with suppress(OSError):  # a missing file has a message of its own
            found = self.spec_file.stat()
            # Callers may change what they get, and the cached content must stay.
            return deepcopy(
                _spec_of(self.spec_file.resolve(), found.st_size, found.st_mtime_ns, found.st_ino)
            )
        return read_yaml(self.spec_file, "SPEC")
