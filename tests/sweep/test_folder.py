"""The folder of a sweep: a run is committed once, and workers get the folder's own key."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raydp.models.base_models import weight_hash
from raydp.spec.reading import load_spec
from raydp.sweep.engine import worker
from raydp.sweep.engine.context import SweepContext, WorkerInputs
from raydp.sweep.engine.further_seeds import BeforeFurtherSeeds
from raydp.sweep.engine.listeners import SilentListener
from raydp.sweep.engine.training import Training, _worker_inputs
from raydp.sweep.engine.tune.callbacks import CommitCallback
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.store import written_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.measurements import write_counts
from raydp.sweep.store.results import RunResult, Status
from raydp.sweep.store.state import DriverProgress
from raydp.training.noise.stream import TEST_KEY
from tests.builders.plans import plan_of_runs
from tests.builders.specs import small_spec


def folder_of(root: Path, **privacy: Any) -> SweepFolder:
    spec = load_spec(
        small_spec(root, privacy={"target_epsilon": 8, "accountant": "rdp", **privacy})
    )
    return SweepFolder.create(spec, lambda key: plan_of_runs())


@pytest.mark.parametrize("umask", [0, 0o777 - 0o700])
def test_a_sweep_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """Results, counts of secrets, tables and plan: on a shared machine nobody else reads them."""
    before = os.umask(umask)
    try:
        folder = folder_of(tmp_path)
        write_counts(folder, [])
        folder.commit(RunResult(run_id="run", status="failed", reason="a reason"))
    finally:
        os.umask(before)
    modes = {
        p.relative_to(folder.path): stat.S_IMODE(p.stat().st_mode)
        for p in folder.path.rglob("*")
        if p.is_file()
    }
    assert {Path("secret_counts.json"), Path("plan.json"), Path("spec.yaml")} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_spec_is_read_once_until_its_file_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command asks for it some thirty times.

    Nobody who changes an answer changes the next one.
    """
    folder, read = folder_of(tmp_path), list[Path]()

    def read_yaml(path: Path, field: str) -> Any:
        read.append(path)
        return own(path, field)

    own = written_spec.read_yaml
    monkeypatch.setattr(written_spec, "read_yaml", read_yaml)
    first = folder.method()
    first["max_grad_norm"] = first["other"] = "changed"
    assert folder.method()["max_grad_norm"] != "changed"
    assert (folder.privacy().target_epsilon, folder.select(), len(read)) == (8, folder.select(), 1)
    text = folder.spec_file.read_text()
    for old, new in (
        ("target_epsilon: 8.0", "target_epsilon: 4.0"),
        ("target_epsilon: 4.0", "target_epsilon: 2.0"),
    ):
        text = text.replace(old, new)
        folder.spec_file.write_text(text)
        assert folder.privacy().target_epsilon == float(new.split()[-1])
    assert len(read) == 3
    folder.spec_file.unlink()
    with pytest.raises(ValueError, match=r"SPEC must "):
        folder.method()


@pytest.mark.parametrize(
    "changed", [{"target_epsilon": 4}, {"accountant": "pld"}, {"target_delta": 1e-4}]
)
def test_a_changed_guarantee_is_named_at_a_resume(tmp_path: Path, changed: dict[str, Any]) -> None:
    folder_of(tmp_path)
    privacy = {"target_epsilon": 8, "accountant": "rdp", **changed}
    with pytest.raises(
        ValueError, match=r"got changes in privacy\. Undo them, or give the sweep a new name"
    ):
        SweepFolder.resume(load_spec(small_spec(tmp_path, privacy=privacy)))


@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_a_run_that_has_ended_is_committed_once(tmp_path: Path, status: str) -> None:
    """A second result, also one of another status, changes no file."""
    folder = folder_of(tmp_path)
    first = RunResult(run_id="run", status=status, utility_loss=1.5, reason="the first")
    folder.commit(first)
    written = (folder.trial("run") / "result.json").read_bytes()
    for later in ("finished", "stopped", "failed"):
        folder.commit(replace(first, status=later, utility_loss=2.5, reason="the second"))
        assert folder.result("run") == first
        assert (folder.trial("run") / "result.json").read_bytes() == written


