"""A trial in MLflow: a child run, a logged model and a version, in stages that survive a kill.

The stages are: the run with its identity; the logged model with its files, metrics and parameters;
the version; the mark of completeness. Each stage looks for the results of an earlier attempt, so
that nothing is written twice. In a SQLite file, what comes before the model's files is one
transaction, and what comes after them is another one.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, Metric, Param, Run, RunTag
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from raydp.tracking.models.model_folder import upload
from raydp.tracking.portable import portable, to_json
from raydp.tracking.promotions import origin
from raydp.tracking.records import RECORD_TAG, TrialRecord, as_params, clean_key, name_of
from raydp.tracking.sealing.seal import SEAL_TAG, Signer
from raydp.tracking.store import EXPERIMENT_ID_TAG, MODEL_ID_TAG, Store
from raydp.tracking.stored_runs import (
    MODEL_URI_TAG,
    PARENT_TAG,
    RUN_ID_TAG,
    STATUS_TAG,
    is_whole,
    uri_of,
    versions_of_runs,
)
from raydp.tracking.tracker import NotDeliveredError
from raydp.tracking.transactions import has_transactions, one_transaction
from raydp.tracking.views import NOTE_TAG

SWEEP_TAG = "raydp.sweep"
REASON_TAG = "raydp.reason"
DIGEST_TAG = "raydp.record_digest"
NONFINITE_TAG = "raydp.nonfinite_metrics"
VERSIONS_TAG = (
    "mlflow.modelVersions"  # MLflow's pages link a logged model to its versions by this tag
)

SHOWN_TAGS = ("sweep", "epsilon", "certified")
"""Values of a record that a version's tags show, beside its base and MLflow's ids."""
MAX_REASON_CHARS = 500
VERSION_ATTEMPTS = 30
"""Attempts to get a version's number.

