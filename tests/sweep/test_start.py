"""`plan` and `sweep` agree on what prevents a start, and a start that is refused leaves no sweep
behind."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydp import Sweep
from raydp.spec.reading import draft_spec, load_spec
from raydp.spec.sections import ClusterSpec
from raydp.sweep.engine.machine import check_machine, fitting_groups
from raydp.sweep.engine.ray_start import _options
from raydp.sweep.planning.start import check_start
from raydp.sweep.store.folder import SweepFolder
from raydp.system.interruption import Interrupted
from tests.builders.plans import plan_of_runs
from tests.builders.specs import small_spec
from tests.conftest import Answer

Command = Callable[..., Answer]
LASTING: dict[str, tuple[dict[str, Any], str]] = {
    "a store of another kind": (
        {"tracking": {"uri": "mysqlx://foo"}},
        "tracking.uri must be sqlite:///FILE",
    ),
    "a store where nothing can be made": (
        {"tracking": {"uri": "sqlite:////proc/m.db"}},
        "tracking.uri must be in a folder to write to",
    ),
    "a storage where nothing can be made": (
        {"storage": "/proc/nope"},
        "storage must be a folder that can be written",
    ),
    "a storage below a file": (
        {"storage": "/etc/hostname/runs"},
        "storage must be a folder, got '/etc/hostname/runs'",
    ),
    "GPUs that are not here": (
        {"cluster": {"gpus_per_worker": 1000}},
        "cluster.workers_per_trial 1 must fit",
    ),
    "CPUs that are not here": (
        {"cluster": {"cpus_per_worker": 4000}},
        "cluster.workers_per_trial 1 must fit",
    ),
    "a key that is not there": (
        {"tracking": {"uri": "sqlite:///m.db", "signing_key": "no.pem"}},
        "tracking.signing_key must be the file of a private key",
    ),
    "code that is not there": (
        {"cluster": {"address": "auto", "working_dir": "nowhere"}},
        "cluster.working_dir must be an existing folder",
    ),
}


@pytest.mark.extensions("a key")
@pytest.mark.parametrize("reason", LASTING)
def test_plan_and_sweep_refuse_the_same(
    reason: str, raydp: Command, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    changes, message = LASTING[reason]
    spec = write_spec(**changes)
    answers = [
        raydp(*command)
        for command in (["plan", spec], ["sweep", spec, "--dry-run"], ["sweep", spec])
    ]
    assert {answer.code for answer in answers} == {2}
    (refusal,) = {" ".join(answer.err.split()).partition("error: ")[2] for answer in answers}
    assert message in refusal
    assert "path must" not in answers[0].err
    assert not (tmp_path / "runs").exists()
    check_start(draft_spec(small_spec(tmp_path)))  # the mended spec may use the name


def test_an_unreachable_service_is_a_warning_of_the_plan(
    raydp: Command, write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = write_spec(
        tracking={"uri": f"http://127.0.0.1:{port}"}, cluster={"address": f"127.0.0.1:{port}"}
    )
    answer = raydp("plan", spec)
    assert answer.code == 0, answer.err
    said = " ".join(answer.out.split())
    assert "`raydp sweep` should start now, got a refusal: tracking.uri must be" in said
    assert "`raydp sweep` should start now, got a refusal: cluster.address must be" in said
    answer = raydp("sweep", spec)
    assert answer.code == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("partly", [[], ["--json"]])
def test_an_interruption_reaches_the_caller_once_the_folder_is_in_order(
    partly: list[str],
    raydp: Command,
    write_spec: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script does not go on after Ctrl-C. The command answers, and ends with 1."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raydp.sweep.driver.train", interrupted)
    spec = write_spec()
    with pytest.raises(KeyboardInterrupt) as caught:
        Sweep(spec).run()
    assert isinstance(caught.value, Interrupted)
    assert caught.value.partial.interrupted
    assert caught.value.partial.counts.pending == 2
    answer = raydp("sweep", spec, "--resume", *partly)
    assert answer.code == 1
    assert ('"interrupted": true' if partly else "raydp sweep ") in answer.out


class NoSlots:
    """Slots that start nothing: what is tested happens before a worker has a run."""

    queue = None

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def __enter__(self) -> NoSlots:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def share(self, inputs: object) -> None:
        pass


@pytest.mark.slow
def test_a_sweep_that_cannot_open_its_experiment_leaves_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment was deleted, which only MLflow knows: the refusal comes after the folder was
    made."""
    from mlflow import MlflowClient
    from rich.console import Console

    from raydp.sweep.driver import run_sweep
    from raydp.sweep.engine import training

    monkeypatch.setattr(training, "start_ray", lambda cluster: None)
    monkeypatch.setattr(training, "Slots", NoSlots)
    spec = load_spec(small_spec(tmp_path))
    client = MlflowClient(tracking_uri=spec.tracking.uri)
    client.delete_experiment(client.create_experiment(spec.tracking.experiment))
    with pytest.raises(ValueError, match=r"tracking\.experiment must not be deleted"):
        run_sweep(spec, resume=False, console=Console(quiet=True))
    assert not (tmp_path / "runs" / "small").exists()
    check_start(spec)


