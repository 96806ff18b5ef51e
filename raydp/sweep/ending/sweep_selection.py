"""A selection that knows its sweep: its name, its score, and how to load its model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from raydp import analysis, tracking
from raydp.sweep.ending.notes import cautions_about
from raydp.sweep.store.folder import SweepFolder


def of_sweep(
    selection: analysis.Selection,
    folder: SweepFolder,
    *,
    score: str | None = None,
    worst_case: bool = False,
) -> analysis.Selection:
    """Return a selection with its sweep's warnings and names, and a function to load its model.

    Args:
        selection: a selection from the sweep's points.
        folder: the sweep's folder.
        score: the score that the selection is by; by default the sweep's own.
        worst_case: whether the score is the largest value over the secrets.
    """
    name = (score or folder.select().score) if selection.score is not None else None
    store, load_fn = folder.tracking().uri, None
    # Loading imports the training libraries, so it waits until a user asks for the model.
    if selection.model_uri is not None:
        load_fn = partial(_loaded, selection.model_uri, store)
    return replace(
        selection,
        cautions=(*selection.cautions, *cautions_about(folder)),
        sweep=folder.names()["sweep"],
        score_name=f"worst case of {name}" if worst_case and name is not None else name,
        tracking_uri=store,
        load_fn=load_fn,
    )


def _loaded(uri: str, store: str, what: str) -> object:
    loads = {"model": tracking.load_model, "tokenizer": tracking.load_tokenizer}
    return loads[what](uri, tracking_uri=store)
