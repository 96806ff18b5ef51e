"""Shared steps of the tasks on free text: clean, split, cut, count secrets, describe the data.

The order is that of Hu et al. 2025, App. B.1: duplicates, filters, split, removal of secrets from
the held-out part.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from raydp.system.locations import Location
from raydp.tasks.secret import (
    counted,
    nearly_found,
    never_trained_on,
    occurs_in,
    read_secrets,
    verbatim_texts,
)
from raydp.tasks.task import Secret, TaskFacts, TaskSection
from raydp.tasks.text.controls import controls_of
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash
from raydp.tasks.text.windowed import Cut, OwnedText, describe, describe_secrets, privacy_unit
from raydp.tasks.text.windows import WindowKind, keep_windows, start_tokens, tokenize, windows_of
from raydp.tasks.users import BY_COLUMN, Users

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIN_WINDOW_TOKENS = 2  # without a start token, the first one is never a target


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The texts that a plug-in has read.

    Attributes:
        train: texts to train on. If `heldout` is None, a part of them is held out.
        heldout: the held-out texts if they are given separately.
        users: the user of each training text. If None, every text stands for its own user.
        noun: a text in words: "e-mail", "row".
        column: the column of the texts.
        user_column: the column that names the users; None if the spec names none.
        heldout_is_public: whether the held-out part is declared public: neither training texts nor
            secrets shape it.
        notes: counts of what was left out while reading.
    """

    train: list[str]
    heldout: list[str] | None = None
    users: list[str] | None = None
    noun: str
    column: str
    user_column: str | None
    notes: dict[str, object]
    heldout_is_public: bool = False

    def owners(self, of_example: Sequence[str]) -> Users:
        """Return the users of examples by name: named by the spec, or the texts themselves."""
        if self.user_column is None:
            remedy = f"{BY_COLUMN}; `user_column: {self.column}` makes every {self.noun} a user."
            return Users.named(of_example, self.noun, remedy=remedy)
        own = self.user_column == self.column
        return Users.named(of_example, self.noun if own else f"user (column {self.user_column})")


class RowsSection(TaskSection):
    """A section of a task on the rows of a file or data set. No option may be without effect."""

    instead: ClassVar[str] = "leave it out"
    """What may stand in place of a limit for each user."""

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        # The ways to hold data out exclude each other; a part of another data set is one way.
        ways = [
            way
            for way in ("heldout_path", "heldout_split", "heldout_fraction")
            if fields[way] is not None
        ]
        if "heldout_fraction" in ways[1:]:
            raise ValueError(
                f"task.heldout_fraction must stand alone, got {' and '.join(ways)}. Remove one."
            )
        if (limit := fields["max_examples_per_user"]) is not None and fields["user_column"] is None:
            raise ValueError(
                f"task.max_examples_per_user must go with task.user_column, got {limit} without "
                f"it. Add it, or {self.instead}."
            )
        if fields["controls"] and not fields["secrets"]:
            raise ValueError(
                "task.controls must go with task.secrets, got no secrets. Add them, or remove the "
                "controls."
            )
        return self


