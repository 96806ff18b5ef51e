"""Conversations as a task, with loss on the assistant's words.

A conversation is a list of messages, a prompt with its completion, or an instruction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from raydp.extensions.chat.conversations import Conversation, Form, conversation_of, form_of
from raydp.extensions.chat.messages import messages_of
from raydp.extensions.chat.templates import JINJA, ChatTemplate, Loss, TemplateName, TextPart
from raydp.search_spaces.names import familiar, kind_of
from raydp.system.locations import Location, local_copy
from raydp.tasks.data_sets import rows_of_data_set
from raydp.tasks.row_files import is_file_of_rows, read_rows
from raydp.tasks.secret import (
    counted,
    mentions,
    nearly_found,
    never_trained_on,
    occurs_in,
    read_secrets,
)
from raydp.tasks.task import Secret, TaskFacts
from raydp.tasks.text.controls import controls_of
from raydp.tasks.text.corpus import RowsSection, is_held_out
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask, content_hash
from raydp.tasks.text.windowed import shared_prompts
from raydp.tasks.text.windows import start_tokens, tokenize, with_start
from raydp.tasks.users import BY_COLUMN, Users

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A conversation, its user (without users, its text), and the keys that nothing read."""

    conversation: Conversation
    parts: tuple[TextPart, ...]
    user: str
    unread: frozenset[str]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    """Encoded conversations: examples, the text of each that the model sees, and users.

    `trained` has the places of the parts of each text that are trained on. Conversations that were
    shortened or left without a target are counted.
    """

    examples: TokenizedExamples
    texts: list[str]
    trained: list[list[slice]]
    users: list[str]
    truncated: int
    without_target: int


