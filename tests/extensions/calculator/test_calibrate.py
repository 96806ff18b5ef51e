"""`raydp calibrate` and `raydp profile` of one run: answers, messages, and the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raydp.privacy import PLDAccountant, PoissonGaussian
from tests.conftest import Answer

Command = Callable[..., Answer]

RUN = ["--n", 3600, "--batch-size", 256, "--num-steps", 16, "--epsilon", 8, "--delta", 1e-4]


def test_calibrate_answers_with_a_noise_multiplier_that_keeps_the_promise(raydp: Command) -> None:
    answer = raydp("calibrate", *RUN, "--accountant", "pld", "--json").json()
    assert set(answer) == {"noise_multiplier", "epsilon", "delta", "sample_rate", "accountant"}
    assert answer["accountant"] == "pld"
    event = PoissonGaussian(
        sample_rate=256 / 3600, noise_multiplier=answer["noise_multiplier"], num_steps=16
    )
    assert PLDAccountant().epsilon(event, 1e-4) <= 8


def test_calibrate_a_file_answers_with_a_list_in_its_order(raydp: Command, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(
        "n,batch_size,num_steps,epsilon,delta\n3600,256,16,8,1e-4\n3600,256,16,2,1e-4\n"
    )
    easy, hard = raydp("calibrate", "--from", file, "--accountant", "rdp", "--json").json()
    assert hard["noise_multiplier"] > easy["noise_multiplier"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", 3600], "--batch-size"),
        (
            [*RUN[:2], "--batch-size", 4000, *RUN[4:]],
            "batch_size must be > 0 and <= num_examples 3600",
        ),
        ([*RUN[:6], "--epsilon", -1, *RUN[8:]], "epsilon must be > 0"),
        ([*RUN[:8], "--delta", 1], "delta must be"),
        ([*RUN, "--accountant", "plt"], "Did you mean 'pld'?"),
        (["--from", "absent.csv"], "--from must be an existing CSV file"),
    ],
)
def test_calibrate_refuses_bad_input_with_a_remedy(
    raydp: Command, arguments: list[object], message: str
) -> None:
    answer = raydp("calibrate", *arguments)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"3600,256,16,8,inf\n",
            "line 3: delta must be a number, got no finite number. Write a finite number",
        ),
        (
            b"3600,,16,8,1e-4\n",
            "line 3: batch_size must be a number, got an empty cell. Write a finite number",
        ),
        (b"all,256,16,8,1e-4\n", "line 3: n must be a number, got text. Write a finite number"),
        (
            b"3600,256,1.5,8,1e-4\n",
            "line 3: num_steps must be a whole number, got another number. Round it",
        ),
        (b'3600,256,16,8,"1e-4\n', "--from must be valid CSV"),
        (b"3600,256,16,8,1e-4,7\n", "as many values in a row as the header"),
        (
            b"3600,256,16,8,\xff\n",
            "--from must be UTF-8 text, got other bytes in runs.csv. Convert the file",
        ),
    ],
)
def test_calibrate_names_the_row_and_the_column(
    raydp: Command, tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "runs.csv").write_bytes(
        b"n,batch_size,num_steps,epsilon,delta\n3600,256,16,8,1e-4\n" + content
    )
    answer = raydp("calibrate", "--from", "runs.csv")
    assert answer.code == 2
    assert message in " ".join(answer.err.split())


@pytest.mark.parametrize("content", ["", "n,batch_size,num_steps,epsilon,delta\n"])
def test_calibrate_without_rows(raydp: Command, tmp_path: Path, content: str) -> None:
    (tmp_path / "runs.csv").write_text(content)
    answer = raydp("calibrate", "--from", "runs.csv")
    assert answer.code == 2
    assert (
        "--from must have a header and at least one row, got none in runs.csv. Add them."
        in answer.err
    )


def test_profile_falls_with_delta_and_explains_a_missing_mu(raydp: Command) -> None:
    run = ["--n", 3600, "--batch-size", 256, "--num-steps", 16, "--noise-multiplier", 1.0]
    answer = raydp("profile", *run, "--deltas", "1e-3,1e-6", "--accountant", "rdp", "--json").json()
    assert answer["deltas"] == [1e-3, 1e-6]
    assert answer["epsilons"][0] < answer["epsilons"][1]
    assert answer["accountant"] == "rdp"
    assert (answer["gdp_mu"] is None) == bool(answer["gdp_mu_reason"])
    assert raydp("profile", *run, "--deltas", "1e-3;1e-6").code == 2


@pytest.mark.slow
def test_profile_has_every_accountant_the_attackers_limits_and_a_figure(
    raydp: Command, tmp_path: Path
) -> None:
    run = ("--n", 3000, "--batch-size", 30, "--num-steps", 50, "--noise-multiplier", 0.8)
    answer = raydp(
        "profile", *run, "--deltas", "1e-3,1e-6", "-o", tmp_path / "profile.html", "--json"
    ).json()
    curves = {name: [row["epsilon"] for row in rows] for name, rows in answer["curves"].items()}
    assert set(curves) == {"prv", "pld", "rdp"}
    assert curves["pld"] == answer["epsilons"]
    assert all(tight <= loose for tight, loose in zip(curves["pld"], curves["rdp"], strict=True))
    assert 0 < answer["attack"]["advantage"] < 1
    page = (tmp_path / "profile.html").read_text()
    assert "n = 3000, b = 30, T = 50" in page
    assert "true positive rate at most" in page
    human = raydp("profile", *run, "--deltas", "1e-3,1e-6").out
    assert "by accountant" in human


def test_profile_tells_the_price_of_choosing(raydp: Command) -> None:
    run = (
        "--n",
        3000,
        "--batch-size",
        30,
        "--num-steps",
        50,
        "--noise-multiplier",
        0.8,
        "--deltas",
        "1e-5",
    )
    answer = raydp("profile", *run, "--accountant", "rdp", "--expected-runs", 10, "--json").json()
    assert answer["epsilons"][0] < answer["best_of"]["epsilons"][0] < 4 * answer["epsilons"][0]
    assert raydp("profile", *run, "--expected-runs", 1).code == 2


@pytest.mark.slow
def test_prv_says_how_far_it_is_above_the_tight_accountant(raydp: Command) -> None:
    run = ("--n", 3000, "--batch-size", 30, "--num-steps", 50, "--epsilon", 4, "--delta", 1e-5)
    assert (
        0 <= raydp("calibrate", *run, "--accountant", "prv", "--json").json()["gap_to_pld"] < 0.01
    )
    assert "gap_to_pld" not in raydp("calibrate", *run, "--json").json()


def test_calibrate_a_file_repeats_its_inputs(raydp: Command, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("n,batch_size,num_steps,epsilon,delta\n3600,256,16,8,1e-4\n1800,128,8,2,1e-5\n")
    answer = raydp("calibrate", "--from", file, "--accountant", "rdp", "--json").json()
    inputs = ("n", "batch_size", "num_steps", "target_epsilon", "delta")
    assert [[row[k] for k in inputs] for row in answer] == [
        [3600, 256, 16, 8, 1e-4],
        [1800, 128, 8, 2, 1e-5],
    ]
    assert all(row["epsilon"] <= row["target_epsilon"] for row in answer)
