"""The scores of extraction run the suite of scores."""

from __future__ import annotations

from raydp.extensions.extraction.attempts import ExtractionProbability
from raydp.extensions.extraction.verbatim import (
    GreedyVerbatimMemorization,
    NearVerbatimMemorization,
    TextVerbatimMemorization,
)
from raydp.testing.scores import ScoreConformance


class TestTextVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_text", TextVerbatimMemorization(), "verbatim"


class TestGreedyVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_greedy", GreedyVerbatimMemorization(), "verbatim"


class TestNearVerbatimMemorization(ScoreConformance):
    name, score, kind = "vmr_near", NearVerbatimMemorization(), "verbatim"


class TestExtractionProbability(ScoreConformance):
    name, score, kind = "extraction", ExtractionProbability(), "verbatim"
