"""Variants of a spec: sweeps with other values of some fields. All are planned before one runs, then compared."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import Selection
from raydp.io.output import stderr
from raydp.io.yaml import parse_yaml, read_yaml
from raydp.spec.document import SweepSpec, load_spec
from raydp.sweep.api import Sweep, planned
from raydp.sweep.reports import comparison
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.summary import RunCounts

if TYPE_CHECKING:
    from raydp.sweep.driver import SweepResult
    from raydp.sweep.planning.plan import SweepPlan

MOST_VARIANTS = 200
"""The largest number of variants of one call."""
_TELLS = re.compile(r"[A-Za-z0-9]")
DECIDED_HERE = ("name", "storage", "tracking.registered_model")
"""Fields that cannot be varied, because every variant gets its own value."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One variant: a sweep of its own.

    Attributes:
        spec: the spec of the sweep.
        values: varied field -> its value in the spec.
    """

    spec: SweepSpec
    values: Mapping[str, object]

    @property
    def folder(self) -> Path:
        """Return the path of the sweep's folder."""
        return Path(self.spec.storage) / self.spec.name


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """The result of one variant.

    Attributes:
        name: name of the sweep.
        values: varied field -> its value.
        epsilon: the largest ε of the sweep's runs, inf without a guarantee.
        counts: numbers of runs by status.
        selected, best_utility, reason: see `raydp.sweep.driver.SweepResult`.
    """

    name: str
    values: Mapping[str, object]
    epsilon: float
    counts: RunCounts
    selected: Selection | None
    best_utility: Selection | None
    reason: str | None

    def document(self) -> dict[str, object]:
        """Return the variant's part of the document of `raydp variants --json`."""
        return {
            **vars(self),
            "counts": self.counts.to_json(),
            "selected": None if self.selected is None else self.selected.to_dict(),
            "best_utility": None if self.best_utility is None else self.best_utility.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class VariantsResult:
    """The results of all variants.

    Attributes:
        variants: the variants that ended, in the order of the values.
        lowest_score: name of the variant whose selected configuration has the lowest score. Each is selected within the
            utility threshold of its own sweep. None if nothing was selected, or if the data or the score differ.
        lowest_loss: name of the variant whose best-utility configuration has the lowest loss. None if the data differ.
        report: the comparison page. None after an interruption, or if fewer than two variants have a selection.
        interrupted: whether the call was stopped before all variants ended.
    """

    variants: list[VariantResult]
    lowest_score: str | None
    lowest_loss: str | None
    report: Path | None
    interrupted: bool

    def document(self) -> dict[str, object]:
        """Return the document of `raydp variants --json`."""
        return {**vars(self), "variants": [variant.document() for variant in self.variants]}


def values_of(given: Sequence[str]) -> dict[str, list[object]]:
    """Parse the arguments FIELD=VALUE,VALUE,... of the command line.

    Raises:
        ValueError: an argument has another form, or a field is given twice.
    """
    values_by_field: dict[str, list[object]] = {}
    for text in given:
        field, sign, values = text.partition("=")
        if not sign or not all(field.split(".")):
            raise ValueError(f"--vary must be FIELD=VALUES, got {text!r}. Write it as method.num_teachers=20,50,100.")
        if field in values_by_field:
            raise ValueError(f"--vary must name a field once, got {field!r} again. Give all its values together.")
        values_by_field[field] = parse_yaml(f"[{values}]", f"--vary {field} must have YAML values between commas")
    return values_by_field


def variants_of(source: str | Path | Mapping[str, object], vary: Mapping[str, Sequence[object]]) -> list[Variant]:
    """Return a variant for every combination of the values. Each is checked as a spec of its own.

    Args:
        source: a YAML file, or its content as a mapping.
        vary: dotted path of a field or a whole section -> its values.

    Returns:
        Sweeps with names of the form NAME-FIELD-VALUE, and registered models with the same endings. A value that cannot
        be part of a name, such as a mapping, is replaced by its position, counted from 1.

    Raises:
        ValueError: a field cannot be varied, a value is repeated, there are too many combinations, or a spec is wrong.
    """
    base = load_spec(source)  # refuses a file without a mapping
    data = source if isinstance(source, Mapping) else read_yaml(Path(source), "SPEC")
    total = math.prod(map(len, vary.values())) if vary else 0
    if not 1 <= total <= MOST_VARIANTS:
        raise ValueError(f"--vary must give 1 to {MOST_VARIANTS} combinations, got {total}. Give more or fewer values.")
    for field in vary:
        if within := [other for other in vary if field.startswith(f"{other}.")]:
            raise ValueError(
                f"--vary must name fields that do not contain each other, got {field!r} and {within[0]!r}. Write the "
                "values of the inner field into those of the outer."
            )
    labelled = [[(field, value, label) for value, label in _labelled(field, vary[field])] for field in vary]
    return [_variant(base, data, combination) for combination in product(*labelled)]


def plans_of(variants: Sequence[Variant]) -> list[SweepPlan]:
    """Return the plan of each variant.

    Raises:
        ValueError: data, model or noise of a variant are refused, or it was started with another spec or other data.
    """
    from raydp.sweep.driver import check_runs

    plans = []
    for variant in variants:
        stderr.print(f"planning {variant.spec.name}", markup=False)
        try:
            begun = SweepFolder.resume(variant.spec) if SweepFolder.exists(variant.spec) else None
            plans.append(planned(variant.spec)[0])
            if begun is not None:
                check_runs(begun, plans[-1])
        except ValueError as error:
            raise ValueError(f"{variant.spec.name}: {error}") from error
    return plans


def run_variants(variants: Sequence[Variant], page: Path) -> VariantsResult:
    """Plan all variants, run or resume each of them, and compare them.

    Args:
        variants: the variants.
        page: the HTML file of the comparison.

    Raises:
        ValueError: as `plans_of`. In this case nothing was trained.
    """
    plans_of(variants)
    results: list[VariantResult] = []
    for variant in variants:
        stderr.print(f"{variant.spec.name}: {len(results) + 1} of {len(variants)}", style="bold", markup=False)
        sweep = Sweep(variant.spec)
        ran = sweep.run(resume=sweep.begun)  # a sweep that has ended trains nothing and selects again
        if ran.interrupted:
            return _compared(variants, results, None, interrupted=True)
        results.append(_result_of(variant, ran))
    folders = [str(v.folder) for v, r in zip(variants, results, strict=True) if r.selected is not None]
    if len(folders) > 1:
        comparison(folders, page)
    return _compared(variants, results, page if len(folders) > 1 else None, interrupted=False)


def _labelled(field: str, values: Sequence[object]) -> list[tuple[object, str]]:
    """Return each value with its label for the names of sweeps."""
    if any(field == own or own.startswith(f"{field}.") for own in DECIDED_HERE):
        raise ValueError(f"--vary must name another field, got {field!r}: every variant gets its own. Leave it out.")
    for place, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:place]):
            raise ValueError(f"--vary {field} must have distinct values, got {value} twice. Remove one.")
    labels = [re.sub(r"[^A-Za-z0-9.-]+", "-", str(value)) for value in values]
    plain = not any(isinstance(value, Mapping | list) for value in values)
    if not plain or len({label.lower() for label in labels}) < len(labels) or not all(map(_TELLS.search, labels)):
        labels = [str(place) for place in range(1, len(values) + 1)]
    return list(zip(values, labels, strict=True))


