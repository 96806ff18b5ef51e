"""The score `acr` runs the suite of scores."""

from __future__ import annotations

import pytest

from raydp.extensions.prompt_search.score import AdversarialCompression
from raydp.testing.scores import ScoreConformance


@pytest.mark.slow
class TestAdversarialCompression(ScoreConformance):
    name, kind = "acr", "verbatim"
    score = AdversarialCompression(
        num_seeds=1, num_steps=8, batch_size=32, patience=4, max_prompt_tokens=4
    )