def test_a_second_commit_leaves_the_model_of_the_first(tmp_path: Path) -> None:
    """As where a worker that was thought dead hands in its run after another worker has."""
    folder = folder_of(tmp_path)
    for attempt in ("attempt-1", "attempt-2"):
        model = folder.trial("run") / attempt / "model"
        model.mkdir(parents=True)
        (model / "weights").write_text(attempt)
        folder.commit(RunResult(run_id="run", status="finished", utility_loss=1.0, attempt=attempt))
    assert (folder.trial("run") / "model" / "weights").read_text() == "attempt-1"


def test_the_result_of_a_failed_run_is_replaced_by_that_of_the_next_attempt(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.commit(RunResult(run_id="run", status="failed", reason="diverged"))
    folder.commit(RunResult(run_id="run", status="finished", utility_loss=1.0))
    assert folder.is_finished("run")


@pytest.mark.parametrize(
    ("status", "ended"), [("finished", True), ("stopped", True), ("failed", False)]
)
def test_an_ended_run_is_not_run_again(status: Status, ended: bool, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.commit(RunResult(run_id="run", status=status, utility_loss=1.0))
    assert folder.has_ended("run") == ended


def test_a_finished_result_without_its_figures_is_not_committed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with pytest.raises(
        ValueError, match=r"^utility_loss must be a number in the finished result of run 'run'"
    ):
        folder.commit(RunResult(run_id="run", status="finished"))
    assert folder.result("run") is None


def test_nothing_is_committed_into_a_folder_that_was_moved_away(tmp_path: Path) -> None:
    """Else a new folder would hold some runs, and the moved one the others."""
    folder = folder_of(tmp_path)
    (folder.path / "trials").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"^SWEEP must keep its folder .*trials'"):
        folder.commit(RunResult(run_id="run", status="finished", utility_loss=1.0))
    assert not (folder.path / "trials").exists()


@pytest.mark.parametrize(
    "history", [None, [], [{"loss": 1.0}], [{"step": 0, "list": [1, [2]], "loss": math.inf}] * 3]
)
def test_a_result_is_read_without_its_history(tmp_path: Path, history: Any) -> None:
    folder = folder_of(tmp_path)
    notes = ('\n "history": [\n',)
    folder.commit(
        RunResult(run_id="run", status="finished", utility_loss=1.0, history=history, notes=notes)
    )
    whole, part = folder.result("run"), folder.result("run", history=False)
    assert (whole.history, part.history) == (
        history and list(history),
        None if history is None else [],
    )
    assert replace(whole, history=None) == replace(part, history=None)
    file = folder.trial("run") / "result.json"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"^SWEEP must have whole files"):
        folder.result("run", history=False)


def test_a_result_of_another_run_is_refused(tmp_path: Path) -> None:
    """Its model would be registered with this run's guarantee."""
    folder = folder_of(tmp_path)
    for run in ("one", "two"):
        folder.commit(RunResult(run_id=run, status="finished", utility_loss=1.0))
    shutil.copy(folder.trial("one") / "result.json", folder.trial("two") / "result.json")
    with pytest.raises(
        ValueError, match=r"^SWEEP must have files .*two.result\.json.*it is the result of run one"
    ):
        folder.result("two")


@pytest.mark.parametrize("loss", ['"text"', "null", "[1.0]", "{}"])
def test_a_result_whose_loss_is_no_number_is_refused_in_a_sentence(
    tmp_path: Path, loss: str
) -> None:
    folder = folder_of(tmp_path)
    folder.trial("run").mkdir()
    (folder.trial("run") / "result.json").write_text(
        f'{{"status": "finished", "utility_loss": {loss}}}'
    )
    with pytest.raises(
        ValueError, match=r"^SWEEP must have files .*result\.json.*utility_loss is no number"
    ):
        folder.result("run")


