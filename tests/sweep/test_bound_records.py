"""What trains is what the record says: a plan or a key of other content is refused before anything
trains."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.engine.trial import TrialRunner
from raydp.sweep.planning.plan import SweepPlan, drawn, make_plan, plan_to_keep
from raydp.sweep.planning.resume_check import check_kept
from raydp.sweep.store import noise_key
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.json_files import read_json, write_json
from raydp.tasks.task import TaskFacts
from raydp.training.noise.stream import TEST_KEY
from tests.builders.specs import small_spec

pytestmark = pytest.mark.extensions("private selection", "configurations-")

FACTS = TaskFacts(
    num_examples=2000,
    num_units=2000,
    privacy_unit="row",
    content_hash="0",
    num_tokens=1,
    utility_is_public=True,
)
SELECTION = {"tuning": "private_selection", "num_runs": {"distribution": "poisson", "mean": 9}}


class Started:
    """A sweep that was started, and its plan as a resume computes it."""

    def __init__(self, root: Path, **privacy: Any) -> None:
        asked = {
            "target_epsilon": 8,
            "delta_exponent": 1.1,
            "accountant": "rdp",
            "noise_key": "test",
            **privacy,
        }
        selects = "tuning" in privacy
        seeds = {"select": {"score": "vmr_exact"}} if selects else {"seeds": [0, 1]}
        self.spec: SweepSpec = load_spec(small_spec(root, privacy=asked, **seeds))
        plan = make_plan(self.spec, FACTS, "weights")
        self.folder = SweepFolder.create(
            self.spec, lambda key: plan_to_keep(drawn(plan, self.spec, "weights", key), "s")
        )
        self.now: SweepPlan = drawn(plan, self.spec, "weights", self.folder.key())
        self.document: dict[str, Any] = read_json(self.folder.path / "plan.json")

    def resume(self) -> None:
        """Read the edited plan as a resume does."""
        write_json(self.folder.path / "plan.json", self.document)
        check_kept(self.folder.plan(), self.now, self.spec)


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path)


def scale(document: dict[str, Any], name: str, factor: float) -> None:
    document[name] = type(document[name])(document[name] * factor)


@pytest.mark.parametrize("privacy", [{}, SELECTION], ids=["ignored", "private selection"])
def test_an_untouched_plan_is_resumed(tmp_path: Path, privacy: dict[str, Any]) -> None:
    Started(tmp_path, **privacy).resume()


@pytest.mark.parametrize("factor", [0.001, 0.999, 1.001])
def test_a_plan_whose_runs_have_other_noise_than_their_records_is_not_read(
    started: Started, factor: float
) -> None:
    """Neither by a resume nor by `raydp status`."""
    scale(started.document["trials"][0], "noise_multiplier", factor)
    write_json(started.folder.path / "plan.json", started.document)
    with pytest.raises(ValueError, match=r"^SWEEP must have a plan\.json .*noise_multiplier"):
        started.folder.plan()


@pytest.mark.parametrize("name", ["batch_size", "num_steps", "learning_rate", "num_examples"])
@pytest.mark.parametrize("of", ["trials", "configurations"])
def test_a_run_that_is_not_that_of_the_spec_is_not_resumed(
    tmp_path: Path, name: str, of: str
) -> None:
    started = Started(tmp_path, **(SELECTION if of == "configurations" else {}))
    scale(started.document[of][-1], name, 2)
    with pytest.raises(ValueError, match=f"^SWEEP must have a plan.*{name} of run"):
        started.resume()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epsilon", 0.5), ("sample_rate", 0.5), ("num_steps", 3), ("delta", 2), ("max_grad_norm", 2), ("unit", 2),
        ("target_epsilon", 2), ("clipping", 2), ("accountant", 2),
    ],
)  # fmt: skip
def test_an_edited_record_is_not_resumed(started: Started, name: str, change: float) -> None:
    scale(started.document["records"][0], name, change)
    with pytest.raises(ValueError, match=r"^SWEEP must have a plan\.json"):
        started.resume()


@pytest.mark.parametrize("factor", [0.5, 1 + 1e-12, 2])
def test_another_delta_of_all_models_together_is_not_resumed(
    started: Started, factor: float
) -> None:
    """The joint ε of all models is stated at it. The records keep their own."""
    scale(started.document, "delta", factor)
    with pytest.raises(ValueError, match=r"^SWEEP must have a plan.*delta must be"):
        started.resume()


def test_a_record_that_calls_itself_certified_is_not_resumed(started: Started) -> None:
    """The sweep uses the public test key."""
    started.document["records"][0] |= {
        "certified": True,
        "not_certified_because": [],
        "seed_policy": "secret",
    }
    with pytest.raises(ValueError, match=r"certified of a privacy record must be False"):
        started.resume()


@pytest.mark.parametrize("privacy", [{}, SELECTION], ids=["ignored", "private selection"])
@pytest.mark.parametrize("factor", [0.001, 0.99])
def test_less_noise_in_runs_and_records_alike_is_not_resumed(
    tmp_path: Path, privacy: dict[str, Any], factor: float
) -> None:
    """Runs and records agree, so only ε that is computed again can tell."""
    started = Started(tmp_path, **privacy)
    edited = [
        *started.document["trials"],
        *started.document.get("configurations", []),
        *started.document["records"],
    ]
    for document in edited:
        scale(document, "noise_multiplier", factor)
    with pytest.raises(ValueError, match=r"epsilon of a privacy record must be at least"):
        started.resume()


def test_more_noise_and_another_calibration_of_the_same_epsilon_are_resumed(
    started: Started,
) -> None:
    """A new version of a library may calibrate other noise; the runs keep that of their start."""
    for document in (*started.document["trials"], *started.document["records"]):
        scale(document, "noise_multiplier", 1.001)
    started.resume()
    for record in started.document["records"]:
        record["epsilon"] *= 0.9999  # still at least that of 1.001 times the noise
    started.resume()


def test_a_worker_refuses_a_run_that_is_not_the_accounted_one(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = started.now.trials[0]
    event = started.now.privacy[trial.run_id].mechanism.event
    runner = object.__new__(TrialRunner)
    monkeypatch.setattr(runner, "_spec", started.spec, raising=False)
    task = type("Task", (), {"facts": lambda self: FACTS})()
    monkeypatch.setattr(runner, "_task", task, raising=False)
    runner._require(trial, event)
    for name in ("batch_size", "num_steps", "noise_multiplier", "num_examples"):
        other = replace(trial, **{name: vars(trial)[name] * 2})
        with pytest.raises(ValueError, match="must train as its privacy record says"):
            runner._require(other, event)


@pytest.mark.parametrize(
    "change",
    [
        {"weight_hash": "other"},
        {"facts": replace(FACTS, content_hash="1")},
        {"seeds": [2, 3]},
        {
            "privacy": {
                "target_epsilon": 7,
                "delta_exponent": 1.1,
                "accountant": "rdp",
                "noise_key": "test",
            }
        },
        {"method": {"name": "dp_adam", "max_grad_norm": 0.2}},
        {"method": {"name": "dp_sgd", "max_grad_norm": 0.1}},
        {"space": {"batch_size": [33], "num_steps": [3, 6], "learning_rate": [0.01]}},
        {"space": {"batch_size": [32], "num_steps": [4, 7], "learning_rate": [0.01]}},
        {"space": {"batch_size": [32], "num_steps": [3, 6], "learning_rate": [0.02]}},
        {
            "model": {
                "name": "tiny",
                "adapter": {"type": "lora", "r": 4, "alpha": 4, "target_modules": ["q_proj"]},
            }
        },
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_that_defines_a_run_is_a_part_of_its_name(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Two runs of one name would share masks and noise, and a resume would mix their models."""
    planned = {"facts": FACTS, "weight_hash": "weights"}
    other = {name: change.pop(name) for name in list(change) if name in planned}
    names = [
        {
            trial.run_id
            for trial in make_plan(load_spec(small_spec(tmp_path, **changes)), **known).trials
        }
        for changes, known in (
            ({"seeds": [0, 1]}, planned),
            ({"seeds": [0, 1], **change}, {**planned, **other}),
        )
    ]
    assert len(names[0]) == len(names[1]) == 4
    assert not names[0] & names[1]


