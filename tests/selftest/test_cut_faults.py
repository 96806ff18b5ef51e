"""Faults of how the work is cut, of rounding in a type, and of what a sweep plans and keeps."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution

from raydp.methods.dp import DPSGD
from raydp.models import adapters
from raydp.privacy import PrivacyRecord
from raydp.privacy.accounting import calibration
from raydp.selftest.checks.cuts import cut_checks
from raydp.selftest.checks.sweeps import (
    _key_checks,
    _planned,
    _record_checks,
    _worker_checks,
    sweep_checks,
)
from raydp.selftest.subjects import DTYPES
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning import plan as planning
from raydp.sweep.planning.plan import make_plan
from raydp.sweep.store import noise_key
from raydp.sweep.store.folder import SweepFolder
from raydp.tasks.task import TaskFacts
from raydp.training import loop
from raydp.training.gradients import clipping
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.microbatches import Units
from raydp.training.noise import stream
from raydp.training.noise.stream import TEST_KEY
from tests.builders.plans import plan_of_runs
from tests.builders.specs import small_spec
from tests.marks import slow_after
from tests.selftest.faults import rewrite
from tests.selftest.test_faults import failed, sensitivity_failures

METHODS = [DPSGD(), DPSGD(clipping="adaptive")]
FACTS = TaskFacts(
    num_examples=2000, num_units=2000, privacy_unit="row", content_hash="0", num_tokens=9000
)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=["flat", "adaptive"])
def test_without_a_fault_nothing_fails(method: DPSGD) -> None:
    assert not failed([*cut_checks(method), *sweep_checks(method)])


@pytest.mark.slow
def test_the_users_calibrations_do_not_hide_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The records are those of the code that runs, not of the code that filled the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _planned(DPSGD(), "prv", "secret")
    _planned(DPSGD(), "rdp", "test")
    filled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert filled
    assert not failed(sweep_checks(DPSGD()))
    rewrite(
        monkeypatch, calibration, "_solve",
        ("with_noise(sigma), request.target.delta)", "with_noise(sigma), 2 * request.target.delta)"),
    )  # fmt: skip
    assert "δ that a record spends" in failed(sweep_checks(DPSGD()))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == filled, (
        "nor is anything written there"
    )


def test_ranks_that_each_take_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(monkeypatch, Units, "share", ("[comm.rank :: comm.world_size]", ""))
    assert {"sum of 2 workers", "sum of 3 workers"} <= failed(cut_checks(DPSGD()))


@pytest.mark.parametrize(
    ("change", "caught"),
    [
        (("KeyedStream(key=key, run_id=plan.run_id)",
          "KeyedStream(key=key, run_id=plan.run_id if store is None or store.load() is None else "
          "'again')"), {"a step that is done again", "steps after a resume"}),
        (("rule.indices_fn(number)", "rule.indices_fn(number - first)"),
         {"a step that is done again", "steps after a resume"}),
        (("rule.indices_fn(number)", "rule.indices_fn(0 if number == first else number)"),
         {"a step that is done again"}),
    ],
    ids=["fresh noise", "masks from the first one on", "the mask of step 0"],
)  # fmt: skip
def test_a_resume_that_does_not_replay(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], caught: set[str]
) -> None:
    rewrite(monkeypatch, loop, "run", change)
    assert caught <= failed(cut_checks(DPSGD()))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ([("step = max(1, size // count)", "step = size"), ("yield examples[part].reshape(-1), count",
          "yield from ((rows[None][0], 1) for rows in examples[part].reshape(-1, 1))")], "users, decay"),
        ([("yield examples[part].reshape(-1), count",
           "yield from ((examples[part].reshape(-1), count),) if size != 1 else "
           "((row[None], 1) for row in examples[part].reshape(-1))")], "users, decay"),
        ([("yield examples[part].reshape(-1), count",
           "yield from ((examples[part].reshape(-1), count),) if size or max_tokens > 1 else "
           "((row[None], 1) for row in examples[part].reshape(-1))")], "users, decay"),
    ],
    ids=["always", "where micro-batches are small", "where tokens are few"],
)  # fmt: skip
def test_micro_batches_that_cut_a_user_in_two(
    monkeypatch: pytest.MonkeyPatch, changes: list[tuple[str, str]], kind: str
) -> None:
    rewrite(monkeypatch, Units, "microbatches", *changes)
    assert {"micro-batches", "clipped sum"} & sensitivity_failures(kind)


def rounded_down(model: torch.nn.Module, calls: list[Any], norms: torch.Tensor) -> torch.Tensor:
    """To the next smaller number of bfloat16, where the model computes in this type."""
    if calls[0].autocast is None and all(p.dtype != torch.bfloat16 for p in model.parameters()):
        return norms
    return (norms.view(torch.int32) & -65536).view(torch.float32)


@pytest.mark.parametrize(
    "only", ["LoRA, bfloat16", "tied, full, bfloat16", "soft prompt, bfloat16"]
)
def test_norms_rounded_down_only_where_the_model_is_bfloat16(
    monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    """The gradients pass as those of a coarse type; what is released of one unit is longer than
    c."""
    monkeypatch.setattr(clipping, "rounded_down", rounded_down, raising=False)
    rewrite(
        monkeypatch, ClippedGradients, "accumulate",
        ("norms = squares.clamp(min=0).sqrt()",
         "norms = rounded_down(self.model, calls, squares.clamp(min=0).sqrt())"),
    )  # fmt: skip
    assert sensitivity_failures(only) == {"one unit by itself"}


def test_every_type_that_a_spec_may_name_is_checked(tmp_path: Path) -> None:
    for dtype in DTYPES:
        load_spec(small_spec(tmp_path, model={"name": "tiny", "dtype": dtype}))
    with pytest.raises(ValueError, match=f"model.dtype must be .*{DTYPES[0]}.*{DTYPES[-1]}"):
        load_spec(small_spec(tmp_path, model={"name": "tiny", "dtype": "float8"}))


@pytest.mark.slow
def test_a_run_that_starts_from_the_previous_runs_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not failed(_worker_checks())
    started, initialise = list[Any](), adapters.initialise

    def once(parameters: Any, *arguments: Any, **options: Any) -> None:
        if not any(parameters is before for before in started):
            started.append(parameters)
            initialise(parameters, *arguments, **options)

    monkeypatch.setattr(adapters, "initialise", once)
    assert failed(_worker_checks()) == {"a run after another one"}


def test_a_worker_that_does_not_use_the_key_of_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(monkeypatch, TrialRunner, "run", ("self._key", "bytes(32)"))
    assert failed(_worker_checks()) == {"a run under another key"}


# What a plan says, and what its runs are trained with.


def planning_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, *changes: tuple[str, str]
) -> None:
    """A fault in the plan; with a cache of its own, into which wrong solutions may go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rewrite(monkeypatch, planning, name, *changes)
    monkeypatch.setattr(
        "raydp.selftest.checks.sweeps.make_plan", planning.make_plan
    )  # imported by name


