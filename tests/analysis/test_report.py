"""The report is one file that loads nothing, escapes everything, and says what `select` says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from analysis import heuristic_accuracy, privacy_risk, regress, select, write_report
from analysis.report.sweep_page import headline_sentence
from search_spaces import load_space

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
TITLE = "<script>alert(1)</script> & 'quotes'"


class Page(HTMLParser):
    """Tags with attributes, and the text of the elements that readers see, by table caption or tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._caption = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)
        if tag == "tr":
            self.rows.setdefault(self._caption, []).append([])
        if tag in ("td", "th"):
            self.rows[self._caption][-1].append("")

    def handle_endtag(self, tag):
        while self._open.pop() != tag:
            pass

    def handle_data(self, data):
        tag = self._open[-1] if self._open else ""
        self.text.setdefault(tag, []).append(data)
        if tag == "caption":
            self._caption = data
        if tag in ("td", "th"):
            self.rows[self._caption][-1][-1] += data


@pytest.fixture(scope="module")
def points():
    generator = np.random.default_rng(0)
    rows = [
        (c.batch_size, c.num_steps, c.learning_rate, seed, 3 - 0.1 * np.log(float(c.updates)), score)
        for c in load_space("tofu-1").configurations
        for seed, score in enumerate(np.log(2 + c.num_steps * c.learning_rate) + generator.normal(0, 0.01, 3))
    ]
    return pd.DataFrame(rows, columns=COLUMNS).assign(status="finished", model_uri="models:/<m>/1")


@pytest.fixture(scope="module")
def selection(points):
    return select(points, max_loss=2.6)


