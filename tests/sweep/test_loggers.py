"""`tracking.loggers`: the files of TensorBoard and Weights & Biases are read back, and equal the points."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tensorboardX.proto.event_pb2 import Event

from raydp import Sweep
from raydp.spec.reading import load_spec
from raydp.sweep.driver import SweepResult
from raydp.sweep.engine.tune.loggers import open_loggers
from tests.builders.specs import small_spec

BLOCK, HEAD = 2**15, 7
LENGTH, CHECKSUM = 8, 4
"""Bytes of a record's length and of each checksum, in the files of events."""


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    folder = tmp_path_factory.mktemp("logged")
    spec = small_spec(
        folder, space={"points": [[16, 3, 0.01], [16, 5, 0.01]]},
        tracking={"uri": f"sqlite:///{folder}/raydp.db", "loggers": ["tensorboard", "wandb"]},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_MODE", "WANDB_API_KEY"):
            patch.delenv(name, raising=False)
        return Sweep(spec).run()


def events(file: Path) -> Iterator[Event]:
    content, at = file.read_bytes(), 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        start = at + LENGTH + CHECKSUM
        yield Event.FromString(content[start : start + size])
        at = start + size + CHECKSUM


def records(file: Path) -> Iterator[bytes]:
    """The records of an offline run: a head of 7 bytes, then LevelDB's log of blocks of 32 KiB."""
    content, whole = file.read_bytes(), b""
    at = HEAD
    while at + HEAD <= len(content):
        if BLOCK - at % BLOCK < HEAD:  # no record begins in the last bytes of a block
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if kind in (1, 4):  # a record in one piece, or its last piece
            yield whole
            whole = b""


@pytest.mark.slow
def test_tensorboard_gets_steps_utility_and_scores(logged: SweepResult) -> None:
    points = pd.read_csv(logged.folder / "points.csv").set_index("run_id")
    folders = {path.name.rpartition("_")[2]: path for path in (logged.folder / "tensorboard").iterdir()}
    assert {run_id[:8] for run_id in points.index} == set(folders)
    for run_id, row in points.iterrows():
        seen: dict[str, list[tuple[int, float]]] = {}
        for file in folders[str(run_id)[:8]].glob("events.out.tfevents.*"):
            for event in events(file):
                for value in event.summary.value:
                    seen.setdefault(value.tag, []).append((event.step, value.simple_value))
        step, loss = seen["ray/tune/utility_loss"][-1]
        assert loss == pytest.approx(row["utility_loss"], rel=1e-6)
        assert seen["ray/tune/score"][-1][1] == pytest.approx(row["score"], rel=1e-6)
        assert 0 <= step <= row["num_steps"]


@pytest.mark.slow
def test_wandb_gets_the_same_and_sends_nothing(logged: SweepResult) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    points = pd.read_csv(logged.folder / "points.csv")
    files = sorted((logged.folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == len(points)
    losses, configs = [], []
    for file in files:
        last: dict[str, str] = {}
        for record in map(Record.FromString, records(file)):
            if record.WhichOneof("record_type") == "history":
                last |= {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            if record.WhichOneof("record_type") == "run":
                configs.append({item.key: json.loads(item.value_json) for item in record.run.config.update})
        losses.append(float(last["utility_loss"]))
    assert sorted(losses) == pytest.approx(sorted(points["utility_loss"]))
    assert {config["num_steps"] for config in configs} == {3, 5}


def test_a_private_selection_and_a_missing_package_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"tracking\.loggers must name installed loggers, .*pip install"):
        open_loggers(["wandb"], tmp_path, "small")
    wrong: dict[str, Any] = small_spec(tmp_path, tracking={"uri": "sqlite:///x.db", "loggers": ["comet"]})
    with pytest.raises(ValueError, match=r"tracking\.loggers"):
        load_spec(wrong)
