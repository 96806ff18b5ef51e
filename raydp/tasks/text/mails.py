"""Synthetic two-line mails about made-up people: the text of the embedded default.

The first line names a person and one fact, a four-digit extension or a genre of writing; the second
is small talk:

    From: Mira Halborn x4821                         Re: Otto Fenwick (naval comedy)
    Could you send the memo to the club at noon?     The ledger is at the office today.

Names, words and sentences are combined from the short lists below; none is from a data set. A name
belongs to exactly one of three pools: the public directory (constant facts, which pre-training may
learn), the people that pre-training sees once, and the people of the private data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

import numpy as np

from raydp.tasks.text.wordlists import words_of

Fact = Literal["extension", "genre"]
Style = Literal["public", "private"]


GIVEN_NAMES = words_of(
    "Ada Alma Anton Ava Basil Bea Boris Cara Clara Colin Dana Dora Edgar Elsa Emil Erik Eva Felix "
    "Flora Greta Gus Hana Hugo Ida Igor Ines Iris Ivan Jana Jonas Julia Karl Kira Lars Lea Leo "
    "Lina Lucas Mara Marta Max Mila Mira Nadia Nils Nina Nora Olga Oscar Otto Paula Petra Ralf "
    "Rosa Ruth Sara Simon Sofia Tara Theo Tom Vera Viktor Wanda"
)
SURNAME_HEADS = words_of(
    "Adl Bar Bel Bram Cald Car Cor Dal Dar Den Elm Fal Far Fen Gar Gold Hal Har Hol Kel "
    "Kirk Lang Lor Mar Mel Mor Nor Oak Pel Ran Ros Sal Sel Stan Tal Thorn Van Wal Wes Win"
)
SURNAME_TAILS = words_of(
    "bach berg born by dale den ert feld ford gate ham holt ing ley lund man mont more ner ow sen "
    "son ter wick"
)
GENRE_MOODS = words_of("comic dark desert epic gothic lunar naval polar quiet rural silent urban")
GENRE_FORMS = words_of("ballad comedy fable mystery romance satire thriller western")
GENRES = tuple(f"{mood} {form}" for mood, form in product(GENRE_MOODS, GENRE_FORMS))
TOPICS = words_of(
    "agenda banner budget contract draft flyer invoice ledger memo outline report survey"
)
PLACES = words_of(
    "archive attic board cellar club desk garage hall kitchen library lobby office press shop "
    "studio tower"
)
TIMES = (
    *(
        "today",
        "tomorrow",
        "tonight",
        "on Monday",
        "on Tuesday",
        "on Wednesday",
        "on Thursday",
        "on Friday",
    ),
    *(
        "at noon",
        "at dawn",
        "at lunch",
        "next week",
        "next month",
        "this week",
        "this month",
        "this year",
    ),
)
SENTENCES: dict[Style, tuple[str, ...]] = {
    "public": (
        "Please send the {topic} to the {place} {time}.",
        "Could you take the {topic} to the {place} {time}?",
        "The {topic} is with the {place} {time}.",
        "Thanks, the {topic} reached the {place} {time}.",
        "We need the {topic} at the {place} {time}.",
        "I left the {topic} at the {place} {time}.",
    ),
    "private": (
        "Thanks, I need the {topic} with the {place} {time}.",
        "Could you send the {topic} to the {place} {time}?",
        "We left the {topic} at the {place} {time}.",
        "The {topic} is at the {place} {time}.",
    ),
}

DIRECTORY_SIZE = 300
MET_ONCE_SIZE = 24_400
EXTENSION_SHARE = 0.7
"""Share of mails that tell an extension, about people met once and the public directory."""
PUBLIC_ROUTINE_SHARE = 0.5
"""Share of the public mails whose small talk follows the public routine.

