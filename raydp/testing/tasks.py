"""The suite of tasks."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.classification.networks import NetworkName
from raydp.methods.dp import DPSGD
from raydp.models.base_models import load_tokenizer
from raydp.plugins import registries
from raydp.plugins.described import resolve_plugin
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.selftest.subjects import ROUNDING, Subject
from raydp.testing.models import llama
from raydp.training.trial import TrainingContext

MESSAGE = r"{section}\.\S+ must .+, got .+\. .+[.?]"
"""The form of a message: "<field> must <rule>, got <value>. <remedy>."."""
NUM_UNITS = 5
"""Units whose losses and gradients are compared, from the shortest to the longest."""


class TaskConformance:
    """Inherit, set `name` (as registered), and say by `written` how a spec writes the task.

    Attributes:
        bad: parameters that the task refuses.
        for_use: what the section says of its models.
        knows_users: whether the unit of privacy may be the user.
    """

    name: str
    bad: ClassVar[Mapping[str, Any]] = {"data_seed": -1}
    for_use: bool = True
    knows_users: bool = False

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        """Write the task's files into a folder and return its parameters.

        Args:
            changed: one training example is another one.
        """
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def section(cls, tmp_path_factory: pytest.TempPathFactory) -> Any:
        return cls().resolved(cls().written(tmp_path_factory.mktemp("data")))

    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls, section: Any) -> Any:
        return load_tokenizer("tiny") if cls.of_language(section) else None

    @pytest.fixture(scope="class")
    @classmethod
    def task(cls, section: Any, tokenizer: Any) -> Any:
        return section.build(tokenizer)

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, task: Any, tokenizer: Any) -> torch.nn.Module:
        return model_of(task, tokenizer)

    def resolved(self, written: Mapping[str, Any]) -> Any:
        problems: list[str] = []
        plugin = resolve_plugin("tasks", "task", {"name": self.name, **written}, problems)
        assert plugin is not None, problems
        return plugin.params

    @staticmethod
    def of_language(section: Any) -> bool:
        """Return whether a language model learns the task, as the section declares."""
        return section.model_family is None

    def test_it_is_registered(self, section: Any) -> None:
        assert isinstance(section, registries.resolve("tasks", self.name))

    def test_its_facts_are_those_of_its_data(self, task: Any) -> None:
        facts, lengths, sizes = task.facts(), task.lengths(), task.unit_sizes()
        assert facts.num_examples == len(lengths) > 0
        assert facts.num_units == (len(lengths) if sizes is None else len(sizes))
        assert 0 <= facts.num_reference < facts.num_units
        assert facts.privacy_unit
        assert re.fullmatch("[0-9a-f]{64}", facts.content_hash)
        assert len(task.heldout_lengths()) > 0
        everything = task.batch(np.arange(len(lengths)))
        assert len(everything.labels) == len(lengths)
        assert facts.num_tokens == (
            int(lengths.sum())
            if isinstance(task, ClassificationTask)
            else int(_num_targets(everything).sum())
        )
        if not isinstance(task, ClassificationTask):
            assert everything.input_ids.shape[1] == lengths.max()
        assert all(isinstance(sentence, str) for sentence in facts.sentences())

    def test_the_same_data_are_the_same_task_in_any_process(self, section: Any, task: Any) -> None:
        tokenizer = load_tokenizer("tiny") if self.of_language(section) else None
        for other in (section.build(tokenizer), pickle.loads(pickle.dumps(task))):
            assert other.facts() == task.facts()
            indices = np.arange(min(20, len(task.lengths())))
            assert torch.equal(other.batch(indices).labels, task.batch(indices).labels)
            assert other.secrets() == task.secrets()

    def test_another_example_is_another_task(
        self, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = self.changed(tmp_path, monkeypatch)
        assert other.facts().content_hash != task.facts().content_hash
        assert other.facts().num_examples == task.facts().num_examples

    def test_public_held_out_data_do_not_follow_the_private_ones(
        self, task: Any, model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if task.facts().utility_is_public:
            assert self.changed(tmp_path, monkeypatch).utility(model) == task.utility(model)

    def test_the_loss_of_an_example_is_its_own(self, task: Any, model: torch.nn.Module) -> None:
        """In value and in gradient, whatever is in its batch, which the guarantee rests on."""
        indices = _spread(task)
        batch = task.batch(indices)
        losses = task.per_example_loss(model, batch).detach()
        assert losses.shape == (len(indices),)
        assert torch.isfinite(losses).all()
        if not isinstance(
            task, ClassificationTask
        ):  # fp32 sums of some 100 token losses in another order
            torch.testing.assert_close(
                losses, _mean_over_targets(model, batch), rtol=1e-5, atol=1e-5
            )
        subject = Subject(
            name=self.name, context=TrainingContext(model=model, parameters=dict(sorted(model.named_parameters()))),
            task=task, method=DPSGD(max_grad_norm=1.0), indices=indices, tolerance=2 * ROUNDING[torch.float32],
        )  # fmt: skip
        failed = [check for check in sensitivity_checks(subject) if not check.passed]
        assert not failed, "\n".join(map(repr, failed))

    def test_utility_is_of_each_held_out_example_once(
        self, task: Any, model: torch.nn.Module
    ) -> None:
        """So it does not depend on how the examples are put together."""
        assert task.utility(model) == pytest.approx(_utility_one_by_one(task, model), rel=1e-5)

    def test_secrets_are_known_by_name_and_not_shown(
        self,
        section: Any,
        tokenizer: Any,
        capsys: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        task = section.build(tokenizer)
        secrets, controls = list(task.secrets()), list(task.controls())
        assert len({secret.name for secret in secrets}) == len(secrets)
        assert not {secret.id for secret in secrets} & {control.id for control in controls}
        assert all(control.count == 0 for control in controls)
        assert all(0 <= secret.count <= task.facts().num_examples for secret in secrets)
        shown = [
            repr(task),
            repr(secrets),
            repr(controls),
            repr(task.facts()),
            *task.facts().sentences(),
        ]
        shown += [caplog.text, *capsys.readouterr(), *(secret.name for secret in secrets)]
        for secret in (*secrets, *controls):
            assert not [text for text in shown if secret.prompt in text], secret.name

    def test_examples_of_one_user_are_neighbours(self, task: Any) -> None:
        if not self.knows_users:
            with pytest.raises(ValueError, match=r"privacy\.unit must be example .*, got user\. "):
                task.by_user()
            return
        by_user = task.by_user()
        facts, sizes = by_user.facts(), by_user.unit_sizes()
        assert sizes is not None
        assert sizes.sum() == facts.num_examples == task.facts().num_examples
        assert facts.num_units == len(sizes)
        assert facts.content_hash != task.facts().content_hash
        whose = np.repeat(np.arange(len(sizes)), sizes)
        assert _by_owner(by_user, whose) == _by_owner(task, task.users.of_example)

    def test_users_that_the_spec_does_not_name_are_no_units(
        self, section: Any, tokenizer: Any
    ) -> None:
        """Rows, e-mails and conversations are users only if the spec says so."""
        if "user_column" not in type(section).model_fields:
            return
        unnamed = section.model_copy(update={"user_column": None}).build(tokenizer)
        message = r"privacy\.unit must be example without task\.user_column, got user\. Set task\.user_column to .*\."
        with pytest.raises(ValueError, match=message):
            unnamed.by_user()

    def test_what_it_declares_is_what_it_builds(self, section: Any, task: Any) -> None:
        assert section.classifies == isinstance(task, ClassificationTask)
        if section.classifies:
            assert (section.model_family is None) == (task.label_words is not None)
            assert not list(task.secrets())
        assert section.for_use == self.for_use
        if not self.of_language(section):
            assert section.build(None).facts() == task.facts(), "a network needs no tokenizer"

    def test_ids_and_classes_are_those_of_the_model(self, task: Any, tokenizer: Any) -> None:
        """A model gets `num_new_tokens` more; without them a new token would be out of its
        range."""
        batch, new = task.batch(np.arange(len(task.lengths()))), task.facts().num_new_tokens
        if isinstance(task, ClassificationTask):
            assert 0 <= int(batch.labels.min()) <= int(batch.labels.max()) < task.num_classes + new
        else:
            assert (
                0 <= int(batch.input_ids.min()) <= int(batch.input_ids.max()) < len(tokenizer) + new
            )

    def test_a_bad_parameter_is_refused_by_name(self, tmp_path: Path) -> None:
        check_refusals("tasks", {"name": self.name, **self.written(tmp_path)}, self.bad)

    def changed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Return the task of which one training example is another one."""
        section = self.resolved(self.written(folder, changed=True))
        return section.build(load_tokenizer("tiny") if self.of_language(section) else None)


