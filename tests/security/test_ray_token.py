"""Ray asks every client for a token, and raydp leaves that on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DRIVER = '''
import os, subprocess, sys
from raydp.spec.sections import ClusterSpec
from raydp.sweep.engine.ray_start import start_ray
import ray
start_ray(ClusterSpec())
from ray._raylet import AuthenticationMode, get_authentication_mode
assert get_authentication_mode() == AuthenticationMode.TOKEN, get_authentication_mode()
address = ray.get_runtime_context().gcs_address
print("mode token", flush=True)
# `ray.init` would ask at the machine's own address, where a local Ray does not listen.
client = f"""import ray
from ray._raylet import GcsClient
print('joined', len(GcsClient(address={address!r}).get_all_node_info(timeout=20)))"""
changes = {"right": {}, "wrong": {"RAY_AUTH_TOKEN": "0" * 64}, "none": {"RAY_AUTH_MODE": "disabled"}}
pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
clients = {  # side by side, because those that are refused wait
    kind: subprocess.Popen([sys.executable, "-c", client], env={**os.environ, **change}, **pipes)
    for kind, change in changes.items()
}
for kind, process in clients.items():
    out, err = process.communicate()
    print(kind, "joined" if "joined 1" in out else "refused", process.returncode, flush=True)
    print((out + err)[-1500:].replace("\\n", "\\n  "), file=sys.stderr)
'''


@pytest.mark.slow
def test_a_client_without_the_token_is_refused(tmp_path: Path) -> None:
    token = "5f" * 32
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    variables |= {
        "HOME": str(tmp_path),
        "RAY_AUTH_TOKEN": token,
        "RAY_gcs_rpc_server_connect_timeout_s": "5",
    }
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER)],
        env={**variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = found.stdout + found.stderr
    assert "mode token" in found.stdout, said
    assert "right joined 0" in found.stdout, said
    assert "wrong refused" in found.stdout, said
    assert "none refused" in found.stdout, said
    assert token not in said


@pytest.mark.parametrize("room", ["raydp", "deploy"])
def test_nothing_turns_the_token_off(room: str) -> None:
    """Who sets RAY_AUTH_MODE=disabled has chosen so; we never do."""
    for path in (ROOT / room).rglob("*"):
        if path.is_file() and path.suffix in (".py", ".yaml", ".yml", ".sh", ".sbatch", ".md", ""):
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not re.search(
                r"RAY_AUTH_MODE\W{1,12}(disabled|none|off)", text, re.IGNORECASE
            ), path
