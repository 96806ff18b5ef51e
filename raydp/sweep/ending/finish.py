"""The end of a sweep: the points table, the selection, the registry's aliases, the report."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from raydp import tracking
from raydp.analysis import Selection, configuration_means, write_report
from raydp.analysis.selection.wording import in_words
from raydp.sweep.ending.notes import about, choice_of
from raydp.sweep.ending.sweep_selection import of_sweep
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.listeners import ModelRemover
from raydp.sweep.engine.recorder import Recorder, patiently
from raydp.sweep.store.alarms import alarm_of, alarms_of
from raydp.sweep.store.points import POINTS_FILE, counts, secrets_table, write_tables
from raydp.sweep.store.source import PointsSource
from raydp.sweep.store.summary import RunCounts, SelectedConfiguration, SweepSummary
from raydp.system.interruption import Interrupted
from raydp.system.output import phase, stderr
from raydp.tracking import NotDeliveredError, Tracker
from raydp.tracking.records import PRIVACY_PREFERRED

if TYPE_CHECKING:
    import pandas as pd

LOGGER = logging.getLogger(__name__)
CONFIGURATIONS_FILE = "configurations.csv"


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The outcome of a sweep's end; see `SweepResult`."""

    selected: Selection | None = None
    best_utility: Selection | None = None
    reason: str | None = None
    report: Path | None = None


NOT_FINISHED = Finish(reason="interrupted before the end; `raydp select` takes what has finished")
"""The outcome of a sweep that was interrupted before its selection.

Nothing is selected, because all runs might select another configuration.
"""


def finish(recorder: Recorder) -> Finish:
    """Write the tables, select, set the aliases and report.

    The aliases are `best-utility` and, if the models are private, `privacy-preferred`.

    If MLflow cannot be reached, nothing is selected, because the aliases would choose from a part
    of the runs.
    """
    # The tables need no tracking store, so they exist even if MLflow is away.
    with phase(stderr, "writing the points table"):
        path = write_tables(recorder.context.folder)
    if recorder.undelivered():
        return Finish(reason=recorder.not_delivered())
    try:
        return patiently(lambda: _finish(recorder, path))
    except NotDeliveredError as error:
        return Finish(reason=recorder.not_delivered(str(error)))


def _finish(recorder: Recorder, path: Path) -> Finish:
    """Finish a sweep whose runs MLflow has."""
    spec, folder, plan = recorder.context.spec, recorder.context.folder, recorder.context.plan
    ended = counts(folder)
    # Joint ε of all registered models, for the summary and every card.
    together = recorder.release()
    # The registry shows every alarm, whatever is selected.
    store, alarms = spec.tracking, alarms_of(folder.path)
    tracking.set_alarms(store.registered_model, spec.name, alarms, tracking_uri=store.uri)
    if not ended.finished:
        return _nothing_selected(recorder, ended, "no run has finished")
    # Select by the sweep's own rule, and by utility alone to compare with.
    chosen = spec.select
    source = PointsSource(folder=folder, file=path, select=chosen)
    points = source.points(scored=False)
    try:
        with phase(stderr, "selecting a configuration"):
            given = source.selections(points, [None, "best-utility"])
            selections = [of_sweep(selection, folder) for selection in given]
    except ValueError as error:  # such as no configuration below the threshold; the runs are kept
        return _nothing_selected(recorder, ended, str(error))
    selected, best = selections[0], selections[-1]
    # Aliases: `privacy-preferred` promises a guarantee, so every run must have a finite ε.
    aliases = {"best-utility": best}
    if all(math.isfinite(record.accounted.epsilon) for record in plan.privacy.values()):
        aliases[PRIVACY_PREFERRED] = selected  # only for models with a guarantee
    alarm = alarm_of(folder.path, selected)
    # An alarm, as of an audit that refutes the guarantee, keeps the alias away too.
    if alarm is not None and aliases.pop(PRIVACY_PREFERRED, None) is not None:
        LOGGER.warning("privacy-preferred is not set: %s", alarm)
    # Models that are only trained for attacks get no alias.
    aliases = aliases if spec.task.params.for_use else {}
    end = Finish(selected=selected, best_utility=best, report=folder.report)
    with carried(end):
        set_aliases(recorder.tracker, aliases)
        # Report, then the summary that marks the end: a sweep with a summary has a report.
        with phase(stderr, "writing the report"):
            by_secret = source.by_secret(chosen.score)
            write_report(points, selections, folder.report, by_secret=by_secret, **about(folder))
        summary = SweepSummary(
            counts=ended,
            selected=SelectedConfiguration.from_json(selected.to_dict()),
            best_utility=SelectedConfiguration.from_json(best.to_dict()),
            released=together,
            audit_alarm=alarm,
            aliases={alias: str(selection.model_uri) for alias, selection in aliases.items()},
        )
        folder.summary.write(summary)
        write_tables(folder)  # again, now with the aliases
        with phase(stderr, "recording the end of the sweep in MLflow"):
            choice = choice_of(selected, best, folder)
            recorder.tracker.describe_model(str(selected.model_uri), choice)
            _publish(recorder, summary, points, choice)
    return end


