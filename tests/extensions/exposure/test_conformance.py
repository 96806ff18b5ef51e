"""The score `exposure` runs the suite of scores, on a whole space and on a sample of one."""

from __future__ import annotations

from raydp.extensions.exposure.score import Exposure
from raydp.testing.scores import ScoreConformance


class TestExposure(ScoreConformance):
    name, score, kind = "exposure", Exposure(), "verbatim"


class TestSampledExposure(ScoreConformance):
    name, score, kind = (
        "exposure",
        Exposure(max_enumerated=2, num_samples=200, extrapolate=True),
        "verbatim",
    )
