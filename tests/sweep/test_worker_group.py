"""A worker group's process group: where it listens, and that its workers meet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raydp.sweep.engine.group import meeting_point

WORKER = """
import sys, psutil, torch
from raydp.sweep.engine.group import make_process_group
rank, size, port = map(int, sys.argv[1:])
make_process_group(rank, size, "127.0.0.1", port, "gloo")
total = torch.tensor([rank + 1.0])
torch.distributed.all_reduce(total)
links = psutil.Process().net_connections("inet")
print(int(total), *sorted({x.laddr.ip.removeprefix("::ffff:") for x in links if x.status == psutil.CONN_LISTEN}))
torch.distributed.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_workers_on_one_machine_listen_on_loopback_alone(size: int) -> None:
    """Whoever reaches the meeting point of a process group may write into it."""
    _, port = meeting_point()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(size), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err
        assert out.split() == [str(size * (size + 1) // 2), "127.0.0.1"], (
            "the sum, and every address"
        )
