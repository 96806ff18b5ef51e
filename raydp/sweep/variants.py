"""One spec with other values of some of its fields: a sweep each, all planned before any is run, then compared."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_TELLS = re.compile(r"[A-Za-z0-9]")
DECIDED_HERE = ("name", "storage", "tracking.registered_model")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A sweep of the search.

    Attributes:
        values: what its spec has at each field that is varied.
    """

    spec: SweepSpec
    values: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """What its sweep keeps on disk."""
        return Path(self.spec.storage) / self.spec.name


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """What came of one.

    Attributes:
        name: of its sweep.
        epsilon: the largest of its runs, inf without a guarantee.
        counts: runs by status.
        selected, best_utility, reason: see `raydp.sweep.driver.SweepResult`.
    """

    name: str
    values: Mapping[str, Any]
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
    """What came of all.

    Attributes:
        variants: those that ended, in the order of the values.
        lowest_score: name of the variant whose selected configuration has the lowest score, each within the utility
            threshold of its own sweep; None with nothing selected, and where data or score are not the same.
        lowest_loss: name of the one whose best-utility configuration has the lowest loss; None where the data
            are not the same.
        report: the comparison page; None after an interruption, or where fewer than two have something selected.
        interrupted: stopped before all had ended.
    """

    variants: list[VariantResult]
    lowest_score: str | None
    lowest_loss: str | None
    report: Path | None
    interrupted: bool

    def document(self) -> dict[str, object]:
        """Return the document of `raydp variants --json`."""
        return {**vars(self), "variants": [variant.document() for variant in self.variants]}


def values_of(given: Sequence[str]) -> dict[str, list[Any]]:
    """FIELD=VALUE,VALUE,... as the command line writes it.

    Raises:
        ValueError: one is something else, or a field comes twice.
    """
    found: dict[str, list[Any]] = {}
    for text in given:
        field, sign, values = text.partition("=")
        if not sign or not all(field.split(".")):
            raise ValueError(f"--vary must be FIELD=VALUES, got {text!r}. Write it as method.num_teachers=20,50,100.")
        if field in found:
            raise ValueError(f"--vary must name a field once, got {field!r} again. Give all its values together.")
        found[field] = parse_yaml(f"[{values}]", f"--vary {field} must have YAML values between commas")
    return found


