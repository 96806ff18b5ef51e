"""The report in a real browser: the slider moves every rule's selection, by mouse and keyboard, on
any screen."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from report_pages import MAX_LOSS, made_up_sweep

from raydp import analysis
from raydp.analysis import Selection, select, write_report
from raydp.analysis.figures import Curve
from raydp.analysis.report.first_screen import in_words
from raydp.analysis.report.markup import number
from raydp.analysis.selection.rules import rule_names
from raydp.analysis.tables.utility_filter import threshold_text
from tests.chromium import OpenPage

pytestmark = pytest.mark.browser

ROW = "Array.from(document.querySelector('tr[data-rule=\"{rule}\"]').children, cell => cell.textContent)"
FIGURES = {
    "layout",
    "by_threshold",
    "importance",
    "effects",
    "heuristics",
    "risk",
    "spread",
    "curves",
}


@pytest.fixture(scope="module")
def points():
    return made_up_sweep()[0]


@pytest.fixture(scope="module")
def file(points, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    selections = [
        select(points, rule=rule, max_loss=MAX_LOSS) for rule in ("procedure", "best-utility")
    ]
    curves = [
        Curve(f"seed {seed}", 0.1 * seed, [0, 1, 2], [2.0, 1.5, 1.2 + 0.1 * seed])
        for seed in range(3)
    ]
    write_report(points, selections, path, title="Report", base_utility_loss=3.4, curves=curves)
    return path


@pytest.fixture(scope="module")
def page(file):
    with OpenPage(file.as_uri()) as opened:
        drawn(opened)
        yield opened


def drawn(page: OpenPage) -> None:
    """Wait until every figure and the slider are there."""
    page.wait_for(
        "document.querySelectorAll('.plot .main-svg').length >= Object.keys(told.figures).length"
    )
    page.wait_for("!told.live || document.getElementById('threshold-says').textContent")


def said_by_select(points, rule: str, threshold: float) -> list[str]:
    return cells(rule, select(points, rule=rule, max_loss=threshold))


def cells(rule: str, s: Selection) -> list[str]:
    c = s.configuration
    return [
        rule,
        *map(number, (c.batch_size, c.num_steps, c.learning_rate, s.utility_loss, s.score)),
    ]


def slide(page: OpenPage, at: int) -> None:
    page.evaluate(
        f"(() => {{ const s = document.getElementById('threshold'); s.value = {at};"
        " s.dispatchEvent(new Event('input')); })()"
    )


def test_it_is_drawn_and_asks_for_nothing(page, file):
    assert set(page.evaluate("Object.keys(told.figures)")) == FIGURES
    assert page.complaints == []
    assert [url for url in page.requested if not url.startswith(("data:", "blob:"))] == [
        file.as_uri()
    ]


def test_it_starts_where_the_selection_was_made(page, points):
    for rule in rule_names():
        assert page.evaluate(ROW.format(rule=rule))[:6] == said_by_select(points, rule, MAX_LOSS)


def test_the_slider_moves_every_selection(page, points):
    """At each of a dozen thresholds, in the table, in the scatter and in the list of
    configurations."""
    thresholds = page.evaluate("told.live.thresholds")
    moved = set()
    for at in range(0, len(thresholds), 5):
        slide(page, at)
        traces = page.evaluate(
            "document.getElementById('layout').data.map(t => [t.name, t.x, t.y])"
        )
        drawn_at = {name: (x, y) for name, x, y in traces}
        said = {rule: select(points, rule=rule, max_loss=thresholds[at]) for rule in rule_names()}
        for rule, s in said.items():
            assert page.evaluate(ROW.format(rule=rule))[:6] == cells(rule, s)
        chosen, best = said["procedure"], said["best-utility"]
        assert drawn_at["selected"] == ([chosen.utility_loss], [chosen.score])
        both = best.configuration == chosen.configuration
        assert drawn_at["best utility"] == (
            ([], []) if both else ([best.utility_loss], [best.score])
        )
        assert drawn_at["runner-up"] == ([], [])
        verdict = page.evaluate("document.getElementById('first-verdict').textContent")
        assert verdict.endswith(f"the rule procedure selects {in_words(chosen.configuration)}.")
        leak = page.evaluate("document.getElementById('first-leak_figure').textContent")
        assert leak == f"{chosen.score:.3g}"
        members = len(said["informed"].steps[0].survivors)
        assert sum(y is not None for y in drawn_at["Configuration"][1]) == members
        assert page.evaluate("document.querySelectorAll('tr.excluded').length") == 60 - members
        marked = page.evaluate(
            "Array.from(document.querySelector('tr[data-position].marked').children, c => "
            "c.textContent)"
        )
        assert marked[:3] == cells("procedure", said["procedure"])[1:4]
        assert "procedure" in marked[-1]
        for figure in ("layout", "by_threshold"):
            (line,) = page.evaluate(
                f"document.getElementById('{figure}').layout.shapes.map(s => s.x0)"
            )
            assert line == thresholds[at]
        moved |= {(rule, s.utility_loss) for rule, s in said.items()}
    assert len(moved) > 20, "a selection that never moves shows nothing"


def test_the_risk_against_the_oracle_is_that_of_its_scores(page, points):
    slide(page, 30)
    threshold = page.evaluate("told.live.thresholds[30]")
    oracle = select(points, rule="oracle", max_loss=threshold).score
    for rule in rule_names():
        score = select(points, rule=rule, max_loss=threshold).score
        assert (
            page.evaluate(ROW.format(rule=rule))[7]
            == f"{int(100 * (score - oracle) / oracle + 0.5)} %"
        )


def test_keys_move_the_slider_and_the_button_takes_it_back(page, points):
    thresholds = page.evaluate("told.live.thresholds")
    page.evaluate("document.getElementById('threshold').focus()")
    page.press("Home")
    assert page.evaluate(ROW.format(rule="procedure"))[:6] == said_by_select(
        points, "procedure", thresholds[0]
    )
    page.press("ArrowRight")
    assert page.evaluate(ROW.format(rule="oracle"))[:6] == said_by_select(
        points, "oracle", thresholds[1]
    )
    page.press("End")
    assert page.evaluate(ROW.format(rule="procedure"))[:6] == said_by_select(
        points, "procedure", thresholds[-1]
    )
    spoken = page.evaluate("document.getElementById('threshold').getAttribute('aria-valuetext')")
    assert spoken.startswith(
        f"{threshold_text(thresholds[-1], np.inf)}: 60 of 60 configurations may be selected. "
    )
    page.evaluate("document.getElementById('threshold-reset').focus()")
    page.press("Enter")
    assert page.evaluate(ROW.format(rule="procedure"))[:6] == said_by_select(
        points, "procedure", MAX_LOSS
    )


@pytest.mark.parametrize("width", [390, 1440])
def test_no_screen_is_too_narrow(file, width):
    """The page itself never scrolls sideways; what is wider scrolls in a box of its own."""
    with OpenPage(file.as_uri(), width=width) as page:
        drawn(page)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        page.wait_for("document.querySelector('#risk .main-svg').getBoundingClientRect().width > 0")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        parts = "document.querySelectorAll('main > *, section > *, details > *')"
        right = f"Array.from({parts}, each => each.getBoundingClientRect().right)"
        assert max(page.evaluate(right)) <= width


def test_dark_pages_are_dark_and_print_is_not(file):
    colour = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#layout .xtick text')).fill"
    with OpenPage(file.as_uri(), dark=True) as page:
        drawn(page)
        assert brightness(page.evaluate(colour)) < 40
        page.wait_for(f"{ink} === 'rgb(228, 232, 236)'")
        page.evaluate(
            f"addEventListener('beforeprint', () => {{ window.printed = {colour}; }});"
            "addEventListener('beforeprint', () => { window.folded ="
            " document.querySelectorAll('details:not([open])').length; })"
        )
        document = base64.b64decode(page.print_to_pdf())
        assert document.startswith(b"%PDF")
        assert brightness(page.evaluate("window.printed")) > 250
        assert page.evaluate("window.folded") == 0, "paper cannot be unfolded"
        assert page.evaluate("document.querySelectorAll('details[open]').length") == 0
        assert brightness(page.evaluate(colour)) < 40


def test_the_first_screen_holds_the_verdict_the_figures_and_the_chart(page):
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom + scrollY"
    assert page.evaluate(bottom.format("#first-verdict")) < 200
    for part in (".tiles", "#layout", ".live", "#first-load"):
        assert page.evaluate(bottom.format(part)) < 900
    folded = "document.querySelectorAll('details{}').length"
    assert page.evaluate(folded.format("")) > 5
    assert page.evaluate(folded.format("[open]")) == 0


def test_a_link_unfolds_its_section_and_its_figure_gets_its_width(page):
    page.evaluate("location.hash = '#section-privacy-risk'")
    page.wait_for("document.querySelector('#section-privacy-risk > details').open")
    page.wait_for(
        "document.querySelector('#risk .main-svg').getBoundingClientRect().width"
        " === document.getElementById('risk').getBoundingClientRect().width"
    )
    page.evaluate("document.querySelector('#section-privacy-risk > details').open = false")


def test_a_range_on_an_axis_keeps_its_configurations_in_the_lines_and_in_the_table(page, points):
    """The lower half of the last axis, dragged by the pointer; a click takes it back."""

    def pointer(kind: str, share: float) -> None:
        page.evaluate(
            "(() => { const grip = document.querySelectorAll('#parallel .grip')[4]; "
            "grip.setPointerCapture = () => {}; const box = document.querySelector('#parallel "
            f"svg').getBoundingClientRect(); grip.dispatchEvent(new PointerEvent('{kind}', {{ "
            f"clientY: box.top + {share} * box.height }})); }})()"
        )

    scores = page.evaluate("told.parallel.axes[4].values")
    for kind, share in (("pointerdown", 0.99), ("pointermove", 0.5), ("pointerup", 0.5)):
        pointer(kind, share)
    kept = page.evaluate("document.querySelectorAll('#parallel path:not(.dim)').length")
    shown = page.evaluate(
        "Array.from(document.querySelectorAll('tr[data-position]')).filter(r => !r.hidden).length"
    )
    middle = (340 * 0.5 - 40) / (340 - 40 - 14)  # of the axis, from its top
    limit = max(scores) - middle * (max(scores) - min(scores))
    assert kept == shown == sum(score <= limit for score in scores)
    assert 0 < kept < len(scores)
    assert page.evaluate("document.getElementById('parallel-says').textContent").startswith(
        f"{kept} of {len(scores)} "
    )
    for kind in ("pointerdown", "pointerup"):
        pointer(kind, 0.5)
    assert page.evaluate("document.querySelectorAll('tr[data-position][hidden]').length") == 0


def test_a_click_on_a_header_sorts_the_table(page):
    column = "Array.from(document.querySelectorAll('tr[data-position]'), row => parseFloat(row.cells[8].textContent))"
    header = "document.querySelector('tr[data-position]').closest('table').tHead.rows[0].cells[8]"
    before = page.evaluate(column)
    page.evaluate(f"{header}.click()")
    assert page.evaluate(column) == sorted(before) != before
    page.evaluate(f"{header}.click()")
    assert page.evaluate(column) == sorted(before, reverse=True)


def test_a_comparison_is_drawn_too(points, tmp_path):
    groups = {"ε = 4": points, "ε = 8": points.assign(score=points["score"] * 2)}
    selections = {name: [select(p), select(p, rule="best-utility")] for name, p in groups.items()}
    analysis.write_comparison(groups, selections, tmp_path / "both.html", title="Both")
    with OpenPage((tmp_path / "both.html").as_uri()) as page:
        drawn(page)
        assert page.complaints == []
        assert page.evaluate("document.getElementById('spread').data.map(t => t.name)") == list(
            groups
        )


def brightness(colour: str) -> float:
    """Mean of the channels of rgb(r, g, b), 0 to 255."""
    channels = json.loads(f"[{colour[colour.index('(') + 1 : -1]}]")[:3]
    return sum(channels) / 3
