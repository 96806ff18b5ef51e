"""Adversarial compression ratio (Schwarzschild et al. 2024; Hu et al. 2025, App. B.7)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from raydp.extensions.prompt_search.gcg import Budget, PromptSearch
from raydp.extensions.prompt_search.lengths import LengthSearch
from raydp.extensions.prompt_search.merging import ExactFn, merged_adapter
from raydp.extensions.prompt_search.objective import Effort, Objective
from raydp.extensions.prompt_search.results import KnownPrompts, SearchResult
from raydp.extensions.prompt_search.tokens import Vocabulary, plain_tokens
from raydp.scores.language.decoding import evaluating
from raydp.scores.language.encoding import encode, secrets_of_kind
from raydp.scores.language.generation import keyed_generator
from raydp.scores.score import Context, Measurement, ModelSet, ScoreSection, SecretKind
from raydp.tasks.text.windows import start_tokens

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Target:
    """A secret as the text that the model is to generate.

    Attributes:
        id: see Secret.id; the random starts depend on it.
        name: what the secret is called in records.
        ids: token ids of s1 and s2, without the tokens that the tokenizer puts before a text.
    """

    id: str
    name: str
    ids: tuple[int, ...]


class AdversarialCompression(ScoreSection):
    """Length of a secret over the length of the shortest prompt that makes the model say the
    secret: |s| / |p*|, in tokens.

    s = s1‖s2 is the whole secret, tokenised as for the other scores. p* is the shortest prompt
    after which greedy decoding of |s| tokens, in the model's own dtype, gives s. MiniPrompt with
    GCG (Zou et al. 2023) searches p*, and decoding token by token confirms it. The tokens that the
    tokenizer puts before every text (a start token) and virtual tokens stand before p and are not
    counted. Prompts hold no special tokens.

    `details` has the number of secrets whose search a bound ended (num_exhausted) and of those
    without any prompt (num_not_found; their value is 0). `cost` has the prompts that the model has
    read (forward_passes), the tokens and the steps. The standard error is over secrets. Higher is
    worse privacy.

    Guarantee:
        A value is a lower bound of the true ratio: its prompt is confirmed, but a shorter prompt
        may exist.

    Source: Schwarzschild et al. 2024, Definition 2 and Algorithm 1; Hu et al. 2025, App. B.7.
    """

    no_leak: ClassVar[float | None] = None
    in_words: ClassVar[str | None] = (
        "a secret is {value} times as long as the shortest prompt found for it (0: none was found)"
    )

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("verbatim",)

    num_seeds: int = Field(3, ge=1)
    """Random starts of the search per secret; the best counts."""
    num_steps: int = Field(200, ge=1)
    """GCG steps at one prompt length; a fifth more after every failure while the length grows."""
    batch_size: int = Field(100, ge=1)
    """Candidate prompts that one step of the search tries."""
    top_k: int = Field(250, ge=1)
    """Replacements of a token are drawn from the k tokens with the most negative gradient."""
    max_prompt_tokens: int = Field(25, ge=1)
    """The longest prompt to try, in tokens."""
    patience: int = Field(25, ge=1)
    """While the length grows: give a length up after this many steps without a loss that is 1 %
    lower. While the length shrinks, all num_steps are taken."""
    retokenizable: bool = False
    """Accept only prompts that a user could type: decoding and tokenising them again must give the
    same tokens. The reference implementation accepts any sequence of tokens."""
    max_steps: int | None = Field(None, ge=1)
    """End the search for a secret after this many steps; null for no bound."""
    max_seconds: float | None = Field(None, gt=0)
    """End the search for a secret after this many seconds; null for no bound. With this bound two
    runs may differ."""
    max_forward_passes: int | None = Field(None, ge=1)
    """End the search for a secret after this many forward passes; null for no bound."""

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no verbatim secrets."""
        secrets_of_kind(task, "verbatim", score="acr")

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model, deterministically in its seed, each secret's search on its own."""
        targets = self.targets(model, task)
        # Without a folder: nothing of this model serves another one.
        result = self._measurement(
            self._search(model, targets, KnownPrompts(None, {}), seed), targets
        )
        return replace(
            result, cost={name: count for name, count in result.cost.items() if name != "seconds"}
        )

    def measure_many(
        self, models: ModelSet, task: Task, *, seed: int, context: Context
    ) -> Iterator[tuple[str, Measurement]]:
        """Score models that share a tokenizer.

        The search of a model first tries the prompts of the models before it.

        After all searches, every model tries the shorter prompts of all others and searches on from
        them, until no model improves. Values are known only then. Models are taken in the order of
        their names, so that the result does not depend on the caller's order. context.folder keeps
        the prompts, so that a call after a kill resumes in the same order and finds the same
        prompts. `KnownPrompts` says why the folder is private.

        Raises:
            Exception: the error of the first model whose search failed, after the values of all
                other models.
        """
        places = {
            name: place for place, name in enumerate(models.names) if name not in context.done
        }
        names = sorted(places)
        targets: list[Target] = []
        known = KnownPrompts(
            context.folder,
            {"score": self.model_dump(), "seed": seed, "task": task.facts().content_hash},
        )
        failed: dict[str, Exception] = {}
        # Search every model that is not searched yet.
        for finished, name in enumerate(names, start=1):
            if known.searched(name) is None or not targets:
                try:
                    with models.loaded(places[name]) as model:
                        targets = self.targets(model, task)
                        if known.searched(name) is None:
                            known.put(name, self._search(model, targets, known, seed))
                except Exception as error:  # noqa: BLE001 - raised below, so that other models keep their values
                    failed[name] = error
            if context.progress is not None:
                context.progress(finished, len(names))
        # Exchange prompts between the models until no model improves.
        searched = known.in_turn([name for name in names if name not in failed])
        changed = True
        while changed:
            changed = False
            for name in searched:
                before = known.searched(name)
                assert before is not None
                if any(known.shorter(target.name, before) for target in targets):
                    with models.loaded(places[name]) as model:
                        after = self._search(model, targets, known, seed, before)
                    known.put(name, after)
                    changed |= after.prompts != before.prompts
        # Yield the values, then raise the first error.
        for name in sorted(searched):
            result = known.searched(name)
            assert result is not None
            yield name, replace(self._measurement(result, targets), seed=seed)
        if failed:
            raise next(iter(failed.values()))

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds: 0 without a prompt; with one token, the length of the secret."""
        return 0.0, math.inf

    @staticmethod
    def targets(model: LoadedModel, task: Task) -> list[Target]:
        """Return the task's verbatim secrets, tokenised as for the other scores."""
        # A prompt's length omits the start tokens.
        start = start_tokens(model.tokenizer)
        return [
            Target(id=s.id, name=s.name, ids=s.prompt_ids[len(start) :] + s.continuation_ids)
            for s in encode(model.tokenizer, secrets_of_kind(task, "verbatim", score="acr"))
        ]

    def _search(
        self,
        model: LoadedModel,
        targets: Sequence[Target],
        known: KnownPrompts,
        seed: int,
        before: SearchResult | None = None,
    ) -> SearchResult:
        """Search prompts for a model; after a search, only where a known prompt is shorter."""
        # Go on from an earlier search, if there is one.
        before = before if before is not None else SearchResult(prompts={})
        prompts, refused, exhausted = (
            dict(before.prompts),
            dict(before.refused),
            set(before.exhausted),
        )
        effort = dict(before.effort)
        with merged_adapter(model.model) as exact_fn, evaluating(model.model):
            for target in targets:
                # A secret is searched if it never was, or if another model has a shorter prompt for
                # it.
                name, first = target.name, target.name not in before.prompts
                shorter = known.shorter(name, before)
                if not (first or shorter):
                    continue
                taken = Effort.after(effort.get(name, {}))
                lengths = self._length_search(model, target, taken, seed, exact_fn)
                lengths.best = prompts.get(name)
                with taken.running():
                    # Try the other models' prompts first; those that fail are not tried again.
                    better = lengths.try_known(shorter)
                    refused[name] = refused.get(name, frozenset()) | {
                        p for p in shorter if p != lengths.best
                    }
                    # Search on only from a new best: the old one has been searched around before.
                    if better or first:
                        lengths.run()
                    if lengths.search.exhausted:
                        exhausted.add(name)
                prompts[name], effort[name] = lengths.best, taken.record()
        return SearchResult(
            prompts=prompts, refused=refused, exhausted=frozenset(exhausted), effort=effort
        )

    def _length_search(
        self, model: LoadedModel, target: Target, effort: Effort, seed: int, exact_fn: ExactFn
    ) -> LengthSearch:
        """Return the search for one secret; its randomness depends on seed and secret alone."""

        def rng(search_seed: int) -> np.random.Generator:
            return keyed_generator(seed, "acr", target.id, search_seed)

        # The objective of this secret, the search at one length, and the search over lengths.
        objective = Objective(
            model.model, start_tokens(model.tokenizer), target.ids, effort, exact_fn
        )
        search = PromptSearch(
            objective=objective,
            vocabulary=Vocabulary(
                allowed=plain_tokens(model.tokenizer, objective.vocab_size),
                tokenizer=model.tokenizer if self.retokenizable else None,
            ),
            budget=Budget(
                max_steps=self.max_steps,
                max_seconds=self.max_seconds,
                max_forward_passes=self.max_forward_passes,
            ),
            batch_size=self.batch_size,
            top_k=self.top_k,
        )
        return LengthSearch(
            search=search,
            num_seeds=self.num_seeds,
            num_steps=self.num_steps,
            patience=self.patience,
            max_tokens=self.max_prompt_tokens,
            rng_fn=rng,
        )

    def _measurement(self, search: SearchResult, targets: Sequence[Target]) -> Measurement:
        """Return the compression ratios of the found prompts."""
        prompts = [search.prompts[target.name] for target in targets]
        # A secret without a prompt has the ratio 0.
        values = [
            len(t.ids) / len(p) if p is not None else 0.0
            for t, p in zip(targets, prompts, strict=True)
        ]
        counts = Counter[str]()
        for effort in search.effort.values():
            counts.update(effort)
        details = {
            "num_exhausted": float(len(search.exhausted)),
            "num_not_found": float(sum(prompt is None for prompt in prompts)),
        }
        result = Measurement.over_secrets(
            values, ids=[t.name for t in targets], num_samples=self.num_seeds
        )
        return replace(result, details=details, cost=dict(counts))
