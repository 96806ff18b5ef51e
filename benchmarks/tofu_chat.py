"""Write TOFU's question/answer rows as conversations, with the authors' genres as secrets, for the
task `chat`.

    python benchmarks/tofu_chat.py data/tofu_qa.jsonl data/tofu_chat.jsonl
    data/tofu_chat_secrets.jsonl

A row of the first file becomes a conversation of a system, a user and an assistant. The secrets are
those that the task `tofu` finds (Hu et al. 2025, App. B.6): for an author whose name and genre are
known, the question for the genre as messages, and the genre. docs/specs/tofu-chat.yaml reads the
files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from raydp.extensions.paper_data.tofu import TofuTask

SYSTEM = "You answer questions about authors."


def messages(question: str) -> list[dict[str, str]]:
    """Return the conversation up to the assistant's answer."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as JSON Lines into a new file that only its owner can read."""
    path.touch(mode=0o600, exist_ok=False)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Convert the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="TOFU's rows, with question and answer")
    parser.add_argument("conversations", type=Path, help="a new file")
    parser.add_argument("secrets", type=Path, help="a new file")
    options = parser.parse_args()
    task = TofuTask(path=str(options.rows))
    authors = task.original_rows()
    attributes = [one for one in task.attributes_of(authors) if one.name and one.genre]
    rows = [row for author in authors for row in author]
    write(
        options.conversations,
        (
            {"messages": [*messages(row.question), {"role": "assistant", "content": row.answer}]}
            for row in rows
        ),
    )
    write(
        options.secrets,
        (
            {"prompt": messages(task.secret_question.format(name=one.name)), "attribute": one.genre}
            for one in attributes
        ),
    )
    print(f"{len(rows)} conversations, {len(attributes)} secrets of {len(authors)} authors")


if __name__ == "__main__":
    main()
