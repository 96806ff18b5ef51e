"""The guarantee as data, its cache, and the card that people read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raydp.privacy.records.guarantee as guarantee_module
from raydp.privacy import (
    AccountedEpsilon,
    LedgerSummary,
    Mechanism,
    NonPrivateEvent,
    PLDAccountant,
    PoissonGaussian,
    PrivacyCard,
    ReleasedTogether,
    Searched,
    card_markdown,
    composed,
    guarantee,
    privacy_record,
    stated,
)
from raydp.privacy.accounting.events import Event
from raydp.privacy.accounting.profile import DELTAS
from raydp.privacy.records.guarantee import profile_rows
from raydp.sweep.ending.notes import together_notes
from raydp.sweep.store.summary import ReleasedModels

EVENT = PoissonGaussian(sample_rate=0.05, noise_multiplier=0.9, num_steps=50)


def record(event: PoissonGaussian | NonPrivateEvent, epsilon: float) -> PrivacyCard:
    made = privacy_record(
        accounted=AccountedEpsilon(
            epsilon=epsilon,
            delta=1e-5,
            target_epsilon=None,
            accountant="pld",
            accountant_version="dp-accounting 0.6.0",
        ),
        mechanism=Mechanism(event=event, max_grad_norm=0.1, clipping="automatic"),
        unit="mail",
        noise_key="secret",
    )
    ledger: LedgerSummary = {
        "noisy_steps": 50,
        "executions": 53,
        "replays": 3,
        "note": "a replay draws the same noise",
    }
    together: ReleasedTogether = {"models": 4, "epsilon": 20.5, "delta": 1e-5, "accountant": "pld"}
    tuned: Searched = {
        "hyperparameters": {"batch_size": [64, 128], "learning_rate": [5e-4, 0.001]},
        "configurations": 4,
        "seeds": [0],
        "rule": "procedure",
        "chosen_on": ["utility_loss of the task's held-out records"],
        "elsewhere": ["max_grad_norm"],
    }
    return PrivacyCard(
        record=made,
        guarantee=guarantee(event, "pld"),
        searched=tuned,
        ledger=ledger,
        released_together=together,
    )


def test_the_profile_agrees_with_the_accountant(tmp_path: Path) -> None:
    said = guarantee(EVENT, "pld", cache_dir=tmp_path)
    expected = PLDAccountant().epsilons(EVENT, DELTAS)
    assert [row["epsilon"] for row in said["profile"]] == pytest.approx(expected, rel=1e-12)
    assert said["gdp_mu"] > 0
    assert 0 < said["attack"]["advantage"] < 1
    assert json.loads(json.dumps(said)) == guarantee(EVENT, "pld", cache_dir=tmp_path), (
        "the second is the stored one"
    )


def test_a_stored_guarantee_belongs_to_one_event_and_one_accountant(tmp_path: Path) -> None:
    guarantee(EVENT, "pld", cache_dir=tmp_path)
    other = PoissonGaussian(sample_rate=0.05, noise_multiplier=0.91, num_steps=50)
    assert (
        guarantee(other, "pld", cache_dir=tmp_path)["profile"] != guarantee(EVENT, "pld")["profile"]
    )
    assert guarantee(EVENT, "rdp", cache_dir=tmp_path)["accountant"] == "rdp"


def test_a_stored_guarantee_belongs_to_one_setting_of_the_accountant(tmp_path: Path) -> None:
    event = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=10)
    fine, coarse = PLDAccountant(), PLDAccountant(interval=0.1)
    profile_rows(event, [1e-5], fine, cache_dir=tmp_path)
    assert profile_rows(event, [1e-5], coarse, cache_dir=tmp_path) == profile_rows(
        event, [1e-5], coarse
    )


def test_a_delta_out_of_reach_has_a_reason() -> None:
    long = PoissonGaussian(sample_rate=1e-4, noise_multiplier=1.0, num_steps=100_000)
    (row,) = profile_rows(long, [1e-13], PLDAccountant())
    assert row["epsilon"] is None
    assert "delta must be >" in row["reason"]


def test_the_card_names_the_guarantee_and_its_limits() -> None:
    card = card_markdown(record(EVENT, 7.5))
    assert "(7.5, 1e-05)-differentially private for one mail added or removed." in card
    assert "This guarantee is certified." in card
    assert "53 for 50 steps" in card
    assert "| clipping | automatic |" in card
    assert "4 models of one sweep: (20.5, 1e-05)" in card
    assert "true positive rate at most" in card
    assert "utility, scores, step metrics and reports" in card


def test_the_card_warns_of_figures_that_nobody_should_ship() -> None:
    sound = replace(record(EVENT, 7.5), released_together=None)
    assert "Warning" not in card_markdown(sound)
    together = card_markdown(record(EVENT, 7.5))
    assert (
        "- Warning: privacy: the joint epsilon of all 4 models by accountant pld should be at most "
        "10" in together
    )
    accounted = replace(sound.record.accounted, delta=0.0113)
    card = card_markdown(replace(sound, record=replace(sound.record, accounted=accounted)))
    assert "- Warning: privacy: delta should be at most 0.001" in card


@given(st.floats(1e-6, 1e6))
def test_no_sentence_states_less_than_the_computed_epsilon(epsilon: float) -> None:
    """The last of four digits may be one too large, but not of a number that has no more digits."""
    assert stated(float(f"{epsilon:.4g}")) == f"{epsilon:.4g}"
    assert epsilon <= float(stated(epsilon)) <= epsilon * 1.001 + 1e-12
    assert len(stated(epsilon).split("e")[0].replace(".", "").strip("0")) <= 4


def test_card_warning_and_closing_sentence_have_the_same_joint_epsilon() -> None:
    joint = ReleasedModels(run_ids=("a", "b"), epsilon=26.8412, delta=1e-5, accountant="pld")
    card = card_markdown(replace(record(EVENT, 7.5), released_together=joint.on_card()))
    assert "2 models of one sweep: (26.85, 1e-05)" in card
    assert (
        "of all 2 models by accountant pld should be at most 10, above which a guarantee is weak, "
        "got 26.85." in card
    )
    assert "ε at most 26.85 at" in together_notes(joint)[0]


def test_the_card_names_tuned_fields_and_their_data() -> None:
    card = card_markdown(record(EVENT, 7.5))
    assert (
        "| searched | 4 configurations of batch_size: 64, 128; learning_rate: 0.0005, 0.001 |"
        in card
    )
    assert (
        "| one is chosen by | procedure, on utility_loss of the task's held-out records; what"
        in card
    )
    assert "| may have been tuned before | max_grad_norm |" in card
    several = record(EVENT, 7.5)
    assert several.searched is not None
    one = replace(
        several, searched={**several.searched, "configurations": 1, "hyperparameters": {}}
    )
    assert "| searched | nothing: one configuration |" in card_markdown(one)
    assert "chosen by" not in card_markdown(one)


def test_the_card_states_all_that_the_guarantee_depends_on() -> None:
    made = record(EVENT, 7.5)
    card = card_markdown(made)
    facts = [
        "mail",
        "add-or-remove-one",
        "poisson",
        "pld (dp-accounting 0.6.0)",
        "0.9",
        "0.05",
        "50",
        made.record.seed_policy,
    ]
    assert all(f"| {fact} |" in card for fact in facts)
    assert all(f"| {delta:.0e} | " in card for delta in DELTAS)


def test_the_card_of_a_run_without_noise_promises_nothing() -> None:
    card = card_markdown(record(NonPrivateEvent(), float("inf")))
    assert (
        "Trained without a privacy guarantee: nothing bounds what one record does, so ε is infinite"
        in card
    )
    assert "not certified" in card
    assert "| 0.001 | 1 |" in card


def test_a_joint_release_costs_more_than_one_and_an_unknown_cost_has_a_reason() -> None:
    one, two = (composed([EVENT] * k, 1e-5, "pld")["epsilon"] for k in (1, 2))
    assert one < two < 2 * one
    unknown = composed([EVENT], 1e-16, "pld")
    assert unknown["epsilon"] is None
    assert "delta must be >" in unknown["reason"]


def test_a_joint_cost_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the releases does not matter; each of their figures, δ and the accountant do."""
    events = [
        PoissonGaussian(sample_rate=0.1, noise_multiplier=s, num_steps=t)
        for s, t in ((2.0, 3), (3.0, 5))
    ]
    calls = []
    computed = guarantee_module.composed_epsilon

    def counted(events: Sequence[Event], delta: float, accountant_name: str) -> float:
        calls.append(accountant_name)
        return computed(events, delta, accountant_name)

    monkeypatch.setattr(guarantee_module, "composed_epsilon", counted)
    first = composed(events, 1e-5, "rdp", cache_dir=tmp_path)
    assert first == composed(events, 1e-5, "rdp")
    for again in (events, events[::-1]):
        assert composed(again, 1e-5, "rdp", cache_dir=tmp_path) == first
    assert len(calls) == 2
    others = [
        ([*events, events[0]], 1e-5, "rdp"),
        ([replace(events[0], num_steps=4), events[1]], 1e-5, "rdp"),
        ([replace(events[0], noise_multiplier=2.5), events[1]], 1e-5, "rdp"),
        ([replace(events[0], sample_rate=0.2), events[1]], 1e-5, "rdp"),
        (events, 1e-6, "rdp"),
        (events, 1e-5, "pld"),
    ]
    for other in others:
        assert composed(*other, cache_dir=tmp_path) == composed(*other) != first
    assert (
        composed([*events, NonPrivateEvent()], 1e-5, "rdp", cache_dir=tmp_path)["epsilon"]
        == math.inf
    )
