"""Whether a configuration leaks measurably, and what the default rule makes of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import configuration_means, select
from raydp.analysis.report.first_screen import NoWords
from raydp.analysis.selection.leakage import measured_leakage
from raydp.analysis.selection.verdict import Verdict
from raydp.analysis.tables.points import configurations
from tests.marks import slow_after

GRID = [(128, 10, 0.02), (64, 20, 0.02), (128, 20, 0.02), (32, 40, 0.02)]
"""In the order (T, b, η). The procedure selects the first: of equal compute the largest b."""


def sweep(
    gains,
    *,
    score="logprob",
    seeds=2,
    base=0.0,
    losses=(4.1, 4.05, 4.02, 4.0),
    num_samples=1,
    controls=0.0,
):
    """A points table and its table of secrets.

    Args:
        gains: [seeds, 4, k] values by secret of the trained models above the untrained model's.
        base: the untrained model's values, one or [k].
        controls: standard error of what the score subtracts.
    """
    points, secrets = [], []
    names = [f"secret-{i:03d}" for i in range(gains.shape[2])]
    for seed in range(seeds):
        for at, (b, t, rate) in enumerate(GRID):
            values = base + gains[seed, at]
            run = f"run-{seed}-{at}"
            error = float(np.hypot(values.std(ddof=1) / np.sqrt(len(values)), controls))
            points.append(
                (b, t, rate, seed, losses[at], values.mean(), values.mean(), error, run, 5.0)
            )
            secrets += [
                (run, score, name, value, num_samples)
                for name, value in zip(names, values, strict=True)
            ]
    of_base = np.broadcast_to(base, len(names))
    secrets += [
        ("base", score, name, value, num_samples)
        for name, value in zip(names, of_base, strict=True)
    ]
    columns = [
        "batch_size",
        "num_steps",
        "learning_rate",
        "seed",
        "utility_loss",
        "score",
        f"score.{score}",
    ]
    columns += [f"score.{score}.std_error", "run_id", "base_utility_loss"]
    table = pd.DataFrame(points, columns=columns)
    return table, (
        pd.DataFrame(secrets, columns=["run_id", "score", "secret_id", "value", "num_samples"]),
        score,
    )


def noise(rng, *, k=13, spread=2.0, seeds=2):
    """[seeds, 4, k] nats: what each secret gained by chance, alike in all models, and a little by
    seed."""
    return rng.normal(0, spread, k) + rng.normal(0, spread / 5, (seeds, 4, k))


def leaks_of(table, by_secret):
    return measured_leakage(table, configuration_means(table), by_secret)


def test_nothing_leaks_measurably_so_utility_selects():
    """Values around the controls' at every secret; the dominated choice of the paper's rule is not
    taken."""
    by_chance = np.linspace(-2, 2, 13) + np.array([0.1, 0.0, 0.05, -0.05])[None, :, None]
    table, by_secret = sweep(by_chance + np.array([0.1, -0.1])[:, None, None], controls=0.3)
    chosen = select(table, by_secret=by_secret)
    assert chosen.configuration.key[:3] == (40, 32, 0.02), "the lowest loss"
    assert chosen.explanation.startswith(
        "None of the 4 configurations that keep to the constraints leaks measurably by logprob: at "
        "95 % no mean score"
    )
    assert "The selection is therefore by utility." in chosen.explanation
    (step,) = [step for step in chosen.steps if step.name == "leakage check"]
    assert step.rule.endswith("secret by secret; leaking measurably: none")
    assert not any("lowest score" in w for w in chosen.warnings), "the scores did not choose"
    verdict = Verdict.of(chosen, None, NoWords(), None)
    assert verdict.certainty == (
        "none of the 4 compared leaks measurably more than the untrained model, so the utility decides"
    )
    assert (verdict.doubt, verdict.runner_up) == (None, None)
    assert not any("would decide" in caution for caution in verdict.cautions)
    assert select(table, rule="procedure", by_secret=by_secret).configuration.key[:3] == (
        10,
        128,
        0.02,
    )


@pytest.mark.parametrize(
    ("k", "leaking", "gain"),
    slow_after(
        1, [(13, 1, 20.0), (13, 13, 3.0), (8, 1, 25.0), (8, 2, 25.0), (8, 3, 25.0), (8, 5, 25.0)]
    ),
)
def test_a_leak_of_some_or_all_secrets_is_seen(k, leaking, gain):
    """One configuration alone leaks; in 100 sweeps the claim that nothing leaks is made in at most
    3."""
    rng, missed = np.random.default_rng(k + leaking), 0
    for _ in range(100):
        gains = noise(rng, k=k)
        gains[:, 1, :leaking] += gain
        missed += not leaks_of(*sweep(gains, controls=0.3)).leaks[1]
    assert missed <= 3


@pytest.mark.parametrize(("largest", "leaks"), [(4.7, False), (4.8, True)])
def test_the_worst_secret_stands_out_by_hand(largest, leaks):
    """Of 13 secrets, median 0 and median deviation 1: 1.4826 times Student's t with 12 degrees at
    0.05 / 13: 4.738."""
    gains = np.broadcast_to([-1.0] * 6 + [0.0] + [1.0] * 5 + [largest], (2, 4, 13))
    assert (leaks_of(*sweep(gains)).leaks == leaks).all()


@pytest.mark.slow
def test_without_a_leak_most_sweeps_say_so():
    """A configuration is called leaking by chance in about 10 of 100: two tests at 5 %."""
    rng, alarms = np.random.default_rng(0), []
    for _ in range(300):
        controls = rng.normal(0, 0.5)  # an error that all secrets of all models share
        gains = rng.normal(0, 2.0, 13) + rng.normal(0, 0.4, (2, 4, 13)) + controls
        alarms.append(leaks_of(*sweep(gains, controls=0.5)).leaks)
    assert 0.02 < np.mean(alarms) < 0.15
    assert (
        np.mean(np.any(alarms, axis=1)) < 0.35
    )  # the four share their secrets and controls: 0.25 was measured


@pytest.mark.parametrize(
    ("controls", "leaks"),
    [(0.05, True), (0.45, False), (2.0, True)],
    ids=["seen", "not seen", "cannot be told"],
)
def test_the_error_of_the_controls_counts(controls, leaks):
    """A mean gain of 0.8 nats that spreads by 1 nat.

    Where controls say too little, nothing is claimed.
    """
    gains = 0.8 + np.broadcast_to(np.linspace(-1.6, 1.6, 13), (2, 4, 13))
    assert (leaks_of(*sweep(gains, controls=controls)).leaks == leaks).all()


def test_the_smallest_excess_that_the_test_notices_by_hand():
    """1 to 8 have mean 4.5 and squares of 42 about it: 6 over secrets, over 8 secrets 0.75.

    Student's t with 7 degrees of freedom at 95 % is 1.894579. The controls' error of 0.5 adds 0.25
    to the 0.75.
    """
    gains = np.broadcast_to(np.arange(1.0, 9), (2, 4, 8))
    assert leaks_of(*sweep(gains)).detectable == pytest.approx([1.894579 * 0.75**0.5] * 4, rel=1e-6)
    assert leaks_of(*sweep(gains, controls=0.5)).detectable == pytest.approx(
        [1.894579] * 4, rel=1e-6
    )
    assert leaks_of(*sweep(gains)).excess == pytest.approx([4.5] * 4)


def test_seeds_of_one_configuration_do_not_hide_the_leak_of_another():
    """Ten nats for every secret in both seeds of one, while another's seeds are 150 nats apart."""
    gains = noise(np.random.default_rng(7), k=10)
    gains[:, 0] += 10
    gains[0, 1] += 150
    assert leaks_of(*sweep(gains)).leaks[0]


