"""Checks of the frozen prefix in the self-test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from raydp.extensions.frozen_prefix.prefix import TOLERANCE, with_frozen_prefix
from raydp.methods.method import Method
from raydp.scores.language.decoding import input_embeddings
from raydp.selftest.check_result import Check, FurtherChecks, check
from raydp.selftest.subjects import NUM_EXAMPLES, VOCABULARY, toy_base, toy_llama, toy_task
from raydp.spec.sections import AdapterSpec
from raydp.training.probe import start_training_context


class KeptStateChecks(FurtherChecks):
    """Losses from kept states are those of the data and model, also after others were kept."""

    title = "kept hidden states"

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Compare losses with and without kept states."""
        detail = "largest difference of a loss, nats, from the loss without them"
        bound, kinds = TOLERANCE[torch.float32], {"data": "other data", "model": "another model"}
        return [
            check(f"kept hidden states of {what}", _difference(other), 0, bound, detail)
            for other, what in kinds.items()
        ]


def _difference(other: str) -> float:
    """Return the largest difference between losses with and without kept hidden states.

    The hidden states of other "data", or of another "model", were kept before in the same folder.
    They differ in the shortest example, so the longest examples do not tell the two apart.
    """
    adapter = AdapterSpec(r=2, alpha=4, target_modules=("q_proj",), layers_to_transform=(1,))
    with tempfile.TemporaryDirectory() as folder:
        # The first subject fills the cache; the second must not read the first one's states.
        for number in range(2):
            base, rare = toy_base(toy_llama), VOCABULARY - 1
            sentences = [list(range(1 + i, 5 + i + 3 * i)) for i in range(NUM_EXAMPLES)]
            # The sentence or the weight that differs is in the shortest example.
            if other == "model" or number:
                sentences[0][1] = rare
            if other == "model" and number:
                with torch.no_grad():
                    input_embeddings(base.model).weight[rare] += 1.0
            context, task = start_training_context(base, adapter), toy_task(sentences)
            kept = with_frozen_prefix(
                task,
                context.model,
                context.parameters,
                weight_hash=f"selftest/{number}" if other == "model" else "selftest",
                folder=Path(folder),
                max_bytes=float("inf"),
                say=lambda sentence: None,
            )
    indices = np.arange(NUM_EXAMPLES)
    losses = [t.per_example_loss(context.model, t.batch(indices)).detach() for t in (task, kept)]
    return float((losses[0] - losses[1]).abs().max())


CHECKS = KeptStateChecks()
