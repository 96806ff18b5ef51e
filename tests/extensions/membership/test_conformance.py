"""The scores of membership, and the task of halves, run the suites of scores and tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raydp.extensions.membership.mia import MembershipInference, ReferenceMembershipInference
from raydp.testing.models import byte_tokenizer
from raydp.testing.scores import ScoreConformance
from raydp.testing.secrets import made_up_secrets, told
from tests.builders.secrets import examples_task
from tests.tasks import test_conformance as tasks


class TestMembershipInference(ScoreConformance):
    """It tells training examples, here the texts of the secrets, from held-out ones of the same
    format."""

    name, score, kind = "mia", MembershipInference(), "verbatim"

    def task(self, secrets=(), controls=()):
        others = made_up_secrets(self.kind, len(secrets), seed=5)
        return examples_task(told(secrets), told(others), byte_tokenizer())

    def test_rises_on_a_model_that_always_says_it(self, untrained, memorised, known):
        never, always = (
            self.score.measure(model, self.task(known), seed=0) for model in (untrained, memorised)
        )
        assert always.value > 0.9
        assert never.value == 0.5, "a base model has no advantage over itself"

    def test_never_returns_a_secret_in_the_clear(self, memorised, known, caplog, capsys):
        measured = self.score.measure(memorised, self.task(known), seed=0)
        assert all(
            figure is None or isinstance(figure, int | float)
            for figure in measured.details.values()
        )
        assert not measured.per_secret
        shown = caplog.text + "".join(capsys.readouterr())
        assert not any(secret.prompt in shown for secret in known)

    def test_a_task_without_its_kind_of_secret_is_refused_before_training(self):
        with pytest.raises(
            ValueError, match="training examples and others that are held out for the score 'mia'"
        ):
            self.score.check(self.task())


class TestReferenceMembershipInference(TestMembershipInference):
    """Its members are the reference data: here all that is trained on."""

    name, score = "mia_of_reference", ReferenceMembershipInference()

    def task(self, secrets=(), controls=()):
        task = super().task(secrets, controls)
        return replace(task, task_facts=replace(task.task_facts, num_reference=len(task.train)))

    def test_a_task_without_its_kind_of_secret_is_refused_before_training(self):
        others = [told(made_up_secrets(self.kind, 3, seed=seed)) for seed in (5, 6)]
        with pytest.raises(ValueError, match="task must have reference data"):
            self.score.check(examples_task(*others, byte_tokenizer()))


class TestHalf(tasks.Wrapping):
    """A change of an example that is not in the half changes nothing: this one is in it, before and
    after."""

    name, for_use = "half", False

    def options(self) -> dict[str, Any]:
        return {"seed": 8}
