"""Canaries planted into another task's training data (Carlini et al. 2019)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from raydp.tasks.secret import Digits
from raydp.tasks.task import Secret, TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.text.windows import start_tokens, with_start
from raydp.tasks.text.wordlists import CONTROL_NAMES
from raydp.tasks.wrappers.derived_task import DerivedTask
from raydp.tasks.wrappers.twins import COINS_NOTE, TwinTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_CANARIES = 10_000
"""Largest number of canaries with one number of copies."""
UNIT = "planted canary"
NUM_NAMES = len(CONTROL_NAMES) ** 2
"""Number of names that a canary may have."""
_PLACEHOLDERS = re.compile(r"{(.*?)}")


@dataclass(frozen=True, kw_only=True)
class Canary:
    """A text in three parts that are tokenised separately: prompt, blank with digits, rest."""

    prompt: str
    continuation: str
    rest: str
    copies: int


class PlantedTask(DerivedTask):
    """Another language modelling task with canaries in its training data.

    A canary is one text with fresh random digits, in several copies. Each copy is a training
    example and a unit of privacy, and all its tokens are targets. The canaries are verbatim secrets
    and come after the task's own secrets. Their continuation is the digits with the blanks before
    them. They know the space of the digits.

    With `twins` every run is its own control: each canary is a pair of texts with different names
    and digits, and a coin for each seed decides which of the two is planted (see
    `raydp.tasks.wrappers.twins`).

    Guarantee:
        (ε, δ) holds for one copy. A canary with c copies is a group of c.

    Source: Carlini et al. 2019 ("The Secret Sharer"), §4; Steinke et al. 2023 ("Privacy auditing
    with one (1) training run") for many random canaries in one run.
    """

    format: str = "The access code of {name} is {digits}."
    """Text of a canary, with {digits} once and, before it, {name} at most once.

    A name is made up, and each canary has another one.
    """
    num_digits: Annotated[int, Field(ge=1, le=15)] = 4
    """Number of random digits of each canary; its space has 10^num_digits members."""
    copies: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (1, 4, 16)
    """Number of training examples of each canary; 0 is a control that is scored and not planted.

    A mapping gives the number of canaries with each number of copies: {4: 30, 16: 10}.
    """
    twins: bool = False
    """Make each canary a pair of twins, of which every run trains on one and contrasts it with the
    other."""
    own_secrets: bool = True
    """Score the secrets of the task `of` beside the canaries."""
    canary_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of names, digits and coins.

    It is public, and so are the canaries, which are nobody's data.
    """
    append_eos: bool = True
    """End each example with the tokenizer's end-of-text token, if it has one."""

    @field_validator("copies", mode="before")
    @classmethod
    def _by_number_of_copies(cls, copies: object) -> object:
        # A mapping {copies: number} is written out as one entry for each canary.
        if not isinstance(copies, Mapping):
            return copies
        if not all(
            isinstance(number, int) and 0 < number <= MOST_CANARIES for number in copies.values()
        ):
            raise ValueError(
                "must give each number of copies its number of canaries, from 1 to "
                f"{MOST_CANARIES}, got {dict(copies)}. Correct it."
            )
        return tuple(copy for copy, number in copies.items() for _ in range(number))

    @field_validator("format")
    @classmethod
    def _digits_after_a_text(cls, text: str) -> str:
        # The digits come last among the placeholders: what stands before them is the known prompt.
        if (
            _PLACEHOLDERS.findall(text) not in (["digits"], ["name", "digits"])
            or not text.split("{digits}")[0].strip()
        ):
            raise ValueError(
                "must hold {digits} once, after some text and at most one {name}, got "
                f"{text!r}. Rewrite it."
            )
        return text

    @model_validator(mode="after")
    def _all_differ(self) -> PlantedTask:
        # Names and digits are drawn without repetition, so their numbers bound the canaries.
        most = min(
            10**self.num_digits, NUM_NAMES if "{name}" in self.format else 10**self.num_digits
        )
        if self._num_texts > most:
            each = "canaries" if not self.twins else "texts (two a pair)"
            raise ValueError(
                f"task.copies must hold at most {most} {each}, got {self._num_texts}. Leave some "
                "out."
            )
        if self.twins and 0 in self.copies:
            raise ValueError(
                "task.copies must be at least 1 with twins, got 0. The absent twins are the "
                "controls."
            )
        return self

    @property
    def _num_texts(self) -> int:
        return len(self.copies) * (2 if self.twins else 1)

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Plant the canaries.

        Raises:
            ValueError: the task's data are unusable, it is not a language modelling task, or its
                units are users.
        """
        task, canaries = self.inner(tokenizer), self._draw()
        # Canaries get numbers above all of the task's own, so that names stay distinct.
        first = 1 + max(
            (secret.number for secret in (*task.task_secrets, *task.task_controls)), default=0
        )
        if not self.own_secrets:
            task = replace(task, task_secrets=(), task_controls=())
        planted = self._with_twins if self.twins else self._with_canaries
        made = planted(task, tokenizer, canaries, first)
        return replace(made, task_facts=self._facts(made.task_facts))

    def _with_canaries(
        self,
        task: LanguageModelingTask,
        tokenizer: PreTrainedTokenizerBase,
        canaries: Sequence[Canary],
        first: int,
    ) -> LanguageModelingTask:
        secrets = task.task_secrets + self._secrets(canaries, first)
        return replace(task, task_secrets=secrets).extended(
            self._examples(tokenizer, canaries), unit=UNIT
        )

    def _with_twins(
        self,
        task: LanguageModelingTask,
        tokenizer: PreTrainedTokenizerBase,
        canaries: Sequence[Canary],
        first: int,
    ) -> LanguageModelingTask:
        # The first half of the texts are the first twins, the second half their partners.
        firsts, seconds = canaries[: len(self.copies)], canaries[len(self.copies) :]
        twins = zip(*(self._secrets(half, first) for half in (firsts, seconds)), strict=True)
        examples = self._examples(tokenizer, firsts), self._examples(tokenizer, seconds)
        further = FurtherCanaries(planted=self, first=first)
        return TwinTask.of(
            task, examples, tuple(twins), unit=UNIT, coin_seed=self.canary_seed, further=further
        )

    def _facts(self, facts: TaskFacts) -> TaskFacts:
        """Return the facts of the task with canaries, with what the canaries are."""
        # A reader must know that n and the group sizes include the canaries.
        caveat = (
            f"Of the {facts.num_units} units {sum(self.copies)} are copies of planted canaries: "
            "they count in n. A canary of c copies is protected as a group of c."
        )
        notes = facts.notes | {
            "planted_canaries": len(self.copies),
            "planted_copies": list(self.copies),
            "caveats": [*facts.notes.get("caveats", ()), caveat],
        }
        if self.twins:
            notes[COINS_NOTE] = (
                "each canary has a twin; a coin for each seed decides which of the two is planted"
            )
        return replace(facts, notes=notes)

    def _secrets(self, canaries: Sequence[Canary], first: int) -> tuple[Secret, ...]:
        """Return the canaries as secrets, numbered from `first`."""
        return tuple(
            Secret(
                prompt=canary.prompt,
                continuation=canary.continuation,
                count=canary.copies,
                number=first + position,
                space=Digits(
                    num_digits=self.num_digits, before=_blanks_before(canary.continuation)
                ),
            )
            for position, canary in enumerate(canaries)
        )

    def _draw(self) -> list[Canary]:
        """Draw distinct names and distinct digits for the canaries."""
        people, digits = self._drawn()
        return self._canaries(people, digits, self.copies * (2 if self.twins else 1))

    def _drawn(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of the names (none without names) and the digits, [canary] each."""
        # num_digits is part of the seed, so that canaries of other lengths are drawn independently.
        rng = np.random.default_rng([self.canary_seed, self.num_digits])
        named = self._num_texts if "{name}" in self.format else 0
        # The range may have 10^15 members: numpy draws from it without building it.
        people = rng.choice(NUM_NAMES, named, replace=False) if named else np.zeros(0, np.int64)
        return people, rng.choice(10**self.num_digits, self._num_texts, replace=False)

    def _canaries(
        self, people: NDArray[np.int64], digits: NDArray[np.int64], copies: Sequence[int]
    ) -> list[Canary]:
        """Write canaries with these names and digits."""
        texts = [self.format] * len(digits)
        for position, person in enumerate(people):
            # A number below the square of the list's length stands for a pair of names.
            name = " ".join(CONTROL_NAMES[i] for i in divmod(int(person), len(CONTROL_NAMES)))
            texts[position] = self.format.replace("{name}", name)
        canaries = []
        for text, number, of_canary in zip(texts, digits, copies, strict=True):
            before, rest = text.split("{digits}")
            # The blanks before the digits belong to the continuation, as most tokenizers join them.
            prompt = before.rstrip(" ")
            continuation = f"{before[len(prompt) :]}{number:0{self.num_digits}d}"
            canaries.append(
                Canary(prompt=prompt, continuation=continuation, rest=rest, copies=of_canary)
            )
        return canaries

    def _examples(
        self, tokenizer: PreTrainedTokenizerBase, canaries: Sequence[Canary]
    ) -> TokenizedExamples:
        """Return every copy of every canary. The parts are tokenised separately, as in scores."""
        end = (
            [tokenizer.eos_token_id]
            if self.append_eos and tokenizer.eos_token_id is not None
            else []
        )
        start, examples = start_tokens(tokenizer), []
        for canary in canaries:
            # Tokenise the parts as the scores do: start tokens once, before the prompt.
            parts = (canary.prompt, canary.continuation, canary.rest)
            ids = [i for p in parts for i in tokenizer(p, add_special_tokens=False)["input_ids"]]
            # Every copy is an example of its own, and so a unit.
            examples += [[*with_start(ids, start), *end]] * canary.copies
        return TokenizedExamples.from_lists(examples)


@dataclass(frozen=True, kw_only=True)
class FurtherCanaries:
    """Further canaries like the twins of a task: other names and digits, drawn in the same way.

    All texts of a pair, the further ones too, are exchangeable before training. A coin decides
    which twin is planted, and a further text never is.

    Attributes:
        planted: the task with twins.
        first: number of the first pair.
    """

    planted: PlantedTask
    first: int

    def most_per_pair(self) -> int:
        """Return how many can be drawn for each pair without a name or digits twice."""
        planted = self.planted
        sizes = [10**planted.num_digits, *([NUM_NAMES] if "{name}" in planted.format else [])]
        return int(min((size - planted._num_texts) // len(planted.copies) for size in sizes))

    def draw(self, per_pair: int, *, seed: int) -> list[tuple[Secret, ...]]:
        """Return canaries for each pair, with count 0. A smaller number gives the first of them."""
        planted, pairs = self.planted, len(self.planted.copies)
        # The 1 separates this stream from the stream of the twins.
        rng = np.random.default_rng([planted.canary_seed, planted.num_digits, 1, seed])
        people, digits = planted._drawn()
        drawn: list[tuple[Secret, ...]] = []
        # One of each pair at a time, so that a smaller number gives the first of them.
        for _ in range(per_pair):
            # Draw names and digits that no earlier text has.
            own_people = _others(rng, NUM_NAMES, pairs, people) if len(people) else people
            own_digits = _others(rng, 10**planted.num_digits, pairs, digits)
            people, digits = np.append(people, own_people), np.append(digits, own_digits)
            drawn.append(
                planted._secrets(planted._canaries(own_people, own_digits, [0] * pairs), self.first)
            )
        return list(zip(*drawn, strict=True)) if drawn else [()] * pairs


def _others(
    rng: np.random.Generator, size: int, count: int, taken: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw distinct numbers below a size that are not taken."""
    # Draw as many more as are taken: enough stay after leaving out the taken ones.
    drawn = rng.choice(size, count + len(taken), replace=False)
    free: NDArray[np.int64] = drawn[~np.isin(drawn, taken)][:count]
    return free


def _blanks_before(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" "))]
