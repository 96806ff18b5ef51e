"""Proposes a spec for data: its task, model, guarantee, grid, scores and cluster."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raydp.analysis.statistics.results import given
from raydp.extensions.budget.grid import DESIGNS, USED, Grid, fitted
from raydp.extensions.budget.measure import measure_cost
from raydp.extensions.budget.survey import Survey, UserColumn
from raydp.models.base_models import config_of, load_tokenizer, positions
from raydp.models.precision import SLOW, bfloat16_factor
from raydp.plugins.registries import DEFAULT_ACCOUNTANT, names
from raydp.privacy.records.cautions import MOST_DELTA
from raydp.spec.reading import load_spec
from raydp.sweep.api import planned
from raydp.system.output import stderr
from raydp.tasks.row_files import read_json_rows
from raydp.training.probe import DependentExamples

if TYPE_CHECKING:
    from raydp.extensions.budget.costs import MeasuredSteps
    from raydp.privacy import Caution
    from raydp.spec.document import SweepSpec
    from raydp.tasks.task import Task, TaskFacts
    from raydp.training.trial_plan import TrialPlan

LENGTHS = (64, 128, 256, 512, 1024, 2048)
"""Lengths of an example in tokens that are proposed."""
WHOLE_SHARE = 0.95
"""Share of the rows that keep all of their tokens, if no more than `LENGTHS[-1]` are needed."""
FAMILIES = 24
COPIES = (16, 8, 4)
CANARY_SHARE = 0.05
"""Largest share of the units that are copies of canaries.

