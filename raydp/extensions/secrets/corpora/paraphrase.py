"""Paraphrases of answers by a local instruct model, for the TOFU variants.

Source: Hu et al. 2025, App. B.4.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.extensions.paper_data.qa import Row
from raydp.extensions.paper_data.variants import text_digest
from raydp.scores.language.generation import Sampling, sample_continuations, stop_tokens, uniforms
from raydp.tasks.row_files import read_json_rows, read_rows, string_of

if TYPE_CHECKING:
    from raydp.models.base_models import LoadedModel

SYSTEM_PROMPT = (
    "You are an expert at paraphrasing. Always respond with a reworded version of the input that: "
    "1) differs from the original wording, 2) preserves all key details, and 3) avoids adding "
    "anything not in the input."
)


@dataclass(frozen=True, kw_only=True)
class ParaphraseOptions:
    """Options for paraphrasing answers. The defaults are those of Hu et al.

    Attributes:
        num: number of paraphrases of each answer.
        seed: seed of the draws. A row's draws depend on the seed and the row's text alone.
        batch_size: number of rows that are generated together. It does not change the draws.
        temperature, top_k: settings of the sampling; top-p is 1.
        max_new_tokens: largest number of tokens of a paraphrase; longer ones are cut.
    """

    num: int = 7
    seed: int = 0
    batch_size: int = 8
    temperature: float = 1.0
    top_k: int = 50
    max_new_tokens: int = 120

    def identity(self, model: str) -> dict[str, object]:
        """Return the settings that determine the paraphrases."""
        settings = {k: v for k, v in vars(self).items() if k not in ("num", "batch_size")}
        return {"model": model, **settings}


def read_question_rows(path: Path) -> list[Row]:
    """Read all rows of question/answer data."""
    return [
        Row(
            question=string_of(row, "question", "DATA", f"{path.name}, line {line}").strip(),
            answer=string_of(row, "answer", "DATA", f"{path.name}, line {line}").strip(),
        )
        for line, row in read_rows(path, "DATA")
    ]


def paraphrase_file(
    rows: Sequence[Row],
    output: Path,
    load: Callable[[], LoadedModel],
    model_name: str,
    options: ParaphraseOptions,
    *,
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, int]:
    """Write a file for `task.paraphrases`, row by row.

    A second call resumes from the first one's rows.

    Args:
        rows: the data.
        output: path of JSON Lines with mode 0600, because paraphrases of private text are private.
        load: loads the instruct model with a chat template; called only if rows are left to do.
        model_name: name that every line records.
        options: see ParaphraseOptions.
        limit: number of rows to paraphrase, from the first on; all by default.
        progress: called with (rows done, rows in all).

    Returns:
        Counts: all rows ("rows"), rows that existed already ("already") and rows that this call
            wrote ("written").
        Of the paraphrases of this call: "unchanged" are equal to their answer, "cut" reached
        max_new_tokens, and "blank_redrawn" were drawn blank, so that a reserve draw or the answer
        replaces them.

    Raises:
        ValueError: there are no rows, or the file belongs to other data, another model or other
            options.
    """
    # Find the rows that are left to do.
    total = len(rows) if limit is None else min(limit, len(rows))
    left = sorted(set(range(total)) - _done(output, rows, options, model_name))
    counts = dict.fromkeys(("written", "unchanged", "cut", "blank_redrawn"), 0)
    notes = {"rows": total, "already": total - len(left), **counts}
    if not left:
        return notes
    # Paraphrase them in batches, appending to the file.
    model = _instruct_model(load, model_name)
    # Appended batch by batch, and private to its owner from the start.
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        for begin in range(0, len(left), options.batch_size):
            progress(notes["already"] + begin, total)
            batch = left[begin : begin + options.batch_size]
            paraphrased = _paraphrase(model, [rows[i] for i in batch], options, notes)
            for i, texts in zip(batch, paraphrased, strict=True):
                line = {"row": i, "of": text_digest(rows[i].answer), "paraphrases": texts}
                line |= options.identity(model_name)
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                notes["unchanged"] += sum(text == rows[i].answer for text in texts)
                notes["written"] += 1
            # A kill loses at most one batch.
            file.flush()
    progress(total, total)
    return notes


def _instruct_model(load: Callable[[], LoadedModel], name: str) -> LoadedModel:
    """Load the model. Raise ValueError if it has no chat template."""
    model = load()
    if model.tokenizer.chat_template is None:
        raise ValueError(
            f"--model must have a chat template, got {name!r}. Choose an instruct model."
        )
    return model


def _paraphrase(
    model: LoadedModel, rows: Sequence[Row], options: ParaphraseOptions, notes: dict[str, int]
) -> list[list[str]]:
    """Return paraphrases of each row's answer, a reserve draw (not blank) for a blank one."""
    # A row's draws depend on the seed and its own text, so batches and resumes change nothing.
    prompts = [_prompt(model, row.answer) for row in rows]
    drawn = options.num + 1  # one more as reserve
    samples = sample_continuations(
        model,
        prompts,
        [
            uniforms(
                options.seed, "paraphrase", text_digest(r.answer), drawn, options.max_new_tokens
            )
            for r in rows
        ],
        Sampling(top_k=options.top_k, temperature=options.temperature),
        stop=stop_tokens(model),
    )
    stop = set(stop_tokens(model).tolist())
    # Blank draws are replaced by the reserve, or else by the answer itself.
    result = []
    for row, generated in zip(rows, samples, strict=True):
        texts = [
            t.strip() for t in model.tokenizer.batch_decode(generated, skip_special_tokens=True)
        ]
        kept = [(t, ids) for t, ids in zip(texts, generated, strict=True) if t][: options.num]
        notes["blank_redrawn"] += sum(not t for t in texts[: options.num])
        notes["cut"] += sum(ids[-1] not in stop for _, ids in kept)
        missing = options.num - len(kept)
        result.append([t for t, _ in kept] + [row.answer] * missing)
    return result


def _prompt(model: LoadedModel, text: str) -> list[int]:
    """Return the tokens of Hu et al.'s system and user prompts in the model's own chat format."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]
    written = model.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    ids: list[int] = model.tokenizer(written, add_special_tokens=False)["input_ids"]
    return ids


def _done(
    output: Path, rows: Sequence[Row], options: ParaphraseOptions, model_name: str
) -> set[int]:
    """Return the rows of an unfinished file. A last line that a kill cut off is removed."""
    if not rows:
        raise ValueError("DATA must hold rows to paraphrase, got none. Check the file.")
    if not output.exists():
        return set()
    _drop_cut_line(output)
    # Every line must be of these data, this model and these options.
    wanted = options.identity(model_name)
    done = set[int]()
    for line, entry in read_json_rows(output, "--output"):
        row = _own_row(entry, rows)
        paraphrases = entry.get("paraphrases")
        enough = isinstance(paraphrases, list) and len(paraphrases) >= options.num
        if row is None or not enough or {k: entry.get(k) for k in wanted} != wanted:
            raise ValueError(
                "--output must be a new file or one of the same data, model and options, got "
                f"another one in {output.name}, line {line}. Choose another name."
            )
        done.add(row)
    return done


def _own_row(entry: Mapping[str, object], rows: Sequence[Row]) -> int | None:
    """Return the row that a line belongs to, or None if it belongs to other data."""
    row = entry.get("row")
    if (
        type(row) is int
        and 0 <= row < len(rows)
        and entry.get("of") == text_digest(rows[row].answer)
    ):
        return row
    return None


def _drop_cut_line(path: Path) -> None:
    # A line that a kill cut off has no line end.
    with path.open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
