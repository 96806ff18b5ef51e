"""How long `find_models` takes over many registered models, on a file and on a server with
PostgreSQL.

One trial is tracked through the API; the rows that it makes in the database are then copied with
other identities and figures, and a copy is compared with a trial that the API wrote with the same
figures. Seals are signed anew for each.

    python benchmarks/registry.py --models 10000 --server FOLDER -o registry.json

FOLDER is one that deploy/tracking/tracking.sh started; without it only SQLite is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from raydp.extensions.publishing.signing import SigningKey, new_key
from raydp.models.base_models import weight_hash
from raydp.models.lookup import TINY
from raydp.tracking import MLflowTracker, TrialRecord, find_models, set_alias
from raydp.tracking.records import RECORD_TAG
from raydp.tracking.sealing.seal import SEAL_TAG, Seal

NAME = "many"
RUN_TABLES = ("params", "metrics", "latest_metrics", "tags")
MODEL_TABLES = ("logged_models", "logged_model_params", "logged_model_tags", "logged_model_metrics")


def trial(number: int) -> TrialRecord:
    """A trained model with the figures of its number; the weights are the same for all."""
    batch_size, seed = (64, 128, 256, 512)[number % 4], number // 4 % 5
    return TrialRecord(
        run_id=f"{number:064x}",
        batch_size=batch_size,
        num_steps=(60, 120, 240)[number % 3],
        learning_rate=(5e-4, 1e-3, 2e-3, 4e-3)[number // 3 % 4],
        seed=seed,
        params={
            "method": "dp_adam",
            "task_hash": "c0ffee",
            "max_grad_norm": 0.5,
            "beta1": 0.9,
            "beta2": 0.999,
        },
        metrics={
            "utility_loss": 2 + number % 997 / 997,
            "utility_gain": 1 - number % 997 / 997,
            "base_utility_loss": 3.0,
            "score": number % 1009 / 1009,
            "score.vmr": number % 1009 / 1009,
            "score.vmr.std_error": 0.002,
            "score.logprob": number % 1013 - 500.5,
            "score.logprob.std_error": 0.5,
        },
        privacy={
            "epsilon": 0.5 + number % 16 / 2,
            "delta": 1e-5,
            "noise_multiplier": 1.25,
            "accountant": "prv",
            "unit": "example",
            "certified": True,
        },
        base={"name": "tiny", "weight_hash": weight_hash(TINY), "dtype": "float32"},
        model_dir=TINY,
        seconds=12.5,
    )


def populate(database: str, uri: str, key_file: Path, count: int) -> None:
    """Track two trials, and copy the rows of the first until there are `count` models; check one
    copy by the other."""
    tracker = MLflowTracker(uri, "benchmark", NAME, signing_key=key_file)
    tracker.sweep_run("sweep-0", "benchmark", {}, {})
    tracker.log_trial(trial(0))
    written = tracker.log_trial(trial(1))
    engine = sa.create_engine(database)
    meta = sa.MetaData()
    meta.reflect(engine)
    key = SigningKey.load(key_file)
    with engine.begin() as connection:
        rows = _rows_of_the_first(connection, meta)
        for start in range(2, count + 1, 500):  # number 1 a second time, to be compared
            made: dict[str, list[dict[str, Any]]] = {}
            for number in range(start, min(start + 500, count + 1)):
                _copy(rows, trial(1 if number == count else number), number + 1, key, made)
            for table, values in made.items():
                connection.execute(sa.insert(meta.tables[table]), values)
    _compare(tracker, written, f"models:/{NAME}/{count + 1}")
    tracker.store.client.delete_model_version(NAME, str(count + 1))
    if engine.dialect.name == "postgresql":  # what autovacuum does in its own time
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("ANALYZE"))


def _rows_of_the_first(
    connection: sa.Connection, meta: sa.MetaData
) -> dict[str, list[dict[str, Any]]]:
    tables = meta.tables
    runs, models = tables["runs"], tables["logged_models"]
    tag = tables["tags"]
    chosen = sa.and_(tag.c.key == "raydp.run_id", tag.c.value == trial(0).run_id)
    run = connection.execute(sa.select(tag.c.run_uuid).where(chosen)).scalar_one()
    model = connection.execute(
        sa.select(models.c.model_id).where(models.c.source_run_id == run)
    ).scalar_one()
    found = {"runs": (runs, runs.c.run_uuid == run)}
    found |= {name: (tables[name], tables[name].c.run_uuid == run) for name in RUN_TABLES}
    found["inputs"] = (tables["inputs"], tables["inputs"].c.source_id == run)
    found |= {name: (tables[name], tables[name].c.model_id == model) for name in MODEL_TABLES}
    versions = tables["model_versions"]
    found["model_versions"] = (versions, versions.c.run_id == run)
    version_tags = tables["model_version_tags"]
    found["model_version_tags"] = (
        version_tags,
        sa.and_(version_tags.c.name == NAME, version_tags.c.version == 1),
    )
    selects = {
        name: connection.execute(sa.select(table).where(where))
        for name, (table, where) in found.items()
    }
    return {name: [dict(row) for row in result.mappings()] for name, result in selects.items()}


def _copy(
    rows: dict[str, list[dict[str, Any]]],
    to: TrialRecord,
    version: int,
    key: SigningKey,
    made: dict[str, list[dict[str, Any]]],
) -> None:
    """The first trial's rows with the identity and the figures of another."""
    first = trial(0)
    old_run, old_model = rows["runs"][0]["run_uuid"], rows["logged_models"][0]["model_id"]
    run, model = uuid.uuid4().hex, f"m-{uuid.uuid4().hex}"
    names = {"b": to.batch_size, "T": to.num_steps, "η": to.learning_rate, "seed": to.seed}
    title = " ".join(f"{k}={json.dumps(v)}" for k, v in names.items())
    replaced = {
        old_run: run, old_model: model, first.run_id: to.run_id, rows["runs"][0]["name"]: title,
        f"models:/{NAME}/1": f"models:/{NAME}/{version}", first.digest(): uuid.uuid4().hex,
        f"trial-{first.run_id[:12]}": f"trial-{to.run_id[:12]}",
    }  # fmt: skip
    metrics = {**to.finite_metrics()[0]}
    texts = {**to.all_params(), **to.privacy_tags()}
    for table, found in rows.items():
        for row in found:
            new = dict(row)
            for column, value in row.items():
                if isinstance(value, str):
                    new[column] = replaced.get(value) or value.replace(old_run, run).replace(
                        old_model, model
                    )
            if "version" in new:
                new["version"] = version
            if table in ("metrics", "latest_metrics") and new["key"] in metrics:
                new["value"] = metrics[new["key"]]
            if table == "logged_model_metrics":
                new["metric_value"] = metrics[new["metric_name"]]
            for name, value in (
                ("key", "value"),
                ("param_key", "param_value"),
                ("tag_key", "tag_value"),
            ):
                if table not in ("metrics", "latest_metrics") and new.get(name) in texts:
                    new[value] = texts[new[name]]
            if new.get("key") == RECORD_TAG:
                held = json.loads(new["value"])
                new["value"] = json.dumps(
                    {**held, **{k: v for k, v in texts.items() if k in held}, "run_id": to.run_id},
                    sort_keys=True,
                    ensure_ascii=False,
                )
            if new.get("tag_key") == SEAL_TAG:
                new["tag_value"] = _sealed(row["tag_value"], to, model, key)
            if new.get("tag_key") == "mlflow.modelVersions":
                new["tag_value"] = row["tag_value"].replace(
                    '"version": "1"', f'"version": "{version}"'
                )
            made.setdefault(table, []).append(new)


