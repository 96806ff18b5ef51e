"""Every registered score runs the suite."""

from __future__ import annotations

from raydp.registries import BUILTIN
from raydp.scores.air import AttributeInference
from raydp.scores.logprob import LogProbability
from raydp.scores.vmr import VerbatimMemorization
from raydp.scores.vmr_exact import ExactVerbatimMemorization
from raydp.scores.vmr_text import TextVerbatimMemorization

from .conformance import ScoreConformance


class TestVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr", VerbatimMemorization(), "verbatim"


class TestTextVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_text", TextVerbatimMemorization(), "verbatim"


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
    assert set(BUILTIN["scores"]) <= {suite.name for suite in ScoreConformance.__subclasses__()}
