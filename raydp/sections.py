"""The sections of a sweep's specification, each with what it may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from raydp import registries

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastOne = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the spec: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AdapterSpec(Section):
    """What is trained: a LoRA adapter, a soft prompt (both peft's) or, with type "none", every weight.

    Attributes:
        type: "lora", "soft_prompt" (prompt tuning; Lester et al. 2021) or "none" (full fine-tuning).
        r: rank of the LoRA adapter.
        alpha: scale of the LoRA adapter; the update is alpha / r times B A.
        target_modules: names of the linear layers that get a LoRA adapter.
        layers_to_transform: positions of the decoder layers that get one; all by default.
        num_virtual_tokens: length of the soft prompt; every one is a trained embedding, and stands before the tokens.
    """

    type: Literal["lora", "soft_prompt", "none"] = "lora"
    r: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Positive = 16.0
    target_modules: tuple[str, ...] = ("q_proj", "v_proj")
    layers_to_transform: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    num_virtual_tokens: Annotated[int, Field(ge=1, le=4096)] = 20

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> AdapterSpec:
        for name, field in type(self).model_fields.items():
            value, owner = getattr(self, name), "soft_prompt" if name == "num_virtual_tokens" else "lora"
            if name != "type" and self.type != owner and value != field.default:
                raise ValueError(
                    f"model.adapter.{name} must be left out with type {self.type!r}, got {value}. "
                    f"Remove it, or use type {owner!r}."
                )
        return self

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A new type leaves the identity of the runs of before as it is: theirs always had LoRA's fields in it."""
        values: dict[str, Any] = handler(self)
        prompt = ("type", "num_virtual_tokens")
        return {k: v for k, v in values.items() if k == "type" or (k in prompt) == (self.type == "soft_prompt")}


class ModelSpec(Section):
    """The base model.

    Attributes:
        name: `tiny`, `smollm2-135m-instruct-q4`, a local folder or a Hugging Face hub id.
        adapter: what is trained on it.
        dtype: of the base weights under an adapter. In full fine-tuning the weights are float32 and the matrix products
            of training are computed in this type (autocast).
    """

    name: str
    adapter: AdapterSpec = AdapterSpec()
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def weight_dtype(self) -> Literal["float32", "bfloat16"]:
        """The type of the base weights in memory."""
        return "float32" if self.adapter.type == "none" else self.dtype

    @property
    def uses_autocast(self) -> bool:
        """Whether training computes matrix products in another type than the weights'."""
        return self.dtype != self.weight_dtype


class NumRunsSpec(Section):
    """The distribution of the number K of runs of a private selection.

    Attributes:
        distribution: "truncated_negative_binomial" (K >= 1) or "poisson" (with K = 0 nothing is trained or released).
        mean: E[K].
        eta: η of the truncated negative binomial; 1 is geometric, 0 logarithmic; smaller costs less and spreads K more.
    """

    distribution: Literal["truncated_negative_binomial", "poisson"] = "truncated_negative_binomial"
    mean: Annotated[float, Field(gt=1, le=1000)] = 10.0
    eta: Annotated[float, Field(ge=-0.5, le=10)] = 1.0

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> NumRunsSpec:
        if self.distribution == "poisson" and "eta" in self.model_fields_set:
            raise ValueError(
                f"privacy.num_runs.eta must be left out with distribution poisson, got {self.eta:g}. Remove it."
            )
        return self

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        return {k: v for k, v in values.items() if (self.distribution, k) != ("poisson", "eta")}


class PrivacySpec(Section):
    """The guarantee that every configuration is calibrated to.

    Attributes:
        target_epsilon: ε.
        target_delta: δ; or
        delta_exponent: δ = n^-delta_exponent (Hu et al. 2025, section 3.1: 1.1).
        accountant: prv, pld or rdp.
        unit: what is protected: one example, or one user with all its examples. batch_size, n and δ count units.
        noise_key: "secret" draws a key for the sweep; "test" fixes it, for tests and demonstrations, and the guarantee
            is then not certified.
        tuning: "ignored": ε is that of one model, whatever was tried besides. "private_selection": ε is that of the one
            model that is released, the best of a random number of runs by utility on public data (Papernot and Steinke
            2022).
        num_runs: private_selection: the distribution of the number of runs.
    """

    target_epsilon: Annotated[float, Field(gt=0, le=1000)]
    target_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    delta_exponent: Positive | None = None
    accountant: str = "prv"
    unit: Literal["example", "user"] = "example"
    noise_key: Literal["secret", "test"] = "secret"
    tuning: Literal["ignored", "private_selection"] = "ignored"
    num_runs: NumRunsSpec | None = None

    @property
    def selects(self) -> bool:
        """Whether the choice of the released model is part of the guarantee."""
        return self.tuning == "private_selection"

    @model_validator(mode="before")
    @classmethod
    def _selection_has_a_distribution(cls, data: Any) -> Any:
        """What is used is written out, so that a spec is the same with its defaults and without."""
        if isinstance(data, Mapping) and data.get("tuning") == "private_selection" and data.get("num_runs") is None:
            return {**data, "num_runs": {}}
        return data

    @model_validator(mode="after")
    def _selection_is_whole(self) -> PrivacySpec:
        if not self.selects and self.num_runs is not None:
            raise ValueError(
                "privacy.num_runs must be left out with tuning ignored, got a distribution. Remove it, or set "
                "privacy.tuning: private_selection."
            )
        if self.selects and self.accountant != "rdp":
            raise ValueError(
                f"privacy.accountant must be rdp with tuning private_selection, got {self.accountant!r}. The price of "
                "choosing is known in Rényi divergences: set it to rdp."
            )
        return self

    @model_serializer(mode="wrap")
    def _without_what_does_not_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is not in use is not part of a run's identity."""
        values: dict[str, Any] = handler(self)
        return values if self.selects else {k: v for k, v in values.items() if k not in ("tuning", "num_runs")}

    @model_validator(mode="after")
    def _one_delta(self) -> PrivacySpec:
        if self.target_delta is not None and self.delta_exponent is not None:
            raise ValueError("takes target_delta or delta_exponent, got both. Remove one.")
        return self

    @field_validator("accountant")
    @classmethod
    def _known_accountant(cls, name: str) -> str:
        registries.resolve("accountants", name)
        return name

    def delta(self, num_units: int) -> float:
        """δ for n units: the given one, or n^-delta_exponent (1.1 where neither is given)."""
        if self.target_delta is not None:
            return self.target_delta
        return float(num_units ** -(self.delta_exponent or 1.1))


class SelectSpec(Section):
    """How the configuration is chosen at the end. With privacy.tuning private_selection what is left out is the only
    choice that the guarantee covers: rule best-utility, without a constraint."""

    score: str
    rule: Literal["procedure", "best-utility", "worst-utility", "oracle"] = "procedure"
    min_utility_gain: Annotated[float, Field(ge=0, le=1)] | None = 0.9
    max_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None


class ClusterSpec(Section):
    """Where it runs. Nothing here changes a result.

    Attributes:
        address: "local" starts Ray on this machine, "auto" or host:port joins a cluster.
        workers_per_trial: Ray Train workers that share a trial; or [min, max]: as many as are free when they start, and
            what is left when they have to start again, which counts as a retry. q and T stay as they are.
        sharding: "none": every worker holds the whole model. "full": each holds its share of the weights (FSDP2), for
            models that do not fit one device; with full fine-tuning of gradients and optimizer state too.
        max_concurrent_trials: worker groups that run side by side; as many as fit by default.
        microbatch_size: examples in one backward pass; by default chosen from their lengths, and halved where memory
            does not suffice.
        gradient_checkpointing: keep less of the forward pass for the backward pass and compute it again there.
        checkpoint_seconds: time between two checkpoints of a trial.
        max_retries: how often a trial whose workers failed is tried again.
        prefix_cache_gib: disk space for the hidden states below the first adapter; 0 computes them in every step.
    """

    address: str = "local"
    workers_per_trial: AtLeastOne | tuple[AtLeastOne, AtLeastOne] = 1
    sharding: Literal["none", "full"] = "none"
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1
    max_concurrent_trials: Annotated[int, Field(ge=1)] | None = None
    microbatch_size: Annotated[int, Field(ge=1)] | None = None
    gradient_checkpointing: bool = False
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0
    max_retries: Annotated[int, Field(ge=0)] = 1
    prefix_cache_gib: Annotated[float, Field(ge=0)] = 8.0

    @model_validator(mode="after")
    def _workers_can_do_it(self) -> ClusterSpec:
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"cluster.workers_per_trial must be [min, max] with min <= max, got {list(self.worker_range)}. "
                "Exchange the two."
            )
        if self.sharding == "full" and self.max_workers == 1:
            raise ValueError(
                "cluster.workers_per_trial must be at least 2 with sharding 'full', got 1. Give more workers, or leave "
                "sharding out."
            )
        return self

    @property
    def worker_range(self) -> tuple[int, int]:
        """Fewest and most workers of a trial."""
        workers = self.workers_per_trial
        return (workers, workers) if isinstance(workers, int) else workers

    @property
    def min_workers(self) -> int:
        return self.worker_range[0]

    @property
    def max_workers(self) -> int:
        return self.worker_range[1]