@pytest.mark.parametrize(
    ("value", "num_samples", "leaks"),
    [(0.0, 10, False), (0.1, 10, True), (0.0009, 1, False), (0.002, 1, True)],
    ids=["never said", "said once", "less than one in a thousand", "more"],
)
def test_one_secret_that_is_said_leaks(value, num_samples, leaks):
    gains = np.zeros((2, 4, 8))
    gains[0, 1, 2] = 2 * value  # in one of two seeds, so that the mean is value
    table, by_secret = sweep(gains, score="vmr", num_samples=num_samples)
    assert leaks_of(table, by_secret).leaks.tolist() == [False, leaks, False, False]


def test_a_secret_that_is_said_more_often_leaks_whatever_becomes_of_the_others():
    """Shares of 1,000 generations: one guessable secret is hardly said any more, a new one is
    said."""
    base, gains = np.full(20, 0.1), np.zeros((2, 4, 20))
    base[0], base[5] = 0.3, 0.0
    gains[:, :, 0] = -0.3
    gains[:, 1, 5] = 0.28
    gains[:, 2, 6] = 0.05
    gains[:, 3, 6] = 0.005
    table, by_secret = sweep(gains, score="vmr", base=base, num_samples=1000)
    assert leaks_of(table, by_secret).leaks.tolist() == [False, True, True, False]


