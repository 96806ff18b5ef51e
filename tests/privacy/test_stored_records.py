"""The JSON of privacy records. records.json was written by the version before records had a
class."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from raydp.analysis.tables.statements import Statement
from raydp.extensions.dp_weights.method import DPWeights
from raydp.extensions.matrix_factorisation.method import DPMF
from raydp.extensions.output_perturbation.method import OutputPerturbation
from raydp.extensions.pate.method import PATE
from raydp.extensions.private_selection.calibration import ASSUMED
from raydp.extensions.private_selection.record import PrivateSelectionRecord
from raydp.extensions.reference_data.record import (
    EPSILON_IS,
    DataSetsRecord,
    SetEpsilon,
    data_sets_record,
)
from raydp.extensions.reference_data.sets import WeightedSets
from raydp.methods.dp import DPSGD
from raydp.privacy import (
    AccountedEpsilon,
    Event,
    Mechanism,
    MethodRecord,
    NonPrivateEvent,
    PoissonGaussian,
    PrivacyRecord,
    privacy_record,
)
from raydp.privacy.records.schema import card_schema
from raydp.training.trial_plan import TrialPlan

STORED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "records.json").read_text(encoding="utf-8")
)
EVENT = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.5, num_steps=40)
RUN = TrialPlan(
    run_id="run", batch_size=64, num_steps=100, learning_rate=0.0625, seed=0, num_examples=1024, noise_multiplier=1.5,
    stated=Statement(level="claimed", epsilon=1.0), delta=1e-5,
)  # fmt: skip
ACCOUNTED = AccountedEpsilon(
    epsilon=3.99,
    delta=1e-5,
    target_epsilon=4.0,
    accountant="prv",
    accountant_version="prv-accountant 0.2.0",
)
WITHOUT = replace(ACCOUNTED, epsilon=math.inf, target_epsilon=None, accountant_version="not used")
SELECTION = PrivateSelectionRecord(
    distribution="truncated_negative_binomial", mean=10.0, eta=1.0, configurations=3, single_run_epsilon=1.25,
    assumed=ASSUMED,
)  # fmt: skip


def of(
    event: Event = EVENT, *, norm: float | None = 0.5, clipping: str | None = None, **changes: Any
) -> PrivacyRecord:
    arguments: dict[str, Any] = {"accounted": ACCOUNTED, "unit": "e-mail", "noise_key": "secret"}
    mechanism = Mechanism(event=event, max_grad_norm=norm, clipping=clipping)
    return privacy_record(**(arguments | {"mechanism": mechanism} | changes))


def of_method(method: Any) -> PrivacyRecord:
    return of(
        method.event(RUN, 1.5),
        norm=method.max_grad_norm,
        clipping=method.traits.clipping,
        method=method.record_fields(RUN),
    )


def sets(weight: float, event: Event, epsilon: float) -> DataSetsRecord:
    weighted = WeightedSets(weight=weight, num_training=900, num_reference=124)
    return data_sets_record(weighted, event, epsilon, 1e-5, "rdp")


UNKNOWN = {
    "epsilon_is": EPSILON_IS,
    "training": SetEpsilon(epsilon=None, noise_multiplier=2.0, reason="no answer"),
    "reference": SetEpsilon(epsilon=3.99, noise_multiplier=1.5),
}
TEACHERS = {"num_teachers": 10, "num_queries": 100}
RECORDS = {
    "poisson": of(clipping="flat"),
    "test key": of(noise_key="test", clipping="adaptive"),
    "no noise": of(NonPrivateEvent(), norm=None, accounted=WITHOUT),
    "no noise, infinite target": of(
        NonPrivateEvent(), accounted=replace(WITHOUT, target_epsilon=math.inf), noise_key="test"
    ),
    "infinite epsilon with noise": of(accounted=replace(ACCOUNTED, epsilon=math.inf, target_epsilon=None)),
    "caveats": of(method=MethodRecord(caveats=("batches are shuffled", "accounted as Poisson"))),
    "dp_sgd": of_method(DPSGD(clipping="automatic")),
    "dp_mf": of_method(DPMF(num_bands=4)),
    "dp_weights": of(
        NonPrivateEvent(),
        accounted=WITHOUT,
        clipping="flat",
        method=DPWeights(formula="algorithm_2").record_fields(RUN),
        stated=RUN.stated,
    ),
    "output_perturbation": of_method(OutputPerturbation(max_input_norm=4.0, weight_decay=0.001)),
    "pate": of_method(
        PATE(
            **TEACHERS, threshold=6.0, threshold_noise=1.5, teacher_steps=5, teacher_batch_size=4,
            teacher_learning_rate=0.1,
        )
    ),
    "pate, prompted": of_method(PATE(**TEACHERS, teachers="prompted", num_demonstrations=4)),
    "private selection": of(choice=SELECTION, accounted=replace(ACCOUNTED, accountant="rdp")),
    "private selection, Poisson, further items": of(
        choice=replace(SELECTION, distribution="poisson", eta=None),
        method=MethodRecord(also_not_covered=("the votes",)),
    ),
    "data sets": of(part=sets(124 / 1024, EVENT, 3.99)),
    "data sets, weight 1": of(part=sets(1.0, EVENT, 3.99)),
    "data sets, weight 0": of(part=sets(0.0, EVENT, 3.99)),
    "data sets without noise": of(
        NonPrivateEvent(), norm=None, accounted=WITHOUT, part=sets(0.5, NonPrivateEvent(), math.inf)
    ),
    "data sets, no answer": of(part=sets(0.5, NonPrivateEvent(), math.inf).model_copy(update=UNKNOWN)),
}  # fmt: skip


def test_every_stored_record_is_made_again() -> None:
    assert RECORDS.keys() == STORED.keys()


@pytest.mark.parametrize("name", STORED)
def test_a_record_is_written_as_before_byte_for_byte(name: str) -> None:
    assert json.dumps(RECORDS[name].to_json(), allow_nan=False) == json.dumps(STORED[name])


@pytest.mark.parametrize("name", STORED)
def test_a_record_is_read_as_it_was_written(name: str) -> None:
    assert PrivacyRecord.from_json(STORED[name]) == RECORDS[name]


def test_a_record_of_the_first_version_is_read() -> None:
    """It had neither clipping nor observer."""
    first = {k: v for k, v in STORED["poisson"].items() if k not in ("clipping", "observer")}
    flat = RECORDS["poisson"]
    assert PrivacyRecord.from_json(first) == replace(
        flat, mechanism=replace(flat.mechanism, clipping=None)
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "test key",
            {"certified": True},
            "certified of a privacy record must be False here, got True",
        ),
        (
            "test key",
            {"certified": True, "not_certified_because": []},
            "not_certified_because must have a reason",
        ),
        (
            "no noise",
            {"certified": True, "not_certified_because": []},
            "not_certified_because must have a reason",
        ),
        ("no noise", {"epsilon": 1.0}, "epsilon must be inf for a run without noise, got 1.0"),
        (
            "poisson",
            {"certified": False},
            "certified of a privacy record must be True here, got False",
        ),
        ("poisson", {"epsilon": 4.5}, "epsilon must be <= target_epsilon 4.0, got 4.5"),
        (
            "poisson",
            {"claimed_epsilon": 1.0},
            "claimed_epsilon must be left out of a run with an epsilon",
        ),
        (
            "poisson",
            {"adjacency": "replace-one"},
            "adjacency of a privacy record must be 'add-or-remove-one'",
        ),
    ],
)
def test_a_record_that_was_changed_is_refused(
    name: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PrivacyRecord.from_json(STORED[name] | change)


@pytest.mark.parametrize("name", sorted(STORED))
def test_the_public_schema_describes_every_record(name: str) -> None:
    """By another library than the one that made the schema."""
    document = PrivacyRecord.from_json(STORED[name]).to_json()
    validator = jsonschema.Draft202012Validator(card_schema())
    assert [error.message for error in validator.iter_errors(document)] == []
    assert [error.message for error in validator.iter_errors({**document, "epsilonn": 1})]
    assert [error.message for error in validator.iter_errors({**document, "epsilon": None})]