@pytest.mark.parametrize("accountant", slow_after(2, ["rdp", "prv", "pld"]))
def test_the_records_of_every_accountant_pass(accountant: str) -> None:
    assert not failed(_record_checks(DPSGD(), accountant))


@pytest.mark.parametrize(
    ("name", "change", "caught"),
    [
        ("_calibrations", ("delta=delta)", "delta=1.1 * delta)"), "δ that a record spends"),
        ("_calibrations", ("delta=delta)", "delta=delta / 10)"), "δ that a record spends at 0.9 ε"),
        ("_record", ("delta=trial.delta or delta,", "delta=(trial.delta or delta) / 10,"), "σ and δ of a record"),
        ("_record", ("(trial, trial.noise_multiplier)", "(trial, 1.05 * trial.noise_multiplier)"),
                    "σ and δ of a record"),
        ("_trial", ("noise_multiplier=calibration.noise_multiplier if", "noise_multiplier=0.98 * "
                       "calibration.noise_multiplier if"), "δ that a record spends"),
    ],
    ids=["a larger δ", "a smaller δ", "a record of a smaller δ", "a record of more noise", "less noise"],
)  # fmt: skip
def test_a_plan_that_its_records_do_not_tell_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, change: tuple[str, str], caught: str
) -> None:
    planning_with(monkeypatch, tmp_path, name, change)
    assert caught in failed(_record_checks(DPSGD(), "prv"))


def epsilon_by_the_library(record: PrivacyRecord) -> float:
    """By dp_accounting, with nothing of raydp in between."""
    step = privacy_loss_distribution.from_gaussian_mechanism(
        record.mechanism.noise_multiplier,
        sampling_prob=record.mechanism.sample_rate,
        value_discretization_interval=1e-3,
    )
    return float(
        step.self_compose(record.mechanism.num_steps).get_epsilon_for_delta(record.accounted.delta)
    )


