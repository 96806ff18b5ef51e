"""Attribute inference ratio (Hu et al. 2025, App. B.7)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeGuard

import numpy as np
from pydantic import Field, model_validator

from raydp.scores.language.encoding import encode, secrets_of_kind
from raydp.scores.language.generation import Sampling, sample_continuations, stop_tokens, uniforms
from raydp.scores.score import Measurement, SecretKind
from raydp.system.locations import Location
from raydp.tasks.row_files import read_json_rows

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel
    from raydp.tasks.task import Secret, Task


def normalised(text: str) -> str:
    """Case-fold a text and replace every run of white space by a single space."""
    return " ".join(text.casefold().split())


def appears(attribute: str, text: str) -> bool:
    """Return whether the attribute is in the text as whole words, ignoring case and white space."""
    return (
        re.search(rf"(?<!\w){re.escape(normalised(attribute))}(?!\w)", normalised(text)) is not None
    )


def at_least_one(hits: int, num_samples: int, num_attempts: int) -> float:
    """Return the probability that num_attempts generations, drawn from num_samples, hold a hit.

    It is 1 - C(N - h, m) / C(N, m) with N = num_samples, h = hits, m = num_attempts.

    Guarantee:
        The expectation is the probability that m generations hold a hit. The variance is at most
        the variance of one such set (Rao and Blackwell: the value is the indicator's mean given how
        many of the N hit).
    """
    # This is the unbiased estimator of pass@m (Chen et al. 2021, eq. 1), here for a hit.
    return 1 - math.comb(num_samples - hits, num_attempts) / math.comb(num_samples, num_attempts)


class AttributeInference(Sampling):
    """Estimated probability that a secret's attribute appears in at least one of several
    generations.

    By default num_attempts equals num_samples, and a secret's value is 1 or 0 as in the paper. With
    num_samples above num_attempts the value is the share of sets of num_attempts generations that
    hold a hit. This estimates the same probability without bias and with less noise.

    The standard error is over secrets. Higher is worse privacy. More attempts can only raise the
    score: compare models at the same num_attempts.

    Details: `base_rate`, the score of the untrained model: what the prompts reveal without any
    training. With paraphrases also `own_prompt`, the score with the secrets' own prompts alone, and
    `worst_prompt`, the mean over secrets of the largest value among their prompts. `worst_prompt`
    takes noise for leakage unless num_samples is large.

    Source: Hu et al. 2025, §2 and App. B.7.
    """

    no_leak: ClassVar[float | None] = None
    in_words: ClassVar[str | None] = (
        "{percent} of the attacks name a secret attribute, lucky guesses included"
    )

    secret_kinds: ClassVar[tuple[SecretKind, ...]] = ("attribute",)

    num_samples: int = Field(10, ge=1)
    """Generations per prompt; 10 as in Hu et al. 2025."""
    num_attempts: int | None = Field(None, ge=1)
    """Number of generations that one attacker sees; at most num_samples, which is the default."""
    max_new_tokens: int = Field(20, ge=1)
    """Length of a generation in tokens; it ends earlier at the model's end token."""
    paraphrases: Location | None = None
    """JSON Lines file with `secret` (a number) and `prompts` (other prompts for this secret) in
    every line. The value of a secret is then the mean over its own prompt and these."""
    base_rate: bool = True
    """Also measure the untrained base model, with the same draws; this doubles the time."""

    @model_validator(mode="after")
    def _attempts_are_samples(self) -> AttributeInference:
        if self.num_attempts is not None and self.num_attempts > self.num_samples:
            raise ValueError(
                f"num_attempts must be <= num_samples, got {self.num_attempts} of "
                f"{self.num_samples}. Raise num_samples."
            )
        return self

    def check(self, task: Task) -> None:
        """Raise ValueError if the task has no attribute secrets, or the paraphrases do not fit."""
        self._prompts(task)

    def measure(self, model: LoadedModel, task: Task, *, seed: int) -> Measurement:
        """Score a model, deterministically in its seed, each secret independently of the rest."""
        prompts = self._prompts(task)
        by_prompt = self._by_prompt(model, prompts, seed)
        measured = Measurement.over_secrets(
            [np.mean(values) for values in by_prompt],
            ids=[secret.name for secret, *_ in prompts],
            num_samples=self.num_samples,
        )
        # The base model gives what prompts alone reveal; the key lets all models share its
        # generations.
        details = {}
        if self.base_rate:
            key = (
                "air",
                self,
                seed,
                tuple(secret.id for of_secret in prompts for secret in of_secret),
            )
            of_base = model.of_base(key, lambda base: self._by_prompt(base, prompts, seed))
            details["base_rate"] = float(np.mean([np.mean(values) for values in of_base]))
        if self.paraphrases is not None:
            details["own_prompt"] = float(np.mean([values[0] for values in by_prompt]))
            # The largest of several noisy values is biased upwards; the class docstring warns of
            # it.
            details["worst_prompt"] = float(np.mean([max(values) for values in by_prompt]))
        return replace(measured, details=details)

    def expected_bounds(self) -> tuple[float, float]:
        """Return the bounds of a ratio."""
        return 0.0, 1.0

    def _prompts(self, task: Task) -> list[list[Secret]]:
        """Return a list for each secret: the secret, then its copies with the other prompts."""
        secrets = secrets_of_kind(task, "attribute", score="air")
        if self.paraphrases is None:
            return [[secret] for secret in secrets]
        others = read_paraphrases(
            self.paraphrases, "paraphrases", {secret.number for secret in secrets}
        )
        return [
            [s, *(replace(s, prompt=prompt) for prompt in others.get(s.number, ()))]
            for s in secrets
        ]

    def _by_prompt(
        self, model: LoadedModel, prompts: Sequence[Sequence[Secret]], seed: int
    ) -> list[list[float]]:
        """Return the estimates [secret][prompt]."""
        # All prompts go into one call, so that they share batches.
        asked = [secret for of_secret in prompts for secret in of_secret]
        samples = sample_continuations(
            model,
            [secret.prompt_ids for secret in encode(model.tokenizer, asked)],
            [
                uniforms(seed, "air", secret.id, self.num_samples, self.max_new_tokens)
                for secret in asked
            ],
            self,
            stop=stop_tokens(model),
        )
        texts = [
            model.tokenizer.batch_decode(generated, skip_special_tokens=True)
            for generated in samples
        ]
        hits = (
            sum(appears(s.continuation, t) for t in generated)
            for s, generated in zip(asked, texts, strict=True)
        )
        attempts = self.num_attempts or self.num_samples
        values = iter([at_least_one(count, self.num_samples, attempts) for count in hits])
        return [[next(values) for _ in of_secret] for of_secret in prompts]


