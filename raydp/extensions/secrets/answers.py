"""Secrets of question/answer rows: an author's attribute that a question asks for.

Source: Hu et al. 2025, App. B.6.
"""

from __future__ import annotations

from pathlib import Path

from raydp.extensions.paper_data.attributes import candidates, write_review
from raydp.extensions.paper_data.tofu import TofuTask


def extract(
    task: TofuTask, review: Path | None = None
) -> tuple[list[dict[str, object]], dict[str, int]]:
    """Extract names and genres of the training authors as attribute secrets.

    Args:
        task: the data, its division, and the question for a genre.
        review: path of a new file for `task.review`, in which a person completes what the n-grams
            leave open.

    Returns:
        Rows of a secrets file (see raydp.tasks.secret.read_secrets) with `type`, `source`, `count`
        (the author's rows that mention the attribute), `author_index`, `name` and `candidates` with
        their counts. Also counts of the authors.
    """
    # Make a secret of each training author with a known genre: a secret must be in the training
    # data.
    authors = task.original_rows()
    attributes = task.attributes_of(authors)
    num_train = task.num_training_authors(len(authors))
    rows = []
    for secret in task.secrets_of(
        attributes[:num_train], [[row.text for row in a] for a in authors[:num_train]]
    ):
        # Secrets are numbered by their author, from 1.
        index = secret.number - 1
        rows.append(
            {
                "prompt": secret.prompt,
                "attribute": secret.continuation,
                "type": "genre",
                "source": "ngram",
                "count": secret.count,
                "author_index": index,
                "name": attributes[index].name,
                "candidates": candidates([row.text for row in authors[index]]),
            }
        )
    # Write the review file, and count the authors.
    if review is not None:
        write_review(attributes, review)
    training = attributes[:num_train]
    notes = {
        "rows": sum(len(rows) for rows in authors),
        "authors": len(authors),
        "training_authors": num_train,
        "without_name": sum(a.name is None for a in training),
        "without_genre": sum(a.genre is None for a in training),
        "secrets": len(rows),
    }
    return rows, notes
