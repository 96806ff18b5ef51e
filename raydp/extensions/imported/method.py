"""A method that takes models, with their stated guarantees, from folders and trains nothing."""

from __future__ import annotations

import csv
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.analysis.tables.statements import Level, Statement
from raydp.methods.method import MethodSection
from raydp.plugins.registries import resolve
from raydp.privacy import MethodRecord, PoissonGaussian, Procedure
from raydp.privacy.accounting.accountant import AccountantError
from raydp.search_spaces import Configuration
from raydp.search_spaces.names import require_columns
from raydp.spec.sections import PrivacySpec
from raydp.training.comm import Comm
from raydp.training.trial import Trained, TrainingContext
from raydp.training.trial_plan import TrialPlan

if TYPE_CHECKING:
    from raydp.spec.document import SweepSpec
    from raydp.tasks.task import Task
    from raydp.training.checkpoint import CheckpointStore

LOGGER = logging.getLogger(__name__)

REQUIRED = ("model", "batch_size", "num_steps", "learning_rate")
OPTIONAL = ("seed", "noise_multiplier", "epsilon", "delta")
MOST = 2**53
"""Whole numbers are below this, so that a double holds each of them."""
MOST_NOISE = 1e6
"""The largest σ of a row: the accountants' arithmetic fails far above it, and no model learns."""
TOLERANCE = 1.01
"""How far the accountant's ε may be above the stated one, as a factor, before it is remarked on."""
WHY_STATED = (
    "stated by whoever trained it, not certified: the model was trained elsewhere, and neither its "
    "noise nor its data were seen here"
)
ELSEWHERE = "unknown: the model was trained elsewhere"


@dataclass(frozen=True, kw_only=True)
class StatedRun:
    """One row of a table of models that others trained: a model and its stated guarantee.

    Attributes:
        folder: a folder that save_pretrained wrote.
        configuration: b, T and η.
        seed: label of the repetition; by default, its number among the configuration's rows.
        noise_multiplier: σ; None if it is not stated.
        epsilon, delta: the stated guarantee; ε is inf for a model without a guarantee. Both are
            None if only σ is stated.
        others: further columns, as text.
    """

    folder: Path
    configuration: Configuration
    seed: int
    noise_multiplier: float | None
    epsilon: float | None
    delta: float | None
    others: dict[str, str]