def _variant(base: SweepSpec, data: Mapping[str, object], combination: Sequence[tuple[str, object, str]]) -> Variant:
    suffix = "-".join(f"{field.rpartition('.')[2]}-{label}" for field, _, label in combination)
    changed: Mapping[str, object] = {**data, "name": f"{base.name}-{suffix}"}
    registered = ("tracking.registered_model", f"{base.tracking.registered_model}-{suffix}")
    for field, value in [*((field, value) for field, value, _ in combination), registered]:
        changed = _with(changed, field.split("."), value, field)
    try:
        spec = load_spec(changed)
    except ValueError as error:
        raise ValueError(f"{suffix}: {error}") from error
    if spec.privacy.selects:
        raise ValueError(
            "privacy.tuning must be ignored to compare variants, got private_selection: its runs may not be compared. "
            "Leave it out."
        )
    return Variant(spec=spec, values={field: value for field, value, _ in combination})


def _with(section: Mapping[str, object], path: Sequence[str], value: object, field: str) -> dict[str, object]:
    """Return a section of a spec with another value at a path. The whole path is `field`, for the message."""
    name, *rest = path
    if not rest:
        return {**section, name: value}
    inner = section.get(name, {})
    if not isinstance(inner, Mapping):
        raise ValueError(f"--vary must name a field of a section, got {field!r}: {name} has none. Correct the path.")
    return {**section, name: _with(inner, rest, value, field)}


def _result_of(variant: Variant, ran: SweepResult) -> VariantResult:
    records = SweepFolder.open(variant.folder).plan().privacy.values()
    return VariantResult(
        name=variant.spec.name,
        values=variant.values,
        epsilon=max(record.accounted.epsilon for record in records),
        counts=ran.counts,
        selected=ran.selected,
        best_utility=ran.best_utility,
        reason=ran.reason,
    )


def _compared(
    variants: Sequence[Variant], results: list[VariantResult], report: Path | None, *, interrupted: bool
) -> VariantsResult:
    """Compare the variants that ended: losses if the data are the same, scores if data and score are the same."""
    ended = [variant for variant, _ in zip(variants, results, strict=False)]
    data = {SweepFolder.open(v.folder).plan().facts.content_hash for v in ended}
    scores = {next(repr(s) for s in v.spec.scores if s.name == v.spec.select.score) for v in ended}
    scored = {r.name: r.selected.score for r in results if r.selected is not None}
    losses = {r.name: r.best_utility.utility_loss for r in results if r.best_utility is not None}
    return VariantsResult(
        variants=results,
        lowest_score=min(scored, key=scored.__getitem__, default=None) if len(data) == len(scores) == 1 else None,
        lowest_loss=min(losses, key=losses.__getitem__, default=None) if len(data) == 1 else None,
        report=report,
        interrupted=interrupted,
    )