def _publish(recorder: Recorder, summary: SweepSummary, points: pd.DataFrame, choice: str) -> None:
    """Give MLflow the decision, the report and the tables, without the counts by secret.

    These counts are as private as the data.
    """
    folder = recorder.context.folder
    # The configurations for people: lowest score first.
    means = configuration_means(points[points["status"] == "finished"], scored=False)
    means = means.sort_values(first := ["score", "utility_loss"])
    means = means[[*first, *means.columns.difference(first, sort=False)]]
    with TemporaryDirectory() as published:
        for file in (folder.path / POINTS_FILE, folder.report):
            shutil.copy(file, published)
        means.to_csv(Path(published) / CONFIGURATIONS_FILE, index=False)
        shared = secrets_table(folder).drop(columns="count")
        shared.to_parquet(Path(published) / "secrets.parquet", index=False)
        recorder.tracker.finish_sweep(summary.to_json(), Path(published), choice)


def _nothing_selected(recorder: Recorder, ended: RunCounts, reason: str) -> Finish:
    """End the sweep in MLflow without a selection; that of an earlier end no longer holds."""
    recorder.context.folder.remove_selection()
    recorder.tracker.remove_aliases(("best-utility", PRIVACY_PREFERRED), reason)
    recorder.tracker.finish_sweep(
        {"counts": ended.to_json(), "reason": reason}, None, f"Nothing is selected: {reason}"
    )
    return Finish(reason=reason)


@contextmanager
def carried(end: Finish) -> Iterator[None]:
    """Let an interruption of the block carry what was selected before it."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(replace(end, report=None)) from None  # it may not be written yet


def set_aliases(tracker: Tracker, aliases: Mapping[str, Selection]) -> None:
    """Set each alias to the model of its selection, with the decision in words as the reason."""
    for alias, selection in aliases.items():
        reason = " ".join(
            [f"The rule {selection.rule} of the sweep selected it.", *in_words(selection)]
        )
        tracker.set_alias(alias, str(selection.model_uri), reason)


class SelectionEnding:
    """The ending of an ordinary sweep: all runs are recorded, and one configuration is selected."""

    def __init__(self, context: SweepContext) -> None:
        self._context = context

    def is_over(self) -> bool:
        """Return whether no further run may be trained."""
        return False

    @cached_property
    def listener(self) -> Recorder:
        """Return the listener for committed runs. The first use opens the tracking store."""
        return Recorder.open(self._context)

    def finish(self) -> Finish:
        """Select, set the aliases and report."""
        return finish(self.listener)


class MeasuringEnding:
    """The ending of a sweep whose models are trained only to be measured.

    See `SelectionEnding`.

    Args:
        reason: why they are only measured, in words.
    """

    def __init__(self, context: SweepContext, reason: str) -> None:
        self._folder = context.folder
        self._reason = reason
        self.listener = ModelRemover(context.folder)

    def is_over(self) -> bool:
        """Return False: all runs without a result are trained."""
        return False

    def finish(self) -> Finish:
        """Write the tables. There is no model to select."""
        write_tables(self._folder)
        return Finish(reason=self._reason)
