"""Causal language modelling: the task that every text plug-in builds from token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from raydp.tasks.task import Batch, Secret, TaskFacts, batches_by_length
from raydp.tasks.text.examples import HiddenStates, TokenizedExamples
from raydp.tasks.text.token_loss import IGNORE, token_nll
from raydp.tasks.users import Users


@dataclass(frozen=True, kw_only=True)
class LanguageModelingTask:
    """A causal language modelling task (see raydp.tasks.task.Task). Plug-ins build it.

    The loss of an example is the mean over its own target tokens, so that no record changes another
    record's gradient.

    Attributes:
        users: the user of each example, if known.
        sizes: see unit_sizes.
    """

    train: TokenizedExamples
    heldout: TokenizedExamples
    task_facts: TaskFacts
    task_secrets: tuple[Secret, ...] = ()
    task_controls: tuple[Secret, ...] = ()
    users: Users | None = None
    sizes: NDArray[np.int64] | None = None
    train_hidden: HiddenStates | None = None
    heldout_hidden: HiddenStates | None = None

    def with_hidden(self, train: HiddenStates, heldout: HiddenStates) -> LanguageModelingTask:
        """Return this task with batches that carry cached hidden states."""
        return replace(self, train_hidden=train, heldout_hidden=heldout)

    def all_examples(self) -> TokenizedExamples:
        """Return the training examples of all runs. Here every run has the same ones."""
        return self.train

    def extended(self, extra: TokenizedExamples, *, unit: str) -> LanguageModelingTask:
        """Return this task with more training examples after its own.

        Each added example is a unit of privacy.

        Args:
            unit: an added example in words, for the name of the unit: "planted text".

        Raises:
            ValueError: the task's units are users.
        """
        self._require_example_units()
        train = TokenizedExamples.concatenated(self.train, extra)
        return self._with_train(train, f"{self.task_facts.privacy_unit}, or {unit}")

    def subset(self, indices: NDArray[np.int64]) -> LanguageModelingTask:
        """Return this task with some of its training examples, in the order given.

        Raises:
            ValueError: the task's units are users.
        """
        self._require_example_units()
        return self._with_train(self.train.select(indices), self.task_facts.privacy_unit)

    def _require_example_units(self) -> None:
        if self.sizes is not None:
            raise ValueError(
                "privacy.unit must be example where examples are added or left out, got user. "
                "Leave it out of the spec."
            )
        if self.task_facts.num_reference:
            raise ValueError(
                "task.of must be a task without reference data where examples are added or left "
                "out, got a task with them. Apply with_reference to the changed task instead."
            )

    def _with_train(self, train: TokenizedExamples, unit: str) -> LanguageModelingTask:
        """Return this task with other training examples, whose users are unknown."""
        # The users of other examples are unknown, and cached states belong to the old rows.
        everything = [*self.task_secrets, *self.task_controls]
        facts = replace(
            self.facts(),  # with the caveat about users
            num_examples=len(train),
            num_units=len(train),
            num_tokens=train.num_targets(),
            privacy_unit=unit,
            content_hash=content_hash(train, self.heldout, everything),
        )
        return replace(
            self, train=train, task_facts=facts, users=None, train_hidden=None, heldout_hidden=None
        )

    def facts(self) -> TaskFacts:
        facts = self.task_facts
        # A caveat only where users are known and are not the unit already.
        if self.users is None or self.sizes is not None:
            return facts
        most, noun = int(self.users.sizes().max()), self.users.noun
        if most == 1:
            return facts
        # `remedy` is set where a stand-in such as the mail is not a declared user.
        protects = "users" if self.users.remedy else f"the {noun}"
        caveat = (
            f"The unit of privacy is one {facts.privacy_unit}. One {noun} has up to {most}, so its "
            f"own guarantee is that of a group of {most}; privacy.unit user protects {protects}. "
            f"{self.users.remedy or ''}"
        ).rstrip()
        return replace(
            facts, notes={**facts.notes, "caveats": [*facts.notes.get("caveats", ()), caveat]}
        )

    def unit_sizes(self) -> NDArray[np.int64] | None:
        return self.sizes

    def by_user(self) -> LanguageModelingTask:
        """Return this task with users as units, sorted by user; their name has the largest size."""
        # Refuse reference data, unknown users, and users that only stand in for declared ones.
        if self.task_facts.num_reference:
            raise ValueError(
                "privacy.unit must be example with reference data, got user. Leave it out of the "
                "spec."
            )
        if self.users is None:
            raise ValueError(
                "privacy.unit must be example where the task does not know whose its examples are, "
                "got user. Leave it out, or use a task with task.user_column, to which no examples "
                "are added and from which none are left out."
            )
        self.users.require_declared()
        # Put the examples of a user next to each other: a unit is a range of neighbours.
        order, sizes = np.argsort(self.users.of_example, kind="stable"), self.users.sizes()
        facts, noun = self.task_facts, self.users.noun
        notes = facts.notes
        # If every user gave one example, the unit does not change, and the reader must know it.
        if sizes.max() == 1:
            alone = (
                f"Every {noun} gave one example, so the user is the example here. Where a person "
                "can be behind several users, their guarantee is that of a group."
            )
            notes = {**notes, "caveats": [*notes.get("caveats", ()), alone]}
        # The identity includes who owns what: the same texts with other users give another
        # guarantee.
        digest = hashlib.sha256(facts.content_hash.encode() + self.users.of_example.tobytes())
        return replace(
            self,
            train=self.train.select(order),
            sizes=sizes,
            task_facts=replace(
                facts,
                num_units=len(sizes),
                privacy_unit=f"{noun} with all its examples (at most {sizes.max()}; each a {facts.privacy_unit})",
                content_hash=digest.hexdigest(),
                notes=notes,
            ),
        )

    def lengths(self) -> NDArray[np.int64]:
        return self.train.lengths()

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        return _with_states(self.train, indices, self.train_hidden)

    def heldout_lengths(self) -> NDArray[np.int64]:
        return self.heldout.lengths()

    def heldout_batch(self, indices: NDArray[np.int64]) -> Batch:
        return _with_states(self.heldout, indices, self.heldout_hidden)

    def per_example_loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return [B] mean negative log-likelihood (nats) over each example's own target tokens."""
        # Only tokens from the second on are predicted.
        counts = (batch.labels[:, 1:] != IGNORE).sum(dim=1)
        # The mean is over the example's own tokens: another record must not change it.
        return token_nll(model, batch).sum(dim=1) / counts

    def utility(self, model: torch.nn.Module) -> float:
        """Return the held-out NLL in nats per target token: total NLL over total tokens."""
        device = next(model.parameters()).device
        total = 0.0
        with torch.inference_mode():
            for indices in batches_by_length(self.heldout_lengths(), max_tokens=1024):
                batch = self.heldout_batch(indices).to(device)
                # float64 keeps the digits of a sum over thousands of tokens.
                total += float(token_nll(model, batch).sum(dtype=torch.float64))
        return total / self.heldout.num_targets()

    def secrets(self) -> tuple[Secret, ...]:
        return self.task_secrets

    def controls(self) -> tuple[Secret, ...]:
        return self.task_controls


def _with_states(
    examples: TokenizedExamples, indices: NDArray[np.int64], states: HiddenStates | None
) -> Batch:
    batch = examples.batch(indices)
    if states is None:
        return batch
    hidden = states.rows(examples, indices, batch.input_ids.shape[1])
    return replace(batch, hidden=hidden, first_layer=states.first_layer)


def content_hash(
    train: TokenizedExamples, heldout: TokenizedExamples, secrets: Sequence[Secret]
) -> str:
    """Return the SHA-256 of a text task: examples, targets, held-out data, secrets, controls."""
    digest = hashlib.sha256()
    train.update_hash(digest)
    heldout.update_hash(digest)
    for secret in secrets:
        # The count is part of the identity: a control and a planted secret may be one text.
        digest.update(f"{secret.id}:{secret.count};".encode())
    return digest.hexdigest()
