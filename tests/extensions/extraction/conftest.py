"""Models, secrets and a task that the tests of scores share."""

from tests.scores.conftest import memorised, tokenizer, untrained
from tests.scores.test_vmr import known, likely_secrets, task

__all__ = ["known", "likely_secrets", "memorised", "task", "tokenizer", "untrained"]
