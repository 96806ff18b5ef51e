"""`raydp report`: one table, several, groups of one, figures as files; mistakes are said before
anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import Answer

Command = Callable[..., Answer]
ROWS = [
    (
        b,
        t,
        rate,
        seed,
        3 - 0.1 * b**0.2 * t * rate - 0.01 * seed,
        0.1 + b * t * rate / 100 + 0.01 * seed,
    )
    for b in (16, 32)
    for t in (2, 4)
    for rate in (0.1, 0.2)
    for seed in (0, 1)
]


COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    points = pd.DataFrame(ROWS, columns=COLUMNS)
    for epsilon in (4, 8):
        points.assign(score=points["score"] * epsilon).to_csv(
            tmp_path / f"eps-{epsilon}.csv", index=False
        )
    both = [points.assign(epsilon=e, score=points["score"] * e) for e in (4, 8)]
    pd.concat(both).to_csv(tmp_path / "both.csv", index=False)
    return tmp_path / "eps-8.csv"


def test_one_table(raydp: Command, table: Path) -> None:
    answer = raydp("report", table, "-o", "one.html", "--json")
    assert answer.code == 0, answer.err
    assert answer.json() == {"report": "one.html"}
    page = Path("one.html").read_text()
    assert 'id="threshold"' in page
    assert "<td>32</td>" in page


@pytest.mark.extensions
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["eps-4.csv", "eps-8.csv"], ["eps-4", "eps-8"]),
        (["both.csv", "--by", "epsilon"], ["4", "8"]),
    ],
)
def test_several_groups_are_compared(
    raydp: Command, table: Path, arguments: list[str], names: list[str]
) -> None:
    answer = raydp("report", *arguments, "-o", "both.html", "--json")
    assert answer.code == 0, answer.err
    page = Path("both.html").read_text()
    for name in names:
        assert re.search(rf'<th scope="row"[^>]*>{name}</th>', page)
    apart = rf'<th scope="row"[^>]*>{names[1]} over {names[0]}</th><td>2</td>'
    assert re.search(apart, page), "scores are twice as far apart"
    assert 'id="threshold"' not in page


@pytest.mark.browser
def test_figures_are_written_beside_the_page(raydp: Command, table: Path) -> None:
    answer = raydp(
        "report", table, "-o", "one.html", "--figures", "pictures", "--format", "svg", "--json"
    )
    assert answer.code == 0, answer.err
    files = [Path(file) for file in answer.json()["figures"]]
    names = {"layout", "by_threshold", "importance", "effects", "heuristics", "risk", "spread"}
    assert {file.stem for file in files} == names
    assert all(file.read_text().startswith("<svg") for file in files)


@pytest.mark.extensions("named once", "--by must", "epsilom")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["eps-8.csv", "--figures", "f", "--format", "gif"],
            "format must be one of svg, png, pdf, got 'gif'",
        ),
        (["eps-8.csv", "-o", "nowhere/r.html"], "--output must lie in an existing folder"),
        (["eps-8.csv", "eps-8.csv"], "must be named once each"),
        (["eps-8.csv", "eps-4.csv", "--by", "seed"], "--by must go with one table"),
        (["eps-8.csv", "--by", "epsilom"], "epsilom"),
        (["nothing"], "nothing"),
        (["eps-8.csv", "-o", "eps-8.csv", "--rule", "oracel"], "Did you mean 'oracle'?"),
        (["eps-8.csv", "-o", "eps-8.csv", "--score", "vrm"], "vrm"),
    ],
)
def test_bad_arguments_are_refused_with_a_remedy(
    raydp: Command, table: Path, arguments: list[str], message: str
) -> None:
    answer = raydp("report", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert not Path("report.html").exists()


def test_a_rule_and_a_threshold_may_be_given(raydp: Command, table: Path) -> None:
    answer = raydp("report", table, "--rule", "oracle", "--max-loss", "2.9", "--json")
    assert answer.code == 0, answer.err
    said = raydp("select", table, "--rule", "oracle", "--max-loss", "2.9", "--json").json()
    name = f"batch size {said['batch_size']}, {said['num_steps']} steps"
    assert f"{name}, learning rate {said['learning_rate']:g}" in Path("report.html").read_text()


def test_a_share_of_the_gain_takes_the_place_of_a_sweeps_threshold() -> None:
    from raydp.spec.sections import SelectSpec
    from raydp.sweep.store.source import rule_of, with_given

    own = SelectSpec(score="vmr_exact", rule="procedure", max_loss=2.0, min_gain_share=None)
    assert with_given(own, {"min_gain_share": 0.9, "max_score": None}) == {"min_gain_share": 0.9}
    assert with_given(own, {"max_loss": 3.0}) == {"max_loss": 3.0}
    assert with_given(own, {}) == own.constraints() == {"max_loss": 2.0}
    assert (rule_of(own, None), rule_of(own, "oracle")) == ("procedure", "oracle")


def test_a_table_is_not_overwritten(raydp: Command, table: Path) -> None:
    before = table.read_text()
    answer = raydp("report", table, "-o", table)
    assert answer.code == 2
    assert "--output must be a page" in answer.err
    assert table.read_text() == before


@pytest.mark.extensions
def test_choices_of_best_utility_are_compared(raydp: Command, table: Path) -> None:
    answer = raydp("report", "eps-4.csv", "eps-8.csv", "--rule", "best-utility", "--json")
    assert answer.code == 0, answer.err


@pytest.mark.extensions
def test_a_comparison_names_the_distinct_part_of_each_source(
    raydp: Command, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        pd.DataFrame(ROWS, columns=COLUMNS).to_csv(tmp_path / name / "points.csv", index=False)
    sources = [tmp_path / name / "points.csv" for name in ("one", "two")]
    assert raydp("report", *sources, "-o", "both.html").code == 0
    page = Path("both.html").read_text()
    assert "one/points" in page
    assert str(tmp_path) not in page


@pytest.mark.extensions
def test_the_epsilon_that_runs_of_one_target_reach_is_one_group(
    raydp: Command, tmp_path: Path
) -> None:
    points = pd.DataFrame(ROWS, columns=COLUMNS)
    reached = 7.99 + 0.0001 * points.index
    pd.concat([points.assign(epsilon=reached), points.assign(epsilon=reached / 2)]).to_csv(
        "e.csv", index=False
    )
    answer = raydp("analyze", "trends", "e.csv", "--by", "epsilon", "--json")
    assert [row["group"] for row in answer.json()["groups"]] == ["4", "7.99"]


@pytest.mark.extensions
def test_scores_of_different_kinds_are_not_compared(raydp: Command, table: Path) -> None:
    for file, name in (("eps-4.csv", "score.logprob"), ("eps-8.csv", "score.vmr")):
        points = pd.read_csv(file)
        points.assign(**{name: points["score"]}).to_csv(file, index=False)
    assert raydp("report", "eps-4.csv", "eps-8.csv", "-o", "both.html").code == 0
    page = Path("both.html").read_text()
    assert "not known to be of the same score" in page
    assert "Ratios of the standard deviations" not in page