@pytest.mark.parametrize("use", ["resume", "worker"])
def test_the_folder_of_the_runs_is_not_made_anew(tmp_path: Path, use: str) -> None:
    folder = folder_of(tmp_path)
    files = folder.files("run")
    (folder.path / "trials").rename(tmp_path / "elsewhere")
    assert (
        not folder.is_untouched()
    )  # else the end of a failed start would remove the sweep with its key
    if use == "resume":
        with pytest.raises(ValueError, match=r"^SWEEP must keep its folder .*trials'"):
            SweepFolder.resume(
                load_spec(small_spec(tmp_path, privacy={"target_epsilon": 8, "accountant": "rdp"}))
            )
    for make in (
        files.ledger,
        lambda: files.model_folder("attempt-1"),
        lambda: files.checkpoints(print),
    ):
        with pytest.raises(FileNotFoundError):
            make()
    assert not (folder.path / "trials").exists()


def test_a_refused_result_ends_the_round_of_tune(tmp_path: Path) -> None:
    """Tune would take the error for its trial's, and start the trial again."""
    folder = folder_of(tmp_path)
    (folder.path / "trials").rename(tmp_path / "elsewhere")
    committer = SimpleNamespace(
        commit=lambda run_id: folder.commit(RunResult(run_id=run_id, status="stopped"))
    )
    callback = CommitCallback(committer)  # type: ignore[arg-type]
    callback.on_step_end(0, [])
    callback.on_trial_complete(0, [], SimpleNamespace(config={"run_id": "run"}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^SWEEP must keep its folder"):
        callback.on_step_end(1, [])


def saved(folder: SweepFolder, attempt: str = "attempt-1") -> RunResult:
    """The result of a run whose worker saved a model of two files."""
    model = folder.trial("run") / attempt / "model"
    model.mkdir(parents=True)
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (model / name).write_bytes(name.encode() * 9)
    return RunResult(
        run_id="run",
        status="finished",
        utility_loss=1.0,
        attempt=attempt,
        weight_hash=weight_hash(model),
    )


def damage(file: Path, kind: str) -> None:
    content = bytearray(file.read_bytes())
    if kind == "lost":
        file.unlink()
    elif kind == "truncated":
        file.write_bytes(content[:-1])
    else:
        content[5] ^= 1
        file.write_bytes(content)


@pytest.mark.parametrize("kind", ["truncated", "bit-flipped", "lost"])
@pytest.mark.parametrize("number", [1, 2])
def test_weights_that_were_damaged_are_found_before_and_after_the_commit(
    tmp_path: Path, kind: str, number: int
) -> None:
    folder = folder_of(tmp_path)
    result = saved(folder)
    damage(folder.trial("run") / "attempt-1" / "model" / f"model-{number}.safetensors", kind)
    with pytest.raises(FileNotFoundError, match="not there as it was saved"):
        folder.commit(result)
    assert folder.result("run") is None
    folder.commit(saved(folder, "attempt-2"))
    assert folder.fail_if_damaged("run").finished
    damage(folder.model("run") / f"model-{number}.safetensors", kind)
    assert folder.fail_if_damaged("run").status == "failed"
    assert not folder.has_ended("run")  # a resume trains it again
    folder.commit(saved(folder, "attempt-3"))
    assert folder.fail_if_damaged("run").finished


def key_of_the_runner(inputs: WorkerInputs, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the key that a worker gives its runner.

    Ray is replaced by stand-ins, and the worker takes no run.
    """
    given: list[bytes] = []
    train = SimpleNamespace(get_context=lambda: SimpleNamespace(get_world_size=lambda: 1))
    util = SimpleNamespace(get_current_placement_group=lambda: None)
    shared, prepare = (
        SimpleNamespace(remote=call) for call in (lambda: [inputs], lambda slot, work: None)
    )
    queue = SimpleNamespace(shared=shared, prepare=prepare)
    with monkeypatch.context() as patch:
        patch.setattr(
            worker, "ray", SimpleNamespace(train=train, util=util, get=lambda value: value)
        )
        patch.setattr(worker, "get_device", lambda: torch.device("cpu"))
        patch.setattr(worker, "_register", lambda *arguments: True)
        patch.setattr(
            worker, "TrialRunner", lambda spec, task, model, comm, key, **of: given.append(key)
        )
        patch.setattr(torch, "set_num_threads", lambda count: None)
        worker.work(queue, 0, 0)
    (key,) = given
    return key


@pytest.mark.slow
def test_workers_get_the_key_of_the_sweeps_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sweep with a secret key, and of one with the public test key."""
    keys = []
    for noise_key in ("secret", "test"):
        folder = folder_of(tmp_path / noise_key, noise_key=noise_key)
        task, weight_hash = build_task(folder.spec())
        context = SweepContext(
            spec=folder.spec(), folder=folder, facts=task.facts(), weight_hash=weight_hash
        )
        keys.append(
            key_of_the_runner(
                _worker_inputs(
                    [
                        Training(
                            context=context,
                            task=task,
                            left=[],
                            before=BeforeFurtherSeeds(),
                            listener_fn=SilentListener,
                        )
                    ]
                ),
                monkeypatch,
            )
        )
        assert keys[-1] == folder.key() == (folder.path / "sweep.key").read_bytes()
    assert keys[0] != TEST_KEY
    assert keys[1] == TEST_KEY


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("trials/run/result.json", lambda folder: folder.result("run")),
        ("trials/run/tracked.json", lambda folder: folder.delivery("run")),
        ("seeds.json", lambda folder: folder.seeds_end()),
        ("search.json", lambda folder: folder.search_end()),
        ("progress.json", SweepFolder.progress),
        ("summary.json", lambda folder: folder.summary()),
        ("released.json", lambda folder: folder.released()),
        ("selected.json", lambda folder: folder.decision()),
        ("tracking.json", SweepFolder.tracking_run),
    ],
)
@pytest.mark.parametrize("content", ['{"of_another_version": 1}', "[1, 2]", "{"])
def test_a_file_that_another_version_wrote_is_an_error_that_says_so(
    tmp_path: Path, file: str, read: Callable[[SweepFolder], object], content: str
) -> None:
    folder = folder_of(tmp_path)
    (folder.path / file).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / file).write_text(content)
    with pytest.raises(ValueError, match=f"^SWEEP must have .*{file}.*(Restore|delete)"):
        read(folder)


