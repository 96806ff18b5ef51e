"""A selection: the selected configuration, the reasons for it, and how sure it is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.contenders import Contenders
from raydp.analysis.selection.decision import Decision
from raydp.analysis.selection.rules import LEAKAGE_CHECK
from raydp.analysis.statistics.results import Warned as Warned
from raydp.analysis.statistics.results import because, given
from raydp.analysis.surface.outlook import Outlook
from raydp.analysis.tables.notebook import html_table
from raydp.search_spaces.configuration import Configuration

if TYPE_CHECKING:
    from raydp.analysis.selection.by_threshold import ThresholdChange

LEAKAGE_NOT_CHECKED = (
    "not made: it needs the values by secret (secrets.parquet) of at least 8 secrets, the "
    "untrained model's among them"
)
"""The rule of the step `leakage check` if the data do not allow the check."""


@dataclass(frozen=True, kw_only=True)
class SelectionStep:
    """The effect of one step of a rule.

    Attributes:
        name: name of the step.
        rule: the step's rule in words.
        survivors: configurations that remain, sorted by (T, b, η).
        dropped: configurations that this step removed.
    """

    name: str
    rule: str
    survivors: tuple[Configuration, ...]
    dropped: tuple[Configuration, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the step as data for JSON."""
        return {
            "name": self.name,
            "rule": self.rule,
            "survivors": [c.to_json() for c in self.survivors],
            "dropped": [c.to_json() for c in self.dropped],
        }


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected configuration and the reasons for it.

    Attributes:
        configuration: the selected configuration.
        utility_loss: the configuration's mean loss over seeds; lower is better.
        score: the configuration's mean score over seeds; higher is more leakage. None if none was
            measured.
        rule: the name of the rule.
        steps: what each step kept, the utility threshold first if there is one.
        model_uri: models:/name/version of its first listed seed that finished, None if the table
            has none.
        own_score: the score of that one seed; None where it is the only one, or is not known.
        num_seeds: number of the configuration's seeds that finished.
        base_utility_loss: the untrained model's loss; None if it is not known.
        max_loss: the utility threshold that was applied, None without one.
        explanation: why the rule "informed" did not follow the scores, or how the scores contradict
            Algorithm 1. None if there is nothing to explain.
        decision: how sure the choice is, None if the selection was not made by a rule.
        changes: the nearest stricter and the nearest looser utility threshold at which the rule
            selects another configuration. None if that is not known.
        cautions: the warnings that need no model of further seeds.
        undecided: the warning that the scores do not decide, None if there is no such warning.
        outlook_fn: computes `outlook`, None if the selection was not made by a rule.
        contenders: which configurations may have the lowest score, None if that was not computed.
        constraints: the constraints that were applied, None if the selection was not made by a
            rule.
        epsilon, delta: the guarantee of the configuration's models, the largest of its seeds. None
            if it is not known.
        score_name: the name of the score, None if it is not known.
        scores: name -> mean over seeds of every named score of the configuration.
        sweep: the name of the sweep, None for a points table.
        tracking_uri: the store of the selected model, None if it is not known.
        load_fn: loads "model" or "tokenizer" of the selection, None if it has no model.
    """

    configuration: Configuration
    utility_loss: float
    score: float | None
    rule: str
    steps: tuple[SelectionStep, ...]
    model_uri: str | None
    own_score: float | None = None
    num_seeds: int = 1
    base_utility_loss: float | None = None
    max_loss: float | None = None
    explanation: str | None = None
    cautions: tuple[Warned, ...] = ()
    undecided: str | None = None
    outlook_fn: Callable[[], Outlook] | None = field(default=None, repr=False, compare=False)
    contenders: Contenders | None = None
    constraints: Constraints | None = None
    decision: Decision | None = None
    changes: tuple[ThresholdChange, ...] | None = None
    epsilon: float | None = None
    delta: float | None = None
    score_name: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    sweep: str | None = None
    tracking_uri: str | None = None
    load_fn: Callable[[str], object] | None = field(default=None, repr=False, compare=False)

    @property
    def load_call(self) -> str | None:
        """Return the Python call that loads the model; None without a model.

        A store with an absolute path or with credentials is written as "...", because reports leave
        the machine.
        """
        if self.model_uri is None:
            return None
        if self.tracking_uri is None:
            return f"raydp.load_model({json.dumps(self.model_uri)})"
        store = self.tracking_uri
        # A store's URI may hold credentials before an @, and absolute paths tell of the machine.
        private = "@" in store or store.startswith(("/", "file:", "sqlite:////"))
        # Double quotes need no escape where a shell's words are in single ones.
        shown = "..." if private else json.dumps(store, ensure_ascii=False)
        return f"raydp.load_model({json.dumps(self.model_uri)}, tracking_uri={shown})"

    def load(self) -> Any:
        """Load the selected model from the sweep's own tracking store, as `raydp.load_model` does.

        Raises:
            ValueError: the selection was made from a points table, which names no tracking store,
                or has no model.
        """
        return self._loaded("model")

    def load_tokenizer(self) -> Any:
        """Load the selected model's tokenizer, as `load` does the model."""
        return self._loaded("tokenizer")

    def _loaded(self, what: str) -> object:
        if self.load_fn is None:
            raise ValueError(
                "Selection.load must be called on the selection of a sweep with a registered "
                f"model, got model_uri {self.model_uri!r} of sweep {self.sweep!r}. Use "
                "raydp.load_model(model_uri, tracking_uri=...)."
            )
        return self.load_fn(what)

    @property
    def nothing_leaks(self) -> bool:
        """Whether no configuration leaks measurably, so that the utility alone selects."""
        return any(step.name == LEAKAGE_CHECK and step.dropped for step in self.steps)

    @cached_property
    def outlook(self) -> Outlook | None:
        """Return what would decide the lowest score. It is computed on first use."""
        return None if self.outlook_fn is None else self.outlook_fn()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the user should know before relying on the selection."""
        if self.undecided is None:
            return self.cautions
        said = (
            self.undecided if self.outlook is None else f"{self.undecided} {self.outlook.sentence}"
        )
        return (*self.cautions, said)

    def to_dict(self) -> dict[str, object]:
        """Return the document that `raydp select --json` prints."""
        changes = None if self.changes is None else [each.to_dict() for each in self.changes]
        return {
            **self.configuration.to_json(),
            "sweep": self.sweep,
            # JSON has no infinity.
            "epsilon": "inf" if self.epsilon == math.inf else self.epsilon,
            "delta": self.delta,
            "utility_loss": self.utility_loss,
            "score": self.score,
            "score_name": self.score_name,
            "scores": dict(self.scores),
            "rule": self.rule,
            "max_loss": self.max_loss,
            "explanation": self.explanation,
            "steps": [step.to_dict() for step in self.steps],
            "model_uri": self.model_uri,
            "warnings": list(self.warnings),
            **given(
                own_score=self.own_score,
                uncertainty=self.contenders and self._uncertainty(self.contenders),
                decision=self.decision and self.decision.to_dict(),
                threshold_changes=changes,
            ),
        }

    def _uncertainty(self, rivals: Contenders) -> dict[str, object]:
        """Return what the scores leave open as data for JSON."""
        further = () if self.outlook is None else self.outlook.further_seeds
        open_still = (
            self.decision is not None and self.decision.state == "undecided" and not further
        )
        reason = self.outlook.sentence if self.outlook is not None and open_still else None
        return {
            **rivals.to_dict(),
            "further_seeds": list(further),
            **because(rivals.reason or reason),
        }

    def __repr__(self) -> str:
        return (
            f"Selection({', '.join(f'{name}={value}' for name, value in self._summary().items())})"
        )

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        explained = {} if self.explanation is None else {"explanation": self.explanation}
        return html_table({**self._summary(), **explained}, "Selection")

    def _summary(self) -> dict[str, object]:
        """Return the fields that a reader looks for first."""
        score = "not measured" if self.score is None else f"{self.score:.4g}"
        figures = {"utility_loss": f"{self.utility_loss:.4g}", "score": score, "rule": self.rule}
        decided = {} if self.decision is None else {"state": self.decision.state}
        # Count the undecided warning without computing its outlook, which fits models.
        num_warnings = len(self.cautions) + (self.undecided is not None)
        warned = {"warnings": num_warnings} if num_warnings else {}
        return {
            "configuration": self.configuration,
            **figures,
            **decided,
            "model_uri": self.model_uri,
            **warned,
        }
