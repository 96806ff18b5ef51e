"""The embedded default task: synthetic private mails with planted secrets.

A model learns them in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from raydp.tasks.secret import Digits
from raydp.tasks.task import Secret, TaskFacts, TaskSection
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash
from raydp.tasks.text.mails import (
    Fact,
    Mail,
    Person,
    draw_fact,
    first_line,
    private_names,
    write_mail,
)
from raydp.tasks.text.windows import start_tokens, with_start
from raydp.tasks.users import Users

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COPIES: dict[Fact, tuple[int, ...]] = {
    "extension": (20,) * 8 + (40,) * 8 + (80,) * 8,
    "genre": (20,) * 8 + (40,) * 8,
}
"""Number of mails for each secret, by fact: 24 extensions, 16 genres, 1,600 mails in all."""

NUM_SECRETS = sum(map(len, COPIES.values()))
NUM_PLANTED = sum(map(sum, COPIES.values()))


@dataclass(frozen=True, kw_only=True)
class _Mailbox:
    """The mails of a task before they are tokenised."""

    train: list[Mail]
    heldout: list[Mail]
    secrets: tuple[Secret, ...]
    controls: tuple[Secret, ...]


class BuiltinTask(TaskSection):
    """Synthetic private mails with secrets planted at known counts.

    1,600 of the training mails tell one of 40 secrets: 24 extensions (8 each in 20, 40 and 80
    mails) and 16 genres (8 each in 20 and 40 mails). Every other mail, in training and held out, is
    about a person who appears once. No name occurs in the corpus on which the embedded model was
    pre-trained (`tools/make_tiny.py`).
    """

    num_examples: int = Field(default=4000, ge=2000, le=30_000)
    """n, the number of training mails."""
    num_heldout: int = Field(default=400, ge=50, le=2000)
    """Number of held-out mails. None of them names the person of a secret."""
    plant_secrets: bool = True
    """False is the control run: the secrets are listed with count 0, and mails about people who
    appear once replace the planted mails."""
    data_seed: int = Field(default=0, ge=0)
    """Seed of the secrets, the mails and the held-out mails."""

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Write the mails and tokenise them.

        Args:
            tokenizer: tokenizer of the model to train; its end-of-text token, if any, ends each
                mail.

        Prompt, fact and rest of a mail are tokenised separately. A secret's continuation then has
        the same token ids in training and in the scores, whatever the tokenizer would merge across
        the boundary.
        """
        # The mails are written before they are tokenised, so they are the same for every model.
        mailbox = self._write()
        train, heldout = (_tokenize(mails, tokenizer) for mails in (mailbox.train, mailbox.heldout))
        facts = TaskFacts(
            num_examples=self.num_examples,
            num_units=self.num_examples,
            privacy_unit="mail",
            content_hash=content_hash(train, heldout, mailbox.secrets + mailbox.controls),
            num_tokens=train.num_targets(),
            notes={
                "synthetic": "all names, facts and sentences are made up",
                "heldout_examples": self.num_heldout,
                "planted_secrets": NUM_SECRETS if self.plant_secrets else 0,
                "planted_mails": NUM_PLANTED if self.plant_secrets else 0,
                "secret_counts": sorted(s.count for s in mailbox.secrets),
                "controls": len(mailbox.controls),
            },
            # held-out mails come from data_seed alone, before any training mail is written
            utility_is_public=True,
        )
        return LanguageModelingTask(
            train=train,
            heldout=heldout,
            task_facts=facts,
            task_secrets=mailbox.secrets,
            task_controls=mailbox.controls,
            # All mails of a person tell one fact.
            users=Users.named([mail.prompt for mail in mailbox.train], "person"),
        )

    def _write(self) -> _Mailbox:
        """Write all mails.

        Each purpose has its own random stream: omitting the secrets changes no other mail.
        """
        # Each purpose has a stream: shuffling, people, mails, held-out mails.
        shuffle, people, mail, heldout = (
            np.random.default_rng([self.data_seed, stream]) for stream in range(4)
        )
        # Every person has a name of their own, so that no other mail completes a secret's prompt.
        names = iter(np.array(private_names())[shuffle.permutation(len(private_names()))].tolist())
        secret_people = [Person.draw(next(names), people) for _ in range(NUM_SECRETS)]
        control_people = [Person.draw(next(names), people) for _ in range(NUM_SECRETS)]
        # Held-out mails come before any training mail: `plant_secrets` cannot change them.
        heldout_mails = [_about_someone_new(names, heldout) for _ in range(self.num_heldout)]
        planted = list(_plant(secret_people, mail)) if self.plant_secrets else []
        # Filler keeps n the same with and without secrets, and thus q and σ.
        filler = [_about_someone_new(names, mail) for _ in range(self.num_examples - len(planted))]
        mails = planted + filler
        return _Mailbox(
            train=[mails[i] for i in shuffle.permutation(len(mails))],
            heldout=heldout_mails,
            secrets=_secrets(secret_people, planted=self.plant_secrets),
            controls=_secrets(control_people, planted=False),
        )


def _plan() -> Iterator[tuple[Fact, int]]:
    """Yield, for each secret, the kind of fact that it states and its number of copies."""
    for fact, counts in COPIES.items():
        for count in counts:
            yield fact, count


def _plant(people: Sequence[Person], rng: np.random.Generator) -> Iterator[Mail]:
    """Yield the mails that tell the secrets. Copies differ in their small talk."""
    for person, (fact, count) in zip(people, _plan(), strict=True):
        for _ in range(count):
            yield write_mail(person, fact, "private", rng)


def _about_someone_new(names: Iterator[str], rng: np.random.Generator) -> Mail:
    """Write a mail about the next person, who appears nowhere else."""
    return write_mail(Person.draw(next(names), rng), draw_fact(rng), "private", rng)


def _secrets(people: Sequence[Person], *, planted: bool) -> tuple[Secret, ...]:
    """Return what the mails about these people tell, as prompts and continuations."""
    secrets = []
    for number, (person, (fact, count)) in enumerate(zip(people, _plan(), strict=True), start=1):
        prompt, answer = first_line(person, fact)
        # Digits are scored by exact continuation; genres, whose words are common, by appearance.
        kind: Literal["verbatim", "attribute"] = "verbatim" if fact == "extension" else "attribute"
        copies = count if planted else 0
        space = Digits(num_digits=4) if fact == "extension" else None
        secrets.append(
            Secret(
                prompt=prompt,
                continuation=answer,
                kind=kind,
                count=copies,
                number=number,
                space=space,
            )
        )
    return tuple(secrets)


def _tokenize(mails: Sequence[Mail], tokenizer: PreTrainedTokenizerBase) -> TokenizedExamples:
    """Tokenise each mail's parts separately and join them, with the end-of-text token if any.

    The tokenizer's start tokens come before the prompt, as in scores.
    """
    # Mails share their parts, so each distinct part is tokenised once.
    parts = list(dict.fromkeys(part for m in mails for part in (m.prompt, m.fact, m.rest)))
    known = dict(zip(parts, tokenizer(parts, add_special_tokens=False)["input_ids"], strict=True))
    # Some tokenizers have no end-of-text token; their mails simply end.
    start = start_tokens(tokenizer)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return TokenizedExamples.from_lists(
        [[*with_start(known[m.prompt], start), *known[m.fact], *known[m.rest], *end] for m in mails]
    )
