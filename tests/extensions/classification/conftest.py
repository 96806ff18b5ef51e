"""Fixtures that the tests of tasks share."""

from tests.tasks.conftest import inner, tiny, tokenizer, trimming_tokenizer, write_jsonl

__all__ = ["inner", "tiny", "tokenizer", "trimming_tokenizer", "write_jsonl"]