MLflow tries three times, and with many writers one may lose all three races.
"""
_ENDED = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True, kw_only=True)
class TrialWriter:
    """Writes the trials of one sweep.

    Attributes:
        parent_id: MLflow's id of the sweep's run.
        sweep: the sweep's name.
        key: key that signs the seals of models; None leaves seals unsigned.
    """

    store: Store
    experiment_id: str
    registered_model: str
    parent_id: str
    sweep: str
    key: Signer | None = None
    _made: set[str] = field(default_factory=set, init=False)
    """The name of the registered model, once this writer has made or found it."""

    @property
    def client(self) -> MlflowClient:
        return self.store.client

    def write(self, trial: TrialRecord) -> str:
        """Record a trained model; see `Tracker.log_trial`."""
        try:
            return self._write(trial, one_transaction)
        except MlflowException as error:
            if error.error_code == "TEMPORARILY_UNAVAILABLE" or not has_transactions(self.client):
                raise
        # Call by call, each call can fail for itself: a name that others have registered or
        # deleted, repeated metrics.
        return self._write(trial, nullcontext)

    def _write(
        self, trial: TrialRecord, together: Callable[[MlflowClient], AbstractContextManager[object]]
    ) -> str:
        """Write the missing stages of a trial. Calls in a block `together` may be one transaction.

        An incomplete run is completed call by call, because MLflow rolls back where a value is
        there already.
        """
        # Stage 1: find the run of an earlier attempt or make one, and its logged model.
        with together(self.client):
            run = self._earlier(trial)
            if run is not None and MODEL_URI_TAG in run.data.tags:
                if run.info.status == "RUNNING":
                    self._end(run, run.data.tags[STATUS_TAG], trial)
                if self._is_held(run):
                    return str(run.data.tags[MODEL_URI_TAG])
            resumed = run is not None
            if run is None:
                start = int((time.time() - (trial.seconds or 0)) * 1000)
                run = self._create(
                    trial.run_id, trial.configuration(), {DIGEST_TAG: trial.digest()}, start
                )
            model = self._model(run, trial, resumed)
        # Stage 2: the files, outside any transaction: an upload may take minutes.
        ready = str(model.status) == "READY"
        # The store lost its `mlruns`, or a part.
        if ready and not is_whole(self.store, model.artifact_location):
            # The old seal is not of the new files.
            self.client.set_logged_model_tags(model.model_id, {SEAL_TAG: ""})
            ready = False
        seal = (
            None if ready else upload(self.client, model.model_id, run.info.run_id, trial, self.key)
        )
        if self.registered_model not in self._made:
            self._create_registered_model()
        # Stage 3: values, version and the mark of completeness.
        with nullcontext() if resumed else together(self.client):
            if seal is not None:
                self.client.set_logged_model_tags(model.model_id, {SEAL_TAG: seal})
                model = self.client.finalize_logged_model(model.model_id, "READY")
            if MODEL_URI_TAG not in run.data.tags:
                self._log_values(run, trial, model)
            version = self._register(run, trial, model, resumed)
            model_uri = f"models:/{self.registered_model}/{version}"
            self.client.set_logged_model_tags(
                model.model_id,
                {VERSIONS_TAG: to_json([{"name": self.registered_model, "version": version}])},
            )
            # Mark the run as complete, and end it.
            self.client.set_tag(run.info.run_id, MODEL_URI_TAG, model_uri)
            self._end(run, trial.status, trial)
        return model_uri

    def _earlier(self, trial: TrialRecord) -> Run | None:
        """Return an earlier attempt's run; delete one without its model, or of another record."""
        run = self._find(trial.run_id)
        if run is None:
            return None
        complete = MODEL_URI_TAG in run.data.tags
        # A complete run only needs its model. An incomplete one must be of the very same record.
        if self._models_of(run) if complete else run.data.tags.get(DIGEST_TAG) == trial.digest():
            return run
        self._delete_models(run)
        self.client.delete_run(run.info.run_id)
        return None

    def _is_held(self, run: Run) -> bool:
        """Return whether the store has the version that a complete run names, and its files."""
        versions = versions_of_runs(self.store, [run.info.run_id])
        held = {
            uri_of(version) for version in versions if is_whole(self.store, str(version.source))
        }
        return run.data.tags[MODEL_URI_TAG] in held

    def write_failure(
        self, run_id: str, reason: str, params: Mapping[str, object], status: str
    ) -> None:
        """Record a trial without a model; see `Tracker.fail_trial`."""
        texts = as_params(params)
        run = self._find(run_id)
        # A failure never replaces a complete run, and removes what an incomplete one has published.
        if run is None:
            run = self._create(run_id, texts, {})
        elif MODEL_URI_TAG in run.data.tags:
            return
        else:
            self._delete_models(run)
        tags = {
            STATUS_TAG: status,
            REASON_TAG: portable(reason)[:MAX_REASON_CHARS],
            DIGEST_TAG: status,
        }
        self.client.log_batch(
            run.info.run_id,
            params=[Param(k, v) for k, v in texts.items() if k not in run.data.params],
            tags=[RunTag(k, v) for k, v in tags.items()],
        )
        self.client.set_terminated(run.info.run_id, _ENDED[status])

    def _find(self, run_id: str) -> Run | None:
        """Return the trial's run in this sweep, or None."""
        condition = f"tags.`{RUN_ID_TAG}` = '{run_id}' AND tags.`{PARENT_TAG}` = '{self.parent_id}'"
        runs = self.client.search_runs([self.experiment_id], condition, max_results=1)
        return runs[0] if runs else None

    def _create(
        self,
        run_id: str,
        configuration: Mapping[str, str],
        tags: dict[str, str],
        start: int | None = None,
    ) -> Run:
        """Create a run that holds its identity from the beginning, for a later attempt."""
        identity = {PARENT_TAG: self.parent_id, RUN_ID_TAG: run_id, SWEEP_TAG: self.sweep}
        return self.client.create_run(
            self.experiment_id,
            start_time=start,
            tags={**origin(), **identity, **tags},
            run_name=name_of(configuration) or run_id[:12],
        )

    def _end(self, run: Run, status: str, trial: TrialRecord) -> None:
        self.client.set_terminated(run.info.run_id, _ENDED[status], _end_time(run, trial))

    def _model(self, run: Run, trial: TrialRecord, resumed: bool) -> LoggedModel:
        """Return the logged model, which may be one that a killed driver left without its files."""
        models = self._models_of(run) if resumed else []
        return (
            models[0]
            if models
            else self.client.create_logged_model(
                self.experiment_id,
                name=f"trial-{trial.run_id[:12].replace('.', '_')}",
                source_run_id=run.info.run_id,
                tags=self._lookup_tags(trial),
                params=trial.all_params(),
                model_type="raydp",
            )
        )

    def _log_values(self, run: Run, trial: TrialRecord, model: LoggedModel) -> None:
        """Log parameters, tags and all metrics in one batch.

        Time stamps are derived from the record, so that MLflow ignores values that a killed driver
        has written.
        """
        outputs = run.outputs.model_outputs if run.outputs is not None else []
        # A resumed driver must not log the output a second time.
        if model.model_id not in {output.model_id for output in outputs}:
            self.client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=0)])
        metrics, nonfinite = _metrics(trial, model, _end_time(run, trial))
        tags = {STATUS_TAG: trial.status, **trial.privacy_tags()}
        if nonfinite:
            tags[NONFINITE_TAG] = ", ".join(nonfinite)
        if trial.description:
            tags[NOTE_TAG] = trial.description
        self.client.log_batch(
            run.info.run_id,
            metrics=metrics,
            params=[Param(k, v) for k, v in trial.all_params().items()],
            tags=[RunTag(k, v) for k, v in tags.items()],
        )

    def _register(self, run: Run, trial: TrialRecord, model: LoggedModel, resumed: bool) -> str:
        """Return the trial's version of the registered model; register it if needed."""
        # Optimistic: try to register, and look what happened if that fails.
        for attempt in range(VERSION_ATTEMPTS):
            if (resumed or attempt) and (versions := self._versions_of(run)):
                return str(versions[0].version)
            try:
                return self._create_version(run, trial, model)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    self._create_registered_model()
                elif "Model Version creation error" in str(error):
                    # Other writers took the number three times.
                    time.sleep(random.uniform(0, 0.1 * (attempt + 1)))
                else:
                    raise
        raise NotDeliveredError(
            f"too many register versions of {self.registered_model!r} at the same time"
        )

    def _create_registered_model(self) -> None:
        try:
            self.client.create_registered_model(self.registered_model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process has created it
                raise
        self._made.add(self.registered_model)

    def _create_version(self, run: Run, trial: TrialRecord, model: LoggedModel) -> str:
        """Register the logged model as a new version with its tags; return its number."""
        # A few tags that people filter by, and the whole record in one.
        record = {**self._lookup_tags(trial), **trial.configuration()}
        shown = {name: record.pop(name) for name in SHOWN_TAGS if name in record}
        record["base_weight_hash"] = str(trial.base["weight_hash"])
        tags = {
            **shown,
            "base": portable(trial.base["name"]),
            MODEL_ID_TAG: model.model_id,
            EXPERIMENT_ID_TAG: self.experiment_id,
            RECORD_TAG: json.dumps(record, sort_keys=True, ensure_ascii=False),
        }
        # With source models:/m-..., the SQL registry would look the model up in the process's
        # global store.
        version = self.client.create_model_version(
            self.registered_model,
            source=model.artifact_location,
            run_id=run.info.run_id,
            tags=tags,
            description=trial.description or None,
            model_id=model.model_id,
            await_creation_for=0,  # a version is ready at once; waiting polls every three seconds
        )
        return str(version.version)

    def _lookup_tags(self, trial: TrialRecord) -> dict[str, str]:
        return {
            "run_id": trial.run_id,
            "sweep": self.sweep,
            "status": trial.status,
            **trial.privacy_tags(),
        }

    def _models_of(self, run: Run) -> list[LoggedModel]:
        return list(
            self.client.search_logged_models(
                [self.experiment_id], f"source_run_id = '{run.info.run_id}'"
            )
        )

    def _versions_of(self, run: Run) -> list[ModelVersion]:
        condition = f"name = '{self.registered_model}' and run_id = '{run.info.run_id}'"
        return list(self.client.search_model_versions(condition))

    def _delete_models(self, run: Run) -> None:
        """Delete what an incomplete run has published."""
        for version in self._versions_of(run):
            self.client.delete_model_version(version.name, version.version)
        for model in self._models_of(run):
            self.client.delete_logged_model(model.model_id)


def _end_time(run: Run, trial: TrialRecord) -> int:
    """Return milliseconds from the run's stored start: a second attempt gets the same time."""
    return int(run.info.start_time + (trial.seconds or 0) * 1000)


def _metrics(
    trial: TrialRecord, model: LoggedModel, end_time: int
) -> tuple[list[Metric], list[str]]:
    """Return every step's values and the final ones, and the names of non-finite ones.

    Final values also go to the model.
    """
    final, nonfinite = trial.finite_metrics()
    # The history of each step, one millisecond before the final values, so that those are the
    # latest.
    metrics, last = [], 0
    for row in trial.step_metrics:
        step = int(row["step"])
        last = max(last, step)
        for name, value in row.items():
            if name == "step":
                continue
            if value is not None and math.isfinite(value):
                metrics.append(Metric(clean_key(name), float(value), end_time - 1, step))
            else:
                nonfinite.append(f"{clean_key(name)} at step {step}")
    # Beyond 100 metrics, MLflow fails on repeated ones.
    on_model = {metric.key for metric in model.metrics or []}
    ids = {name: None if name in on_model else model.model_id for name in final}
    # MLflow's pages list metrics in this order.
    ends = [Metric(k, v, end_time, last, model_id=ids[k]) for k, v in final.items()]
    return [*ends, *metrics], nonfinite
