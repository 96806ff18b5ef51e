"""A second accountant is asked about the noise that the first one has found."""

from __future__ import annotations

import re

import pytest

from raydp.privacy import (
    AccountedEpsilon,
    Mechanism,
    PLDAccountant,
    PoissonGaussian,
    PrivacyRecord,
    cross_check,
    privacy_record,
)
from raydp.privacy.accounting.prv import PRVAccountant
from raydp.privacy.records.cautions import stated
from raydp.privacy.records.cross_check import MOST_EVENTS


def record(
    batch_size: int, *, epsilon: float, accountant: str = "pld", noise_multiplier: float = 0.7
) -> PrivacyRecord:
    """A run of which an accountant says this ε at δ = 1e-5."""
    event = PoissonGaussian(
        sample_rate=batch_size / 4000, noise_multiplier=noise_multiplier, num_steps=60
    )
    return privacy_record(
        accounted=AccountedEpsilon(
            epsilon=epsilon,
            delta=1e-5,
            target_epsilon=None,
            accountant=accountant,
            accountant_version="test",
        ),
        mechanism=Mechanism(event=event, max_grad_norm=0.1, clipping="flat"),
        unit="row",
        noise_key="secret",
    )


def figures(sentence: str) -> tuple[float, float]:
    by_prv, by_pld = re.findall(r"at most ([\d.]+) where pld says ([\d.]+);", sentence)[0]
    return float(by_prv), float(by_pld)


def test_the_two_agree_on_sound_noise_and_not_on_too_little() -> None:
    sound = [
        record(
            size, epsilon=PLDAccountant().epsilon(record(size, epsilon=1.0).mechanism.event, 1e-5)
        )
        for size in (64, 256)
    ]
    said = cross_check(sound)
    assert said is not None
    assert said.startswith("Cross-check of 2 of 2 noise levels")
    by_prv, by_pld = figures(said)
    assert by_pld <= by_prv <= by_pld + 3 * PRVAccountant.eps_error
    assert any(stated(each.accounted.epsilon) in said for each in sound), "rounded up"
    with_less = record(256, epsilon=sound[1].accounted.epsilon, noise_multiplier=0.7 * 0.95)
    said = cross_check([sound[0], with_less])
    assert said is not None
    by_prv, by_pld = figures(said)
    assert by_prv > by_pld + 0.3


def test_a_few_events_stand_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        PRVAccountant, "epsilon", lambda self, event, delta: asked.append(event) or 8.0
    )
    said = cross_check(
        [record(8 * k, epsilon=8.0, noise_multiplier=0.5 + k / 100) for k in range(1, 20)]
    )
    assert said is not None
    assert len(asked) <= MOST_EVENTS
    assert asked[0].noise_multiplier == 0.51
    assert f"Cross-check of {len(asked)} of 19" in said


def test_there_is_nothing_to_say_of_another_accountants_noise() -> None:
    assert cross_check([record(64, epsilon=8.0, accountant="rdp")]) is None
    assert cross_check([]) is None
