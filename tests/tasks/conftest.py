"""A small byte-level tokenizer, trained here, and files in the layouts that the tasks read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SAMPLE = (
    "Please call Mira Halborn at 555-0142 about the draft.\nForwarded by Otto Fenwick/OSL/NRD on 03/04\n\n"
    "Question: What does the author write?\nAnswer: The author writes in the naval comedy genre.\n"
)


def _train(*, trim_offsets: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SAMPLE], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return _train(trim_offsets=False)


@pytest.fixture(scope="session")
def trimming_tokenizer() -> PreTrainedTokenizerFast:
    """As GPT-2's: a token's offsets leave out its leading space."""
    return _train(trim_offsets=True)


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[[str, Iterable[Mapping[str, Any]]], Path]:
    """Write rows to a JSON Lines file, gzipped if its name says so."""

    def write(name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write
