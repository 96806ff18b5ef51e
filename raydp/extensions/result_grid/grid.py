"""The results of a sweep's runs as Ray Tune gives them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow.fs
from ray.tune import Checkpoint, Result, ResultGrid

from raydp.sweep.engine.tune.metrics import config_of, final_metrics
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.results import RunResult
from raydp.training.trial_plan import TrialPlan


class RunFailedError(RuntimeError):
    """A run failed or was stopped early; the message is the reason."""


class SweepGrid(ResultGrid):
    """The results of a sweep's runs, with the interface of Tune's `ResultGrid`.

    Unlike the grid of one `Tuner.fit`, this grid has all runs of the sweep that have ended,
    whatever was resumed. Each result has `config` (b, T, η, σ, seed), `metrics` (see
    `final_metrics`), `metrics_dataframe` (a row for each step), `checkpoint` (the trained model's
    folder), `error` and `path`. If the runs may not be shown, the grid has the released one alone.
    """

    def __init__(self, folder: SweepFolder) -> None:
        plan, self._path = folder.plan(), folder.path
        trials = folder.disclosure().of(plan.trials)
        score = folder.select().score
        ended = ((trial, folder.result(trial.run_id)) for trial in trials)
        self._results = [
            _result(folder, trial, result, score) for trial, result in ended if result is not None
        ]

    @property
    def experiment_path(self) -> str:
        """The sweep's folder."""
        return str(self._path)

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        """The file system of the sweep's folder."""
        return pyarrow.fs.LocalFileSystem()

    @property
    def num_errors(self) -> int:
        """How many runs failed or were stopped early."""
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """How many runs finished."""
        return len(self) - self.num_errors

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the result with the best value of a metric.

        This is no selection: `Sweep.select` is.

        Args:
            metric: a key of the metrics or a column of the steps; by default utility_loss.
            mode: "min" (the default) or "max".
            scope: which of a run's steps count: "last", "avg", "last-5-avg", "last-10-avg" or
                "all".
            filter_nan_and_inf: leave out values that are not finite.

        Raises:
            ValueError: mode or scope is unknown.
            RuntimeError: no run has the metric.
        """
        metric, mode = metric or "utility_loss", mode or "min"
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be min or max, got {mode!r}. Choose one.")
        sign = 1 if mode == "min" else -1
        values = {i: _value(result, metric, mode, scope) for i, result in enumerate(self._results)}
        known = {
            i: sign * value
            for i, value in values.items()
            if value is not None and (math.isfinite(value) or not filter_nan_and_inf)
        }
        if not known:
            raise RuntimeError(f"no run has reported a value of {metric!r} that could be the best")
        return self._results[min(known, key=lambda i: known[i])]

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """Return a row for each run: its metrics, and its config as columns `config/NAME`.

        Args:
            filter_metric: a column of the steps. Each row then has the values of the step where it
                is best.
            filter_mode: "min" or "max", with filter_metric.
        """
        rows = []
        for result in self._results:
            metrics = dict(result.metrics or {})
            config, steps = metrics.pop("config"), result.metrics_dataframe
            # The values of the run's best step replace its final values.
            if filter_metric is not None and steps is not None and filter_metric in steps:
                values = steps[filter_metric].to_numpy(dtype=float)
                best = int(np.nanargmax(values) if filter_mode == "max" else np.nanargmin(values))
                metrics.update({str(name): steps[name].iloc[best] for name in steps})
            rows.append(metrics | {f"config/{name}": value for name, value in config.items()})
        return pd.DataFrame(rows)


def _result(folder: SweepFolder, trial: TrialPlan, result: RunResult, score: str | None) -> Result:
    """One run's result."""
    model = folder.model(trial.run_id)
    history = pd.DataFrame(result.history or [])
    return Result(
        metrics={
            **final_metrics(result, score),
            "trial_id": trial.run_id,
            "config": config_of(trial),
        },
        checkpoint=Checkpoint.from_directory(str(model)) if model.is_dir() else None,
        error=None if result.finished else RunFailedError(result.reason),
        path=str(folder.trial(trial.run_id)),
        metrics_dataframe=history if len(history) else None,
    )


def _value(result: Result, metric: str, mode: str, scope: str) -> float | None:
    """A run's value of a metric over the steps of a scope."""
    steps = result.metrics_dataframe
    if scope not in ("last", "avg", "last-5-avg", "last-10-avg", "all"):
        raise ValueError(
            f"scope must be last, avg, last-5-avg, last-10-avg or all, got {scope!r}. Choose one."
        )
    if steps is None or metric not in steps:
        value = (result.metrics or {}).get(metric)
        return float(value) if isinstance(value, int | float) else None
    column = steps[metric]
    if scope == "all":
        return float(column.min() if mode == "min" else column.max())
    last = {"last": 1, "last-5-avg": 5, "last-10-avg": 10}.get(scope, len(column))
    return float(column.tail(last).mean())