def test_a_folder_with_the_users_own_files_is_refused_and_kept(tmp_path: Path) -> None:
    spec = load_spec(small_spec(tmp_path))
    project = tmp_path / "runs" / "small"
    (project / ".git").mkdir(parents=True)
    (project / "mails.jsonl").write_text("{}")
    with pytest.raises(
        ValueError,
        match=r"name must be .* got 'small', which holds '\.git', 'mails\.jsonl'\. Choose",
    ):
        check_start(spec)
    with pytest.raises(ValueError, match="Choose another name or storage"):
        SweepFolder.create(spec, lambda key: plan_of_runs())
    assert sorted(found.name for found in project.iterdir()) == [".git", "mails.jsonl"]


def test_a_removed_start_takes_only_its_own_files(tmp_path: Path) -> None:
    spec = load_spec(small_spec(tmp_path))
    folder = SweepFolder.create(spec, lambda key: plan_of_runs())
    (folder.path / "notes.txt").write_text("mine")
    folder.remove()
    assert [found.name for found in folder.path.iterdir()] == ["notes.txt"]


def test_the_folder_of_a_killed_start_frees_its_name(tmp_path: Path) -> None:
    spec = load_spec(small_spec(tmp_path))
    folder = SweepFolder.create(spec, lambda key: plan_of_runs())
    (folder.path / "spec.yaml").rename(folder.path / ".spec.yaml.123.part")
    (folder.path / "driver.lock").touch()
    check_start(spec)
    SweepFolder.create(spec, lambda key: plan_of_runs()).remove()
    assert not folder.path.exists()


def test_a_resume_whose_folder_disappears_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver's start is refused, and removes the folder, while this one reads the data."""
    from rich.console import Console

    from raydp.sweep import driver
    from raydp.sweep.planning import planned

    spec = load_spec(small_spec(tmp_path))
    folder = SweepFolder.create(spec, lambda key: plan_of_runs())
    build = planned.build_task

    def built(*given: Any, **named: Any) -> Any:
        folder.remove()
        return build(*given, **named)

    monkeypatch.setattr(planned, "build_task", built)
    with pytest.raises(ValueError, match=r"--resume must be of a sweep that was started"):
        driver.run_sweep(spec, resume=True, console=Console(quiet=True))


def test_pinned_process_counts_its_usable_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two runs would share the one core that `taskset -c 0` leaves them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert _options(ClusterSpec())["num_cpus"] == 1
    with pytest.raises(ValueError, match="2 CPUs and 0 GPUs a worker, got 1 CPUs"):
        check_machine(ClusterSpec(cpus_per_worker=2))


def test_hidden_gpus_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks the driver, and leaves out those that CUDA_VISIBLE_DEVICES hides."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"1 CPUs and 2 GPUs a worker, got [0-9]+ CPUs and 1 GPUs"):
        check_machine(ClusterSpec(cpus_per_worker=1, gpus_per_worker=2))
    check_machine(ClusterSpec(cpus_per_worker=1, gpus_per_worker=1))


def test_drivers_variables_reach_processes_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's processes have the variables of the node, not those of the driver."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "7")
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for a log")
    environment: Any = _options(ClusterSpec(address="auto"))["runtime_env"]
    variables = environment["env_vars"]
    assert variables["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == "7"
    assert variables["RAY_AIR_NEW_OUTPUT"] == "1"
    assert variables["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] == "0.5"
    assert "AWS_SECRET_ACCESS_KEY" not in variables


def test_groups_of_workers_fit_nodes() -> None:
    cluster = ClusterSpec(workers_per_trial=2, cpus_per_worker=2)
    assert fitting_groups(cluster, [(4, 0), (8, 0)]) == 3
    with pytest.raises(ValueError, match="got 2 CPUs and 0 GPUs in all"):
        fitting_groups(cluster, [(2, 0)])
    check_machine(ClusterSpec())
