"""A tokenizer, tasks and files that the tests of tasks share."""

from tests.tasks.conftest import inner, tiny, tokenizer, write_jsonl

__all__ = ["inner", "tiny", "tokenizer", "write_jsonl"]
