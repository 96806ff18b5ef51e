"""A sweep in MLflow: its parent run, and the methods by which the driver records trials."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from raydp.spec.sections.cluster import REGISTERED_MODEL, TrackingSpec
from raydp.tracking.delivery import delivering
from raydp.tracking.models.model_folder import replace_cards
from raydp.tracking.portable import portable, to_json
from raydp.tracking.promotions import MAX_REASON_CHARS, aliases_of, origin, take_away
from raydp.tracking.records import TrialRecord, as_params, clean_key, flatten
from raydp.tracking.registry import set_alias
from raydp.tracking.sealing.seal import load_signer
from raydp.tracking.store import MODEL_ID_TAG, Store, open_experiment, open_store
from raydp.tracking.stored_runs import RecordedRun, recorded_runs
from raydp.tracking.tracker import Tracker
from raydp.tracking.trials import TrialWriter
from raydp.tracking.views import NOTE_TAG, save_view, view_of

LOGGER = logging.getLogger(__name__)
MOVED = (
    "the alias {alias} of the sweep {sweep} moves to this sweep, because both have "
    "tracking.registered_model {name}. With another name each has its own"
)
SWEEP_ID_TAG = "raydp.sweep_id"
MAX_PARAM_CHARS = 500
MAX_DIGEST_CHARS = 36
"""MLflow's limit on the digest of a data set."""