class TrackingSpec(Section):
    """Where MLflow keeps runs and models. SQLite by default; any MLflow server by its URI."""

    uri: str = "sqlite:///raydp.db"
    experiment: str = "raydp"
    registered_model: str = "raydp"


class SpaceSpec(Section):
    """The configurations: a named space, a list of points, or a grid of three lists."""

    name: str | None = None
    points: Annotated[tuple[tuple[AtLeastOne, AtLeastOne, Positive], ...], Field(min_length=1)] | None = None
    batch_size: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    num_steps: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] | None = None
    learning_rate: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None

    @field_validator("points", mode="before")
    @classmethod
    def _points_as_rows(cls, points: Any) -> Any:
        """A point is [b, T, η] or a mapping with the three names."""
        keys = ("batch_size", "num_steps", "learning_rate")
        if not isinstance(points, list | tuple):
            return points
        return [tuple(p[k] for k in keys) if isinstance(p, dict) and set(p) == set(keys) else p for p in points]

    @model_validator(mode="after")
    def _one_kind(self) -> SpaceSpec:
        grid = (self.batch_size, self.num_steps, self.learning_rate)
        kinds = [self.name is not None, self.points is not None, any(axis is not None for axis in grid)]
        if sum(kinds) != 1 or (kinds[2] and any(axis is None for axis in grid)):
            raise ValueError(
                "must be {name: ...}, {points: [[b, T, η], ...]} or the three lists batch_size, num_steps and "
                "learning_rate. Give exactly one of them."
            )
        return self
