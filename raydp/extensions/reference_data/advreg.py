"""Adversarial regularisation (Nasr et al. 2018), as Kaplan et al. 2024, and its variant.

Kaplan et al. describe the training in appendix B.1.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.classification.networks import initial_weights
from raydp.extensions.reference_data.regularised import (
    RegularisedClassifier,
    Regulariser,
    Seen,
    look_at,
)
from raydp.training.noise.stream import KeyedStream
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

ATTACK_SEED = 0x616476
"""Number that is mixed into the seed, so that the attack model's start is independent."""


class AdversarialRegularization(RegularisedClassifier):
    """AdvReg: the classifier is trained against an attack model h that tells training from
    reference data.

    h maximises G = mean_T log h + mean_R log(1 - h) (Kaplan et al. 2024, equation 7). The
    classifier minimises L_T + λ mean_T log h. This is the gradient of Nasr et al., without the term
    of the reference data (equation 19). h sees confidence vector and label, as in the released
    code.

    In appendix B.1 each batch goes to the classifier with probability 1 / (1 + ratio) and otherwise
    to the attack model. Here num_steps counts the classifier's batches. Before each of them the
    attack model is trained on a geometric number of batches, which has the same distribution.
    """

    attack_ratio: Annotated[float, Field(ge=0, le=1000)] = 20.0
    """Number of batches for the attack model per batch for the classifier, on average."""
    attack_learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Learning rate of the attack model's Adam."""
    attack_width: Annotated[int, Field(ge=16, le=4096)] = 1024
    """Width of the attack model's first hidden layer; the other layers scale with it. 1024 in Nasr
    et al."""
    reference_term: ClassVar[bool] = False

    def regulariser(
        self, plan: TrialPlan, context: TrainingContext, task: ClassificationTask, key: bytes
    ) -> Regulariser:
        return _Adversary(self, plan, context, task, key)


class AdversarialRegularizationOnBoth(AdversarialRegularization):
    """AdvReg-RT: like AdvReg, but the classifier minimises L_T + λ G, with the term of the
    reference data.

    The additional term is λ mean_R log(1 - h) (Kaplan et al. 2024, section 4.3.2 and equation 20).
    """

    reference_term: ClassVar[bool] = True


class _Adversary(Regulariser):
    """The attack model of one run, and the term that it adds to the classifier's loss."""

    def __init__(
        self,
        method: AdversarialRegularization,
        plan: TrialPlan,
        context: TrainingContext,
        task: ClassificationTask,
        key: bytes,
    ) -> None:
        self._method, self._plan, self._context, self._task = method, plan, context, task
        self._stream = KeyedStream(key=key, run_id=plan.run_id)
        # Canaries of new classes have logits of their own.
        num_outputs = task.num_classes + task.facts().num_new_tokens
        with initial_weights(plan.seed ^ ATTACK_SEED):
            attack = AttackModel(num_outputs, method.attack_width)
        self.attack = attack.to(next(iter(context.parameters.values())).device)
        self._optimizer = torch.optim.Adam(self.attack.parameters(), lr=method.attack_learning_rate)

    def prepare(self, step: int) -> None:
        """Train the attack model before a step of the classifier."""
        n, b = self._plan.num_examples, self._plan.batch_size
        for batch in range(self._num_batches(step)):
            mask = self._stream.poisson_mask(
                n, b, step=step, purpose=f"attack model's batch {batch}"
            )
            # The classifier's weights stay as they are while the attack model learns.
            with torch.no_grad():
                training, reference = look_at(self._context, self._task, np.flatnonzero(mask))
            if len(training) and len(reference):
                self._optimizer.zero_grad()
                (-gain(self.attack, training, reference)).backward()
                self._optimizer.step()

    def _num_batches(self, step: int) -> int:
        """Return a geometric number: tails before the first head, P[head] = 1 / (1 + ratio)."""
        if self._method.attack_ratio == 0:
            return 0
        # Inverse transform sampling, from the run's keyed stream.
        uniform = float(self._stream.uniform(1, step=step, purpose="attack model's batches")[0])
        return math.floor(math.log(uniform) / math.log1p(-1 / (1 + self._method.attack_ratio)))

    def value(self, training: Seen, reference: Seen) -> torch.Tensor:
        if self._method.reference_term:
            return gain(self.attack, training, reference)
        return F.logsigmoid(self.attack(training)).mean()


def gain(attack: nn.Module, training: Seen, reference: Seen) -> torch.Tensor:
    """Return the scalar G = mean_T log h + mean_R log(1 - h) (Kaplan et al. 2024, equation 7)."""
    of_both: torch.Tensor = (
        F.logsigmoid(attack(training)).mean() + F.logsigmoid(-attack(reference)).mean()
    )
    return of_both


class AttackModel(nn.Module):
    """h: one branch for the confidence vector, one for the label, and layers that combine both.

    Source: Nasr et al. 2018, section 5, and their released code: 1024-512-64, 512-64, and
    256-128-64-1.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self._num_classes = num_classes
        # The widths of the released code, in proportion to the first one.
        w = [max(4, width // part) for part in (1, 2, 4, 8, 16)]
        self.outputs = _layers(num_classes, w[0], w[1], w[4])
        self.label = _layers(num_classes, w[1], w[4])
        self.both = nn.Sequential(_layers(2 * w[4], w[2], w[3], w[4]), nn.Linear(w[4], 1))

    def forward(self, seen: Seen) -> torch.Tensor:
        """Return [B] logits of h."""
        label = F.one_hot(seen.labels, self._num_classes).to(seen.logits.dtype)
        both = torch.cat([self.outputs(seen.probs), self.label(label)], dim=1)
        logits: torch.Tensor = self.both(both)[:, 0]
        return logits


def _layers(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)
