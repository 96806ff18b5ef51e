"""Privacy records and the cost of releasing several runs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from raydp.privacy import (
    AccountedEpsilon,
    Mechanism,
    MethodRecord,
    NonPrivateEvent,
    PLDAccountant,
    PoissonGaussian,
    PrivacyRecord,
    composed_epsilon,
    privacy_record,
)

EVENT = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.5, num_steps=40)


def typed_record(**changes: Any) -> PrivacyRecord:
    """A certified record, with changes."""
    arguments: dict[str, Any] = {
        "event": EVENT,
        "epsilon": 3.99,
        "delta": 1e-5,
        "target_epsilon": 4.0,
        "accountant": "prv",
        "accountant_version": "prv-accountant 0.2.0",
        "max_grad_norm": 0.5,
        "noise_key": "secret",
        "caveats": (),
    }
    arguments |= changes
    accounted = ("epsilon", "delta", "target_epsilon", "accountant", "accountant_version")
    return privacy_record(
        accounted=AccountedEpsilon(**{name: arguments[name] for name in accounted}),
        mechanism=Mechanism(event=arguments["event"], max_grad_norm=arguments["max_grad_norm"]),
        unit="e-mail",
        noise_key=arguments["noise_key"],
        method=MethodRecord(caveats=arguments["caveats"]),
    )


def record(**changes: Any) -> dict[str, Any]:
    """The JSON of a certified record, with changes."""
    return typed_record(**changes).to_json()


def test_a_private_run_with_a_secret_key_is_certified() -> None:
    result = record()
    assert result["certified"] is True
    assert result["not_certified_because"] == []
    assert (result["sample_rate"], result["noise_multiplier"], result["num_steps"]) == (
        0.1,
        1.5,
        40,
    )
    assert (result["sampler"], result["adjacency"], result["unit"]) == (
        "poisson",
        "add-or-remove-one",
        "e-mail",
    )
    assert (result["divisor"], result["tuning"]) == ("expected batch size", "ignored")
    assert "secret 256-bit sweep key" in result["seed_policy"]


def test_every_limit_of_the_guarantee_is_listed() -> None:
    text = " ".join(record()["not_covered"])
    limits = (
        "other runs of the sweep",
        "utility, scores, step metrics and reports",
        "preprocessing",
        "run_id, task_hash",
        "summed in single precision",
        "how long steps take",
        "number of examples n",
    )
    for words in limits:
        assert words in text


def test_the_test_key_is_never_certified() -> None:
    result = record(noise_key="test")
    assert result["certified"] is False
    assert result["not_certified_because"] == ["noise comes from the public test key"]
    assert "test key" in result["seed_policy"]


def test_a_run_without_noise_says_so_in_every_field() -> None:
    result = record(
        event=NonPrivateEvent(), epsilon=math.inf, target_epsilon=None, max_grad_norm=None
    )
    assert (result["epsilon"], result["sampler"], result["noise_multiplier"]) == (
        "inf",
        "none",
        0.0,
    )
    assert result["certified"] is False
    assert result["not_certified_because"] == ["epsilon is infinite"]


def test_caveats_take_the_certificate_away() -> None:
    assert record(caveats=("batches are shuffled, accounted as Poisson",))["certified"] is False


def test_records_are_strict_json() -> None:
    for result in (
        record(),
        record(event=NonPrivateEvent(), epsilon=math.inf, target_epsilon=math.inf),
    ):
        assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 4.01}, "epsilon must be <= target_epsilon 4.0, got 4.01"),
        ({"epsilon": -1.0}, "epsilon must be >= 0, got -1.0"),
        ({"epsilon": math.nan}, "epsilon must be >= 0, got nan"),
        (
            {"event": NonPrivateEvent(), "epsilon": 0.0},
            "epsilon must be inf for a run without noise, got 0.0",
        ),
        ({"delta": 0.0}, "delta must be > 0 and < 1, got 0.0"),
    ],
)
def test_records_do_not_lie(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record(**changes)


def test_releasing_three_runs_costs_as_much_as_all_their_steps() -> None:
    longer = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.5, num_steps=120)
    assert composed_epsilon([EVENT] * 3, 1e-5, "pld") == PLDAccountant().epsilon(longer, 1e-5)


def test_releasing_a_run_without_noise_costs_everything() -> None:
    assert composed_epsilon([EVENT, NonPrivateEvent()], 1e-5, "rdp") == math.inf
