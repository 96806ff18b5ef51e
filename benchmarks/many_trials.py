"""What the orchestration costs where there are thousands of runs: a sweep whose method does
nothing.

    python benchmarks/many_trials.py --trials 2000 --output many_trials.json

Every run goes through Ray Tune, the queue, a Ray Train worker, the sweep's folder, MLflow and the
registry as any other; its training takes no step, and its score is the cheapest on the built-in
model. Seconds a trial are those between the first and the last commit. Memory is sampled while it
runs; its growth is the slope from the first tenth of the runs on, when everything is loaded, so the
first rounds' caches are in it and the start is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import noop_method
import numpy as np
import psutil
from machine import describe
from rich.console import Console

HERE = Path(__file__).parent
SAMPLE_SECONDS = 2.0
BATCH_SIZES, NUM_STEPS, SEEDS = (16, 24, 32, 48, 64), (1, 2, 3, 4), (0, 1, 2, 3, 4)
WRITES = ("INSERT", "UPDATE", "DELETE")


def spec_of(folder: Path, num_trials: int, slots: int, uri: str) -> dict[str, Any]:
    """A grid of `num_trials` runs: 5 batch sizes, 4 numbers of steps, 5 seeds, learning rates for
    the rest."""
    rates = num_trials // (len(BATCH_SIZES) * len(NUM_STEPS) * len(SEEDS))
    return {
        "name": f"trials-{num_trials}",
        "task": {"name": "builtin"},
        "model": {"name": "tiny", "adapter": {"r": 2, "alpha": 2, "target_modules": ["q_proj"]}},
        "method": {"name": "noop", "max_grad_norm": 0.1},
        "privacy": {"target_epsilon": 8, "accountant": "rdp", "noise_key": "test"},
        "space": {
            "batch_size": list(BATCH_SIZES),
            "num_steps": list(NUM_STEPS),
            "learning_rate": [float(f"{1e-3 * (1 + k / 10):.6g}") for k in range(rates)],
        },
        "seeds": list(SEEDS),
        "scores": [{"name": "vmr_exact"}],
        "select": {"score": "vmr_exact", "min_gain_share": 0},
        "cluster": {"max_concurrent_trials": slots},
        "storage": str(folder / "runs"),
        "tracking": {"uri": uri, "experiment": "bench", "registered_model": "bench"},
    }


class Meter:
    """Memory and processor time of the driver and of what it started, by kind of process."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self.commits: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.samples.append(self._sample())

    def _sample(self) -> dict[str, Any]:
        mebibytes: dict[str, float] = defaultdict(float)
        seconds: dict[str, float] = defaultdict(float)
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            try:
                kind = "driver" if process.pid == own.pid else kind_of(process)
                mebibytes[kind] += process.memory_info().rss / 2**20
                seconds[kind] += sum(process.cpu_times()[:2])
            except psutil.Error:  # it has ended meanwhile
                continue
        return {
            "trials": len(self.commits),
            "mebibytes": dict(mebibytes),
            "processor_seconds": dict(seconds),
        }

    def slopes(self, num_trials: int) -> dict[str, float]:
        """Growth in MB (10^6 bytes) a trial, by kind of process, from the first tenth of the trials
        on."""
        rows = [s for s in self.samples if num_trials / 10 <= s["trials"] < num_trials]
        kinds = {kind for row in rows for kind in row["mebibytes"]}
        slopes = {}
        for kind in sorted(kinds):
            seen = [(r["trials"], r["mebibytes"][kind]) for r in rows if kind in r["mebibytes"]]
            if len({trials for trials, _ in seen}) > 2:
                slopes[kind] = float(np.polyfit(*np.array(seen).T, deg=1)[0]) * 2**20 / 1e6
        return slopes

    def processor_seconds(self, num_trials: int) -> dict[str, float]:
        """Processor time a trial by kind of process, between the same samples."""
        rows = [s for s in self.samples if num_trials / 10 <= s["trials"] < num_trials]
        if len(rows) < 2:
            return {}
        first, last = rows[0], rows[-1]
        done = max(1, last["trials"] - first["trials"])
        before = first["processor_seconds"]
        return {k: (v - before.get(k, 0.0)) / done for k, v in last["processor_seconds"].items()}


def kind_of(process: psutil.Process) -> str:
    """What a process is, by its command line."""
    line = " ".join(process.cmdline())
    for kind, sign in {
        "raylet": "/raylet",
        "gcs": "gcs_server",
        "mlflow server": "mlflow",
        "queue": "TrialQueue",
        "train worker": "RayTrainWorker",
        "train controller": "TrainController",
        "tune trial": "ImplicitFunc",
        "idle": "ray::IDLE",
    }.items():
        if sign in line:
            return kind
    return "other: " + (line.split(" ")[0].rsplit("/", 1)[-1] or process.name())


