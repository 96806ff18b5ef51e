"""The points that a selection is made from: a sweep's, or those of a file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from raydp import analysis
from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.analysis.selection.own_rules import GivenRule
from raydp.analysis.tables.old_names import old_name_read
from raydp.analysis.tables.points import read_points
from raydp.plugins.rules import asked_rule, rule_at
from raydp.spec.sections import Bounds, SelectSpec
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.measurements import words_of
from raydp.sweep.store.points import POINTS_FILE, SECRETS_FILE, secrets_beside, table_files


@dataclass(frozen=True, kw_only=True)
class PointsSource:
    """The points of a sweep or of a file. They are read once, on first use; nothing is written.

    Attributes:
        folder: the sweep that the points are of; None for a file that is not of a sweep.
        file: the points file; None for the results in the sweep's folder.
        select: the section `select` of the sweep's spec, if it is not the one in the folder.
    """

    folder: SweepFolder | None = None
    file: Path | None = None
    select: SelectSpec | None = None

    @cached_property
    def own(self) -> SelectSpec | None:
        """Return the section `select` of the sweep's spec, None without a sweep."""
        return self.select or (None if self.folder is None else self.folder.select())

    @property
    def planned(self) -> SweepFolder | None:
        """Return the sweep; None for a file, and for a sweep without a plan."""
        folder = self.folder
        return folder if folder is not None and SweepFolder.has_plan(folder.path) else None

    @cached_property
    def shows_runs(self) -> bool:
        """Return whether more than the released model may be shown: no private selection."""
        return self.folder is None or self.folder.disclosure().shows_runs

    def score(self, given: str | None) -> str | None:
        """Return the name of the score: the given one, else the sweep's own."""
        return given or (None if self.own is None else self.own.score)

    def points(
        self,
        *,
        score: str | None = None,
        worst_case: bool = False,
        by: str | None = None,
        scored: bool = True,
    ) -> pd.DataFrame:
        """Return the checked points table.

        Args:
            score, worst_case: the content of the column `score`, as in `raydp.select`.
            by, scored: see `raydp.analysis.load_points`.
        """
        scored = scored and not worst_case and score is None
        table = analysis.check_points(self._tables[0], by=by, scored=scored)
        if not worst_case:
            return table if score is None else analysis.with_score(table, score)
        if (name := self.score(score)) is None:
            raise ValueError(
                "--score must be given with --worst-case and a file, got none. Name one of its "
                "scores."
            )
        return analysis.with_worst_case(table, self.secrets, name)

    @property
    def secrets(self) -> pd.DataFrame:
        """Return the values by secret.

        Raises:
            ValueError: the points are of a file without such values beside it.
        """
        if self._tables[1] is None:
            assert self.file is not None, "a sweep has values by secret"
            return secrets_beside(self.file)
        return self._tables[1]

    def by_secret(self, score: str | None) -> tuple[pd.DataFrame, str] | None:
        """Return the values by secret and the name of the score, None if there are none."""
        name = self.score(score)
        if name is None or self._tables[1] is None:
            return None
        return (self.secrets, name) if (self.secrets["score"] == name).any() else None

    def selections(
        self,
        table: pd.DataFrame,
        rules: Sequence[GivenRule | None],
        *,
        score: str | None = None,
        worst_case: bool = False,
        bounds: Bounds | None = None,
    ) -> list[analysis.Selection]:
        """Return the selection of each rule, in their order, of equal rules one.

        Args:
            table: the result of `points`, or a group of its rows.
            rules: names of rules or rules; None is the sweep's own rule.
            score, worst_case: the arguments that `points` had.
            bounds: constraints, which override the sweep's own.
        """
        words = words_of(self.folder, self.score(score))
        precision = {} if self.folder is None else self.folder.precision()
        return [
            analysis.select(
                table,
                rule=rule,
                by_secret=None if worst_case else self.by_secret(score),
                log_base=words.log_base,
                no_leak=words.no_leak,
                **precision,
                **with_given(self.own, bounds or {}),
            )
            for rule in dict.fromkeys(rule_of(self.own, rule) for rule in rules)
        ]

    @cached_property
    def _tables(self) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """Return the points before any check, and the values by secret if there are any."""
        if self.file is not None:
            beside = (self.file.parent / SECRETS_FILE).is_file()
            return read_points(self.file), secrets_beside(self.file) if beside else None
        assert self.folder is not None, "a source has a sweep or a file"
        # Both pass through their files' formats, so that a sweep and its files give equal figures.
        points, secrets = table_files(self.folder)
        return (
            read_points(self.folder.path / POINTS_FILE, content=points),
            pd.read_parquet(io.BytesIO(secrets)),
        )


def rule_of(own: SelectSpec | None, given: GivenRule | None) -> str:
    """Return the user's rule, else the sweep's rule, else the default rule."""
    if given is not None:
        return asked_rule(given)
    return DEFAULT_RULE if own is None else rule_at(own.rule, field="select.rule")


def with_given(own: SelectSpec | None, given: Mapping[str, object] | Bounds) -> Bounds:
    """Override a sweep's constraints with the user's.

    A user's min_gain_share also removes the sweep's max_loss, because `raydp.analysis.select`
    prefers max_loss.
    """
    # An option that the user did not give is None, and overrides nothing.
    named = old_name_read(given, "the constraints")
    asked: Bounds = {n: v for n, v in named.items() if v is not None}  # type: ignore[assignment]
    kept: Bounds = {} if own is None else own.constraints()
    if "min_gain_share" in asked:
        kept.pop("max_loss", None)
    return {**kept, **asked}