def make_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o600)


def flip_a_bit(path: Path) -> None:
    key = bytearray(path.read_bytes())
    key[7] ^= 1
    path.write_bytes(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: path.write_bytes(os.urandom(32)),
            "must be the key that the sweep was started with",
        ),
        (flip_a_bit, "must be the key that the sweep was started with"),
        (lambda path: path.chmod(0o640), "got mode 640"),
        (lambda path: path.chmod(0o620), "got mode 620"),
        (lambda path: path.chmod(0o604), "got mode 604"),
        (make_link, "must be a file that can be read"),
        (make_folder, "must be a file of its user alone"),
        (lambda path: path.unlink(), "must be a file that can be read, got: No such file"),
    ],
)
def test_another_key_and_a_key_that_others_can_use_are_refused(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    folder = Started(tmp_path, noise_key="secret").folder
    change(folder.path / "sweep.key")
    with pytest.raises(ValueError, match=message):
        folder.key()


def test_the_key_of_another_user_is_refused(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_key.os, "geteuid", lambda: os.stat(started.folder.path).st_uid + 1)
    with pytest.raises(ValueError, match="must be a file of its user alone"):
        started.folder.key()


def test_a_key_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o377)
    try:
        noise_key.write_key(tmp_path / "sweep.key", load_spec(small_spec(tmp_path)).privacy)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "sweep.key").stat().st_mode) == 0o600


def test_the_plan_of_an_earlier_version_is_read_and_its_key_is_bound(started: Started) -> None:
    """Such a plan has a record for each run and no fingerprint.

    The first resume writes the fingerprint.
    """
    current, folder = started.folder.plan(), started.folder
    records = {run_id: record.to_json() for run_id, record in current.privacy.items()}
    earlier = {
        k: v
        for k, v in started.document.items()
        if k not in ("format", "records", "key_fingerprint")
    }
    started.document = {**earlier, "privacy": records}
    started.resume()
    assert folder.plan() == replace(current, key_fingerprint=None)
    assert folder.bind_key()
    assert folder.plan() == current
    assert not folder.bind_key()


def test_the_fingerprint_says_nothing_of_the_key(tmp_path: Path) -> None:
    """It is 64 hex digits of a hash, and no bytes of the key are in the plan."""
    folder = Started(tmp_path, noise_key="secret").folder
    key, written = folder.key(), (folder.path / "plan.json").read_text()
    assert len(str(folder.plan().key_fingerprint)) == 64
    assert key.hex() not in written
    assert noise_key.fingerprint(key) != noise_key.fingerprint(TEST_KEY)


@pytest.mark.parametrize(
    "content", ["[]", '"text"', "null", "7", '{"format": 3}', '{"trials": [], "privacy": []}']
)
def test_a_plan_of_other_content_is_refused_in_a_sentence(started: Started, content: str) -> None:
    (started.folder.path / "plan.json").write_text(content)
    with pytest.raises(ValueError, match=r"^SWEEP must have .*plan\.json"):
        started.folder.plan()
