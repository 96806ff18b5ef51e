"""The sweep of an audit: its folder, and its runs in this process."""

from __future__ import annotations

from raydp.models import base_models as models
from raydp.spec.document import SweepSpec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.planning.plan import make_plan, plan_to_keep
from raydp.sweep.store.folder import SweepFolder
from raydp.training.comm import LocalComm


def begun(spec: SweepSpec) -> SweepFolder:
    """The folder of an audit's sweep, of which nothing has run yet."""
    task, weight_hash = build_task(spec)
    plan = make_plan(spec, task.facts(), weight_hash)
    return SweepFolder.create(spec, lambda key: plan_to_keep(plan, "a1b2" * 4))


def trained(spec: SweepSpec) -> SweepFolder:
    """The same after all its runs, in this process."""
    folder, (task, _) = begun(spec), build_task(spec)
    base = models.load_base(spec.model, new_tokens=task.facts().num_new_tokens)
    runner = TrialRunner(spec, task, base, LocalComm(), folder.key())
    plan = make_plan(spec, task.facts(), base.weight_hash)
    for trial in plan.trials:
        folder.commit(runner.run(trial, folder.files(trial.run_id), "attempt-1"))
    return folder