def read_runs(path: str | Path) -> tuple[StatedRun, ...]:
    """Read a table of models that others trained.

    Args:
        path: a CSV file with the columns model (a folder, relative to the file), batch_size,
            num_steps, learning_rate, optionally seed, and noise_multiplier or epsilon with delta.
            Further columns are kept.

    Raises:
        ValueError: a column, a value or a folder is missing or wrong. The message names the row.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"RUNS must be an existing CSV file, got {str(path)!r}. Check the path.")
    return _read(path.resolve(), path.stat().st_mtime_ns)


@cache
def _read(path: Path, modified_ns: int) -> tuple[StatedRun, ...]:
    """Read the table, once for each time of modification of the file."""
    # Check the columns, then row by row, so that a message can name the line.
    rows = _table(path)
    if not rows:
        raise ValueError("RUNS must have a row for each model, got none. Add the rows.")
    require_columns("RUNS", REQUIRED, rows[0][1])
    counts: Counter[Configuration] = Counter()
    runs: list[StatedRun] = []
    for number, row in rows:
        run = _checked_row(row, number, path.parent, counts)
        if (run.configuration, run.seed) in {(one.configuration, one.seed) for one in runs}:
            raise ValueError(
                "RUNS must have one row for each configuration and seed, got the one of an earlier "
                f"row again in line {number}. Number the repetitions in the column seed."
            )
        runs.append(run)
    return tuple(runs)


def _table(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file with their lines, each with at most one cell per column."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            rows = [(reader.line_num, row) for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"RUNS must be a CSV file in UTF-8, got {path.name!r} ({error}). Write it again."
        ) from error
    # DictReader keeps the last of two columns of one name, which would hide the other.
    columns = Counter(reader.fieldnames or ())
    if twice := [name for name, times in columns.items() if name and times > 1]:
        raise ValueError(
            f"RUNS must have each column once, got {twice[0]!r} {columns[twice[0]]} times. Rename "
            "one."
        )
    for number, row in rows:
        beyond: Sequence[str] = row.pop(None, ())  # where DictReader puts further cells
        if any(cell.strip() for cell in beyond):
            raise ValueError(
                f"RUNS must have a cell for each column in every row, got {len(beyond)} more in "
                f"line {number}. Quote cells with commas, or name the column."
            )
    return rows


def _checked_row(
    row: dict[str, str], number: int, beside: Path, counts: Counter[Configuration]
) -> StatedRun:
    """Check one row and return its run.

    Args:
        counts: rows of each configuration so far; changed in place.
    """

    def figure(
        name: str, *, whole: bool = False, above: float = 0.0, least: float | None = None
    ) -> float | None:
        text = (row.get(name) or "").strip()
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            # NaN fails every comparison below, so other text gets the same message.
            value = math.nan
        fits = value > above if least is None else value >= least
        # Only ε may be infinite: it is that of a model without noise.
        fits &= math.isfinite(value) or name == "epsilon"
        if not fits or (whole and (value != math.floor(value) or value >= MOST)):
            kind = "a whole number" if whole else "a number"
            bound = f"> {above:g}" if least is None else f">= {least:g}"
            raise ValueError(f"{name} must be {kind} {bound} in line {number} of RUNS. Correct it.")
        return value

    # What identifies the run, and what is stated of it.
    batch_size, num_steps = figure("batch_size", whole=True), figure("num_steps", whole=True)
    learning_rate = figure("learning_rate")
    if batch_size is None or num_steps is None or learning_rate is None or not row["model"]:
        raise ValueError(
            f"RUNS must give {', '.join(REQUIRED)} in every row, got line {number} without. Add it."
        )
    configuration = Configuration(
        batch_size=int(batch_size), num_steps=int(num_steps), learning_rate=float(learning_rate)
    )
    seed, sigma = figure("seed", whole=True, least=0), figure("noise_multiplier", least=0)
    epsilon, delta = figure("epsilon"), figure("delta")
    _check_stated(sigma, epsilon, delta, number)
    folder = beside / row["model"]
    if not folder.is_dir():
        raise ValueError(
            f"model must be a folder, beside RUNS or absolute, got none in line {number}. Correct "
            "the path."
        )
    # A repetition without a seed is numbered within its configuration.
    counts[configuration] += 1
    return StatedRun(
        folder=folder,
        configuration=configuration,
        seed=counts[configuration] - 1 if seed is None else int(seed),
        noise_multiplier=sigma,
        epsilon=epsilon,
        delta=delta,
        others={k: v for k, v in row.items() if k and v and k not in (*REQUIRED, *OPTIONAL)},
    )


def _check_stated(
    sigma: float | None, epsilon: float | None, delta: float | None, number: int
) -> None:
    """Raise ValueError unless a row states σ or a guarantee, and both can be true of one model."""
    if sigma is not None and sigma > MOST_NOISE:
        raise ValueError(
            f"noise_multiplier must be at most {MOST_NOISE:,.0f}, got more in line {number} of "
            "RUNS. Correct it: σ is the noise's standard deviation over the clipping norm."
        )
    if sigma is None and epsilon is None:
        raise ValueError(
            "RUNS must state noise_multiplier, or epsilon and delta, in every row, got line "
            f"{number} with neither. A model without a guarantee has epsilon inf."
        )
    if sigma == 0 and epsilon is not None and math.isfinite(epsilon):
        raise ValueError(
            f"noise_multiplier must be > 0 with a finite epsilon, got 0 in line {number} of RUNS. "
            "Correct it, leave it empty if it is unknown, or write epsilon inf."
        )
    # ε = inf needs no δ.
    needs_delta = epsilon is not None and math.isfinite(epsilon)
    if (needs_delta and delta is None) or (delta is not None and delta >= 1):
        raise ValueError(
            f"delta must be below 1 and stated with epsilon, got line {number} of RUNS without. "
            "Add it."
        )


class Imported(MethodSection):
    """Reads models that others trained. Their ε is as stated by the trainer, and never certified.

    `raydp import` writes the spec. A run's configuration, seed, σ, ε and δ are taken from its row.

    Guarantee:
        None: the method's event is NonPrivateEvent. The record has the stated ε as a claim.
    """

    private: ClassVar[bool] = False
    states: ClassVar[Level] = "claimed"
    costs_its_steps: ClassVar[bool] = False
    covers_each_step: ClassVar[bool] = False
    max_grad_norm: ClassVar[None] = None

    runs: str
    """A CSV file with a row for each model; see `raydp import --help`."""

    def planned(self, trial: TrialPlan, privacy: PrivacySpec) -> TrialPlan | None:
        """Return the run with its folder and its stated guarantee; None if the table has no row."""
        row = self._row_of(trial)
        if row is None:
            return None
        # A stated guarantee is taken as it is; from σ alone, the ε of DP-SGD is the claim.
        delta = privacy.delta(trial.num_examples) if row.delta is None else row.delta
        epsilon, sigma, accountant = row.epsilon, row.noise_multiplier or 0.0, privacy.accountant
        if epsilon is None:
            epsilon = _epsilon_of(trial, sigma, delta, accountant)
        elif sigma and math.isfinite(epsilon):
            _compare(trial.configuration, trial.num_examples, sigma, epsilon, delta, accountant)
        claim = Statement(level=self.states, epsilon=epsilon)
        return replace(
            trial,
            noise_multiplier=sigma,
            stated=claim if math.isfinite(epsilon) else None,
            delta=delta,
            source=str(row.folder),
        )

    def defines(self, trial: TrialPlan, written: Mapping[str, object]) -> Mapping[str, object]:
        """Return the hash of the weights and the stated guarantee. The folder's path has no part."""
        from raydp.extensions.imported.foreign_adapters import hash_of_model

        assert trial.source is not None, "the plan names the folder"
        claimed = None if trial.stated is None else trial.stated.epsilon
        return {
            "method": {name: value for name, value in written.items() if name != "runs"},
            "source": hash_of_model(Path(trial.source)),
            "stated": [trial.noise_multiplier, claimed, trial.delta],
        }

    def _row_of(self, trial: TrialPlan) -> StatedRun | None:
        rows = (row for row in read_runs(self.runs) if row.seed == trial.seed)
        return next((row for row in rows if row.configuration == trial.configuration), None)

    def check(self, spec: SweepSpec, task: Task) -> None:
        """Raise ValueError unless models fit the base and adapter, and no canaries are planted."""
        from raydp.extensions.imported.foreign_adapters import check_fits

        if task.facts().only_measured or spec.task.name in ("audited", "planted"):
            raise ValueError(
                f"task.name must not plant canaries with method imported, got {spec.task.name!r}: "
                "the models have not seen them. An audit of models that others trained is not "
                "possible; name the data's own task."
            )
        if spec.cluster.sharding != "none":
            raise ValueError(
                f"cluster.sharding must be none with method imported, got {spec.cluster.sharding}. "
                "Leave it out."
            )
        check_fits(spec.model, [row.folder for row in read_runs(self.runs)])

    def record_fields(self, plan: TrialPlan) -> MethodRecord:
        """Return a record of an unknown procedure, and the caveat that ε is only stated."""
        procedure = Procedure(sampler=ELSEWHERE, divisor=ELSEWHERE)
        return MethodRecord(procedure=procedure, caveats=(WHY_STATED,), seed_policy=ELSEWHERE)

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> NDArray[np.int64]:
        """Return no units: nothing is trained."""
        return np.empty(0, np.int64)

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return an optimizer that is never used."""
        return torch.optim.SGD(parameters, lr=plan.learning_rate)

    def train(
        self,
        plan: TrialPlan,
        context: TrainingContext,
        task: Task,
        comm: Comm,
        key: bytes,
        store: CheckpointStore | None,
    ) -> Trained:
        """Put the weights of the run's folder into the model."""
        # Nothing is trained, so no noise enters the ledger.
        from raydp.extensions.imported.foreign_adapters import put

        assert plan.source is not None, "the plan names the folder"
        started = time.perf_counter()
        put(context.model, context.parameters, Path(plan.source))
        row = self._row_of(plan)
        details = {"stated": row.others} if row is not None and row.others else {}
        seconds = time.perf_counter() - started
        return Trained(
            history=[], ended_early=False, resumed_from=0, seconds=seconds, details=details
        )