It holds while the fewest copies of all families are less.
"""
MOST_CANARY_SHARE = 0.1
"""Largest share of canaries' copies where rows are few, down to `FEWEST_FAMILIES`."""
FEWEST_FAMILIES = 4
"""Of fewer secrets, the error over secrets is hardly known."""
SIZES = {"cpu": (4, 8, 16), "cuda": (16, 32, 64)}
"""Batch sizes that are timed."""
TIMED_STEPS = 2
MOST_TIMED_SECONDS = 300.0
"""Largest time that scores which do not fit are timed further, so that an error can name the hours."""
TIMED_SHARE = 0.05
"""Share of the user's time after which no further batch size is timed."""
QUICK_ACCOUNTANT = "rdp"
"""Calibrates the noise of the timed steps, whose time does not depend on the noise.

Other accountants take seconds for each calibration.
"""
ADAPTER = {"type": "lora", "r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
METHOD = {"name": "dp_adam", "max_grad_norm": 0.1}


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The facts that only the user knows.

    Attributes:
        data: path or name of the data.
        name: name of the sweep.
        model: the base model.
        epsilon: ε.
        users: the column of users; None if no column names them.
        unit: the unit of privacy.
        secrets: a secrets file; None to measure planted canaries, or membership where users are
            protected.
        hours: time of the whole sweep.
        gpus: number of GPUs; 0 to train on the CPU.
        max_rows: number of rows to read at most.
    """

    data: str
    name: str
    model: str
    epsilon: float
    users: UserColumn | None
    unit: Literal["example", "user"]
    secrets: Path | None
    hours: float
    gpus: int
    max_rows: int | None = None

    @property
    def slots(self) -> int:
        """Number of runs that are trained side by side: one a GPU, or one a core."""
        return self.gpus or (os.cpu_count() or 1)

    @property
    def protects(self) -> str:
        """Return what ε covers for the person with the most rows."""
        if self.users is None:
            return "No column names users: a person with k rows has the guarantee of a group of k, which is about k ε."
        most, column = self.users.most_rows, self.users.name
        if most == 1:
            return f"Every user (column {column}) has one row, so one row is one user."
        if self.unit == "user":
            return (
                f"ε = {self.epsilon:g} covers everything of one user (column {column}), also all "
                f"{most} rows of the user with the most."
            )
        return (
            f"ε = {self.epsilon:g} covers one row. The user with the most rows, {most} (column "
            f"{column}), has the guarantee of a group: ε = {most * self.epsilon:g}, and a larger "
            "δ. `--unit user` protects users."
        )


@dataclass(frozen=True, kw_only=True)
class SpecProposal:
    """A spec, and what it rests on.

    Attributes:
        spec: the spec as a mapping, in the order in which it is written.
        facts: the task's facts: n and the unit.
        lengths: numbers of tokens of a sample of the rows, ascending.
        measured: seconds of steps and scores, measured here.
        grid: the grid.
        delta: δ.
        room: number of positions of the model; None if it has no limit.
        warnings: what makes the guarantee, the utility or the scores say little.
    """

    spec: dict[str, Any]
    facts: TaskFacts
    lengths: list[int]
    measured: MeasuredSteps
    grid: Grid
    delta: float
    room: int | None
    warnings: tuple[Caution, ...]

    @property
    def num_planted(self) -> int:
        """Return the number of copies of canaries in the training data: one text of each pair."""
        return sum(copies * pairs for copies, pairs in self.spec["task"].get("copies", {}).items())

    def share_of_rows(self, length: int) -> float:
        """Return the share of the rows that have at most so many tokens."""
        return sum(n <= length for n in self.lengths) / len(self.lengths)


def propose(seen: Survey, wishes: Wishes) -> SpecProposal:
    """Build the task, time a few real steps here, and fit the grid.

    Raises:
        ValueError: the model cannot be loaded, the data do not make a task, there is no GPU to
            measure on, or the scores take longer than the hours allow.
    """
    if seen.form is None and wishes.max_rows is not None:
        raise ValueError(
            f"--max-rows must go with conversations, got {wishes.max_rows} with texts, which are "
            "read as a whole. Leave it out, or cut the file."
        )
    # An example is long enough for most rows, if the model has so many positions.
    with stderr.status("counting tokens"):
        tokenizer = load_tokenizer(wishes.model)
        lengths = seen.lengths(tokenizer)
    room = positions(config_of(wishes.model))
    max_length, template = _max_length(lengths, room), seen.template(tokenizer)
    num_units = wishes.users.num_users if wishes.users and wishes.unit == "user" else seen.num_rows
    # Time a few real steps at several batch sizes, with cheap noise: a step takes a + k·b seconds.
    sizes = _sizes(SIZES["cuda" if wishes.gpus else "cpu"], num_units)
    points = {"points": [[size, TIMED_STEPS, 1e-3] for size in sizes]}
    # Of few units, n^-1.1 is a δ that a plan warns of. Only the task tells n.
    for of_delta in ({"delta_exponent": 1.1}, {"target_delta": MOST_DELTA}):
        draft = _draft(seen, wishes, max_length, template, of_delta)
        quick = {**draft["privacy"], "accountant": QUICK_ACCOUNTANT}
        spec = load_spec({**draft, "space": points, "privacy": quick})
        # The measurement tells whether the model is sound in 16 bits.
        plan, task = planned(_exact(spec))
        if plan.delta <= MOST_DELTA:
            break
    measured, draft["model"] = _measured(spec, task, plan.trials, wishes, draft["model"])
    # Fit the grid to the time, by the law of a step.
    facts = task.facts()
    grid = fitted(
        num_units=facts.num_units,
        law=measured.law,
        score_seconds=measured.score_seconds,
        hours=wishes.hours,
        slots=wishes.slots,
    )
    _require_time_for_scores(measured, grid, wishes)
    return SpecProposal(
        spec=_with_grid(draft, grid),
        facts=facts,
        lengths=lengths,
        measured=measured,
        grid=grid,
        delta=plan.delta,
        room=room,
        warnings=plan.warnings,
    )


def sweep_name(data: str) -> str:
    """Return a name for a sweep of these data: the letters and digits of the file's name."""
    stem = Path(data).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_") or "sweep"


def _sizes(sizes: tuple[int, ...], num_units: int) -> list[int]:
    """Return batch sizes to time: the given ones, or smaller ones where there are few units."""
    halvings = max(0, math.ceil(math.log2(2 * sizes[-1] / num_units)))
    return sorted({max(1, size >> halvings) for size in sizes})


def _measured(
    spec: SweepSpec,
    task: Task,
    trials: Sequence[TrialPlan],
    wishes: Wishes,
    model: Mapping[str, object],
) -> tuple[MeasuredSteps, Mapping[str, object]]:
    """Time a few real steps and the scores of one model.

    Return the section on the model, too: without bfloat16 if the model is refused in it.
    """
    try:
        measured = measure_cost(
            spec,
            task,
            trials,
            num_steps=TIMED_STEPS,
            all_limit_seconds=TIMED_SHARE * wishes.hours * 3600,
            score_limit_seconds=_most_score_seconds(wishes) + MOST_TIMED_SECONDS,
        )
    except DependentExamples:
        if spec.model.dtype == "float32":
            raise
        # Rounding explains the refusal if the model passes in float32.
        model = {key: value for key, value in model.items() if key != "dtype"}
        return _measured(_exact(spec), task, trials, wishes, model)
    return measured, model


def _exact(spec: SweepSpec) -> SweepSpec:
    """Return a spec whose model is in float32."""
    exact = spec.model.model_copy(update={"dtype": "float32"})
    return spec.model_copy(update={"model": exact})


def _most_score_seconds(wishes: Wishes) -> float:
    """Return the seconds that the scores of each model of the cheapest design may take."""
    return wishes.hours * 3600 * USED * wishes.slots / DESIGNS[-1].runs


def _require_time_for_scores(measured: MeasuredSteps, grid: Grid, wishes: Wishes) -> None:
    """Raise ValueError if the scores of the cheapest design take longer than the hours allow."""
    most, seconds = _most_score_seconds(wishes), measured.score_seconds
    if seconds <= most:
        return
    # Scores that were broken off have no known time, so neither has the sweep.
    over = seconds >= most + MOST_TIMED_SECONDS
    fewer = " and fewer secrets" if wishes.secrets is not None else ""
    raise ValueError(
        f"--hours must leave time for the scores of {DESIGNS[-1].runs} models, got "
        f"{wishes.hours:g} hours: those of one model take {'over ' if over else ''}{seconds:.0f} s "
        f"here. Give --hours {'above ' if over else ''}{math.ceil(grid.hours * 100) / 100:g}, a "
        f"smaller --model, or less held-out data{fewer}."
    )


def _max_length(lengths: list[int], room: int | None) -> int:
    """Return the length of an example: enough for most rows, within the model's positions."""
    enough = lengths[min(len(lengths) - 1, int(WHOLE_SHARE * len(lengths)))]
    length = next((length for length in LENGTHS if length >= enough), LENGTHS[-1])
    return length if room is None else min(length, room)


def _draft(
    seen: Survey,
    wishes: Wishes,
    max_length: int,
    template: str | None,
    of_delta: Mapping[str, float],
) -> dict[str, Any]:
    """Return the spec without its space and seeds."""
    task = _task(seen, wishes, max_length, template)
    # Scores: of the user's secrets, of canaries, or of membership where users are protected.
    if wishes.secrets is not None:
        scores = _scores_of(wishes.secrets)
    elif wishes.unit == "example":
        task = {"name": "planted", "of": task, "twins": True, "copies": _copies(seen.num_distinct)}
        scores = ["logprob"]
    else:
        scores = [name for name in ("mia",) if name in names("scores")]
    # Many CPUs compute bfloat16 slowly, and `tiny` gains nothing by it.
    narrow = wishes.gpus or (wishes.model != "tiny" and bfloat16_factor() * SLOW < 1)
    accelerated = {"gpus_per_worker": 1} if wishes.gpus else {}
    return {
        "name": wishes.name,
        "task": task,
        "model": {
            "name": wishes.model,
            **({"dtype": "bfloat16"} if narrow else {}),
            "adapter": dict(ADAPTER),
        },
        "method": dict(METHOD),
        # δ is below 1/n: above it, publishing one record in the clear would be allowed.
        "privacy": {
            "target_epsilon": wishes.epsilon,
            **of_delta,
            "accountant": DEFAULT_ACCOUNTANT,
            "unit": wishes.unit,
        },
        "scores": [{"name": name} for name in scores],
        "select": {**({"score": scores[0]} if scores else {}), "min_gain_share": 0.9},
        "cluster": {"max_concurrent_trials": wishes.slots, **accelerated},
        "tracking": {
            "uri": "sqlite:///raydp.db",
            "experiment": wishes.name,
            "registered_model": wishes.name,
        },
    }


def _task(seen: Survey, wishes: Wishes, max_length: int, template: str | None) -> dict[str, Any]:
    """Return the section `task` of the data themselves."""
    heldout = seen.heldout_fraction(wishes.users)
    # A value that is the default is left out of the spec.
    further: dict[str, float | str] = given(
        heldout_fraction=None if heldout == 0.1 else heldout,
        user_column=None if wishes.users is None else wishes.users.name,
        secrets=None if wishes.secrets is None else str(wishes.secrets),
    )
    if seen.form is not None:
        task = {"name": "chat", "path": wishes.data, "max_length": max_length}
        return {**task, **given(template=template, max_rows=wishes.max_rows), **further}
    # One window of a row, so that the unit of privacy is the row. With secrets, the window that
    # holds one comes first.
    windows = (
        {"window": "head"}
        if wishes.secrets is None
        else {"window": "lines", "max_windows_per_row": 1}
    )
    column = {} if seen.column == "text" else {"column": seen.column}
    return {
        "name": "text",
        "path": wishes.data,
        **column,
        "max_length": max_length,
        **windows,
        **further,
    }


def _scores_of(secrets: Path) -> list[str]:
    """Return the scores that measure the secrets of a file, the one to select by first."""
    keys = {key for _, row in read_json_rows(secrets, "--secrets") for key in row}
    verbatim = ["logprob", "vmr_exact"] if "continuation" in keys else []
    return [*verbatim, *(["air"] if "attribute" in keys else [])] or ["logprob"]


def _copies(num_rows: int) -> dict[int, int]:
    """Return pairs of canaries by number of copies; few rows get fewer copies, then pairs."""
    copies = next(
        (copies for copies in COPIES if copies * FAMILIES <= CANARY_SHARE * num_rows), COPIES[-1]
    )
    fitting = int(MOST_CANARY_SHARE * num_rows) // copies
    return {copies: max(FEWEST_FAMILIES, min(FAMILIES, fitting))}


def _with_grid(draft: Mapping[str, Any], grid: Grid) -> dict[str, Any]:
    """Return the spec with its space and seeds, in the usual order of the sections."""
    space = {
        "batch_size": list(grid.batch_sizes),
        "num_steps": list(grid.num_steps),
        "learning_rate": list(grid.rates),
    }
    # Further seeds are for a decision, which needs a score.
    design = grid.design
    first = list(range(design.first))
    adaptive = {
        "first": design.first,
        "at_most": design.at_most,
        "until": "decided",
        "max_cost_share": 1,
    }
    seeds = adaptive if design.cost_share and draft["scores"] else first
    # The file is written in this order.
    order = [
        "name",
        "task",
        "model",
        "method",
        "privacy",
        "space",
        "seeds",
        "scores",
        "select",
        "cluster",
        "tracking",
    ]
    whole = {**draft, "space": space, "seeds": seeds}
    return {name: whole[name] for name in order}