@pytest.mark.parametrize(
    ("accountant", "wrong"),
    slow_after(1, [("rdp", None), ("pld", None), ("prv", None), ("prv", "larger δ")]),
)
def test_an_accountant_outside_gives_the_epsilon_of_a_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, accountant: str, wrong: str | None
) -> None:
    """Of a grid, many steps on samples: ε from the record's own σ, q, T and δ.

    Calibrating to a δ that is ten times as large adds more than 8 % to ε; the grid of 1e-3 adds
    less than 1 %; Rényi divergences are 3 to 84 % above.
    """
    if wrong:
        planning_with(monkeypatch, tmp_path, "_calibrations", ("delta=delta)", "delta=10 * delta)"))
    privacy = {"target_epsilon": 4, "delta_exponent": 1.1, "accountant": accountant}
    space = {"points": [[100, 20, 0.01], [500, 5, 0.01]]}
    spec = load_spec(small_spec(tmp_path, privacy=privacy, space=space))
    plan = make_plan(spec, FACTS, "weights")
    above = []
    for trial_plan in plan.trials:
        record = plan.privacy[trial_plan.run_id]
        mechanism, epsilon = record.mechanism, record.accounted.epsilon
        assert mechanism.noise_multiplier == trial_plan.noise_multiplier
        assert record.accounted.delta == pytest.approx(FACTS.num_units**-1.1, rel=1e-12)
        assert (mechanism.sample_rate, mechanism.num_steps) == (
            trial_plan.batch_size / 2000,
            trial_plan.num_steps,
        )
        assert epsilon <= 4
        above.append(epsilon_by_the_library(record) / epsilon)
    if accountant == "rdp":
        assert max(above) <= 1
    else:
        assert (max(above) > 1.08) if wrong else (0.97 < min(above) <= max(above) < 1.01)


# The sweep's key.


def sweep_of(folder: Path, **privacy: Any) -> SweepFolder:
    asked = {"target_epsilon": 8, "accountant": "rdp", **privacy}
    return SweepFolder.create(
        load_spec(small_spec(folder, privacy=asked)), lambda key: plan_of_runs(sweep_id=key.hex())
    )


def test_a_sweeps_key_comes_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the generators of the process are seeded with."""
    given: list[bytes] = []

    def watched(source: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def read(count: int) -> bytes:
            given.append(source(count))
            return given[-1]

        return read

    monkeypatch.setattr(os, "urandom", watched(os.urandom))
    monkeypatch.setattr(random, "_urandom", watched(random._urandom))
    keys = []
    for name in "ab":
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        folder = sweep_of(tmp_path / name)
        keys.append(folder.key())
        assert any(keys[-1] in bytes_ for bytes_ in given)
        assert stat.S_IMODE((folder.path / "sweep.key").stat().st_mode) == 0o600
        assert folder.plan().sweep_id == keys[-1].hex(), (
            "the plan is drawn under the sweep's own key"
        )
    assert keys[0] != keys[1]
    assert TEST_KEY not in keys
    assert sweep_of(tmp_path / "public", noise_key="test").key() == TEST_KEY


@pytest.mark.parametrize(
    "source",
    [
        lambda: random.Random(0).randbytes(32),
        lambda: np.random.bytes(32),
        lambda: np.random.default_rng(0).bytes(32),
        lambda: (
            torch.randint(
                0, 256, (32,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
            )
            .numpy()
            .tobytes()
        ),
    ],
    ids=["a public seed", "numpy's generator", "numpy", "torch"],
)
def test_keys_that_are_the_same_in_every_process(
    monkeypatch: pytest.MonkeyPatch, source: Callable[[], bytes]
) -> None:
    monkeypatch.setattr(stream, "new_key", source)
    assert failed(_key_checks()) == {"keys of two sweeps of one spec"}


def test_a_key_that_is_always_the_test_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No sweep with a secret key begins; and where the refusal is gone as well, two checks see the
    key."""
    monkeypatch.setattr(stream, "new_key", lambda: TEST_KEY)
    with pytest.raises(ValueError, match="must be a secret key, got the public test key"):
        sweep_of(tmp_path)
    assert not list(tmp_path.rglob("plan.json"))
    assert {"key of a sweep and the test key", "keys of two sweeps of one spec"} <= failed(
        _key_checks()
    )
    monkeypatch.setattr(noise_key, "_check", lambda *about: None)
    monkeypatch.setattr(
        "raydp.sweep.store.documents.read_key", lambda path, *about: path.read_bytes()
    )
    caught = {"key of a sweep and the test key", "keys of two sweeps of one spec"}
    assert caught | {"secret sweeps that take the test key"} == failed(_key_checks())


@pytest.mark.parametrize(
    ("key", "message"), [(TEST_KEY, "got the public test key"), (b"short", "32 bytes, got 5")]
)
def test_a_sweep_does_not_go_on_with_a_key_that_is_not_its_own(
    tmp_path: Path, key: bytes, message: str
) -> None:
    folder = sweep_of(tmp_path)
    (folder.path / "sweep.key").write_bytes(key)
    with pytest.raises(ValueError, match=message):
        folder.key()


def test_a_key_that_others_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_key, "MODE", 0o644)
    assert failed(_key_checks()) == {"others who can read a key"}


def test_certified_runs_of_the_test_key(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(
        monkeypatch, planning, "_record", ("noise_key=spec.privacy.noise_key", 'noise_key="secret"')
    )
    assert failed(_key_checks()) == {"certified runs with the test key"}