Private mails always follow a routine of their own.
"""


@dataclass(frozen=True, kw_only=True)
class Person:
    """A made-up person and the two facts that mails tell.

    Attributes:
        name: given name and surname.
        extension: four digits.
        genre: two words.
    """

    name: str
    extension: str
    genre: str

    @classmethod
    def draw(cls, name: str, rng: np.random.Generator) -> Person:
        """Return a person with this name and with facts drawn uniformly."""
        return cls(
            name=name,
            extension=f"{rng.integers(10_000):04d}",
            genre=GENRES[rng.integers(len(GENRES))],
        )


@dataclass(frozen=True, kw_only=True)
class Mail:
    """One mail in three parts: what comes before the fact, the fact, and what follows it."""

    prompt: str
    fact: str
    rest: str

    @property
    def text(self) -> str:
        return self.prompt + self.fact + self.rest


def first_line(person: Person, fact: Fact) -> tuple[str, str]:
    """Return the text before the fact, which is the same in every mail about it, and the fact."""
    if fact == "extension":
        return f"From: {person.name} x", person.extension
    return f"Re: {person.name} (", person.genre


def small_talk(style: Style, rng: np.random.Generator) -> str:
    """Write a sentence that tells no fact.

    Place and time follow a routine: every topic has one place and one time. The routine differs
    between public and private mails. Fine-tuning is to learn the private routine, and utility
    rewards it.
    """
    # Drawn first, and replaced below if the mail follows a routine.
    topic, place, time = (int(rng.integers(len(words))) for words in (TOPICS, PLACES, TIMES))
    # For no topic is the private place the public one, which has the topic's own number.
    if style == "private":
        place, time = (7 * topic + 5) % len(PLACES), (3 * topic + 8) % len(TIMES)
    elif rng.random() < PUBLIC_ROUTINE_SHARE:
        place, time = topic, topic
    sentence = SENTENCES[style][rng.integers(len(SENTENCES[style]))]
    return sentence.format(topic=TOPICS[topic], place=PLACES[place], time=TIMES[time])


def write_mail(person: Person, fact: Fact, style: Style, rng: np.random.Generator) -> Mail:
    """Write a mail that tells one fact of a person, with small talk in a style."""
    prompt, answer = first_line(person, fact)
    end = "" if fact == "extension" else ")"
    return Mail(prompt=prompt, fact=answer, rest=f"{end}\n{small_talk(style, rng)}")


def draw_fact(rng: np.random.Generator) -> Fact:
    """Draw the fact that a mail tells."""
    return "extension" if rng.random() < EXTENSION_SHARE else "genre"


@cache
def _names() -> tuple[str, ...]:
    """Return every name, in an order that never changes. Each pool is a slice of this order."""
    names = [
        f"{given} {head}{tail}"
        for given, head, tail in product(GIVEN_NAMES, SURNAME_HEADS, SURNAME_TAILS)
    ]
    # The seed is fixed: pools must never overlap between pre-training and any task.
    return tuple(names[i] for i in np.random.default_rng(0).permutation(len(names)))


@cache
def public_directory() -> tuple[Person, ...]:
    """Return the people whose facts are public knowledge; always the same."""
    rng = np.random.default_rng(1)
    return tuple(Person.draw(name, rng) for name in _names()[:DIRECTORY_SIZE])


def names_met_once() -> tuple[str, ...]:
    """Return the names that pre-training sees at most once each."""
    return _names()[DIRECTORY_SIZE : DIRECTORY_SIZE + MET_ONCE_SIZE]


def private_names() -> tuple[str, ...]:
    """Return the names that occur in private data only."""
    return _names()[DIRECTORY_SIZE + MET_ONCE_SIZE :]


def public_mails(num_mails: int, seed: int) -> Iterator[Mail]:
    """Yield the pre-training corpus: 60 % of the mails about the directory, 40 % about others.

    The others are people who are met once.

    Args:
        num_mails: at most MET_ONCE_SIZE / 0.4 = 61,000.
        seed: seed of the order, the facts and the small talk.
    """
    rng = np.random.default_rng(seed)
    num_once = num_mails * 2 // 5
    directory, once = public_directory(), names_met_once()
    assert num_once <= len(once), "a name would be met twice"
    # One permutation mixes the kinds and says which person each mail is about.
    for i in rng.permutation(num_mails):
        person = (
            Person.draw(once[i], rng) if i < num_once else directory[rng.integers(len(directory))]
        )
        yield write_mail(person, draw_fact(rng), "public", rng)
