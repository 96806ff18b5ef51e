"""Reading, checking and averaging points tables."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from point_tables import naive_means, tables

from raydp.analysis import (
    check_points,
    configuration_means,
    heuristic_accuracy,
    load_points,
    other_rows,
    save_points,
    select,
)
from raydp.analysis.tables.columns import LARGEST
from raydp.search_spaces import exact

HEADER = "batch_size,num_steps,learning_rate,seed,utility_loss,score"


def load(tmp_path, *rows, header=HEADER):
    path = tmp_path / "points.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return load_points(path)


def test_columns_have_their_types_and_rows_their_order(tmp_path):
    points = load(tmp_path, "8,2,5e-4,1,2.5,0.1", "4.0,2,0.001,0,3,0")
    assert points.dtypes[["batch_size", "num_steps", "seed"]].tolist() == [np.int64] * 3
    assert points.dtypes[["learning_rate", "utility_loss", "score"]].tolist() == [np.float64] * 3
    assert points.to_numpy().tolist() == [[8, 2, 5e-4, 1, 2.5, 0.1, ""], [4, 2, 1e-3, 0, 3, 0, ""]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,2,1e-3,0,1,1", "batch_size must be > 0.*line 3"),
        ("4,-2,1e-3,0,1,1", "num_steps must be > 0"),
        ("4,2,0,0,1,1", "learning_rate must be > 0"),
        ("4,2,inf,0,1,1", "learning_rate must be a finite number"),
        ("4.5,2,1e-3,0,1,1", "batch_size must be a whole number"),
        ("4,2,1e-3,0.5,1,1", "seed must be a whole number"),
        ("4,2,1e-3,,1,1", "seed must be a finite number"),
        ("4,2,1e-3,0,,1", "utility_loss must be a finite number"),
        ("4,2,1e-3,0,1,nan", "score must be a finite number"),
        ("4,2,1e-3,0,1,-inf", "score must be a finite number"),
        ("4,2,fast,0,1,1", "learning_rate must be a number, got text in line 3"),
        ("9,9,1e-3,7,1,1", "one row per .* line 3 more than once"),
        ("9,9,0.001,7,2,3", "one row per"),
    ],
)
def test_bad_rows_are_refused_by_name(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, "9,9,1.0e-3,7,1,1", row)


def test_tables_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="without seed, score"):
        load(tmp_path, "1,1,1,1", header="batch_size,num_steps,learning_rate,utility_loss")
    with pytest.raises(ValueError, match="at least one row"):
        load(tmp_path)
    (tmp_path / "nothing.csv").write_text("")
    with pytest.raises(ValueError, match="empty file"):
        load_points(tmp_path / "nothing.csv")
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        load_points(tmp_path / "points.xlsx")
    with pytest.raises(ValueError, match="existing file"):
        load_points(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match=r"\.csv or \.parquet"):
        save_points(pd.DataFrame(), tmp_path / "points.json")


ROW = b"4,2,1e-3,0,1,1\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            ROW + b"4,2,1e-3,1,1,\xff\n",
            r"points must be UTF-8 text, got other bytes in '.*'\. Save it as UTF-8",
        ),
        (
            ROW + b'4,2,1e-3,1,1,"1\n',
            r"points must be valid CSV, got .* in line 3 of '.*'\. Correct the quotes",
        ),
        (
            b"9," + ROW,
            r"points must have at most 6 cells in a row.* got 7 in line 2 of .*\. Remove some",
        ),
        (
            ROW + b"4,2,1e-3,1,1,1,5\n",
            r"points must have at most 6 cells in a row.* got 7 in line 3 of .*\. Remove",
        ),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, content, message):
    path = tmp_path / "points.csv"
    path.write_bytes(f"{HEADER}\n".encode() + content)
    with pytest.raises(ValueError, match=message):
        load_points(path)


def test_a_parquet_file_that_is_none_and_a_folder_that_is_not_there(tmp_path):
    (tmp_path / "points.parquet").write_text("no")
    with pytest.raises(ValueError, match=r"points must be a Parquet file, got .*\. Write it again"):
        load_points(tmp_path / "points.parquet")
    with pytest.raises(
        ValueError, match=r"points must go into an existing folder, got .*\. Create it"
    ):
        save_points(pd.DataFrame(), tmp_path / "absent" / "points.csv")


def test_only_finished_rows_are_used_and_the_others_are_counted(tmp_path):
    points = load(
        tmp_path,
        "4,2,1e-3,0,1,1,finished",
        "4,2,1e-3,1,,,failed",
        "4,2,1e-3,2,,,failed",
        "4,2,1e-3,3,9,9,stopped",
        "4,2,1e-3,4,,,",
        header=HEADER + ",status",
    )
    assert len(points) == 1
    assert other_rows(points) == {"failed": 2, "stopped": 1, "unknown": 1}
    assert other_rows(check_points(points)) == other_rows(points), "checking again forgets nothing"
    with pytest.raises(ValueError, match="finished row, got 1 failed"):
        load(tmp_path, "4,2,1e-3,1,,,failed", header=HEADER + ",status")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            "b,steps,lr,seed,loss,score",
            "It has b, steps, lr, seed, loss, score. Rename b to batch_size, steps to num_steps, "
            "lr to learning_rate, loss to utility_loss.",
        ),
        (
            "BS,T,Learning-Rate,seed,utility_loss,score",
            "Rename BS to batch_size, T to num_steps, Learning-Rate to learning_rate.",
        ),
        (
            "Quillonia,b,num_steps,learning_rate,seed,utility_loss",
            "without batch_size, score. It has b, num_steps, learning_rate, seed, utility_loss and "
            "1 other column. Rename b to batch_size, and add the others.",
        ),
        ("batch_size,b", "seed, utility_loss, score. It has batch_size, b. Add or rename them."),
    ],
)
def test_missing_column_is_refused_with_found_columns_and_their_renames(tmp_path, header, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load(tmp_path, ",".join("1" for _ in header.split(",")), header=header)
    assert "Quillonia" not in str(error.value), "an unknown name may be private text"


def test_methods_without_hyperparameters_load_but_are_not_compared(tmp_path):
    points = load(tmp_path, "4,2,1e-3,0,1,1", ",,,0,1,1", ",,,0,1,1")
    assert points["batch_size"].isna().sum() == 2
    for analysis in (heuristic_accuracy, select, configuration_means):
        with pytest.raises(ValueError, match="got 2 of 3 rows without"):
            analysis(points)


def test_learning_rates_stay_the_decimals_that_were_written(tmp_path):
    points = load(
        tmp_path,
        *(f"1,1,{text},0,1,1" for text in ("3e-3", "0.1", "7.0E-05", "0.000123456789012345")),
    )
    assert [exact(rate) for rate in points["learning_rate"]] == [
        Fraction(3, 1000), Fraction(1, 10), Fraction(7, 100_000), Fraction(123456789012345, 10**18)
    ]  # fmt: skip
    single = check_points(points.assign(learning_rate=points["learning_rate"].astype(np.float32)))
    assert [exact(rate) for rate in single["learning_rate"]][:3] == [
        Fraction(3, 1000),
        Fraction(1, 10),
        Fraction(7, 10**5),
    ]


def test_spreadsheet_csv_is_read(tmp_path):
    path = tmp_path / "points.csv"
    path.write_bytes(
        b"\xef\xbb\xbf" + f"{HEADER.replace(',', ', ')}\r\n4, 2, 1e-3, 0, 1, 1\r\n".encode()
    )
    assert load_points(path)["learning_rate"].tolist() == [0.001]


@settings(max_examples=30)
@given(table=tables(), data=st.data())
def test_files_give_back_every_value(tmp_path_factory, table, data):
    """Doubles survive both formats bit by bit."""
    finite = st.floats(-LARGEST, LARGEST)
    table["score"] = data.draw(st.lists(finite, min_size=len(table), max_size=len(table)))
    table["learning_rate"] = table["learning_rate"].astype(float)
    for extension in ("csv", "parquet"):
        path = tmp_path_factory.mktemp("points") / f"points.{extension}"
        save_points(table, path)
        pd.testing.assert_frame_equal(load_points(path), check_points(table), check_exact=True)


@settings(max_examples=60)
@given(table=tables())
def test_means_are_exact_sorted_and_blind_to_the_order_of_rows(table):
    means = configuration_means(table)
    naive = naive_means(table)
    rows = zip(
        means["batch_size"], means["num_steps"], map(exact, means["learning_rate"]), strict=True
    )
    order = sorted(naive, key=lambda p: (p[1], p[0], p[2]))
    assert list(rows) == order
    assert list(zip(means["utility_loss"], means["score"], strict=True)) == [
        naive[p] for p in order
    ]
    pd.testing.assert_frame_equal(
        configuration_means(table[::-1]), means, rtol=1e-12
    )  # the stds: summation order
    assert means["score"].tolist() == configuration_means(table[::-1])["score"].tolist()


def test_equal_samples_have_equal_means():
    """Three times 0.1 averages to 0.1, where a float sum gives 0.30000000000000004 / 3."""
    rows = [(1, 1, 0.1, seed, 0.1, 0.1) for seed in range(3)] + [(2, 1, 0.1, 0, 0.1, 0.1)]
    means = configuration_means(pd.DataFrame(rows, columns=HEADER.split(",")))
    assert means["score"].tolist() == [0.1, 0.1]
    assert means["score_std"].tolist()[0] == 0
    assert np.isnan(means["score_std"].tolist()[1])


def test_the_model_is_that_of_the_first_listed_seed_that_finished(tmp_path):
    points = load(
        tmp_path,
        "4,2,1e-3,2,1,1,,failed",
        "4,2,1e-3,1,1,9,models:/m/7,finished",
        "8,2,1e-3,0,1,1,,finished",
        "4,2,1e-3,0,1,0,models:/m/3,finished",
        header=HEADER + ",model_uri,status",
    )
    assert configuration_means(points)["model_uri"].tolist() == ["models:/m/7", None]


def test_seeds_of_64_bits_are_distinct():
    """A private selection draws such seeds; as doubles these two are one."""
    seeds = [2**60 + 1, 2**60 + 2]
    table = pd.DataFrame({"batch_size": 2, "num_steps": 3, "learning_rate": 0.1, "seed": seeds})
    points = check_points(table.assign(utility_loss=[1.0, 2.0], score=[1.0, 2.0]))
    assert points["seed"].tolist() == seeds


def test_updates_beyond_all_doubles_are_refused():
    columns = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
    table = pd.DataFrame([(10000, 100000, 1e305, 0, 1.0, 1.0)], columns=columns)
    with pytest.raises(ValueError, match=r"learning_rate must be at most 1e\+100 in size"):
        check_points(table)


def test_rows_without_a_group_are_duplicates_too() -> None:
    table = pd.DataFrame({"batch_size": 32, "num_steps": 10, "learning_rate": 0.1, "seed": [0, 0, 1],
                          "utility_loss": 2.0, "score": [0.1, 0.2, 0.3], "eps": [None, None, 8.0]})  # fmt: skip
    with pytest.raises(ValueError, match=r"one row per \(configuration, seed\)"):
        check_points(table, by="eps")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{header}\n{good}\n\n{bad}\n", "line 4"),
        ("\n{header}\n{good}\n  \n{bad}\n", "line 5"),
        ('{header},note\n{good},"two\nlines"\n{bad},x\n', "line 4"),
        ("{header},status\n{good},finished\n{good},failed\n{bad},finished\n", "line 4"),
    ],
)
def test_a_message_gives_the_line_of_the_file(tmp_path, content, place):
    """Blank lines, cells of several lines and unfinished rows count as an editor counts them."""
    header = "batch_size,num_steps,learning_rate,seed,utility_loss,score,score.vmr"
    path = tmp_path / "points.csv"
    path.write_text(content.format(header=header, good="4,2,0.1,0,1,1,1", bad="4,2,fast,1,1,1,1"))
    with pytest.raises(ValueError, match=f"learning_rate must be a number, got text in {place}\\."):
        load_points(path)
    path.write_text(content.format(header=header, good="4,2,0.1,0,1,1,1", bad="4,2,0.1,1,1,1,much"))
    with pytest.raises(ValueError, match=rf"score\.vmr must be a number, got text in {place}\."):
        load_points(path)