def _sealed(tag: str, to: TrialRecord, model: str, key: SigningKey) -> str:
    old = Seal.read(tag)
    assert old is not None
    figures = {"configuration": to.configuration(), "guarantee": to.privacy_tags()}
    return Seal.make(
        {**old.statement, **figures, "model_id": model, "run_id": to.run_id}, key
    ).tag()


def _compare(tracker: MLflowTracker, written: str, copied: str) -> None:
    """A copied model says what one that the API wrote says, but for identities and times."""
    shown = []
    for uri in (written, copied):
        name, number = uri.removeprefix("models:/").split("/")
        client = tracker.store.client
        version = client.get_model_version(name, number)
        model = client.get_logged_model(version.tags["model_id"])
        run = client.get_run(version.run_id)
        text = json.dumps(
            {
                "version": {**version.tags, "run": version.run_id, "source": version.source},
                "model": [
                    model.tags,
                    model.params,
                    sorted((m.key, m.value) for m in model.metrics),
                    model.name,
                ],
                "run": [
                    run.data.tags,
                    run.data.params,
                    run.data.metrics,
                    run.info.run_name,
                    run.info.status,
                ],
                "outputs": [output.model_id for output in run.outputs.model_outputs],
            },
            sort_keys=True,
        )
        for value in (model.model_id, version.run_id, run.data.tags["raydp.record_digest"], uri):
            text = text.replace(value, "*")
        sealed = Seal.read(model.tags[SEAL_TAG])
        assert sealed is not None
        for value in (
            sealed.signature,
            sealed.statement["files_sha256"],
            sealed.statement["privacy_sha256"],
        ):
            text = text.replace(str(value), "*")
        shown.append(
            text.replace(f'\\"version\\": \\"{number}\\"', "*").replace(
                f'\\\\\\"version\\\\\\": \\\\\\"{number}', "*"
            )
        )
    assert shown[0] == shown[1], f"a copy is not what the API writes:\n{shown[0]}\n{shown[1]}"