class Clock:
    """Seconds and calls of the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def wrap(
        self, owner: Any, name: str, label: str, then: Callable[[], None] = lambda: None
    ) -> None:
        """Measure a function of a class or module."""
        inner = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds[label].append(time.perf_counter() - started)
                then()

        setattr(owner, name, measured)


def count_statements(counts: Counter[str]) -> None:
    """Count what the driver's own SQL engine executes, and what it sends to a server."""
    import requests
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def executed(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        verb = statement.lstrip().split(None, 1)[0].upper()
        counts["writes" if verb in WRITES else "reads"] += 1

    event.listen(Engine, "before_cursor_execute", executed)
    event.listen(Engine, "commit", lambda connection: counts.update(["commits"]))
    send = requests.Session.send

    def counted(session: requests.Session, *args: Any, **kwargs: Any) -> requests.Response:
        counts["requests"] += 1
        return send(session, *args, **kwargs)

    requests.Session.send = counted  # type: ignore[method-assign]


def measure(folder: Path, num_trials: int, slots: int, uri: str) -> dict[str, Any]:
    """One sweep in this process."""
    from raydp.spec.reading import load_spec
    from raydp.sweep import driver
    from raydp.sweep.ending.finish import SelectionEnding
    from raydp.sweep.engine.committer import Committer
    from raydp.sweep.engine.recorder import Recorder
    from raydp.sweep.engine.tune.rounds import TuneRun
    from raydp.sweep.store.folder import SweepFolder
    from raydp.tracking import MLflowTracker

    meter, clock, counts = Meter(), Clock(), Counter[str]()
    clock.wrap(SweepFolder, "commit", "folder", lambda: meter.commits.append(time.perf_counter()))
    clock.wrap(MLflowTracker, "log_trial", "mlflow")
    clock.wrap(MLflowTracker, "update_privacy", "mlflow_release")
    clock.wrap(Committer, "commit", "commit")
    clock.wrap(Recorder, "_privacy", "privacy")
    clock.wrap(Recorder, "release", "release")
    clock.wrap(TuneRun, "run", "round")
    clock.wrap(driver, "make_plan", "plan")
    clock.wrap(SelectionEnding, "finish", "finish")
    count_statements(counts)
    at_last: dict[str, Any] = {}
    wrapped = Recorder.committed

    def track(self: Any, trial: Any) -> None:
        wrapped(self, trial)
        at_last.update(counts)

    Recorder.committed = track  # type: ignore[method-assign]
    spec, started = load_spec(spec_of(folder, num_trials, slots, uri)), time.perf_counter()
    with meter:
        result = driver.run_sweep(spec, resume=False, console=Console(stderr=True, quiet=True))
    total = time.perf_counter() - started
    assert result.counts.finished == num_trials, result.counts
    commits = sorted(meter.commits)
    outcomes = [json.loads(path.read_text()) for path in result.folder.glob("trials/*/result.json")]
    scored = [o["score_seconds"] for o in outcomes if "score_seconds" in o]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    seconds = clock.seconds
    per_trial = (commits[-1] - commits[0]) / (len(commits) - 1)
    chunk = max(1, num_trials // 10)
    return {
        "trials": num_trials,
        "slots": slots,
        "store": uri.split(":")[0],
        "start_seconds": commits[0] - started,
        "plan_seconds": sum(seconds["plan"]),
        "seconds_per_trial": per_trial,
        "seconds_per_trial_by_tenth": [
            (commits[min(k + chunk, len(commits) - 1)] - commits[k]) / chunk
            for k in range(0, len(commits) - 1, chunk)
        ],
        "score_seconds_per_trial": statistics.mean(scored),
        "driver_commit_seconds_per_trial": statistics.mean(seconds["commit"]),
        "folder_seconds_per_trial": statistics.mean(seconds["folder"]),
        "privacy_seconds_per_trial": statistics.mean(seconds["privacy"]),
        "mlflow_seconds_per_trial": statistics.mean(seconds["mlflow"]),
        "mlflow_per_trial": {name: count / num_trials for name, count in at_last.items()},
        "round_seconds": seconds["round"],
        "finish_seconds": sum(seconds["finish"]),
        "release_seconds": sum(seconds["release"]),
        "update_privacy_seconds_per_trial": statistics.mean(seconds["mlflow_release"] or [0.0]),
        "total_seconds": total,
        "driver_mb_per_trial": meter.slopes(num_trials).get("driver"),
        "mb_per_trial": meter.slopes(num_trials),
        "processor_seconds_per_trial": meter.processor_seconds(num_trials),
        "driver_mebibytes": [
            s["mebibytes"]["driver"] for s in meter.samples[:: max(1, len(meter.samples) // 20)]
        ],
        "disk_mb_per_trial": size / 1e6 / num_trials,
        "plan_json_mb": (result.folder / "plan.json").stat().st_size / 1e6,
    }


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """An MLflow server on a SQLite file of its own."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "kept"),
    ]
    with (
        (folder / "server.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            for _ in range(240):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def in_a_fresh_process(options: argparse.Namespace) -> Any:
    """The sweep in a process and a folder of its own, where the method is installed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        noop_method.install(folder / "installed")
        command = [sys.executable, __file__, "--folder", scratch, "--trials", str(options.trials)]
        command += ["--slots", str(options.slots), *(["--server"] if options.server else [])]
        paths = [str(folder / "installed"), str(HERE), str(HERE.parent)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return json.loads((folder / "measured.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--trials", type=int, default=2000, help="a multiple of 100")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument(
        "--server", action="store_true", help="MLflow behind a server instead of in a file"
    )
    parser.add_argument("--output", type=Path, default=Path("many_trials.json"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trials < 100 or options.trials % 100:
        parser.error(f"--trials must be a multiple of 100, got {options.trials}. Round it.")
    if options.folder is not None:
        kind = server(options.folder) if options.server else None
        if kind is None:
            found = measure(
                options.folder,
                options.trials,
                options.slots,
                f"sqlite:///{options.folder}/mlflow.db",
            )
        else:
            with kind as uri:
                found = measure(options.folder, options.trials, options.slots, uri)
        (options.folder / "measured.json").write_text(json.dumps(found))
        return
    document = {**describe("ray", "torch", "mlflow", "psutil"), **in_a_fresh_process(options)}
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
