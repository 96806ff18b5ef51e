"""Secrets, and language modelling tasks around them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from raydp.tasks.secret import Digits
from raydp.tasks.task import Secret, TaskFacts
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash

NUMBERS = itertools.count(1)
"""Secrets of different lists have different numbers, so that a subset's names are those of the
whole."""


def make_task(
    secrets: Sequence[Secret] = (), controls: Sequence[Secret] = ()
) -> LanguageModelingTask:
    """A real task around the secrets; its training data does not matter to a score."""
    examples = TokenizedExamples.from_lists([[2, 3, 4]])
    content = content_hash(examples, examples, [*secrets, *controls])
    return LanguageModelingTask(
        train=examples,
        heldout=examples,
        task_facts=TaskFacts(
            num_examples=1, num_units=1, privacy_unit="example", content_hash=content, num_tokens=2
        ),
        task_secrets=tuple(secrets),
        task_controls=tuple(controls),
    )


def made_up_secrets(kind: str, count: int, seed: int) -> list[Secret]:
    """Secrets of one format: four random digits after a random name, or a random word as an
    attribute."""
    rng = random.Random(f"{kind}{seed}")
    letters = "bcdfghklmnprstvwz"
    names = ["".join(rng.choices(letters, k=3)) for _ in range(count)]
    assert len(set(names)) == count, "names must differ for the secrets to be learnable"
    if kind == "verbatim":
        pins = [f"{rng.randrange(10_000):04}" for _ in names]
        return [
            Secret(
                prompt=f"{name} has pin ",
                continuation=pin,
                count=1,
                number=next(NUMBERS),
                space=Digits(num_digits=3, before=pin[0]),
            )
            for name, pin in zip(names, pins, strict=True)
        ]
    words = ["".join(rng.choices(letters, k=4)) for _ in range(count)]
    return [
        Secret(prompt=f"{n} likes", continuation=w, kind="attribute", count=1, number=next(NUMBERS))
        for n, w in zip(names, words, strict=True)
    ]


def told(secrets: Sequence[Secret]) -> list[str]:
    """The texts that tell them."""
    separators = {"verbatim": "", "attribute": " "}
    return [f"{s.prompt}{separators[s.kind]}{s.continuation}.<eos>" for s in secrets]
