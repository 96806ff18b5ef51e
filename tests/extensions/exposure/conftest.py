"""Models that the tests of scores share."""

from tests.scores.conftest import memorised, tokenizer, untrained

__all__ = ["memorised", "tokenizer", "untrained"]
