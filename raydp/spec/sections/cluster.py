"""The sections on where a sweep runs, and where its results are kept."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from raydp.spec.sections.section import AtLeastOne, Section
from raydp.system.locations import MLFLOW_CREDENTIALS, is_uri, refuse_credentials

REGISTERED_MODEL = r"\w[\w .-]*"
"""Pattern of names of registered models, which are parts of addresses models:/name/version."""


class ClusterSpec(Section):
    """Where the sweep runs. Nothing here changes a result."""

    address: str = "local"
    """`local` starts Ray on this machine; `auto` or host:port joins a cluster."""
    workers_per_trial: AtLeastOne | tuple[AtLeastOne, AtLeastOne] = 1
    """Ray Train workers that share a trial.

    With [min, max], a trial takes as many workers as are free. If workers are lost, it continues
    with the others, which counts as a retry. q and T do not change.
    """
    sharding: Literal["none", "full"] = "none"
    """`none`: every worker holds the whole model.

    `full`: each worker holds its share of the weights (FSDP2), and in full fine-tuning its share of
    gradients and optimizer state, for models that do not fit one device.
    """
    gpus_per_worker: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """GPUs of one worker.

    With a fraction such as 0.5, several trials share a GPU, and each may use its fraction of the
    memory.
    """
    cpus_per_worker: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1
    """CPU cores that Ray reserves for one worker, and threads on which it computes.

    A worker that runs alone takes no more.
    """
    working_dir: str | None = None
    """Folder with your own code (plug-ins), or the URI of its zip file.

    Ray copies it to every node. Without it, the code must be installed on the nodes.
    """
    exchange: str | None = None
    """URI of an object store (s3://bucket/folder, gs://...) for checkpoints and trained models.

    It is needed if some nodes do not see the sweep's folder.
    """
    max_concurrent_trials: Annotated[int, Field(ge=1)] | None = None
    """Largest number of worker groups that run side by side; by default as many as fit."""
    autoscaling: bool = False
    """Whether the cluster grows on demand.

    If true, max_concurrent_trials worker groups are started even if they do not fit yet. Waiting
    groups make the cluster add nodes.
    """
    microbatch_size: Annotated[int, Field(ge=1)] | None = None
    """Examples in one backward pass.

    By default it is chosen from the examples' lengths, and halved if memory runs out.
    """
    gradient_checkpointing: bool = False
    """Recompute parts of the forward pass in the backward pass, to use less memory and more
    time."""
    checkpoint_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Seconds between two checkpoints of a trial."""
    max_retries: Annotated[int, Field(ge=0)] = 1
    """How often a trial is tried again if its workers fail."""
    grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """Seconds that Ctrl-C or SIGTERM waits for trials that train to save their state."""
    prefix_cache_gib: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 8.0
    """Disk space in GiB for the hidden states below the first adapter; 0 computes them in every
    step."""

    @property
    def threads_here(self) -> int | None:
        """Return the threads of a worker; None unless it has a whole model on this processor."""
        elsewhere = self.address != "local" or self.gpus_per_worker or self.sharding != "none"
        return None if elsewhere else max(1, int(self.cpus_per_worker))

    @field_validator("address", "working_dir", "exchange")
    @classmethod
    def _holds_no_credentials(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            field = f"cluster.{info.field_name}"
            refuse_credentials(value, field, "in the environment of the cluster")
        return value

    @field_validator("address")
    @classmethod
    def _can_be_an_address(cls, address: str) -> str:
        # IPv6 addresses stand in brackets.
        if not re.fullmatch(
            r"auto|local|(ray://)?[^\s/:]+:\d{1,5}|(ray://)?\[[0-9a-fA-F:]+\]:\d{1,5}", address
        ):
            raise ValueError(f"must be local, auto or host:port, got {address!r}. Write head:6379.")
        return address

    @field_validator("exchange")
    @classmethod
    def _exchange_is_a_uri(cls, exchange: str | None) -> str | None:
        if exchange is not None and not is_uri(exchange):
            raise ValueError(
                f"must be a URI such as s3://bucket/folder, got {exchange!r}. Put file:// before a "
                "path."
            )
        return exchange

    @model_validator(mode="after")
    def _workers_can_do_it(self) -> ClusterSpec:
        # Check workers, code and machines, then GPUs.
        if self.min_workers > self.max_workers:
            raise ValueError(
                "cluster.workers_per_trial must be [min, max] with min <= max, got "
                f"{list(self.worker_range)}. Exchange the two."
            )
        if self.working_dir is not None and self.address == "local":
            raise ValueError(
                "cluster.working_dir must go with another address than local, got "
                f"{self.working_dir!r}. Remove it: workers on this machine see the driver's own "
                "code."
            )
        # Without a bound, the cluster would grow with the number of runs.
        if self.autoscaling and (self.max_concurrent_trials is None or self.address == "local"):
            missing = "cluster.max_concurrent_trials"
            if self.address == "local":
                missing = "another address than local"
            raise ValueError(
                f"cluster.autoscaling must go with {missing}, got none. Give it, or remove "
                "autoscaling."
            )
        # Ray gives out whole GPUs, or fractions of a single one.
        if self.gpus_per_worker > 1 and self.gpus_per_worker % 1:
            raise ValueError(
                f"cluster.gpus_per_worker must be whole above 1, got {self.gpus_per_worker:g}. "
                "Round it: a worker has whole GPUs, or a part of one."
            )
        if 0 < self.gpus_per_worker < 1 and self.max_workers > 1:
            raise ValueError(
                f"cluster.gpus_per_worker must be whole with workers_per_trial {self.max_workers}, "
                f"got {self.gpus_per_worker:g}. NCCL needs a GPU per worker: share GPUs between "
                "trials of one worker."
            )
        # A single worker has nobody to share the weights with.
        if self.sharding == "full" and self.max_workers == 1:
            raise ValueError(
                "cluster.workers_per_trial must be at least 2 with sharding 'full', got 1. Give "
                "more workers, or leave sharding out."
            )
        return self

    def workers_on(self, cpus: float, gpus: float) -> int:
        """Return how many workers fit on a node; a fraction of a GPU lies on one GPU."""
        # The scarcest resource decides. 1e-9 corrects quotients such as 0.3 / 0.1 =
        # 2.9999999999999996.
        bounds = [cpus / self.cpus_per_worker]
        if self.gpus_per_worker >= 1:
            bounds.append(gpus / self.gpus_per_worker)
        elif self.gpus_per_worker:
            bounds.append(int(gpus) * int(1 / self.gpus_per_worker + 1e-9))
        return int(min(bounds) + 1e-9)

    @property
    def worker_range(self) -> tuple[int, int]:
        """Return the smallest and the largest number of workers of a trial."""
        workers = self.workers_per_trial
        return (workers, workers) if isinstance(workers, int) else workers

    @property
    def min_workers(self) -> int:
        return self.worker_range[0]

    @property
    def max_workers(self) -> int:
        return self.worker_range[1]


class TrackingSpec(Section):
    """Where MLflow keeps runs and models: SQLite by default, or any MLflow server.

    And further logs of the runs.
    """

    uri: str = "sqlite:///raydp.db"
    """URI of the MLflow store: a SQLite file (sqlite:///FILE) or an MLflow server (http://...)."""
    experiment: Annotated[str, Field(min_length=1, max_length=256)] = "raydp"
    """Name of the MLflow experiment that the runs are logged in."""
    registered_model: str = "raydp"
    """Name of the registered model; every finished run is one of its versions."""
    signing_key: str | None = None
    """File with the team's private key, made by `raydp models keygen`.

    Every registered model's privacy card and weights are signed with it. The path is not sent to
    MLflow.
    """
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Further logs of every run, in the sweep's folder: `tensorboard`, and `wandb` (Weights &
    Biases, which is offline: `wandb sync` uploads). They hold the run's config, step metrics,
    utility and scores."""
    webhook: Annotated[str, Field(pattern=r"^(https?://[^@]+|\$[A-Za-z_]\w*)$")] | None = None
    """Address that is told when the sweep ends, by one POST of JSON without content of the data.

    `$NAME` is the variable of the environment that holds the address, which is then in no file.
    """

    @field_validator("loggers")
    @classmethod
    def _distinct_loggers(cls, loggers: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(loggers)) < len(loggers):
            raise ValueError(f"must be distinct, got {list(loggers)}. Remove the repeated ones.")
        return loggers

    @field_validator("uri")
    @classmethod
    def _uri_holds_no_password(cls, uri: str) -> str:
        refuse_credentials(uri, "tracking.uri", MLFLOW_CREDENTIALS)
        return uri

    @field_validator("registered_model")
    @classmethod
    def _registry_takes_it(cls, name: str) -> str:
        """Check the name before training: some sweeps open MLflow only after all runs."""
        if not re.fullmatch(REGISTERED_MODEL, name):
            raise ValueError(
                f"must be letters, digits, '_', '-', '.' and spaces, got {name!r}. Rename it."
            )
        return name
