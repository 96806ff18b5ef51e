"""The report is one file that loads nothing, escapes everything, and says what `select` says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
from plotly.offline import get_plotlyjs_version
from report_pages import COLUMNS, MAX_LOSS, TITLE, Page, made_up_sweep

from raydp import analysis
from raydp.analysis import (
    heuristic_accuracy,
    privacy_risk,
    select,
    verify_heuristics,
    write_report,
)
from raydp.analysis.report.first_screen import FirstScreen, NoWords
from raydp.analysis.report.first_screen import in_words as said_of
from raydp.analysis.report.markup import number, percent
from raydp.analysis.selection.by_threshold import selections_by_threshold
from raydp.analysis.selection.constraints import Constraints
from raydp.analysis.selection.rules import rule_names
from raydp.analysis.selection.wording import in_words
from raydp.analysis.tables.points import configurations
from raydp.analysis.tables.utility_filter import shown_threshold, within
from raydp.scores.words import ScoreWords
from tests.marks import WHOLE, slow_unless


@pytest.fixture(scope="module")
def sweep():
    return made_up_sweep()


@pytest.fixture(scope="module")
def points(sweep):
    return sweep[0]


@pytest.fixture(scope="module")
def selection(sweep):
    points, secrets = sweep
    return select(points, rule="procedure", max_loss=MAX_LOSS, by_secret=(secrets, "vmr"))


@pytest.fixture(scope="module")
def page(sweep, selection, tmp_path_factory):
    points, secrets = sweep
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(
        points,
        [selection, select(points, rule="worst-utility", max_loss=MAX_LOSS)],
        path,
        title=TITLE,
        base_utility_loss=3.4,
        base_score=0.01,
        by_secret=(secrets, "vmr"),
        card_rows={"Unit of privacy": "<mail>"},
        notes=["ε covers <one> model."],
    )
    return Page(path.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_elsewhere(page):
    """No element that fetches, and a policy under which the browser refuses what a script might
    try."""
    tags = {tag for tag, _ in page.tags}
    assert not tags & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "source",
        "video",
        "audio",
        "form",
    }
    assert not any(
        {"src", "srcset", "data", "action"} & set(attributes) for _, attributes in page.tags
    )
    links = [attributes["href"] for _, attributes in page.tags if "href" in attributes]
    assert all(link.startswith("#section-") for link in links), (
        "links to the page's own sections only"
    )
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    sources = dict(part.split(" ", 1) for part in policy.split("; "))
    assert sources.pop("default-src") == "'none'"
    assert set(" ".join(sources.values()).split()) == {"'unsafe-inline'", "data:", "blob:"}
    assert not any("@import" in style or "url(" in style for style in page.text["style"])


def test_a_page_is_small_and_its_plotly_draws_every_figure(page):
    """The bundle is the installed plotly's own release of plotly.js, without the traces that no
    figure has."""
    bundle = (
        files("raydp.analysis.report").joinpath("plotly-basic.min.js").read_text(encoding="utf-8")
    )
    assert f"plotly.js (basic - minified) v{get_plotlyjs_version()}\n" in bundle
    assert len(bundle.encode()) < 1_200_000
    traces = {trace["type"] for figure in page.told["figures"].values() for trace in figure["data"]}
    assert traces == {"scatter", "bar"}


def test_texts_are_escaped(page):
    assert page.text["title"] == [TITLE]
    assert page.text["h1"] == [TITLE]
    assert "ε covers <one> model." in page.text["li"]
    assert {"<mail>", "models:/<m>/1"} <= set(page.text["dd"])
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert [row[-1] for row in page.table("What each rule")] == ["models:/<m>/1"] * len(
        rule_names()
    )
    assert {row[0] for row in page.table("Score vmr by secret")} == {"<s0>", "<s1>", "<s2>"}


def test_every_rule_starts_with_the_choice_of_select(page, sweep, selection):
    points, secrets = sweep
    rows = {row[0]: row[1:6] for row in page.table("What each rule")}
    assert list(rows) == rule_names()
    for rule, cells in rows.items():
        s = select(points, rule=rule, max_loss=MAX_LOSS, by_secret=(secrets, "vmr"))
        c = s.configuration
        assert cells == [
            number(v) for v in (c.batch_size, c.num_steps, c.learning_rate, s.utility_loss, s.score)
        ]
    steps = page.table("Steps of the rule procedure")
    assert [(row[0], int(row[3])) for row in steps] == [
        (s.name, len(s.survivors)) for s in selection.steps
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rule", slow_unless(["procedure"], rule_names()))
def test_the_page_agrees_with_select_at_every_threshold(page, sweep, rule):
    points, secrets = sweep
    live = page.told["live"]
    assert len(live["thresholds"]) == 60
    for at, threshold in enumerate(live["thresholds"]):
        said = select(points, rule=rule, max_loss=threshold, by_secret=(secrets, "vmr"))
        assert live["names"][live["selected"][rule][at]] == str(said.configuration)
        left = said.steps[0].survivors
        assert live["members"][at] == len(left)
        assert sum(loss <= live["limits"][at] for loss in live["loss"]) == len(left)


@pytest.mark.slow
def test_other_constraints_hold_at_every_threshold(points):
    """Thresholds are those of the allowed, and the rules choose among them alone: at every third,
    and at the last."""
    bounds = {"compute": 60_000.0}
    selections = selections_by_threshold(points, Constraints(at_most=bounds))
    assert 0 < selections.allowed.sum() < 60
    for start, (rule, positions) in enumerate(selections.selected.items()):
        pairs = list(zip(selections.thresholds, positions, strict=True))
        for threshold, position in [*pairs[start % 3 : -1 : 3], pairs[-1]]:
            said = select(points, rule=rule, max_loss=threshold, at_most=bounds)
            row = selections.means.iloc[position]
            assert (row["batch_size"], row["num_steps"]) == (
                said.configuration.batch_size,
                said.configuration.num_steps,
            )
            assert row["score"] == said.score


def test_thresholds_that_differ_by_rounding_are_one(points):
    """A threshold lets in what `select` lets in: losses that differ by the rounding of a mean."""
    one = (
        points[points["seed"] == 0]
        .head(4)
        .assign(utility_loss=[2.0, np.nextafter(2.0, 3), 2.5, 3.0])
    )
    selections = selections_by_threshold(one)
    for rule, positions in selections.selected.items():
        for threshold, position in zip(selections.thresholds, positions, strict=True):
            assert (
                selections.means["score"].iloc[position]
                == select(one, rule=rule, max_loss=threshold).score
            )
    assert selections.members.tolist() == [2, 2, 3, 4]


def test_many_thresholds_are_thinned_out(points):
    selections = selections_by_threshold(points, max_thresholds=5)
    losses = np.unique(selections.means["utility_loss"])
    assert (selections.thresholds[0], selections.thresholds[-1], len(selections.thresholds)) == (
        losses[0],
        losses[-1],
        5,
    )


def test_card_and_contenders_are_those_of_the_selection(page, selection):
    labels, texts = page.text["dt"], page.text["dd"]
    card = dict(zip(labels, texts, strict=True))
    row = next(r for r in selection.contenders.rows if r["score"] == selection.score)
    assert card["Configuration"] == str(selection.configuration)
    assert card["ε"] == "7.99"
    assert card["Score, measured"] == f"{number(selection.score)} ± {row['std_error']:.2g}"
    low, high = selection.decision.interval
    corrected = (
        f"{number(selection.decision.estimate)}, 95 % interval {number(low)} to {number(high)}"
    )
    assert card["Score, corrected for the selection"] == corrected
    assert set(in_words(selection)) <= set(page.text["li"])
    rows = page.table("By mean score")
    assert [r[5] for r in rows] == [
        percent(r["probability"], 1) for r in selection.contenders.rows[:20]
    ]


def test_the_first_screen_has_a_sentence_three_figures_and_the_command(page, points, selection):
    """Words and figures only: no rule beside the choice, no symbol of a hyperparameter."""
    named, best = page.named, select(points, rule="best-utility", max_loss=MAX_LOSS)
    assert said_of(selection.configuration) in named["first-verdict"]
    assert ". " not in named["first-verdict"], "one sentence"
    figures = {n: text for n, text in named.items() if n.endswith("_figure")}
    gain = (3.4 - selection.utility_loss) / (3.4 - best.utility_loss)
    assert figures == {
        "first-leak_figure": f"{selection.score:.3g}",
        "first-use_figure": percent(gain).replace(" ", "\u00a0"),
        "first-guarantee_figure": "–",
    }
    assert named["first-leak_beside"] == (
        f"The most useful model: {best.score:.3g}. The untrained model: 0.01."
    )
    assert number(best.utility_loss) in named["first-use_beside"]
    assert named["first-load"] == f"import raydp\nmodel = {selection.load_call}"
    first = [attributes for tag, attributes in page.tags if tag == "details"]
    assert len(first) > 5
    assert not any("open" in attributes for attributes in first), "the evidence is folded"


def test_the_chart_has_at_most_four_labels(page, selection):
    """The selected one, the most useful one, the runner-up, and the threshold."""
    layout = page.told["figures"]["layout"]
    labelled = [trace for trace in layout["data"] if "text" in trace["mode"] and trace["x"]]
    texts = ", ".join(trace["text"][0] for trace in labelled).split(", ")
    assert texts == ["selected", "best utility", "runner-up"]
    assert len({(*trace["x"], *trace["y"]) for trace in labelled}) == len(labelled)
    assert len(layout["layout"]["shapes"]) == 1
    assert (labelled[0]["x"], labelled[0]["y"]) == ([selection.utility_loss], [selection.score])
    assert labelled[1]["x"] == [min(page.told["live"]["loss"])]


class InPercent(NoWords):
    """Words of a rate."""

    def say(self, value: float) -> str | None:
        return f"a secret is told in {100 * value:.3g} % of tries"

    def compare(self, value: float, other: float) -> str | None:
        return f"leaks {value / other:.2g} times as much"


def screen_of(points, selection, words=None, told=None, **fields):
    best = select(points, rule="best-utility", max_loss=MAX_LOSS)
    unknown = {"base_score": None, "base_utility_loss": None}
    known = {
        "points": points,
        "headline": selection,
        "best": best,
        "words": words or NoWords(),
        "told": told or {},
    }
    return FirstScreen(**{**unknown, **known, **fields}).texts(selection)


def test_the_words_of_a_score_and_its_ratio_are_on_the_screen(points, selection):
    texts = screen_of(points, selection, InPercent(), base_score=selection.score / 2)
    share = f"{100 * selection.score:.3g}\u00a0%"
    assert texts["leak_figure"] == share
    said = f"A secret is told in {share} of tries"
    assert texts["leak_text"] == f'{said}; "no leak" is within its 95\u00a0% interval.'
    sure = replace(selection, decision=replace(selection.decision, interval=[0.01, 0.9]))
    assert "as much" not in texts["leak_beside"]
    told = screen_of(points, sure, InPercent(), base_score=selection.score / 2)
    assert told["leak_text"] == f"{said}."
    assert " times as much (" in told["leak_beside"]
    assert told["leak_beside"].endswith(
        f"The untrained model leaks 0.5 times as much ({50 * selection.score:.3g}\u00a0%)."
    )
    assert texts["use_figure"] == number(selection.utility_loss), "no share without the base loss"
    # A ratio of about 1 is said without a figure.
    of_gain = screen_of(points, sure, ScoreWords.of("logprob", {}), base_score=0.0)
    assert "The untrained model: 1 times." in of_gain["leak_beside"]


@pytest.mark.parametrize(
    ("phrase", "figure"),
    [
        ("it is among the likeliest 1 in 1,024 of its form (by chance: 1 in 2.7)", "1 in 1,024"),
        ("training made a secret 1.2 times as likely as others", "1.2 times"),
        ("an attack is right in 63.2 % of pairs (guessing: 50 %)", "63.2\u00a0%"),
        ("audits show an ε of at least 1.2e-05 on average", "1.2e-05"),
    ],
)
def test_leak_figure_repeats_the_number_of_the_scores_words(points, selection, phrase, figure):
    words = NoWords()
    words.say = lambda value: phrase
    assert screen_of(points, selection, words)["leak_figure"] == figure


def test_a_single_model_is_compared_with_no_other(points, selection):
    """As after a private selection."""
    own = points[[c == selection.configuration for c in configurations(points)]]
    texts = screen_of(own, selection, best=selection, base_utility_loss=3.4)
    assert texts["use_figure"] == number(selection.utility_loss)
    assert texts["use_beside"] == "The untrained model 3.4."
    assert texts["leak_beside"] == ""


@pytest.mark.parametrize(
    ("columns", "told", "figure", "said"),
    [
        ({"epsilon": 7.99, "delta": 1e-5}, {}, "ε ≤ 7.99", "right in at most 99.97 % of cases"),
        (
            {"epsilon": 7.99, "delta": 1e-5},
            {"Unit of privacy": "user (column name) with all its examples (at most 6)"},
            "ε ≤ 7.99",
            "whether one user was trained on is right",
        ),
        ({"epsilon": 1.0, "delta": 0.0}, {}, "ε ≤ 1", "one record was trained on"),
        ({"epsilon": 1.0, "delta": 0.0}, {}, "ε ≤ 1", "73.11 % of cases"),
        ({"epsilon": 7.98801, "delta": 1e-5}, {}, "ε ≤ 7.989", "δ = 1e-05"),
        (
            {"epsilon": 7.99, "delta": 1e-5},
            {
                "Unit of privacy": "mail",
                "Certified": "no, because noise comes from the public test key",
            },
            "ε ≤ 7.99",
            "Not certified, do not release: noise comes from the public test key. Where it holds: A guess whether",
        ),
        (
            {"epsilon": "inf", "delta": 1e-5},
            {"Certified": "no, because none"},
            "none",
            "is infinite",
        ),
        ({"epsilon": 7.99}, {}, "–", "names no guarantee"),
        ({"epsilon": float("nan"), "delta": 1e-5}, {}, "–", "names no guarantee"),
    ],
)
def test_the_guarantee_is_said_in_words(points, selection, columns, told, figure, said):
    plain = points.drop(columns=["epsilon", "delta"], errors="ignore").assign(**columns)
    texts = screen_of(plain, selection, told=told)
    assert texts["guarantee_figure"] == figure
    text = f"{texts['guarantee_text']} {texts['guarantee_beside']}"
    assert said in text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("epsilon", "advantage", "said"),
    [(7.99, 0.407, "of every record whether it was trained on is right in at most 70.35 % of cases"),
     (7.99, None, "A guess whether one record was trained on is right in at most 99.97 % of cases")],
)  # fmt: skip
def test_a_known_advantage_bounds_who_guesses_of_all(points, selection, epsilon, advantage, said):
    plain = points.assign(epsilon=epsilon, delta=1e-5)
    asked = []
    texts = screen_of(plain, selection, advantage_fn=lambda c: asked.append(c) or advantage)
    assert said in texts["guarantee_text"].replace("\u00a0", " ")
    surest = "A guess on the surest: at most 99.97 %" in texts["guarantee_beside"].replace(
        "\u00a0", " "
    )
    assert surest == (advantage is not None), texts["guarantee_beside"]
    assert asked == [selection.configuration]


def test_first_screen_follows_the_choice_at_each_threshold(page):
    live = page.told["live"]
    for position in live["selected"]["procedure"]:
        screen = live["screens"][str(position)]
        assert screen["leak_figure"] == f"{live['score'][position]:.3g}"
        assert screen["verdict"].startswith("The rule procedure selects batch size ")
        figures = re.findall(r"(?:size|rate|,) ([\d.e-]*\d)", screen["verdict"])
        assert live["names"][position] == "(b={}, T={}, η={})".format(*figures)


def test_secrets_are_means_over_seeds_by_id(page, points):
    """Values are the score and half above and below it, in every run."""
    rows = {row[0]: row[1:] for row in page.table("Score vmr by secret")}
    best = select(points, rule="best-utility", max_loss=MAX_LOSS)
    for k, shift in enumerate((-0.5, 0.0, 0.5)):
        assert rows[f"<s{k}>"][0] == str(2 + k)
        assert rows[f"<s{k}>"][3] == number(best.score + shift)
        assert rows[f"<s{k}>"][-1] == number(points["score"].max() + shift)


def test_tables_hold_the_figures_of_the_analyses(page, points):
    assert len(page.table("Means over seeds, sorted")) == 60
    heuristics = page.table("Pairs in which")
    assert {r[0]: (int(r[1]), int(r[2])) for r in heuristics} == {
        name: (f["correct"], f["pairs"]) for name, f in heuristic_accuracy(points).items()
    }
    tests = verify_heuristics(points)["heuristics"]
    assert [r[-1] for r in heuristics] == [test["verdict"] for test in tests.values()]
    risk = page.table("Score above the oracle's")
    assert {r[0]: r[2] for r in risk} == {
        rule: number(figures["absolute"]) for rule, figures in privacy_risk(points)["rules"].items()
    }


@pytest.mark.extensions
def test_tables_hold_the_coefficients_of_the_regression(page, points):
    fits = [rows[1:] for caption, rows in page.rows.items() if "180 rows" in caption]
    coefficients = {(i, row[0]): row[1] for i, rows in enumerate(fits) for row in rows}
    assert coefficients == {
        (i, term): number(figures["coef"])
        for i, fit in enumerate(analysis.regress(points).values())
        for term, figures in fit["terms"].items()
    }


def test_page_can_be_read_by_machines_and_without_the_figures(page):
    tags = dict(page.tags)
    assert tags["html"]["lang"] == "en"
    plots = [a for _, a in page.tags if a.get("class") == "plot"]
    assert {a["id"] for a in plots} == set(page.told["figures"])
    assert all(a["role"] == "img" and len(a["aria-label"]) > 30 for a in plots)
    headers = [a for tag, a in page.tags if tag == "th"]
    assert all(a["scope"] in ("col", "row") for a in headers)
    assert sum(tag == "table" for tag, _ in page.tags) == sum(
        tag == "caption" for tag, _ in page.tags
    )
    labels = [a["for"] for tag, a in page.tags if tag == "label"]
    assert labels == [a["id"] for tag, a in page.tags if tag == "input"]


@pytest.mark.slow
def test_the_base_loss_may_come_from_the_points(points, tmp_path):
    for column, said in ((3.4, True), (None, False)):
        table = points.assign(base_utility_loss=column)
        write_report(
            table, select(table, rule="best-utility"), tmp_path / "base.html", title="Base"
        )
        named = Page((tmp_path / "base.html").read_text(encoding="utf-8")).named
        assert (named["first-use_figure"] == "100\u00a0%") == said
        assert ("The untrained model 3.4." in named["first-use_beside"]) == said


def test_undefined_figures_are_explained(tmp_path):
    one = pd.DataFrame([(4, 2, 0.1, 0, 2.0, 0.0)], columns=COLUMNS)
    write_report(one, select(one), tmp_path / "one.html", title="One run")
    text = " ".join(Page((tmp_path / "one.html").read_text(encoding="utf-8")).text["p"])
    for reason in (
        "0 or below at 1 of 1",
        "at least 2 configurations",
        "the same in every",
        "no configuration has two seeds",
        *(["1 rows are too few for 4", "it takes 8"] if WHOLE else []),
    ):
        assert reason in text
    with pytest.raises(ValueError, match="at least one selection"):
        write_report(one, [], tmp_path / "none.html", title="None")


@pytest.mark.slow
def test_large_tables_are_shortened_and_say_so(tmp_path):
    """6,000 configurations: the lowest losses are listed, the scatter draws 5,000 and all that are
    selected."""
    generator = np.random.default_rng(1)
    rates = [float(f"{r:.6g}") for r in np.geomspace(1e-5, 1, 6000)]
    table = pd.DataFrame({"batch_size": 8, "num_steps": 2, "learning_rate": rates, "seed": 0})
    table["utility_loss"], table["score"] = (
        generator.uniform(2, 3, 6000),
        generator.uniform(0.1, 1, 6000),
    )
    write_report(table, select(table, max_loss=2.5), tmp_path / "large.html", title="Large")
    page = Page((tmp_path / "large.html").read_text(encoding="utf-8"))
    rows = page.table("Means over seeds of the 1000 configurations of lowest loss of 6000")
    assert max(float(row[6]) for row in rows) <= float(f"{np.sort(table['utility_loss'])[999]:.4g}")
    live = page.told["live"]
    assert len(live["thresholds"]) == 400
    assert 5000 <= len(live["drawn"]) < 6000
    assert {p for positions in live["selected"].values() for p in positions} <= set(live["drawn"])
    assert len(json.dumps(page.told)) < 6_000_000


@pytest.mark.slow
def test_the_printed_threshold_selects_the_configuration_of_the_page(page, points):
    """What a reader copies from beside the slider into --max-loss."""
    live = page.told["live"]
    for at, text in enumerate(live["texts"]):
        said = select(points, rule="procedure", max_loss=float(text))
        assert live["names"][live["selected"]["procedure"][at]] == str(said.configuration)
        assert live["members"][at] == len(said.steps[0].survivors)
    assert float(live["start_text"]) == MAX_LOSS


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.5, 0.77, 0.9, 0.95])
def test_the_threshold_reads_the_same_everywhere_and_selects_the_same(points, tmp_path, gain):
    """In the steps that the command prints, in the report's text and beside the slider."""
    options = {"min_gain_share": gain, "base_utility_loss": 3.4}
    chosen = select(points, **options)
    write_report(points, chosen, tmp_path / "gain.html", title="Gain", base_utility_loss=3.4)
    page = Page((tmp_path / "gain.html").read_text(encoding="utf-8"))
    text = page.told["live"]["start_text"]
    assert chosen.steps[0].rule == f"keep a mean utility loss of at most {text}"
    assert any(f"The utility threshold is {text}." == told for told in page.text["p"])
    assert select(points, max_loss=float(text)).steps[0].survivors == chosen.steps[0].survivors


