"""The spec of a sweep over models that others trained.

It is made of their table and of a spec for all the rest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from raydp.extensions.imported.foreign_adapters import adapter_section, base_name_of
from raydp.extensions.imported.method import StatedRun, read_runs
from raydp.spec.reading import written_spec

LOGGER = logging.getLogger(__name__)

DECIDED_BY_RUNS = ("method", "space", "seeds", "stopping")
"""Sections that the table of models decides."""


def imported_spec(runs: str | Path, spec: str | Path | Mapping[str, object]) -> dict[str, object]:
    """Return the spec of a sweep that reads models in place of training them.

    Args:
        runs: a table of models, see `raydp.extensions.imported.method.read_runs`.
        spec: a YAML file or its content, with task, model.name, scores and select. If it has no
            model.adapter, the adapter is the first model's. Without privacy, ε and δ are the
            largest that are stated. Its method, space and seeds must be left out.

    Raises:
        ValueError: the table or the spec has mistakes.
    """
    given, rows = written_spec(spec), read_runs(runs)
    extra = [name for name in DECIDED_BY_RUNS if name in given]
    if extra:
        raise ValueError(
            f"SPEC must leave {', '.join(DECIDED_BY_RUNS)} to RUNS, got {', '.join(extra)}. Remove "
            "them from the file."
        )
    model = given.get("model")
    if not isinstance(model, Mapping):
        raise ValueError(
            "model must be a mapping with a name, got none. Name the base that the models were "
            "trained on."
        )
    # A warning only: a folder may have another name on this machine.
    named = {Path(recorded).name for row in rows if (recorded := base_name_of(row.folder))}
    if others := sorted(named - {Path(str(model.get("name"))).name}):
        LOGGER.warning(
            "adapters name the base %s, and model.name is %s. Of another base with the same "
            "shapes, scores are those of a model that nobody trained.",
            ", ".join(others),
            model.get("name"),
        )
    # The table decides which runs there are.
    configurations = dict.fromkeys(row.configuration for row in rows)
    return {
        **given,
        "model": {"adapter": adapter_section(rows[0].folder), **model},
        "method": {"name": "imported", "runs": str(Path(runs).resolve())},
        "privacy": given.get("privacy") or _stated_target(rows),
        "space": {"points": [[c.batch_size, c.num_steps, c.learning_rate] for c in configurations]},
        "seeds": sorted({row.seed for row in rows}),
    }


def _stated_target(rows: tuple[StatedRun, ...]) -> dict[str, object]:
    """Return a privacy section with the largest stated ε and δ, for rows that state none."""
    epsilons = [
        row.epsilon for row in rows if row.epsilon is not None and math.isfinite(row.epsilon)
    ]
    deltas = [row.delta for row in rows if row.delta is not None]
    delta = {"target_delta": max(deltas)} if deltas else {}
    return {"target_epsilon": max(epsilons, default=8.0), **delta}
