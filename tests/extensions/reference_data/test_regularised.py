"""AdvReg, AdvReg-RT and MMD: their objectives by hand, their batches, and what takes part in
them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.reference_data.advreg import (
    AdversarialRegularization,
    AdversarialRegularizationOnBoth,
    AttackModel,
    gain,
)
from raydp.extensions.reference_data.mmd import MMDRegularization, discrepancy
from raydp.extensions.reference_data.regularised import RegularisedClassifier, Seen, look_at
from raydp.extensions.reference_data.task import WithReferenceTask
from raydp.testing.points import network_context
from raydp.training.comm import LocalComm
from raydp.training.observers import AfterStep
from raydp.training.trial import Paused
from raydp.training.trial_plan import TrialPlan
from tests.builders import toys

KEY = bytes(32)
ALL = (AdversarialRegularization, AdversarialRegularizationOnBoth, MMDRegularization)


@pytest.fixture(scope="module")
def task() -> ClassificationTask:
    return WithReferenceTask(of={"name": "digits", "heldout_fraction": 0.9}, fraction=0.4).build(
        None
    )


def plan(task: ClassificationTask, **changes: object) -> TrialPlan:
    n = task.facts().num_units
    made = TrialPlan(
        run_id="reg",
        batch_size=60,
        num_steps=4,
        learning_rate=0.01,
        seed=0,
        num_examples=n,
        noise_multiplier=0,
    )
    return replace(made, **changes)


def trained(
    method: RegularisedClassifier, task: ClassificationTask, **changes: object
) -> torch.Tensor:
    made = network_context()
    method.train(plan(task, **changes), made, task, LocalComm(), KEY, None)
    return torch.cat([p.detach().flatten() for p in made.parameters.values()])


def method_of(kind: type[RegularisedClassifier], **options: object) -> RegularisedClassifier:
    small = (
        {}
        if kind is MMDRegularization
        else {"attack_width": 32, "attack_ratio": 2.0, "attack_learning_rate": 0.05}
    )
    return kind(**{"strength": 1.0, **small, **options})


def with_other_reference(task: ClassificationTask) -> ClassificationTask:
    inputs = task.train.inputs.copy()
    inputs[task.facts().num_training :] = 1 - inputs[task.facts().num_training :]
    return replace(task, train=replace(task.train, inputs=inputs))


def test_the_discrepancy_is_the_distance_of_the_means_in_the_kernels_space() -> None:
    """Pair by pair; and of two points it is 2 - 2 k."""
    rng = np.random.default_rng(0)
    p, q, variance = rng.dirichlet(np.ones(4), 5), rng.dirichlet(np.ones(4), 3), 0.3

    def mean_kernel(a, b) -> float:
        return np.mean([np.exp(-np.sum((x - y) ** 2) / (2 * variance)) for x, y in product(a, b)])

    expected = np.sqrt(mean_kernel(p, p) + mean_kernel(q, q) - 2 * mean_kernel(p, q))
    found = discrepancy(torch.tensor(p), torch.tensor(q), variance)
    assert float(found) == pytest.approx(expected, rel=1e-9)
    one = discrepancy(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), 1.0)
    assert float(one) == pytest.approx(np.sqrt(2 - 2 * np.exp(-1.0)), rel=1e-6)
    same = torch.tensor(p, requires_grad=True)
    discrepancy(same, torch.tensor(p), variance).backward()
    assert torch.isfinite(same.grad).all(), "at 0 too"


def test_mmd_compares_each_class_with_itself(task) -> None:
    """Classes that one part lacks have nothing to be compared with; the others count alike."""
    logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    training = Seen(logits=logits[:3], labels=torch.tensor([0, 0, 1]))
    reference = Seen(logits=logits[3:], labels=torch.tensor([1, 0, 2]))
    regulariser = method_of(MMDRegularization).regulariser(plan(task), network_context(), task, KEY)
    probs = logits.softmax(dim=1)
    of_class = [discrepancy(probs[:2], probs[4:5], 1.0), discrepancy(probs[2:3], probs[3:4], 1.0)]
    assert float(regulariser.value(training, reference)) == pytest.approx(float(sum(of_class)) / 2)
    apart = Seen(logits=logits[3:], labels=torch.tensor([3, 4, 5]))
    assert float(regulariser.value(training, apart)) == 0


def test_the_attack_models_gain_by_hand() -> None:
    torch.manual_seed(0)
    attack = AttackModel(10, 32)
    training, reference = (
        Seen(logits=torch.randn(n, 10), labels=torch.randint(10, (n,))) for n in (4, 7)
    )
    h = [attack(seen).sigmoid().detach().numpy() for seen in (training, reference)]
    expected = np.log(h[0]).mean() + np.log(1 - h[1]).mean()
    assert float(gain(attack, training, reference).detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [AdversarialRegularization, AdversarialRegularizationOnBoth])
def test_only_the_variant_differentiates_the_reference_datas_term(task, kind) -> None:
    """Kaplan et al. 2024, equations 19 and 20."""
    regulariser = method_of(kind).regulariser(plan(task), network_context(), task, KEY)
    logits = [torch.randn(5, 10, requires_grad=True) for _ in range(2)]
    training, reference = (Seen(logits=part, labels=torch.arange(5)) for part in logits)
    value = regulariser.value(training, reference)
    value.backward()
    h = [regulariser.attack(seen).sigmoid().detach() for seen in (training, reference)]
    expected = h[0].log().mean()
    if kind is AdversarialRegularizationOnBoth:
        expected += (1 - h[1]).log().mean()
        assert logits[1].grad.abs().sum() > 0
    else:
        assert logits[1].grad is None
    assert float(value.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert logits[0].grad.abs().sum() > 0


def test_the_attack_model_gets_so_many_batches_to_one_of_the_classifier(task) -> None:
    """A geometric number with mean r and variance r (r + 1): four standard errors over 4,000 steps.

    Appendix B.1's coin gives the classifier a batch with probability 1 / (1 + r).
    """
    regulariser = AdversarialRegularization(strength=1.0).regulariser(
        plan(task), network_context(), task, KEY
    )
    counts = np.array([regulariser._num_batches(step) for step in range(4000)])
    assert counts.mean() == pytest.approx(20, abs=4 * np.sqrt(420 / 4000))
    assert np.mean(counts == 0) == pytest.approx(1 / 21, abs=4 * np.sqrt(20 / 21**2 / 4000))
    none = AdversarialRegularization(strength=1.0, attack_ratio=0).regulariser(
        plan(task), network_context(), task, KEY
    )
    assert none._num_batches(0) == 0


def test_the_attack_model_learns_to_tell_the_sets_apart(task) -> None:
    """The reference data's inputs are turned over, so that outputs tell; before training the gain
    is about 2 log ½."""
    other, made = with_other_reference(task), network_context()
    method = method_of(AdversarialRegularization, attack_ratio=5.0)
    regulariser = method.regulariser(plan(other), made, other, KEY)
    both = look_at(made, other, np.arange(len(other.train)))
    before = float(gain(regulariser.attack, *both).detach())
    for step in range(40):
        regulariser.prepare(step)
    after = float(gain(regulariser.attack, *both).detach())
    assert before == pytest.approx(2 * np.log(0.5), abs=0.2)
    assert after > before + 0.5


@pytest.mark.parametrize("kind", ALL)
def test_reference_data_count_through_the_regulariser_alone(task, kind) -> None:
    other = with_other_reference(task)
    assert (
        trained(method_of(kind, strength=0), task) == trained(method_of(kind, strength=0), other)
    ).all()
    assert (
        trained(method_of(kind, warmup_steps=4), task) == trained(method_of(kind, strength=0), task)
    ).all()
    assert (trained(method_of(kind), task) - trained(method_of(kind), other)).abs().max() > 1e-5
    assert (trained(method_of(kind), task) == trained(method_of(kind), task)).all(), (
        "the same again"
    )


def test_a_batch_may_lack_one_of_the_sets(task) -> None:
    """Text models cannot be asked about no text, so nobody asks."""
    made = network_context()
    first = task.facts().num_training
    for units in (np.arange(3), np.arange(first, first + 3)):
        training, reference = look_at(made, task, units)
        assert len(training) + len(reference) == 3
        assert training.logits.shape == (len(training), 10)
        assert reference.logits.shape == (len(reference), 10)


def test_without_the_regulariser_the_loss_is_the_mean_over_the_training_data(task) -> None:
    """One step of gradient descent on all examples, against autograd."""
    made, n = network_context(), task.facts().num_units
    chosen = task.batch(np.arange(task.facts().num_training))
    loss = task.per_example_loss(made.model, chosen).mean()
    gradients = torch.autograd.grad(loss, list(made.parameters.values()))
    expected = torch.cat(
        [(p - 0.5 * g).flatten() for p, g in zip(made.parameters.values(), gradients, strict=True)]
    )
    method = MMDRegularization(strength=0, optimizer_name="sgd")
    found = trained(method, task, batch_size=n, num_steps=1, learning_rate=0.5)
    assert (found - expected).abs().max() < 1e-6


def test_a_run_pauses_and_ends_early_when_it_is_asked_to(task) -> None:
    seen: list[int] = []
    asked = network_context(
        observers=(AfterStep(lambda report: seen.append(report.done)), toys.EndsAt({2}))
    )
    outcome = method_of(MMDRegularization).train(plan(task), asked, task, LocalComm(), KEY, None)
    assert (outcome.ended_early, len(outcome.history), seen) == (True, 2, [1, 2])
    paused = network_context(pause_fn=lambda: True)
    with pytest.raises(Paused, match="starts again"):
        method_of(MMDRegularization).train(plan(task), paused, task, LocalComm(), KEY, None)