def variants_of(source: str | Path | Mapping[str, Any], vary: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """Every combination of the values, each checked as a spec of its own.

    Args:
        source: a YAML file, or its content as a mapping.
        vary: dotted path of a field or a whole section -> its values.

    Returns:
        Sweeps called NAME-FIELD-VALUE, where values that no name can tell, such as mappings, are called by their place
        from 1; their registered models are called alike.

    Raises:
        ValueError: a field that cannot be varied, a value twice, too many combinations, or what a spec is refused for.
    """
    base = load_spec(source)  # a file that holds no mapping is refused here
    data = source if isinstance(source, Mapping) else read_yaml(Path(source), "SPEC")
    total = math.prod(map(len, vary.values())) if vary else 0
    if not 1 <= total <= MOST_VARIANTS:
        raise ValueError(f"--vary must give 1 to {MOST_VARIANTS} combinations, got {total}. Give more or fewer values.")
    for field in vary:
        if within := [other for other in vary if field.startswith(f"{other}.")]:
            raise ValueError(
                f"--vary must name fields that do not contain each other, got {field!r} and {within[0]!r}. Write the "
                "values of the one into those of the other."
            )
    labelled = [[(field, value, label) for value, label in _labelled(field, vary[field])] for field in vary]
    return [_variant(base, data, combination) for combination in product(*labelled)]


def plans_of(variants: Sequence[Variant]) -> list[SweepPlan]:
    """The plan of each.

    Raises:
        ValueError: data, model or noise of one of them are refused, or it was begun with another spec or other data.
    """
    from raydp.sweep.driver import check_runs

    found = []
    for variant in variants:
        stderr.print(f"planning {variant.spec.name}", markup=False)
        try:
            begun = SweepFolder.resume(variant.spec) if SweepFolder.exists(variant.spec) else None
            found.append(planned(variant.spec)[0])
            if begun is not None:
                check_runs(begun, found[-1])
        except ValueError as error:
            raise ValueError(f"{variant.spec.name}: {error}") from error
    return found


def run_variants(variants: Sequence[Variant], page: Path) -> VariantsResult:
    """Plan all, run what has not run, go on with what was interrupted, and compare.

    Args:
        page: the comparison, an HTML file.

    Raises:
        ValueError: as `plans_of`; nothing was trained then.
    """
    plans_of(variants)
    results: list[VariantResult] = []
    for variant in variants:
        stderr.print(f"{variant.spec.name}: {len(results) + 1} of {len(variants)}", style="bold", markup=False)
        sweep = Sweep(variant.spec)
        ran = sweep.run(resume=sweep.begun)  # of one that has ended: nothing is trained, and it selects again
        if ran.interrupted:
            return _compared(variants, results, None, interrupted=True)
        results.append(_result_of(variant, ran))
    folders = [str(v.folder) for v, r in zip(variants, results, strict=True) if r.selected is not None]
    if len(folders) > 1:
        comparison(folders, page)
    return _compared(variants, results, page if len(folders) > 1 else None, interrupted=False)


def _labelled(field: str, values: Sequence[Any]) -> list[tuple[Any, str]]:
    """Each value with what it is called in the names of sweeps."""
    if any(field == own or own.startswith(f"{field}.") for own in DECIDED_HERE):
        raise ValueError(
            f"--vary must name another field, got {field!r}: every variant has one of its own. Leave it out."
        )
    for place, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:place]):
            raise ValueError(f"--vary {field} must have distinct values, got {value} twice. Remove one.")
    labels = [re.sub(r"[^A-Za-z0-9.-]+", "-", str(value)) for value in values]
    plain = not any(isinstance(value, Mapping | list) for value in values)
    if not plain or len({label.lower() for label in labels}) < len(labels) or not all(map(_TELLS.search, labels)):
        labels = [str(place) for place in range(1, len(values) + 1)]
    return list(zip(values, labels, strict=True))


def _variant(base: SweepSpec, data: Mapping[str, Any], combination: Sequence[tuple[str, Any, str]]) -> Variant:
    suffix = "-".join(f"{field.rpartition('.')[2]}-{label}" for field, _, label in combination)
    changed = copy.deepcopy(dict(data))
    for field, value, _ in combination:
        _set(changed, field, value)
    changed["name"] = f"{base.name}-{suffix}"
    registered = f"{base.tracking.registered_model}-{suffix}"
    changed["tracking"] = {**changed.get("tracking", {}), "registered_model": registered}
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


def _set(data: dict[str, Any], field: str, value: Any) -> None:
    """Change a field of nested sections in place."""
    *sections, name = field.split(".")
    for section in sections:
        if not isinstance(data.setdefault(section, {}), dict):
            raise ValueError(
                f"--vary must name a field of a section, got {field!r}: {section} has none. Correct the path."
            )
        data = data[section]
    data[name] = copy.deepcopy(value)


def _result_of(variant: Variant, ran: SweepResult) -> VariantResult:
    records = SweepFolder.open(variant.folder).plan().privacy.values()
    return VariantResult(
        name=variant.spec.name,
        values=variant.values,
        epsilon=max(float(record["epsilon"]) for record in records),
        counts=ran.counts,
        selected=ran.selected,
        best_utility=ran.best_utility,
        reason=ran.reason,
    )


def _compared(
    variants: Sequence[Variant], results: list[VariantResult], report: Path | None, *, interrupted: bool
) -> VariantsResult:
    """Losses are compared on the same data alone, scores if they are the same as well."""
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
