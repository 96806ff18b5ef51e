"""What the tests of the report share: a sweep with secrets whose figures are known, and a reader of
its page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd

from raydp.search_spaces import load_space

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
TITLE = "<script>alert(1)</script> & 'quotes'"
MAX_LOSS = 2.6


class Page(HTMLParser):
    """Tags with attributes, and the text of the elements that readers see, by table caption or
    tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self.named: dict[str, str] = {}
        """Text of the elements that have an id, by id."""
        self._id: str | None = None
        self._open: list[str] = []
        self._began = False
        self._caption = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._id = dict(attrs).get("id")
        self.named |= {} if self._id is None else {self._id: ""}
        if tag not in ("meta", "input"):
            self._open.append(tag)
        if tag in ("p", "li"):
            self._began = False
        if tag == "tr":
            self.rows.setdefault(self._caption, []).append([])
        if tag in ("td", "th"):
            self.rows[self._caption][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"
        self._id = None

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        if self._id is not None:
            self.named[self._id] += data
        if tag == "code" and self._open[-2] in ("p", "li"):  # a part of the text around it
            tag = self._open[-2]
        if tag in ("p", "li") and self._began:
            self.text[tag][-1] += data
        else:
            self.text.setdefault(tag, []).append(data)
        self._began = tag in ("p", "li")
        if tag == "caption":
            self._caption = data
        if tag in ("td", "th"):
            self.rows[self._caption][-1][-1] += data

    def table(self, start: str) -> list[list[str]]:
        """The rows below the header of the table whose caption starts so."""
        return next(rows for caption, rows in self.rows.items() if caption.startswith(start))[1:]

    @property
    def told(self) -> dict[str, Any]:
        """What the page's script is told: figures and selections."""
        script = next(text for text in self.text["script"] if "const told" in text)
        document: dict[str, Any] = json.loads(re.search(r"const told = (.*);", script)[1])  # type: ignore[index]
        return document


def made_up_sweep() -> tuple[pd.DataFrame, pd.DataFrame]:
    """60 configurations of three seeds, and the values of three secrets each, whose means are the
    scores."""
    generator = np.random.default_rng(0)
    rows = []
    for c in load_space("tofu-1").configurations:
        losses = (
            3
            - 0.1 * np.log(float(c.updates))
            + generator.normal(0, 0.03)
            + generator.normal(0, 0.005, 3)
        )
        scores = (
            np.log(2 + c.num_steps * c.learning_rate)
            + generator.normal(0, 0.02)
            + generator.normal(0, 0.01, 3)
        )
        for seed, (loss, score) in enumerate(zip(losses, scores, strict=True)):
            rows.append((c.batch_size, c.num_steps, c.learning_rate, seed, loss, score))
    points = pd.DataFrame(rows, columns=COLUMNS).assign(
        status="finished", model_uri="models:/<m>/1", epsilon=7.99
    )
    points["run_id"] = [f"run-{i}" for i in range(len(points))]
    points["score.vmr"] = points["score"]
    values = [
        {
            "run_id": run_id,
            "score": "vmr",
            "secret_id": f"<s{k}>",
            "value": score + shift,
            "count": 2 + k,
        }
        for run_id, score in zip(points["run_id"], points["score"], strict=True)
        for k, shift in enumerate((-0.5, 0.0, 0.5))
    ]
    return points, pd.DataFrame(values)