def check_refusals(
    kind: Literal["tasks", "methods"], written: Mapping[str, Any], bad: Mapping[str, Any]
) -> None:
    """Check what is said of bad parameters, and of a key that nobody knows."""
    section, problems = kind.removesuffix("s"), list[str]()
    assert resolve_plugin(kind, section, {**written, **bad}, problems) is None
    for problem in problems:
        assert re.fullmatch(MESSAGE.format(section=section), problem, re.DOTALL), problem
    assert any(name in " ".join(problems) for name in bad)
    problems = []
    assert resolve_plugin(kind, section, {**written, "no_such_key": 1}, problems) is None
    assert [problem.split(" Known: ")[0] for problem in problems] == [
        f"{section}.no_such_key: the key 'no_such_key' is unknown."
    ]


def model_of(task: Any, tokenizer: Any) -> torch.nn.Module:
    """Return a small model with random weights that can learn the task."""
    new = task.facts().num_new_tokens
    if tokenizer is not None:
        return llama(len(tokenizer) + new)
    assert isinstance(task, ClassificationTask)
    network = NetworkName(
        architecture="linear", input_shape=task.input_shape, num_classes=task.num_classes + new
    )
    model: torch.nn.Module = network.build().eval()  # type: ignore[no-untyped-call]
    return model


