"""Every registered score runs the suite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydp.analysis.tables.per_secret import LOGARITHMIC, RATES
from raydp.plugins.parameters import constant
from raydp.plugins.registries import BUILTIN, resolve
from raydp.scores.membership.mia import MembershipInference, ReferenceMembershipInference
from raydp.scores.memorisation.acr import AdversarialCompression
from raydp.scores.memorisation.air import AttributeInference
from raydp.scores.memorisation.exposure import Exposure
from raydp.scores.memorisation.extraction import ExtractionProbability
from raydp.scores.memorisation.logprob import LogProbability
from raydp.scores.memorisation.vmr import (
    ExactVerbatimMemorization,
    GreedyVerbatimMemorization,
    NearVerbatimMemorization,
    TextVerbatimMemorization,
    VerbatimMemorization,
)
from tests.builders.models import byte_tokenizer
from tests.builders.secrets import examples_task, made_up_secrets, told

from .conformance import ScoreConformance


@pytest.mark.slow
class TestAdversarialCompression(ScoreConformance):
    name, kind = "acr", "verbatim"
    score = AdversarialCompression(num_seeds=1, num_steps=8, batch_size=32, patience=4, max_prompt_tokens=4)


class TestVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr", VerbatimMemorization(), "verbatim"


class TestTextVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_text", TextVerbatimMemorization(), "verbatim"


class TestExactVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_exact", ExactVerbatimMemorization(), "verbatim"


class TestGreedyVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_greedy", GreedyVerbatimMemorization(), "verbatim"


class TestNearVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_near", NearVerbatimMemorization(), "verbatim"


class TestExtractionProbability(ScoreConformance):
    name, score, kind = "extraction", ExtractionProbability(), "verbatim"


class TestExposure(ScoreConformance):
    name, score, kind = "exposure", Exposure(), "verbatim"


class TestSampledExposure(ScoreConformance):
    name, score, kind = "exposure", Exposure(max_enumerated=2, num_samples=200, extrapolate=True), "verbatim"


class TestAttributeInference(ScoreConformance):
    name, score, kind = "air", AttributeInference(), "attribute"


class TestLogProbability(ScoreConformance):
    name, score, kind = "logprob", LogProbability(), "verbatim"


class TestLogProbabilityOfAttributes(ScoreConformance):
    name, score, kind = "logprob", LogProbability(), "attribute"


class TestPlainLogProbability(ScoreConformance):
    name, score, kind = "logprob", LogProbability(contrast=False), "verbatim"


class TestMembershipInference(ScoreConformance):
    """It tells training examples, here the texts of the secrets, from held-out ones of the same format."""

    name, score, kind = "mia", MembershipInference(), "verbatim"

    def task(self, secrets=(), controls=()):
        others = made_up_secrets(self.kind, len(secrets), seed=5)
        return examples_task(told(secrets), told(others), byte_tokenizer())

    def test_rises_on_a_model_that_always_says_it(self, untrained, memorised, known):
        never, always = (self.score.measure(model, self.task(known), seed=0) for model in (untrained, memorised))
        assert always.value > 0.9
        assert never.value == 0.5, "a base model has no advantage over itself"

    def test_never_returns_a_secret_in_the_clear(self, memorised, known, caplog, capsys):
        measured = self.score.measure(memorised, self.task(known), seed=0)
        assert all(figure is None or isinstance(figure, int | float) for figure in measured.details.values())
        assert not measured.per_secret
        shown = caplog.text + "".join(capsys.readouterr())
        assert not any(secret.prompt in shown for secret in known)

    def test_a_task_without_its_kind_of_secret_is_refused_before_training(self):
        with pytest.raises(ValueError, match="training examples and others that are held out for the score 'mia'"):
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


OF_CANARIES = {"one_run_audit", "twin_audit"}
"""Measured on canaries, not on secrets: tested in test_one_run_audit.py and test_twin_audit.py."""
OF_CLASSIFIERS = {"mia_outputs", "mia_outputs_of_reference"}
"""Measured on a classifier's outputs: tested in test_mia_outputs.py."""


def test_no_registered_score_is_left_out():
    """A score that compares the models of a set measures no model alone: it has tests of its own."""
    alone = {name for name in BUILTIN["scores"] if not getattr(resolve("scores", name), "of_a_set", False)}
    suites = [*ScoreConformance.__subclasses__(), *TestMembershipInference.__subclasses__()]
    assert alone <= {suite.name for suite in suites} | OF_CANARIES | OF_CLASSIFIERS


def test_logarithmic_scores_are_known_where_only_a_table_is_given() -> None:
    declared = {name for name in BUILTIN["scores"] if resolve("scores", name).logarithmic}
    assert declared == LOGARITHMIC == {name for name in BUILTIN["scores"] if constant("scores", name, "logarithmic")}


def test_scores_of_at_most_1_are_known_where_only_a_table_is_given() -> None:
    assert {
        name for name in BUILTIN["scores"] if resolve("scores", name).model_construct().expected_bounds()[1] == 1
    } == RATES