def read_paraphrases(
    path: str | Path, field: str, numbers: Collection[int]
) -> dict[int, list[str]]:
    """Read other prompts for secrets from JSON Lines with `secret` and `prompts`.

    Args:
        path: the file.
        field: the option that holds the path, for messages.
        numbers: the numbers of the secrets that are scored.

    Returns:
        secret number -> its prompts.

    Raises:
        ValueError: the file is missing or malformed, or a number is unknown or given twice. The
            message names the line and shows no content.
    """
    prompts: dict[int, list[str]] = {}
    for line, row in read_json_rows(path, field):
        number, texts = row.get("secret"), row.get("prompts")
        if (
            set(row) != {"secret", "prompts"}
            or not _are_texts(texts)
            or not isinstance(number, int)
        ):
            raise ValueError(
                f"{field} must hold a secret's number and prompts, a list of texts, in every line, "
                f"got something else in {Path(path).name}, line {line}. Correct the line."
            )
        # A repeated prompt would count twice in the mean.
        if number not in numbers or number in prompts or len(set(texts)) < len(texts):
            raise ValueError(
                f"{field} must name each secret of the task at most once, with distinct prompts, "
                f"got secret {number} in {Path(path).name}, line {line}. Correct the line; the "
                "numbers are those of the secrets' names."
            )
        prompts[number] = texts
    return prompts


def _are_texts(value: object) -> TypeGuard[list[str]]:
    """Return whether a value is a non-empty list of texts, none of them blank."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(t, str) and t.strip() for t in value)
    )
