"""A sweep in the pages of MLflow, in a real browser.

python -m pytest tests/sweep/test_mlflow_in_browser.py -m slow --write-screenshots
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from PIL import Image

from raydp.tracking.store import open_store
from tests.chromium import OpenPage
from tests.sweep.trained import Trained
from tests.tracking.real_server import free_ports

pytestmark = [pytest.mark.daily("raydp/tracking"), pytest.mark.browser]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 150_000
START_SECONDS = 120
SHOWN = "document.body.innerText.includes({text!r})"
CLOSE = "[data-component-id='mlflow.assistant.chat_panel.close']"
HIDE = """document.querySelectorAll('*').forEach(element => {
    if (!element.children.length && element.textContent.includes('file:///')) element.remove();
})"""
"""Takes addresses of this machine out of a picture."""


@dataclass(frozen=True)
class Pages:
    """The pages of a server that shows one sweep."""

    address: str
    paths: dict[str, str]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    root = tmp_path_factory.mktemp("pages")
    sweep = Trained(root / "sweep")
    selected = sweep.ending.finish().selected
    assert selected is not None
    client = open_store(sweep.uri).client
    parent = client.get_run(str(sweep.folder.tracking_run())).info
    number = str(selected.model_uri).rpartition("/")[2]
    child = client.get_model_version("small", number).run_id
    runs = f"experiments/{parent.experiment_id}/runs"
    paths = {
        "runs": f"{runs}?viewStateShareKey=raydp",
        "sweep": f"{runs}/{parent.run_id}",
        "run": f"{runs}/{child}",
        "configurations": f"{runs}/{parent.run_id}/artifacts/configurations.csv",
        "model": "models/small",
        "version": f"models/small/versions/{number}",
    }
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = ["ui", "--backend-store-uri", sweep.uri, "--port", str(port), "--workers", "1"]
    with (root / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *command],
            stdout=log, stderr=log, start_new_session=True, cwd=root,
        )  # fmt: skip
        try:
            wait_for(address, server)
            yield Pages(address, paths)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            urlopen(f"{address}/health", timeout=5).close()
        except (URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError("mlflow ui does not answer")


TEXTS = {
    "runs": ["Runs by score", "utility_loss", "score", "4 matching runs"],
    "sweep": ["raydp sweep", "Selected: b=32 T=", "How sure: ", "Child runs"],
    "run": ["Registered models", "loss ", "Leakage: ", "utility_loss"],
    "configurations": ["configurations.csv", "score", "utility_loss", "batch_size"],
    "model": ["privacy-preferred", "sweep", "certified", "loss "],
    "version": ["Selected: b=32 T=", "How sure: ", "Guarantee: ε ≤ ", "digest ", "record"],
}
"""Texts that each page shows."""


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_shows_the_sweep(pages: Pages, name: str, request: pytest.FixtureRequest) -> None:
    address = f"{pages.address}/#/{pages.paths[name]}"
    with OpenPage(address, width=1250, height=1100 if name == "sweep" else 800) as page:
        # The panel of MLflow's assistant opens by itself.
        page.wait_for(f'document.querySelector("{CLOSE}")', seconds=60)
        page.evaluate(f'document.querySelector("{CLOSE}").click()')
        for text in TEXTS[name]:
            page.wait_for(SHOWN.format(text=text), seconds=60)
        if name == "runs":
            check_first_columns(page)
        if request.config.getoption("--write-screenshots"):
            page.evaluate(HIDE)
            time.sleep(2)  # a table is drawn after its texts are there
            write_image(page.screenshot(), IMAGES / f"mlflow-{name}.png")


def check_first_columns(page: OpenPage) -> None:
    """After its name and its times, a run's columns are loss, score, configuration and seed."""
    heads = page.evaluate(
        "Array.from(document.querySelectorAll('.ag-header-cell'), cell => cell.innerText)"
    )
    assert {head for head in heads if head} == {
        "Run Name", "Created", "Duration", "score", "utility_loss",
        "batch_size", "num_steps", "learning_rate", "seed",
    }  # fmt: skip


def write_image(png: bytes, path: Path) -> None:
    """Write a picture with 64 colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(64)
    picture.save(path, optimize=True)
    assert path.stat().st_size <= MOST_BYTES
