"""Synthetic positive and negative reviews of made-up things, embedded for text classification.

Sentences are combined from the short lists below; none is from a data set. A review may also use
words of the other class ("The lid is shabby, but all in all it is a joy"), so that counting words
is not enough.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from raydp.tasks.text.wordlists import words_of

CLASSES = ("negative", "positive")
MAKERS = words_of("Zorblat Quibnar Flumox Wendrik Plonkett Yarzoo Gribbly Moxtar Trundlix Snorvel")
THINGS = words_of("kettle lamp umbrella toaster kite teapot radio clock fan bicycle")
PARTS = words_of("lid handle cable button switch box colour sound stand paint hinge manual")
LIKED = words_of(
    "wonderful excellent lovely superb brilliant delightful perfect fantastic great beautiful "
    "pleasant splendid"
)
DISLIKED = words_of(
    "awful terrible horrible shabby dreadful useless poor broken disappointing ugly unpleasant "
    "miserable"
)
SENTENCES = (
    "The {thing} is {own}.",
    "I bought the {thing}, and it is {own}.",
    "The {thing} has a {own} {part}.",
    "My sister calls the {thing} {own}.",
    "The {part} is {own}, and so is the whole {thing}.",
    "Others say that the {thing} is {other}, but I find it {own}.",
    "The {part} of the {thing} is {other}, but all in all it is {own}.",
    "I thought the {thing} would be {other}, and then it was {own}.",
)
ENDINGS = {
    "positive": ("", "I would buy it again.", "I use it every day.", "Thank you!"),
    "negative": ("", "I sent it back.", "I want my money back.", "Never again!"),
}


def write_reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """Return `count` pairs (text, class), drawn independently. Both classes are equally likely."""
    rng = np.random.default_rng(seed)
    things = [f"{maker} {thing}" for maker, thing in product(MAKERS, THINGS)]
    reviews = []
    for _ in range(count):
        kind = CLASSES[rng.integers(2)]
        own, other = (LIKED, DISLIKED) if kind == "positive" else (DISLIKED, LIKED)
        sentence = SENTENCES[rng.integers(len(SENTENCES))].format(
            thing=things[rng.integers(len(things))],
            part=PARTS[rng.integers(len(PARTS))],
            own=own[rng.integers(len(own))],
            other=other[rng.integers(len(other))],
        )
        reviews.append((f"{sentence} {ENDINGS[kind][rng.integers(4)]}".rstrip(), kind))
    return reviews