def _spread(task: Any) -> np.ndarray:
    """Return the positions of examples from the shortest to the longest."""
    order = np.argsort(task.lengths(), kind="stable")
    return np.sort(order[np.unique(np.linspace(0, len(order) - 1, NUM_UNITS).round().astype(int))])


def _num_targets(batch: Any) -> torch.Tensor:
    """Return [B] the number of target tokens; the first token has nothing before it that could
    predict it."""
    return torch.sum(batch.labels[:, 1:] >= 0, dim=1)


def _mean_over_targets(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return [B] the losses, by torch's own cross-entropy, one example after another."""
    with torch.no_grad():
        logits = model(input_ids=batch.input_ids).logits[:, :-1].double()
    return torch.stack(
        [
            F.cross_entropy(row, labels)
            for row, labels in zip(logits, batch.labels[:, 1:], strict=True)
        ]
    ).float()


def _utility_one_by_one(task: Any, model: torch.nn.Module) -> float:
    """Return the utility from batches of one held-out example."""
    total = count = 0.0
    for position in range(len(task.heldout_lengths())):
        batch = task.heldout_batch(np.array([position]))
        weight = 1.0
        with torch.no_grad():
            if isinstance(task, ClassificationTask) and task.measured_by == "error_rate":
                value = float(task.logits(model, batch.inputs).argmax() != batch.labels[0])
            else:
                value = float(task.per_example_loss(model, batch)[0])
                weight = (
                    1.0 if isinstance(task, ClassificationTask) else float(_num_targets(batch)[0])
                )
        total, count = total + weight * value, count + weight
    return total / count


def _by_owner(task: Any, whose: np.ndarray) -> Counter[tuple[bytes, ...]]:
    """Return the users' examples, in whatever order users and their examples are."""
    users: dict[int, list[bytes]] = {}
    for content, owner in zip(task.train.contents(), whose.tolist(), strict=True):
        users.setdefault(owner, []).append(content)
    return Counter(tuple(sorted(contents)) for contents in users.values())