class WindowedTask(TaskSection):
    """Causal language modelling on windows of texts: the parameters of every such task."""

    secrets: Location | None = None
    """JSON Lines file with `prompt` and `continuation`, or `prompt` and `attribute`; no secrets by
    default."""
    controls: Location | None = None
    """File of the same format with control secrets; by default controls are generated from the
    secrets."""
    num_controls_per_secret: Annotated[int, Field(ge=0, le=16)] = 4
    """Number of controls to generate for each secret."""
    max_length: Annotated[int, Field(ge=8)] = 64
    """Length of a window in tokens, the tokenizer's start token included."""
    min_tokens: Annotated[int, Field(ge=MIN_WINDOW_TOKENS)] = MIN_WINDOW_TOKENS
    """Texts of fewer tokens are dropped."""
    window: WindowKind = "lines"
    """`head` or `tail`: the first or last max_length tokens.

    `lines`: whole lines packed into windows. A window never cuts a secret that fits into one
    window.
    """
    split_seed: int = 0
    """Seed of the keyed hash that decides which texts are held out."""

    def _assemble(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Texts,
        fraction: float,
        max_windows: int | None,
        max_per_user: int | None = None,
    ) -> LanguageModelingTask:
        """Build the task from the texts.

        Hold out the share `fraction` unless the held-out part is given separately.
        """
        secrets = read_secrets(self.secrets, "task.secrets") if self.secrets else []
        notes = dict(texts.notes)
        # Split, and remove secrets from the held-out part unless it is declared public.
        train, heldout = self._split(tokenizer, texts, fraction, notes)
        leaking = [s for s in secrets if s.kind == "verbatim" and not texts.heldout_is_public]
        clean = [t for t in heldout if not any(occurs_in(s, t.tokens.text) for s in leaking)]
        notes["heldout_with_secret_removed"] = len(heldout) - len(clean)
        _require(train, "train", fraction)
        _require(clean, "evaluate", fraction)

        # Cut into windows, and count the secrets in the training windows.
        strings = verbatim_texts(secrets)
        examples = self._cut(tokenizer, train, strings, max_windows, max_per_user)
        heldout_examples = self._cut(tokenizer, clean, (), max_windows)
        # A secret that no window holds whole cannot be learned verbatim, so it is not scored.
        kept = _present(counted(secrets, examples.texts), examples.texts, self.window)
        # The controls must be absent from whole texts, not only windows.
        training_texts = [t.tokens.text for t in train]
        controls = controls_of(self.controls, kept, self.num_controls_per_secret, training_texts)
        # Describe the data, and pack them.
        notes |= describe(examples, heldout_examples, texts.noun, self.window, max_windows, kept)
        notes |= describe_secrets(kept, controls)
        places = {
            "secrets_above_limit": examples.above_limit,
            "secrets_cut_off": training_texts,
            "secrets_held_out": [t.tokens.text for t in heldout],
        }
        notes |= never_trained_on(secrets, kept, places)
        packed, packed_heldout = (
            TokenizedExamples.from_lists(e.token_ids) for e in (examples, heldout_examples)
        )
        return LanguageModelingTask(
            train=packed,
            heldout=packed_heldout,
            task_facts=TaskFacts(
                num_examples=len(packed),
                num_units=len(packed),
                privacy_unit=privacy_unit(self.window, self.max_length, texts.noun, max_windows),
                content_hash=content_hash(packed, packed_heldout, [*kept, *controls]),
                num_tokens=packed.num_targets(),
                notes=notes,
                utility_is_public=texts.heldout_is_public,
            ),
            task_secrets=tuple(kept),
            task_controls=tuple(controls),
            users=texts.owners(examples.users),
        )

    def _split(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Texts,
        fraction: float,
        notes: dict[str, object],
    ) -> tuple[list[OwnedText], list[OwnedText]]:
        """Remove duplicates and short texts, and split into training and held-out texts.

        If users are given, a text of two users stays with both, and a user is held out completely.
        So nothing that happens to one user's data depends on another user.
        """
        # Duplicates are removed within a user: otherwise one user's data would shape another's.
        unique = list(dict.fromkeys(zip(texts.train, texts.users or texts.train, strict=True)))
        notes["duplicates_removed"] = len(texts.train) - len(unique)
        train = self._long_enough(tokenizer, unique, notes, "too_short_removed")
        if texts.heldout is None:
            # The hash of the user decides, so that no user has texts on both sides.
            flags = [is_held_out(t.user, fraction, self.split_seed) for t in train]
            heldout = [t for t, flag in zip(train, flags, strict=True) if flag]
            train = [t for t, flag in zip(train, flags, strict=True) if not flag]
        else:
            # Public held-out texts stay even if they are trained on: the private data must not
            # shape them.
            known = set() if texts.heldout_is_public else {text for text, _ in unique}
            others = [(text, text) for text in dict.fromkeys(texts.heldout) if text not in known]
            notes["heldout_duplicates_removed"] = len(texts.heldout) - len(others)
            heldout = self._long_enough(tokenizer, others, notes, "heldout_too_short_removed")
        return train, heldout

    def _long_enough(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: list[tuple[str, str]],
        notes: dict[str, object],
        note: str,
    ) -> list[OwnedText]:
        """Tokenise texts with their users, and drop the short texts."""
        tokenized = tokenize(tokenizer, [text for text, _ in texts])
        pairs = zip(tokenized, texts, strict=True)
        kept = [
            OwnedText(tokens=t, user=user) for t, (_, user) in pairs if len(t) >= self.min_tokens
        ]
        notes[note] = len(texts) - len(kept)
        return kept

    def _cut(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[OwnedText],
        keep_whole: Sequence[str],
        max_windows: int | None,
        max_per_user: int | None = None,
    ) -> Cut:
        """Cut all texts into windows, in order. The start tokens count in max_length."""
        cut, start = Cut(), start_tokens(tokenizer)
        room = self.max_length - len(start)
        assert room > 0, "a tokenizer has fewer start tokens than the least max_length"
        taken: Counter[str] = Counter()
        for text in texts:
            # Windows of one token are dropped: without a start token they have no target.
            windows = windows_of(text.tokens, self.window, room, keep_whole)
            long = [w for w in windows if w[1] - w[0] >= MIN_WINDOW_TOKENS]
            cut.too_short += len(windows) - len(long)
            # Where a limit applies, windows with a secret are kept first: a rare secret would be
            # lost otherwise.
            flags = [any(string in text.tokens.slice(w) for string in keep_whole) for w in long]
            kept = keep_windows(long, flags, max_windows)
            # The limit of a user counts windows over all of the user's texts, in their order.
            if max_per_user is not None:
                left = max_per_user - taken[text.user]
                cut.above_limit += map(text.tokens.slice, kept[left:])
                kept = kept[:left]
            taken[text.user] += len(kept)
            cut.add(text, kept, start)
        return cut


def is_held_out(text: str, fraction: float, seed: int) -> bool:
    """Return whether a text, or a user by name, is held out, by a keyed hash of it alone."""
    # NUL separates seed and text: otherwise seed 1 with "2a" would equal seed 12 with "a".
    digest = hashlib.sha256(f"{seed}\0{text}".encode()).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


def _require(texts: Sequence[OwnedText], purpose: str, fraction: float) -> None:
    if not texts:
        raise ValueError(
            f"task.path must leave texts to {purpose} on, got none after the filters and the split "
            f"(heldout_fraction {fraction:g}). Give more data, lower task.min_tokens or change "
            "task.heldout_fraction."
        )


def _present(secrets: Sequence[Secret], texts: Sequence[str], window: WindowKind) -> list[Secret]:
    """Return the secrets that occur in a training example; raise ValueError if none does."""
    kept = [s for s in secrets if s.count]
    if secrets and not kept:
        # Only the kinds `head` and `tail` can lose a secret that would fit.
        remedy = "Raise" if window == "lines" else "Set task.window to lines, raise"
        raise ValueError(
            "task.secrets must hold a secret that occurs whole in a training example, got none of "
            f"{len(secrets)} with window {window}; {nearly_found(secrets, texts)}. {remedy} "
            "task.max_length, or take secrets from this data, with their white space."
        )
    return kept