class MLflowTracker:
    """Writes a sweep into an MLflow store. See `raydp.tracking.tracker.Tracker`.

    An incomplete entry is completed if the record is the same. Otherwise it is deleted and written
    again (`mlflow gc` frees its files). Every method makes each request once.

    Args:
        uri: SQLite file, created with its schema if needed, or the address of an MLflow server.
        experiment: name of the experiment; created if needed.
        registered_model: every trained model becomes a version of this model.
        signing_key: file of the team's private key, which signs every model's card and weights;
            never logged.

    Raises:
        ValueError: the store cannot be opened, a name is not allowed, or the key cannot be used.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        registered_model: str,
        signing_key: str | Path | None = None,
    ) -> None:
        # The name goes into filters, whose language cannot write a quote.
        if not re.fullmatch(REGISTERED_MODEL, registered_model):
            raise ValueError(
                f"tracking.registered_model must be letters, digits, '_', '-', '.' and spaces, got "
                f"{registered_model!r}. Rename it."
            )
        # A key that cannot be used must stop the sweep before it trains.
        self.key = load_signer(signing_key)
        self.registered_model = registered_model
        with delivering():
            self.store: Store = open_store(uri, create=True)
            self._client = self.store.client
            self._experiment_id = open_experiment(self.store, experiment)
            save_view(self._client, self._experiment_id)
        self._trials: TrialWriter | None = None

    @delivering()
    def sweep_run(
        self, sweep_id: str, name: str, spec: Mapping[str, object], facts: Mapping[str, object]
    ) -> str:
        """Open the sweep's parent run; see `Tracker.sweep_run`.

        Spec and facts are stored as JSON and, flattened, as parameters. MLflow keeps the value of a
        parameter, so what a resume changes becomes a tag of the parameter's name. A content_hash
        among the facts becomes the digest of the run's data set, as by `mlflow.log_input`.
        """
        # The parent run, found by the sweep's identity or made.
        run = self._find_sweep(sweep_id) or self._client.create_run(
            self._experiment_id, tags={**origin(), SWEEP_ID_TAG: sweep_id}, run_name=name
        )
        run_id = str(run.info.run_id)
        # Parameters never change in MLflow, so only new ones are logged, and changes become tags.
        params = as_params({**flatten(spec), **flatten(facts, "facts.")})
        short = {k: v for k, v in params.items() if len(v) <= MAX_PARAM_CHARS}
        new = [Param(k, v) for k, v in short.items() if k not in run.data.params]
        changed = [RunTag(k, v) for k, v in short.items() if run.data.params.get(k, v) != v]
        self._client.log_batch(run_id, params=new, tags=changed)
        self._client.log_text(run_id, to_json(spec), "spec.json")
        self._client.log_text(run_id, to_json(facts), "facts.json")
        if "content_hash" in facts:
            self._log_data_set(run_id, _data_set(spec, facts))
        # A resumed sweep runs again.
        if run.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        self._trials = TrialWriter(
            store=self.store,
            experiment_id=self._experiment_id,
            registered_model=self.registered_model,
            parent_id=run_id,
            sweep=name,
            key=self.key,
        )
        return run_id

    @delivering()
    def recorded_runs(self) -> dict[str, RecordedRun]:
        """Return the sweep's runs that the store holds now.

        A model with a missing version or file is not held.
        """
        return recorded_runs(self.store, self._experiment_id, self._open_sweep().parent_id)

    @delivering()
    def log_trial(self, trial: TrialRecord) -> str:
        """Record a run, a logged model with its artifacts, and a version; see `Tracker`.

        A second call restores a version or files that the store has lost.

        Raises:
            ValueError: the model folder has no safetensors weights.
        """
        return self._open_sweep().write(trial)

    @delivering()
    def fail_trial(
        self,
        run_id: str,
        reason: str,
        params: Mapping[str, object] | None = None,
        *,
        status: str = "failed",
    ) -> None:
        """Record a trial without a model; see `Tracker.fail_trial`.

        A complete run of the same identity stays unchanged. The reason is cut to its first 500
        characters, with paths of this machine shortened.
        """
        self._open_sweep().write_failure(run_id, reason, params or {}, status)

    @delivering()
    def update_privacy(self, model_uri: str, trial: TrialRecord) -> None:
        """Replace a model's privacy record, card and description; see `Tracker`.

        Raises:
            ValueError: the trial's model folder is gone, and another key sealed the files on the
                server.
        """
        name, version = model_uri.removeprefix("models:/").rsplit("/", 1)
        held = self._client.get_model_version(name, version)
        model = self._client.get_logged_model(held.tags[MODEL_ID_TAG])
        replace_cards(self.store, model, trial, self.key)
        if held.description != trial.description:
            self._client.update_model_version(name, version, trial.description)

    @delivering()
    def describe_model(self, model_uri: str, text: str) -> None:
        """Put a text before the description of a version."""
        name, version = model_uri.removeprefix("models:/").rsplit("/", 1)
        own = self._client.get_model_version(name, version).description
        self._client.update_model_version(name, version, f"{text}\n\nThis model: {own}")

    @delivering()
    def set_alias(self, alias: str, model_uri: str, reason: str) -> None:
        """Point an alias at a version; see `Tracker.set_alias`. A long reason is shortened."""
        name, version = model_uri.removeprefix("models:/").rsplit("/", 1)
        before, own = aliases_of(self.store, name).get(alias), self._open_sweep().sweep
        # Two sweeps with one registered model share its aliases: the last one to end has them.
        if before is not None and before != version:
            other = self._client.get_model_version(name, before).tags.get("sweep")
            if other != own:
                LOGGER.warning(MOVED.format(alias=alias, sweep=other, name=name))
        set_alias(
            name, alias, version, tracking_uri=self.store.uri, reason=reason[:MAX_REASON_CHARS]
        )

    @delivering()
    def remove_aliases(self, aliases: Collection[str], reason: str) -> None:
        """Take aliases away; see `Tracker`. An alias that another sweep's model has stays."""
        name, sweep = self.registered_model, self._open_sweep().sweep
        for alias, number in aliases_of(self.store, name).items():
            if (
                alias in aliases
                and self._client.get_model_version(name, number).tags.get("sweep") == sweep
            ):
                take_away(self.store, name, alias, number, reason)

    @delivering()
    def finish_sweep(
        self, summary: Mapping[str, object], artifacts: Path | None = None, description: str = ""
    ) -> None:
        """End the parent run; see `Tracker`. Numbers of the summary become metrics."""
        run_id = self._open_sweep().parent_id
        if description:
            link = f"[All runs, sorted by score]({view_of(self._experiment_id)})"
            self._client.set_tag(run_id, NOTE_TAG, f"{description}\n\n{link}")
        # The summary as a file, and its numbers as metrics that MLflow can plot. bool is an int, so
        # it is left out.
        self._client.log_text(run_id, to_json(summary), "summary.json")
        plain = flatten(portable(summary)).items()
        numbers = {k: v for k, v in plain if isinstance(v, int | float) and not isinstance(v, bool)}
        now = int(time.time() * 1000)
        self._client.log_batch(
            run_id, metrics=[Metric(clean_key(k), float(v), now, 0) for k, v in numbers.items()]
        )
        if artifacts is not None:
            self._client.log_artifacts(run_id, str(artifacts))
        self._client.set_terminated(run_id, "FINISHED")

    def _open_sweep(self) -> TrialWriter:
        assert self._trials is not None, "sweep_run comes first"
        return self._trials

    def _log_data_set(self, run_id: str, data: DatasetInput) -> None:
        """Name the training data as the run's input.

        MLflow first looks for the data set and then makes it. If another sweep makes the same data
        set in between, the database refuses the second one (BAD_REQUEST), and the next call finds
        the data set of the other sweep.
        """
        try:
            self._client.log_inputs(run_id, [data])
        except MlflowException as error:
            if error.error_code != "BAD_REQUEST":
                raise
            self._client.log_inputs(run_id, [data])

    def _find_sweep(self, sweep_id: str) -> Run | None:
        condition = f"tags.`{SWEEP_ID_TAG}` = '{sweep_id}'"
        runs = self._client.search_runs([self._experiment_id], condition, max_results=1)
        return runs[0] if runs else None


def _data_set(spec: Mapping[str, object], facts: Mapping[str, object]) -> DatasetInput:
    """Return the training data as MLflow's data set: name, sizes and digest, no content or path."""
    # Only names and sizes: a path or the data themselves must not reach the server.
    task = spec.get("task")
    name = str(task["name"]) if isinstance(task, Mapping) and "name" in task else "training data"
    profile = {
        name: facts[name] for name in ("num_examples", "num_units", "privacy_unit") if name in facts
    }
    data = Dataset(
        name=name,
        digest=str(facts["content_hash"])[:MAX_DIGEST_CHARS],
        source_type="code",
        source=to_json({"tags": {"mlflow.source.name": f"raydp task {name}"}}),
        profile=to_json(profile),
    )
    return DatasetInput(data, [InputTag("mlflow.data.context", "training")])


def open_tracker(tracking: TrackingSpec) -> Tracker:
    """Open the tracker that a spec asks for.

    Raises:
        ValueError: the store cannot be opened, a name is not allowed or the key cannot be used.
    """
    return MLflowTracker(
        tracking.uri, tracking.experiment, tracking.registered_model, tracking.signing_key
    )