FINDS: dict[str, dict[str, Any]] = {
    "guarantee, loss, 20 lowest scores": {"max_epsilon": 4, "max_loss": 2.5, "score": "vmr", "order_by": "score",
                                          "limit": 20},
    "where on two scores and ε, 20 lowest losses": {
        "where": ["score.vmr < 0.05", "score.logprob < 0", "epsilon <= 8"], "order_by": "loss", "limit": 20},
    "the same, signed by a trusted key": {
        "where": ["score.vmr < 0.05", "score.logprob < 0", "epsilon <= 8"], "order_by": "loss", "limit": 20,
        "trusted_keys": True},
    "narrow, all that match": {"where": ["score.vmr < 0.003", "epsilon < 2"]},
    "one configuration and seed, all that match": {
        "batch_size": 64, "num_steps": 120, "learning_rate": 1e-3, "where": ["seed = 1", "epsilon < 4"]},
    "by alias": {"alias": "privacy-preferred"},
    "500 lowest scores": {"score": "vmr", "order_by": "score", "limit": 500},
    "all models": {},
}  # fmt: skip


def measure(uri: str, key: str, repeats: int) -> list[dict[str, Any]]:
    """Seconds of every find, imports and the connection's first use apart."""
    find_models(uri, registered_model=NAME, where=["epsilon < 0"])
    results = []
    for name, given in FINDS.items():
        options = {**given, "trusted_keys": [key]} if given.get("trusted_keys") else given
        seconds = []
        for _ in range(repeats if given else 1):  # all of them take long enough for one figure
            began = time.perf_counter()
            found = find_models(uri, registered_model=NAME, **options)
            seconds.append(time.perf_counter() - began)
        results.append(
            {
                "find": name,
                "rows": len(found),
                "median": statistics.median(seconds),
                "max": max(seconds),
            }
        )
        print(f"{name:45} {len(found):6} rows  {results[-1]['median']:.3f} s", file=sys.stderr)
    return results


def main() -> None:
    """Populate, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--server", type=Path, help="folder of a running tracking.sh")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    import mlflow

    document: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"), "models": given.models, "repeats": given.repeats,
        "versions": {"python": platform.python_version(), "mlflow": mlflow.__version__, "sqlalchemy": sa.__version__},
        "cpus": os.cpu_count(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        key = new_key(Path(scratch) / "key")
        stores = {"sqlite": (f"sqlite:///{scratch}/many.db", f"sqlite:///{scratch}/many.db")}
        if given.server is not None:
            stores["postgresql"] = _server(given.server)
            version = subprocess.run(
                ["psql", "--version"], capture_output=True, text=True, check=False
            ).stdout.strip()
            document["versions"]["postgresql"] = version
        for name, (database, uri) in stores.items():
            began = time.perf_counter()
            populate(database, uri, Path(scratch) / "key", given.models)
            set_alias(NAME, "privacy-preferred", 7, tracking_uri=uri)
            print(f"{name}: populated in {time.perf_counter() - began:.0f} s", file=sys.stderr)
            document[name] = measure(uri, key, given.repeats)
    given.output.write_text(json.dumps(document, indent=1) + "\n")


def _server(folder: Path) -> tuple[str, str]:
    """Addresses of the database and of MLflow; the password is read by libpq from its file."""
    os.environ["PGPASSFILE"] = str(folder / "secrets" / "pgpass")
    options = (folder / "postgres" / "postmaster.opts").read_text().replace('"', "").split()
    port = options[options.index("-p") + 1]
    return f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/mlflow", (
        folder / "address"
    ).read_text().strip()


if __name__ == "__main__":
    main()
