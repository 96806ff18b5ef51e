"""Checks that a cluster answers, and how many worker groups fit a machine or a cluster."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from raydp.spec.sections.cluster import ClusterSpec

CONNECT_SECONDS = 10.0
RAY_PORT = 6379


def check_address(address: str) -> None:
    """Check that something answers at the cluster's address.

    Ray itself would try again for minutes.

    Raises:
        ValueError: nothing answers.
    """
    if address == "local":
        return
    where = address
    try:
        # "auto" is the cluster that runs on this machine; Ray knows its address.
        if address == "auto":
            from ray._private.services import canonicalize_bootstrap_address_or_die

            where = str(canonicalize_bootstrap_address_or_die("auto"))
        parts = urlsplit(f"//{where.removeprefix('ray://')}")
        with socket.create_connection(
            (parts.hostname, parts.port or RAY_PORT), timeout=CONNECT_SECONDS
        ):
            return
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cluster.address must be of a running Ray cluster, got {address!r} ({where}: "
            f"{error}). Start one (`ray start --head`), or correct it."
        ) from error


def check_machine(cluster: ClusterSpec) -> None:
    """Check that this machine holds at least one worker group.

    It counts the usable CPUs, and the GPUs that torch sees.

    Raises:
        ValueError: the machine is too small.
    """
    if not cluster.gpus_per_worker and cluster.min_workers * cluster.cpus_per_worker <= 1:
        return  # every machine is large enough
    gpus = 0
    if cluster.gpus_per_worker:
        import torch

        gpus = torch.cuda.device_count()
    fitting_groups(cluster, [(usable_cpus(), gpus)])


def usable_cpus() -> int:
    """Return how many CPUs of this machine this process may use.

    Under taskset or in a container, these may be fewer than there are. Ray by itself would also
    count those that taskset forbids.
    """
    from joblib import cpu_count  # scikit-learn needs joblib too

    return int(cpu_count())


def fitting_groups(cluster: ClusterSpec, nodes: Sequence[tuple[float, float]]) -> int:
    """Return how many worker groups the nodes hold at once, at most what the spec allows.

    Args:
        nodes: CPUs and GPUs of each node.

    Raises:
        ValueError: not even one worker group fits.
    """
    workers = sum(cluster.workers_on(*node) for node in nodes)
    # Groups are elastic: if no group of full size fits, one smaller group may.
    fit = workers // cluster.max_workers or int(workers >= cluster.min_workers)
    if fit < 1:
        cpus, gpus = (sum(values) for values in zip(*nodes, strict=True)) if nodes else (0, 0)
        raise ValueError(
            f"cluster.workers_per_trial {cluster.min_workers} must fit the cluster with "
            f"{cluster.cpus_per_worker:g} CPUs and {cluster.gpus_per_worker:g} GPUs a worker, got "
            f"{cpus:g} CPUs and {gpus:g} GPUs in all. Ask for less."
        )
    return min(fit, cluster.max_concurrent_trials or fit)
