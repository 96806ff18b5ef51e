"""Every registered score runs the suite."""

from __future__ import annotations

import pytest

from raydp.analysis.tables.per_secret import LOGARITHMS, RATES
from raydp.plugins.registries import own_names, resolve
from raydp.scores.memorisation.air import AttributeInference
from raydp.scores.memorisation.logprob import LogProbability
from raydp.scores.memorisation.vmr import (
    ExactVerbatimMemorization,
    VerbatimMemorization,
)
from raydp.scores.words import ScoreWords
from raydp.testing.scores import ScoreConformance
from tests.builders.registered import of_core


class TestVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr", VerbatimMemorization(), "verbatim"


class TestExactVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_exact", ExactVerbatimMemorization(), "verbatim"


class TestAttributeInference(ScoreConformance):
    name, score, kind = "air", AttributeInference(), "attribute"


class TestLogProbability(ScoreConformance):
    name, score, kind = "logprob", LogProbability(), "verbatim"


class TestLogProbabilityOfAttributes(ScoreConformance):
    name, score, kind = "logprob", LogProbability(), "attribute"


class TestPlainLogProbability(ScoreConformance):
    name, score, kind = "logprob", LogProbability(contrast=False), "verbatim"


def test_no_registered_score_is_left_out():
    """A score that compares the models of a set measures no model alone: it has tests of its
    own."""
    alone = {
        name
        for name in of_core("scores")
        if not getattr(resolve("scores", name), "of_a_set", False)
    }
    assert alone <= {suite.name for suite in ScoreConformance.__subclasses__()}


@pytest.mark.extensions
def test_logarithmic_scores_are_known_where_only_a_table_is_given() -> None:
    declared = {name: resolve("scores", name) for name in own_names("scores")}
    assert {
        name: score.log_base for name, score in declared.items() if score.logarithmic
    } == LOGARITHMS
    assert {
        name: ScoreWords.of(name).log_base for name in declared if ScoreWords.of(name).log_base
    } == LOGARITHMS


@pytest.mark.extensions
def test_scores_of_at_most_1_are_known_where_only_a_table_is_given() -> None:
    assert {
        name
        for name in own_names("scores")
        if resolve("scores", name).model_construct().expected_bounds()[1] == 1
    } == RATES
