"""A finished sweep to score, trained without Ray."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd

from raydp.models import base_models as models
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.driver import ending_of
from raydp.sweep.engine.context import SweepContext
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import drawn, make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.training.comm import LocalComm
from tests.builders.specs import small_spec

SCORES = [{"name": "vmr_exact"}, {"name": "vmr"}]


class TrainedSpec:
    """A sweep whose runs were trained in this process and tracked, as a driver does it with Ray.

    Args:
        runs: how many runs; by default all. With fewer the sweep is as if its driver had been
            killed after them.
    """

    def __init__(self, spec: SweepSpec, *, runs: int | None = None) -> None:
        self.spec, self.uri = spec, spec.tracking.uri
        task, weight_hash = build_task(spec)
        plan = make_plan(spec, task.facts(), weight_hash)
        self.folder = SweepFolder.create(
            spec, lambda key: plan_to_keep(drawn(plan, spec, weight_hash, key), "a1b2" * 4)
        )
        self.trials = drawn(plan, spec, weight_hash, self.folder.key()).trials[:runs]
        base = models.load_base(spec.model, new_tokens=task.facts().num_new_tokens)
        runner = TrialRunner(spec, task, base, LocalComm(), self.folder.key())
        self.folder.commit(runner.measure_base(spec.seed_labels[0]))
        for trial in self.trials:
            if not runner.turn_to(spec.of_run(trial.settings)):
                own = spec.of_run(trial.settings)
                base = models.load_base(own.model, new_tokens=task.facts().num_new_tokens)
                runner = TrialRunner(own, task, base, LocalComm(), self.folder.key())
            self.folder.commit(runner.run(trial, self.folder.files(trial.run_id), "attempt-1"))
        self.context = SweepContext(
            spec=spec, folder=self.folder, facts=task.facts(), weight_hash=weight_hash
        )
        self.ending = ending_of(self.context)
        self.ending.listener.deliver_missing(list(self.trials))


class Trained(TrainedSpec):
    """The small sweep, by default of four runs; `changes` replace sections."""

    def __init__(self, root: Path, **changes: Any) -> None:
        root.mkdir(exist_ok=True)
        usual = {"scores": SCORES, "space": {"points": [[32, 3, 0.01], [32, 6, 0.01]]}}
        seeds = {} if "privacy" in changes else {"seeds": [0, 1]}
        self.content = small_spec(root, **{**usual, **seeds, **changes})
        super().__init__(load_spec(self.content))

    def metrics(self) -> pd.DataFrame:
        """What MLflow's database holds of scores, read without MLflow."""
        with sqlite3.connect(self.uri.removeprefix("sqlite:///")) as database:
            return pd.read_sql(
                "select metric_name, metric_value, model_id from logged_model_metrics", database
            )