class ChatTask(RowsSection):
    """Causal language modelling of conversations.

    An example is one conversation, up to the assistant's last message.

    A row has `messages` (a list of role and content), `conversations` (of from and value), `prompt`
    and `completion` (texts or lists of messages), or `instruction`, `output` and perhaps `input`.
    The names are those of OpenAI, ShareGPT, trl and Alpaca.
    """

    early_check: ClassVar[str] = "raydp.extensions.chat.early_checks:check_conversations"

    path: str
    """A JSON Lines, CSV or Parquet file, or a folder that datasets.save_to_disk wrote, or the name
    of a data set on the Hugging Face hub."""
    form: Form | None = None
    """`messages`, `sharegpt`, `prompt_completion` or `instruction`; by default what the first row
    has."""
    config: str | None = None
    """Configuration of a data set on the hub."""
    split: str | None = None
    """Part of a data set to train on; by default `train` if the data set has parts."""
    revision: str | None = None
    """Version of a data set on the hub: a branch, tag or commit."""
    max_rows: Annotated[int, Field(ge=2)] | None = None
    """Read so many rows at most, from the first on.

    Of a data set on the hub, no more than these are downloaded.
    """
    heldout_path: str | None = None
    """A separate file, folder or data set to evaluate on, instead of a fraction."""
    heldout_split: str | None = None
    """Part of the data set to evaluate on, instead of a fraction."""
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the conversations that is held out, by a keyed hash of the text, or of the user; 0.1
    by default."""
    split_seed: int = 0
    """Seed of the keyed hash that decides which conversations are held out."""
    user_column: str | None = None
    """Column that names the user, or whatever group is to be protected, for
    `privacy.unit: user`."""
    max_examples_per_user: Annotated[int, Field(ge=1)] | None = None
    """With user_column, largest number of conversations of one user, from the first on."""
    template: TemplateName | None = None
    """How a conversation becomes a text.

    By default messages are written by the model's own chat template, instructions by Alpaca's, and
    texts of prompt and completion one after the other. `model`, `chatml` and `plain` write every
    form as a conversation.
    """
    loss: Loss = "assistant"
    """Train on what the assistant says, or on all messages.

    A message with the weight 0 is context in any case.
    """
    max_length: Annotated[int, Field(ge=8)] = 512
    """Largest number of tokens of an example. A longer conversation loses its end."""
    secrets: Location | None = None
    """JSON Lines file with `prompt` (a text, or a list of messages that the assistant answers) and
    `continuation` or `attribute`; no secrets by default."""
    controls: Location | None = None
    """File of the same format with control secrets; by default controls are generated from the
    secrets."""
    num_controls_per_secret: Annotated[int, Field(ge=0, le=16)] = 4
    """Number of controls to generate for each secret."""

    def build(self, tokenizer: PreTrainedTokenizerBase) -> LanguageModelingTask:
        """Read, split, write and tokenise the conversations, and find the secrets.

        Raises:
            ValueError: the data or a file is missing or malformed, the template does not fit,
                nothing is left to train or evaluate on, or no secret occurs in the training
                examples.
        """
        # The template comes first, so that one that does not fit fails before the data are read.
        template = ChatTemplate(tokenizer, self.template)
        notes: dict[str, object] = {}
        # Read and split. Secrets are searched in whole texts here, because the split does not
        # depend on what is cut off later.
        train, heldout = self._split(template, notes)
        train, left_out = self._limited(train, notes)
        texts = [row.text for row in train]
        secrets = self._secrets(template, texts)
        # A held-out conversation with a secret would count its leakage as utility.
        verbatim = [secret for secret in secrets if secret.kind == "verbatim"]
        clean = [row for row in heldout if not any(occurs_in(s, row.text) for s in verbatim)]
        notes["heldout_with_secret_removed"] = len(heldout) - len(clean)
        # Tokenise, and count the secrets in what the model sees.
        examples, evaluated = (
            self._encode(tokenizer, rows, purpose, notes)
            for rows, purpose in ((train, "train"), (clean, "evaluate"))
        )
        kept = _kept(secrets, examples.texts)
        # Controls must be absent from the training texts, also from the parts that are cut off.
        controls = controls_of(self.controls, kept, self.num_controls_per_secret, texts)
        places = {
            "secrets_above_limit": [row.text for row in left_out],
            "secrets_cut_off": texts,
            "secrets_held_out": [row.text for row in heldout],
        }
        # Record what a reader of the guarantee must know: what was left out, and which secrets are
        # not scored.
        notes |= self._notes(examples, evaluated, train[0].conversation.form, secrets) | {
            "num_secrets": len(kept),
            "num_controls": len(controls),
            **never_trained_on(secrets, kept, places),
            **_outside_loss(kept, examples),
        }
        return LanguageModelingTask(
            train=examples.examples,
            heldout=evaluated.examples,
            task_facts=TaskFacts(
                num_examples=len(examples.examples),
                num_units=len(examples.examples),
                privacy_unit=f"conversation (first {self.max_length} tokens)",
                content_hash=content_hash(
                    examples.examples, evaluated.examples, [*kept, *controls]
                ),
                num_tokens=examples.examples.num_targets(),
                notes=notes,
                chat_template=self._chat_template(tokenizer),
            ),
            task_secrets=tuple(kept),
            task_controls=tuple(controls),
            users=self._users(examples.users),
        )

    def _chat_template(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Return the template that the trained tokenizer carries: raydp's, with the start tokens.

        Servers add no special tokens to the text of a chat template.
        """
        own = JINJA.get(self.template or "")
        return own and f"{tokenizer.decode([*start_tokens(tokenizer)])}{own}"

    def _users(self, names: Sequence[str]) -> Users:
        """Return the users of the examples. Without a column, a conversation is the unit."""
        if self.user_column:
            return Users.named(names, f"user (column {self.user_column})", remedy=None)
        remedy = f"{BY_COLUMN}, or leave unit out: it is then one conversation."
        return Users.named(names, "conversation", remedy=remedy)

    def trained_messages(self, tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
        """Return the messages of each training conversation that `loss` trains on.

        Raises:
            ValueError: the data are missing or malformed, or hold no such message.
        """
        train, _ = self._split(ChatTemplate(tokenizer, self.template), {})
        said: list[list[str]] = []
        for row in self._limited(train, {})[0]:
            conversation = row.conversation
            messages = [
                m.content
                for m in conversation.messages
                if (m.role == "assistant" or self.loss == "all") and m.trained and m.content
            ]
            texts = conversation.texts or ()
            said.append([*messages, *(texts if self.loss == "all" else texts[1:])])
        if not any(map(any, said)):
            raise ValueError("DATA must hold messages to train on, got none. Give more data.")
        return said

    def _split(
        self, template: ChatTemplate, notes: dict[str, object]
    ) -> tuple[list[_Row], list[_Row]]:
        """Return the training rows and the held-out rows, without duplicates."""
        rows = self._rows_of(template, self.path, self.split, "task.path")
        train = _unique(rows)
        notes |= {"conversations_read": len(rows), "duplicates_removed": len(rows) - len(train)}
        if unread := Counter(key for row in rows for key in row.unread):
            notes["keys_not_read"] = _unread_in_words(unread)
        if self.heldout_path is None and self.heldout_split is None:
            fraction = self.heldout_fraction or 0.1
            # The keyed hash depends on the user alone, so that all conversations of a user fall on
            # one side.
            # One without a reply is never held out: `_encode` removes it, and counts it in training
            # alone.
            flags = [
                bool(row.text) and is_held_out(row.user, fraction, self.split_seed) for row in train
            ]
            heldout = [row for row, flag in zip(train, flags, strict=True) if flag]
            return [row for row, flag in zip(train, flags, strict=True) if not flag], heldout
        field = "task.heldout_path" if self.heldout_path else "task.path"
        # A separate held-out part may repeat training conversations, which would flatter the
        # utility.
        known = {row.text for row in train}
        others = self._rows_of(template, self.heldout_path or self.path, self.heldout_split, field)
        heldout = [row for row in _unique(others) if not row.text or row.text not in known]
        notes["heldout_duplicates_removed"] = len(others) - len(heldout)
        return train, heldout

    def _limited(self, rows: list[_Row], notes: dict[str, object]) -> tuple[list[_Row], list[_Row]]:
        """Return each user's first `max_examples_per_user` rows, and the others, whose number is noted."""
        if self.max_examples_per_user is None:
            return rows, []
        taken: Counter[str] = Counter()
        kept, left_out = list[_Row](), list[_Row]()
        # The first rows stay: a random choice would need a seed and another note.
        for row in rows:
            taken[row.user] += 1
            (kept if taken[row.user] <= self.max_examples_per_user else left_out).append(row)
        notes["above_user_limit_removed"] = len(left_out)
        return kept, left_out

    def _rows_of(
        self, template: ChatTemplate, path: str, split: str | None, field: str
    ) -> list[_Row]:
        """Return the conversations of a file or data set, at least one."""
        rows = list(self._read(template, path, split, field))
        if not rows:
            raise ValueError(
                f"{field} must hold conversations, got no rows in {path!r}. Check the path, or add "
                "some."
            )
        return rows

    def _read(
        self, template: ChatTemplate, path: str, split: str | None, field: str
    ) -> Iterator[_Row]:
        """Yield the conversations of a file or data set."""
        form = self.form
        for place, row in self._rows(path, split, field):
            form = form or form_of(list(row), field)
            conversation = conversation_of(row, form, field, place)
            parts = tuple(template.parts(conversation, place))
            # Without a column of users, the written text is the user: duplicates then share a side
            # of the split.
            user = self._user(row, field, place) or "".join(part.text for part in parts)
            unread = {*conversation.unread, *template.unread(conversation, place)} - {
                self.user_column or ""
            }
            yield _Row(conversation=conversation, parts=parts, user=user, unread=frozenset(unread))

    def _rows(
        self, path: str, split: str | None, field: str
    ) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield rows with their places, at most `max_rows`."""
        # A location such as s3:// is copied first; anything else is left as it is.
        local = str(local_copy(path, field))
        is_file = is_file_of_rows(local)
        if is_file and (split or self.config or self.revision):
            raise ValueError(
                "task.split, config and revision must go with a data set, got one with the file "
                f"{path!r}. Remove it."
            )
        if is_file:
            for line, row in islice(read_rows(local, field), self.max_rows):
                yield f"{Path(local).name}, line {line}", row
            return
        yield from rows_of_data_set(
            local,
            field,
            config=self.config,
            split=split,
            revision=self.revision,
            max_rows=self.max_rows,
        )

    def _user(self, row: Mapping[str, object], field: str, place: str) -> str | None:
        """Return the name of the row's user; None if users are not given."""
        if self.user_column is None:
            return None
        user = row.get(self.user_column)
        name = str(user) if isinstance(user, str | int) else ""
        if not name.strip():
            got = "no such column" if self.user_column not in row else kind_of(user)
            raise ValueError(
                f"task.user_column must name a user in every row, got {got} or a blank name in "
                f"{place}. Give the row's user a name, or leave the row out of {field}."
            )
        return name

    def _secrets(self, template: ChatTemplate, texts: Sequence[str]) -> list[Secret]:
        """Read secrets; a prompt of messages is written as a training text has it."""

        def texts_of(prompt: object, continuation: str, place: str) -> tuple[str, str]:
            # Prefer a form that occurs in the training texts, which may lack the thinking block.
            messages = messages_of(prompt, "task.secrets", place)
            ways = template.asked(messages, continuation, "task.secrets", place)
            occurring = (way for way in ways[:-1] if any(way[0] + way[1] in text for text in texts))
            return next(occurring, ways[-1])

        if self.secrets is None:
            return []
        return read_secrets(self.secrets, "task.secrets", chat_texts_fn=texts_of)

    def _encode(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[_Row],
        purpose: str,
        notes: Mapping[str, object],
    ) -> _Encoded:
        """Tokenise each part by itself, as for generation, and cut long conversations."""
        _check_left(rows, purpose, notes)
        # All parts go into one call, because a fast tokenizer works on a list in parallel.
        tokens = iter(tokenize(tokenizer, [part.text for row in rows for part in row.parts]))
        start = start_tokens(tokenizer)
        ids: list[list[int]] = []
        targets: list[list[bool]] = []
        texts: list[str] = []
        trained: list[list[slice]] = []
        users: list[str] = []
        truncated = 0
        # Cut each conversation at max_length tokens, and keep the text that is left for counting
        # secrets.
        for row in rows:
            pieces = [next(tokens) for _ in row.parts]
            written = [token for piece in pieces for token in piece.token_ids]
            # The model's own template may write the start tokens itself.
            own = with_start(written, start)
            said = [False] * (len(own) - len(written))
            text, left, whole = "", self.max_length - len(said), True
            places = list[slice]()
            for part, piece in zip(row.parts, pieces, strict=True):
                taken = min(left, len(piece))
                said += [part.is_target(self.loss)] * taken
                added = piece.slice((0, taken)) if taken else ""
                if part.is_target(self.loss):
                    places.append(slice(len(text), len(text) + len(added)))
                text += added
                whole &= taken == len(piece)
                left -= taken
            truncated += not whole
            # The first token is never predicted, so a target there alone would give an empty loss.
            if any(said[1:]):
                ids.append(own[: self.max_length])
                targets.append(said)
                texts.append(text)
                trained.append(places)
                users.append(row.user)
        if not ids:
            raise ValueError(
                f"task.path must leave conversations to {purpose} on, got none with a reply within "
                f"task.max_length = {self.max_length} tokens after the split. Give more data, "
                "raise task.max_length or change task.heldout_fraction."
            )
        return _Encoded(
            examples=TokenizedExamples.with_targets(ids, targets),
            texts=texts,
            trained=trained,
            users=users,
            truncated=truncated,
            without_target=len(rows) - len(ids),
        )

    def _notes(
        self, train: _Encoded, heldout: _Encoded, form: Form, secrets: Sequence[Secret]
    ) -> dict[str, object]:
        """Return notes that a reader of the plan and of the guarantee needs."""
        return {
            "form": form,
            "num_heldout_examples": len(heldout.examples),
            "truncated": train.truncated,
            "without_reply_within_max_length_removed": train.without_target,
            "share_of_tokens_trained_on": round(
                train.examples.num_targets() / len(train.examples.token_ids), 3
            ),
            "caveats": [
                "Only exact duplicates of a whole conversation were removed: quoted passages "
                "remain in others, and epsilon covers one unit at a time.",
                "n, the split sizes, the counts and the choice of secrets are computed on the "
                "private data; epsilon does not cover them.",
                *shared_prompts(secrets),
            ],
        }


def _outside_loss(kept: Sequence[Secret], examples: _Encoded) -> dict[str, list[str]]:
    """Return a note with the secrets of which no occurrence is trained on to its end."""
    outside = [secret.name for secret in kept if not _is_trained_on(secret, examples)]
    return {"secrets_outside_loss": outside} if outside else {}


def _is_trained_on(secret: Secret, examples: _Encoded) -> bool:
    """Return whether the end of a secret's continuation, or its attribute, is a target somewhere."""
    whole = secret.prompt + secret.continuation
    for text, places in zip(examples.texts, examples.trained, strict=True):
        if secret.kind == "attribute":
            if any(mentions(text[place], secret.continuation) for place in places):
                return True
            continue
        for found in re.finditer(re.escape(whole), text):
            if any(place.start < found.end() <= place.stop for place in places):
                return True
    return False


def _kept(secrets: Sequence[Secret], texts: Sequence[str]) -> list[Secret]:
    """Return the secrets that occur whole in a training text, with their counts.

    Raises:
        ValueError: there are secrets, but none occurs.
    """
    kept = [secret for secret in counted(secrets, texts) if secret.count]
    if secrets and not kept:
        raise ValueError(
            "task.secrets must hold a secret that occurs whole in a training example, got none of "
            f"{len(secrets)}; {nearly_found(secrets, texts)}. A prompt must stand in the "
            "conversation as the template writes it. Correct the prompts, or raise task.max_length."
        )
    return kept


def _unique(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows without exact duplicates. A conversation of two users stays with both.

    Conversations without a reply have no text, and are told apart by their messages.
    """
    # Going backwards makes the first of equal rows the one that stays.
    return list(
        {(row.parts or row.conversation, row.user): row for row in reversed(rows)}.values()
    )[::-1]


def _unread_in_words(counts: Mapping[str, int]) -> list[str]:
    """Return the keys that nothing read, with their numbers of rows.

    Unusual names are counted, not shown: they may be private.
    """
    shown = [key for key in counts if familiar([key.removeprefix("messages.")])]
    others = [rows for key, rows in counts.items() if key not in shown]
    words = [f"{key} in {counts[key]} rows" for key in sorted(shown)]
    return words + ([f"{len(others)} of other names in up to {max(others)} rows"] if others else [])


def _check_left(rows: Sequence[_Row], purpose: str, notes: Mapping[str, object]) -> None:
    """Raise ValueError, with what was removed, if no conversations are left for a purpose."""
    if rows:
        return
    removed = ", ".join(f"{name} {count}" for name, count in notes.items() if count)
    raise ValueError(
        f"task.path must leave conversations to {purpose} on, got none after the split "
        f"({removed}). Give more different conversations, or change task.heldout_fraction."
    )
