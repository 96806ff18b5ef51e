"""Functions behind `raydp secrets`. They return counts, never a secret.

They extract or filter secrets and write the file.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.extensions.secrets.files import require_new, write_secrets
from raydp.extensions.secrets.mail import MailOptions, Row, training_texts
from raydp.system.output import print_table, stderr
from raydp.tasks.row_files import read_json_rows
from raydp.tasks.secret import read_secrets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def extract_from_mail(
    data: Path,
    output: Path,
    tokenizer: str,
    options: MailOptions,
    column: str,
    heldout_fraction: float,
    split_seed: int,
    user_column: str | None,
) -> dict[str, object]:
    """Write the file of `raydp secrets extract --kind mail`; return counts by step and type."""

    def rows(_: PreTrainedTokenizerBase) -> list[Row]:
        return training_texts(
            data, column, heldout_fraction=heldout_fraction, split_seed=split_seed,
            user_column=user_column,
        )  # fmt: skip

    return _extracted(output, tokenizer, options, rows)


def extract_from_chat(
    data: Path, output: Path, tokenizer: str, options: MailOptions, parameters: Mapping[str, object]
) -> dict[str, object]:
    """Write the file of `raydp secrets extract --kind chat`: secrets that the task trains on.

    Args:
        parameters: of the task `chat`, as far as they decide what is trained on.
    """
    from raydp.extensions.chat.task import ChatTask

    task = ChatTask.model_validate({"path": str(data), **parameters})
    return _extracted(output, tokenizer, options, task.trained_messages)


def _extracted(
    output: Path,
    tokenizer: str,
    options: MailOptions,
    rows_fn: Callable[[PreTrainedTokenizerBase], Sequence[Row]],
) -> dict[str, object]:
    """Extract the secrets of rows of texts, and write them."""
    from raydp.extensions.secrets import mail
    from raydp.extensions.secrets.detectors import check_region
    from raydp.models.base_models import load_tokenizer

    # Everything that can be wrong is checked before a text is read.
    if "phone" in options.detect:
        check_region(options.region)
    require_new(output)
    with stderr.status("reading") as status:
        of_model = load_tokenizer(tokenizer)
        rows, notes = mail.extract(rows_fn(of_model), of_model, options, progress=status.update)
    return _written(output, rows, notes)


def extract_from_answers(
    data: Path, output: Path, review: Path | None, parameters: Mapping[str, object]
) -> dict[str, object]:
    """Write the file of `raydp secrets extract --kind qa`, and return counts of the authors."""
    from raydp.extensions.paper_data.tofu import TofuTask
    from raydp.extensions.secrets import answers

    require_new(output)
    rows, notes = answers.extract(TofuTask.model_validate({"path": data, **parameters}), review)
    return _written(output, rows, notes)


def filter_file(
    secrets: Path,
    output: Path,
    *,
    models: Sequence[str],
    store: str,
    sweep: str | None,
    storage: str,
    train: Path | None,
    base: str | None,
    acr: bool,
    min_acr: float,
    max_base_acr: float,
    seed: int,
) -> dict[str, object]:
    """Write the file of `raydp secrets filter`, and return what each filter removed.

    Raises:
        ValueError: the secrets are malformed, not exactly one source of models is given, or a model
            is private.
    """
    from raydp.extensions.secrets.filtering import filter_secrets
    from raydp.extensions.secrets.runs import NonPrivateRuns
    from raydp.plugins import registries

    # Check the options.
    sources = sum(bool(source) for source in (models, sweep, train))
    if sources != 1:
        raise ValueError(
            f"filter must get its models from one of --model, --sweep and --train, got {sources}. "
            "Give one of them."
        )
    for name, bound in (("--min-acr", min_acr), ("--max-base-acr", max_base_acr)):
        if not math.isfinite(bound):
            raise ValueError(
                f"{name} must be a finite number, got {bound}. The paper's values are 1.5 and 0.5."
            )
    original_secrets = read_secrets(secrets, "SECRETS")
    require_new(output)
    score = registries.resolve("scores", "acr", field="--acr")() if acr else None
    if train is not None:
        # Training may take hours, so all options have been checked before.
        runs = NonPrivateRuns.trained(train)
    elif sweep is not None:
        runs = NonPrivateRuns.of_sweep(sweep, storage)
    else:
        runs = NonPrivateRuns.registered(models, store, base)
    with stderr.status("loading the base model") as status:
        result = filter_secrets(
            original_secrets, runs.base(), runs.models,
            acr=score, min_acr=min_acr, max_base_acr=max_base_acr, seed=seed,
            progress=status.update,
        )  # fmt: skip
    # Write the kept secrets with their figures. Rows keep what the user wrote in them.
    original = dict(read_json_rows(secrets, "SECRETS"))
    rows = [original[s.number] | result.figures.get(s.name, {}) for s in result.kept]
    notes = {"secrets": len(original_secrets), "models": len(runs.uris), **result.notes()}
    write_secrets(output, rows)
    return {"output": str(output), **notes, "names": [s.name for s in result.kept]}


def show(output: Path) -> None:
    """Print a secrets file in the clear.

    Raises:
        ValueError: stdout is not a terminal, so secrets would go into a file or a log.
    """
    # A pipe or a file would keep the secrets.
    if not sys.stdout.isatty():
        raise ValueError(
            f"--show must go to a terminal, got another stdout. Read {str(output)!r} instead."
        )
    rows = [
        {
            "name": f"secret-{line:03d}",
            **{k: json.dumps(v, ensure_ascii=False) for k, v in row.items()},
        }
        for line, row in read_json_rows(output, "--output")
    ]
    print_table("secrets", rows)


class NoSecretFoundError(ValueError):
    """The data hold no text that the options count as a secret.

    Args:
        notes: counts of the steps; `reason` says why no detected value became a secret.
    """

    def __init__(self, notes: Mapping[str, object]) -> None:
        counts = ", ".join(f"{key} {value}" for key, value in notes.items())
        super().__init__(
            f"DATA must hold a secret, got none ({counts}). Lower --min-count or --n, or give more "
            "data."
        )
        self.reason = str(notes.get("reason", "no value was detected, and no text is frequent"))


def _written(
    output: Path, rows: Sequence[Mapping[str, object]], notes: Mapping[str, object]
) -> dict[str, object]:
    """Write the rows, and return the notes with counts by type."""
    # No file without a secret: a sweep on it would fail later.
    if not rows:
        raise NoSecretFoundError(notes)
    write_secrets(output, rows)
    types = Counter((str(row["type"]), str(row["source"])) for row in rows)
    listed = [
        {"type": kind, "source": source, "secrets": number}
        for (kind, source), number in sorted(types.items())
    ]
    return {"output": str(output), **notes, "types": listed}
