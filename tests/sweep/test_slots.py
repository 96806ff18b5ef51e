"""The slots' threads on real Ray: however their block ends, they end before Ray does."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import ray
import yaml
from ray.train.v2._internal.execution.scaling_policy import create_scaling_policy

from raydp.spec.sections import ClusterSpec
from raydp.sweep.engine import slots as module
from raydp.sweep.engine.ray_start import start_ray
from raydp.sweep.engine.slots import SilentScalingPolicy, Slots
from tests.builders.specs import small_spec
from tests.conftest import Answer


def interrupt(slots: Slots, *, running: bool) -> None:
    with slots:
        while running and len(ray.get(slots.queue.status.remote()).preparing) < 2:
            time.sleep(0.1)  # then the workers wait for what the driver never shares
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("cluster", "announced"),
    [
        (ClusterSpec(), False),
        (ClusterSpec(address="auto", autoscaling=True, max_concurrent_trials=2), True),
        (ClusterSpec(workers_per_trial=(1, 2)), True),
    ],
    ids=["a fixed number of workers", "a cluster that grows", "a group that grows"],
)
def test_only_an_elastic_group_starts_rays_autoscaling_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: ClusterSpec, announced: bool
) -> None:
    """The coordinator is a process that every worker group would wait for."""
    actors = MagicMock()
    monkeypatch.setattr(module, "fitting_slots", lambda cluster: 1)
    monkeypatch.setattr(module, "beside_driver", lambda *args, **options: actors)
    monkeypatch.setattr(ray, "get", lambda reference: None)
    trainer = Slots(cluster, expected=1, storage=tmp_path)._trainer(0, 1)
    trainer._initialize_and_run_controller(
        scaling_policy=create_scaling_policy(trainer.scaling_config)
    )
    policy = actors.remote.call_args.kwargs["scaling_policy"]
    assert isinstance(policy, SilentScalingPolicy) is not announced


@pytest.mark.slow
@pytest.mark.extensions
@pytest.mark.parametrize("when", ["no process starts", "starting", "waiting"])
def test_an_interruption_ends_the_threads_before_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A thread inside a call of Ray while Ray shuts down can end the process: `-x` would not even
    see a failure."""
    from raydp.extensions.forked_workers import start as warm

    alive: list[bool] = []
    shutdown = ray.shutdown
    monkeypatch.setattr(
        module.ray,
        "shutdown",
        lambda: (alive.extend(thread.is_alive() for thread in slots._threads), shutdown()),
    )
    cluster = ClusterSpec(max_concurrent_trials=2)
    start_ray(cluster)
    forks = warm._server
    assert forks is not None
    if when == "no process starts":
        forks._process.send_signal(signal.SIGSTOP)
    slots = Slots(cluster, expected=2, storage=tmp_path)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt(slots, running=when == "waiting")
    finally:
        forks._process.send_signal(signal.SIGCONT)
    assert alive == [False, False]
    assert not ray.is_initialized()


@pytest.mark.slow
def test_the_queue_answers_while_thousands_wait_for_their_results(tmp_path: Path) -> None:
    """Ray lets 1,000 calls of an actor be in progress unless it is told: the lease would be the
    next one, for ever."""
    cluster = ClusterSpec(max_concurrent_trials=1)
    start_ray(cluster)
    try:
        queue = Slots(cluster, expected=3000, storage=tmp_path).queue
        queue.enqueue.remote([str(k) for k in range(1005)], 1005)
        waiting = [queue.outcome.remote(str(k)) for k in range(1005)]
        ray.wait(waiting, num_returns=1, timeout=1)
        _, token = ray.get(queue.lease.remote(0), timeout=120)
        assert token == 1
    finally:
        ray.shutdown()


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "auto"])
def test_where_no_cluster_is_nothing_is_begun(
    address: str, raydp: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    spec = small_spec(tmp_path, cluster={"address": address.format(port=port)})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    answer = raydp("sweep", "spec.yaml")
    assert answer.code == 2
    assert "cluster.address must be of a running Ray cluster" in " ".join(answer.err.split())
    assert not (tmp_path / "runs").exists()
