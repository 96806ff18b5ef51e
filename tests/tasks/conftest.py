"""A small byte-level tokenizer, trained here, and files in the layouts that the tasks read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from raydp.models import base_models as models
from raydp.plugins.registries import resolve
from raydp.tasks.text.language import LanguageModelingTask
from tests.builders.data_files import write_json_lines
from tests.builders.models import trained_tokenizer
from tests.builders.specs import SMALL_TASK


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return trained_tokenizer()


@pytest.fixture(scope="session")
def trimming_tokenizer() -> PreTrainedTokenizerFast:
    """As GPT-2's: a token's offsets leave out its leading space."""
    return trained_tokenizer(trim_offsets=True)


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[[str, Iterable[Mapping[str, Any]]], Path]:
    """Write rows to a JSON Lines file, gzipped if its name says so."""

    def write(name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        return write_json_lines(tmp_path / name, rows)

    return write


@pytest.fixture(scope="session")
def tiny() -> PreTrainedTokenizerBase:
    return models.load_tokenizer("tiny")


@pytest.fixture(scope="session")
def inner(tiny: PreTrainedTokenizerBase) -> LanguageModelingTask:
    """The small built-in task, of which others are made."""
    return (
        resolve("tasks", "builtin")
        .model_validate({k: v for k, v in SMALL_TASK.items() if k != "name"})
        .build(tiny)
    )
