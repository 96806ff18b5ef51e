"""The end of a sweep: points table, selection, aliases in the registry, report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import load_points, select, write_report
from raydp.spec import SweepSpec
from raydp.sweep.folder import SweepFolder
from raydp.sweep.points import counts, write_tables
from raydp.sweep.recorder import Recorder
from raydp.tracking import set_alias


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What the sweep decided; see SweepResult."""

    selected: dict[str, Any] | None
    best_utility: dict[str, Any] | None
    reason: str | None
    report: Path | None


def finish(spec: SweepSpec, folder: SweepFolder, recorder: Recorder) -> Finish:
    """Write the tables, select, set the aliases `privacy-preferred` and `best-utility`, write the report."""
    path = write_tables(folder)
    if not counts(folder)["finished"]:
        reason = "no run has finished"
        recorder.tracker.finish_sweep({"counts": counts(folder), "reason": reason}, None)
        return Finish(selected=None, best_utility=None, reason=reason, report=None)
    points = load_points(path)
    selections = {
        rule: select(points, rule=rule, max_loss=spec.select.max_loss, min_utility_gain=spec.select.min_utility_gain)
        for rule in dict.fromkeys([spec.select.rule, "best-utility"])
    }
    selected, best = selections[spec.select.rule], selections["best-utility"]
    for alias, selection in (("privacy-preferred", selected), ("best-utility", best)):
        version = str(selection.model_uri).rsplit("/", 1)[-1]
        set_alias(spec.tracking.registered_model, alias, version, tracking_uri=spec.tracking.uri)
    report = folder.path / "report.html"
    write_report(points, list(selections.values()), report, title=spec.name)
    summary = {"counts": counts(folder), "selected": selected.to_dict(), "best_utility": best.to_dict()}
    folder.write_json("summary.json", summary)
    published = folder.path / "published"
    published.mkdir(exist_ok=True)
    for name in ("points.csv", "report.html", "secrets.parquet"):
        (published / name).unlink(missing_ok=True)
        (published / name).hardlink_to(folder.path / name)
    recorder.tracker.finish_sweep(summary, published)
    return Finish(selected=selected.to_dict(), best_utility=best.to_dict(), reason=None, report=report)