def _epsilon_of(trial: TrialPlan, sigma: float, delta: float, accountant: str) -> float:
    """Return ε of DP-SGD with Poisson batches and this σ: the claim of a stated σ alone."""
    if not sigma:
        return math.inf
    try:
        return _accounted(trial.configuration, trial.num_examples, sigma, delta, accountant)
    except AccountantError as error:
        raise ValueError(
            f"RUNS must state epsilon and delta for {trial.configuration}, got noise_multiplier "
            f"{sigma:g} alone, of which the accountant {accountant} finds no ε: {error}"
        ) from error


@cache
def _compare(
    configuration: Configuration,
    n: int,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    accountant: str,
) -> None:
    """Warn, once for each configuration, if the ε of a stated σ is far above the stated ε."""
    try:
        bound = _accounted(configuration, n, noise_multiplier, delta, accountant)
    except AccountantError:
        return
    # A warning, no error: batches drawn in another way may have the stated ε.
    if bound > TOLERANCE * epsilon:
        LOGGER.warning(
            "RUNS states epsilon %.4g for %s, and by the accountant %s its noise_multiplier %.4g "
            "has epsilon %.4g at delta %.3g with Poisson batches from %d units. Check the row, "
            "unless batches were drawn in another way.",
            epsilon,
            configuration,
            accountant,
            noise_multiplier,
            bound,
            delta,
            n,
        )


@cache
def _accounted(
    configuration: Configuration, n: int, noise_multiplier: float, delta: float, accountant: str
) -> float:
    """Return the accountant's ε of DP-SGD with Poisson batches.

    Raises:
        AccountantError: the accountant cannot bound it.
    """
    event = PoissonGaussian(
        sample_rate=configuration.batch_size / n,
        noise_multiplier=noise_multiplier,
        num_steps=configuration.num_steps,
    )
    bound: float = resolve("accountants", accountant, field="privacy.accountant")().epsilon(
        event, delta
    )
    return bound