def test_a_result_without_finite_numbers_is_strict_json_and_read_back(tmp_path: Path) -> None:
    """The history of a run that diverged, and a file that an earlier version wrote with NaN."""
    folder, history = (
        folder_of(tmp_path),
        [{"loss": 1.5, "grad_norm": math.inf}, {"loss": math.nan, "low": -math.inf}],
    )
    path = folder.path / "trials" / "run" / "result.json"
    folder.commit(RunResult(run_id="run", status="failed", reason="it diverged", history=history))

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    assert repr(list(folder.result("run").history)) == repr(history)
    earlier = path.read_text().replace('{\n    "$numberDouble": "NaN"\n   }', "NaN")
    assert "NaN" in earlier
    path.write_text(earlier)
    assert repr(list(folder.result("run").history)) == repr(history)


@pytest.mark.parametrize(
    ("age_seconds", "shown"), [(0, True), (-5, True), (61, False), (-3600, False)]
)
def test_old_progress_is_hidden_when_clock_jumps(
    age_seconds: int, shown: bool, tmp_path: Path
) -> None:
    """A clock that was set back leaves a file of the future."""
    folder = folder_of(tmp_path)
    folder.set_progress(DriverProgress(sentence="1 running", running={}))
    written = time.time() - age_seconds
    os.utime(folder.path / "progress.json", (written, written))
    assert (folder.progress() is not None) is shown