@pytest.fixture(scope="module")
def file(points, selection, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(
        points,
        [selection, select(points, rule="worst-utility", max_loss=2.6)],
        path,
        title=TITLE,
        base_utility_loss=3.4,
        base_score=0.01,
        notes=["ε covers <one> model."],
    )
    return path


@pytest.fixture(scope="module")
def page(file):
    return Page(file.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_elsewhere(page):
    """No element that fetches, and a policy under which the browser refuses what a script might try."""
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base", "source", "video", "audio", "form"}
    assert not any({"src", "href", "srcset", "data", "action"} & set(attributes) for _, attributes in page.tags)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    sources = dict(part.split(" ", 1) for part in policy.split("; "))
    assert sources.pop("default-src") == "'none'"
    assert set(" ".join(sources.values()).split()) == {"'unsafe-inline'", "data:", "blob:"}
    assert not any("@import" in style or "url(" in style for style in page.text["style"])


def test_texts_are_escaped(page):
    assert page.text["title"] == [TITLE]
    assert page.text["h1"] == [TITLE]
    assert "ε covers <one> model." in page.text["li"]
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert [row[-1] for row in page.rows["What each rule selects"][1:]] == ["models:/<m>/1"] * 4


def test_selection_is_that_of_select(page, points, selection):
    rows = {row[0]: row[1:6] for row in page.rows["What each rule selects"][1:]}
    assert list(rows) == ["procedure", "worst-utility", "best-utility", "oracle"]
    for rule, cells in rows.items():
        s = select(points, rule=rule, max_loss=2.6)
        c = s.configuration
        expected = [c.batch_size, c.num_steps, c.learning_rate, s.utility_loss, s.score]
        assert [float(cell) for cell in cells] == [float(f"{value:.4g}") for value in expected]
    best = select(points, rule="best-utility", max_loss=2.6)
    assert headline_sentence(selection, best) in page.text["p"]
    steps = page.rows["Steps of the rule procedure"][1:]
    assert [(row[0], int(row[3])) for row in steps] == [(s.name, len(s.survivors)) for s in selection.steps]
    marked = [attributes for tag, attributes in page.tags if tag == "tr" and attributes.get("class") == "marked"]
    assert len(marked) == 1


def test_tables_hold_the_figures_of_the_analyses(page, points):
    assert len(page.rows["Means over seeds, sorted by T, b, η"]) == 1 + 60
    heuristics = next(rows for caption, rows in page.rows.items() if caption.startswith("Share of pairs"))
    assert {r[0]: (int(r[1]), int(r[2])) for r in heuristics[1:]} == {
        name: (f["correct"], f["pairs"]) for name, f in heuristic_accuracy(points).items()
    }
    risk = next(rows for caption, rows in page.rows.items() if "60 utility thresholds" in caption)
    assert {r[0]: r[2] for r in risk[1:]} == {
        rule: f"{figures['absolute']:.4g}" for rule, figures in privacy_risk(points)["rules"].items()
    }
    fits = [rows for caption, rows in page.rows.items() if "180 rows" in caption]
    coefficients = {(i, row[0]): row[1] for i, rows in enumerate(fits) for row in rows[1:]}
    assert coefficients == {
        (i, term): f"{figures['coef']:.4g}"
        for i, fit in enumerate(regress(points).values())
        for term, figures in fit["terms"].items()
    }


def test_figure_marks_the_selected_configuration(page, selection):
    script = page.text["script"][-1]
    figure = json.loads(re.search(r"const figure = (.*);", script)[1])
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert (traces["Selected"]["x"], traces["Selected"]["y"]) == ([selection.utility_loss], [selection.score])
    assert {"Best utility", "Oracle"} <= set(traces)
    inside, outside = traces["Configuration"], traces["Above the threshold"]
    assert len(inside["x"]) + len(outside["x"]) == 60
    assert max(inside["x"]) <= 2.6 < min(outside["x"])
    assert len(inside["error_y"]["array"]) == len(inside["x"])
    assert figure["layout"]["shapes"][0]["x0"] == 2.6


def test_page_can_be_read_by_machines_and_without_the_figure(page):
    tags = dict(page.tags)
    assert tags["html"]["lang"] == "en"
    plot = next(a for _, a in page.tags if a.get("id") == "plot")
    assert plot["role"] == "img"
    assert "Scatter plot" in plot["aria-label"]
    headers = [a for tag, a in page.tags if tag == "th"]
    assert all(a["scope"] in ("col", "row") for a in headers)
    assert sum(tag == "table" for tag, _ in page.tags) == sum(tag == "caption" for tag, _ in page.tags) == 8


def test_the_base_loss_may_come_from_the_points(points, tmp_path):
    for column, said in ((3.4, True), (None, False)):
        table = points.assign(base_utility_loss=column)
        write_report(table, select(table, rule="best-utility"), tmp_path / "base.html", title="Base")
        text = " ".join(Page((tmp_path / "base.html").read_text(encoding="utf-8")).text["p"])
        assert ("keeps 100% of the best utility gain over the pre-trained model (utility loss 3.4)" in text) == said


def test_undefined_figures_are_explained(tmp_path):
    one = pd.DataFrame([(4, 2, 0.1, 0, 2.0, 0.0)], columns=COLUMNS)
    write_report(one, select(one), tmp_path / "one.html", title="One run")
    text = " ".join(Page((tmp_path / "one.html").read_text(encoding="utf-8")).text["p"])
    assert "also the best-utility configuration" in text
    for reason in (
        "0 or below at 1 of 1",
        "at least 2 configurations",
        "1 rows are too few for 4",
        "the same in every",
    ):
        assert reason in text
    with pytest.raises(ValueError, match="at least one selection"):
        write_report(one, [], tmp_path / "none.html", title="None")


@pytest.mark.browser
def test_browser_draws_the_figure_and_refuses_nothing(file, tmp_path):
    """Chromium renders the page offline, and neither the policy nor a script complains."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium is not None, "install Chromium, or leave out the marker browser"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}"]
    done = subprocess.run(
        [chromium, *flags, "--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    drawn = done.stdout.rsplit('id="plot"', 1)[1] if 'id="plot"' in done.stdout else ""
    assert "main-svg" in drawn
    assert done.stdout.count('class="legendtext"') == 5
    assert "CONSOLE" not in done.stderr