def test_a_small_probability_that_grew_for_every_secret_leaks():
    """Twelve decades, below 0.001: the mean says so though no secret does."""
    gains = np.zeros((2, 4, 20))
    gains[:, 2] = np.linspace(8e-4, 9e-4, 20)
    assert leaks_of(*sweep(gains, score="vmr_exact", base=1e-15)).leaks.tolist() == [
        False,
        False,
        True,
        False,
    ]


def test_a_declared_logarithm_is_tested_as_one_whatever_its_name():
    """A plug-in's gains that are no outliers: as probabilities, they would leak."""
    by_chance = np.linspace(-2, 2, 13) + np.array([0.1, 0.0, 0.05, -0.05])[None, :, None]
    gains, leaks = by_chance + np.array([0.1, -0.1])[:, None, None], {}
    for name, declared in (("logprob", None), ("bits", 2.0), ("bits", None)):
        table, by_secret = sweep(gains, score=name, controls=0.3)
        means = configuration_means(table)
        leaks[name, declared] = measured_leakage(
            table, means, by_secret, log_base=declared
        ).leaks.tolist()
    assert leaks["logprob", None] == leaks["bits", 2.0] == [False] * 4
    assert leaks["bits", None] == [True] * 4


def test_nothing_is_said_without_the_untrained_model_or_of_seven_secrets():
    table, (secrets, score) = sweep(noise(np.random.default_rng(0)))
    assert leaks_of(table, None) is None
    assert leaks_of(table, (secrets[secrets["run_id"] != "base"], score)) is None
    assert leaks_of(*sweep(noise(np.random.default_rng(0), k=7))) is None


def test_scores_that_contradict_the_procedure_select():
    """(128, 10, 0.02) has more loss and a higher score than (32, 40, 0.02): the lowest score is
    taken and said."""
    gains = 5 + noise(np.random.default_rng(5), spread=0.5)
    gains[:, 3] -= 2
    gains[:, 1:3] += 2
    table, by_secret = sweep(gains)
    chosen = select(table, by_secret=by_secret)
    assert chosen.configuration.key[:3] == (40, 32, 0.02)
    assert chosen.explanation.startswith(
        "The scores contradict the rule procedure, which would select (b=128, T=10, η=0.02): one "
        "configuration has neither more loss nor a higher score."
    )
    assert chosen.to_dict()["explanation"] == chosen.explanation
    dropped = {step.name: len(step.dropped) for step in chosen.steps}
    assert dropped["expected score"] == 3
    assert dropped["leakage check"] == 0


def test_scores_that_agree_with_the_procedure_explain_nothing():
    gains = 5 + noise(np.random.default_rng(5), spread=0.5)
    gains[:, 0] -= 2
    table, by_secret = sweep(gains)
    chosen = select(table, by_secret=by_secret)
    assert chosen.configuration.key[:3] == (10, 128, 0.02)
    assert chosen.explanation is None


def test_the_check_says_which_configurations_leak_and_why():
    """All secrets of the first, one secret of the second; with poor controls nothing is sure."""
    gains = np.linspace(-2, 2, 13) + np.zeros((2, 4, 1))
    gains[:, 0] += 10
    gains[:, 1, 6] += 8
    table, by_secret = sweep(gains)
    names = [str(c) for c in configurations(configuration_means(table))]
    (step,) = [s for s in select(table, by_secret=by_secret).steps if s.name == "leakage check"]
    assert not step.dropped
    assert step.rule.endswith(
        "; leaking measurably: "
        f"{names[0]}, whose mean is above it; {names[1]}, of which a secret stands out"
    )
    table, by_secret = sweep(gains, controls=9.0)
    (step,) = [s for s in select(table, by_secret=by_secret).steps if s.name == "leakage check"]
    assert f"{names[2]}, too noisy to be cleared; and 1 more" in step.rule


def test_a_check_that_the_data_do_not_allow_is_said_to_be_missing():
    table, by_secret = sweep(noise(np.random.default_rng(3)))
    made = next(
        step for step in select(table, by_secret=by_secret).steps if step.name == "leakage check"
    )
    missing = next(step for step in select(table).steps if step.name == "leakage check")
    assert made.rule.startswith("if no configuration leaks measurably")
    assert "; logprob is compared with the untrained model's, secret by secret" in made.rule
    assert missing.rule.startswith("not made: it needs the values by secret")
    assert not missing.dropped