def test_a_shown_threshold_is_never_rounded_below_a_loss_that_it_lets_in():
    loss = np.array([1.3940012, 1.3940014, 1.5])
    for threshold, members in ((1.3940012, 1), (1.3940013, 1), (1.3940014, 2), (1.4, 2)):
        shown = shown_threshold(loss, threshold)
        assert within(loss, np.full(3, float(shown))).sum() == members
    assert shown_threshold(loss, 1.4) == "1.4"


@pytest.mark.slow
def test_epsilon_on_the_card_holds_for_all_seeds(points, tmp_path):
    mixed = points.assign(epsilon=[2.0 + seed for seed in points["seed"]])
    write_report(mixed, select(mixed, max_loss=MAX_LOSS), tmp_path / "mixed.html", title="Mixed")
    page = Page((tmp_path / "mixed.html").read_text(encoding="utf-8"))
    assert dict(zip(page.text["dt"], page.text["dd"], strict=True))["ε"] == "4"
    write_report(mixed.assign(epsilon="inf"), select(mixed), tmp_path / "inf.html", title="None")
    page = Page((tmp_path / "inf.html").read_text(encoding="utf-8"))
    assert dict(zip(page.text["dt"], page.text["dd"], strict=True))["ε"] == "inf"


@pytest.mark.slow
def test_logarithmic_scores_have_no_shares(points, tmp_path):
    table = points.assign(**{"score.logprob": points["score"]}).drop(columns="score.vmr")
    write_report(
        table, select(table, max_loss=MAX_LOSS), tmp_path / "log.html", title="Logarithmic"
    )
    page = Page((tmp_path / "log.html").read_text(encoding="utf-8"))
    assert {row[7] for row in page.table("What each rule")} == {"–"}
    assert any(text.startswith("Score: logprob") for text in page.text["p"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "base", "ratios"), [("bits", 2.0, False), ("bits", None, True)])
def test_report_shows_no_ratio_of_logarithmic_score(points, tmp_path, name, base, ratios):
    """As a plug-in's, whose name the report does not know."""
    table = points.assign(**{f"score.{name}": points["score"]}).drop(columns="score.vmr")
    path = tmp_path / "declared.html"
    words = ScoreWords(log_base=base)
    write_report(table, select(table, max_loss=MAX_LOSS), path, title="Declared", words=words)
    page = Page(path.read_text(encoding="utf-8"))
    assert ({row[7] for row in page.table("What each rule")} != {"–"}) == ratios
