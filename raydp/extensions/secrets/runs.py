"""Models of runs without privacy, used to filter secrets.

They come from the registry, from a sweep, or are trained now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from raydp.analysis.tables.statements import Statement
from raydp.models.base_models import LoadedModel, load_base
from raydp.models.quantization import quantise
from raydp.spec.sections import ModelSpec
from raydp.sweep.api import Sweep, sweep_folder
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import points_table
from raydp.tracking import load_model, load_tokenizer, show_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class NonPrivateRuns:
    """Registered models without a guarantee, on one base model.

    Attributes:
        uris: addresses of the models.
        store: the tracking store.
        base_name: name of the base model.
        dtype: recorded type of the base model's weights.
        quantization: recorded precision of its linear layers; None if they are whole.
    """

    uris: tuple[str, ...]
    store: str
    base_name: str
    dtype: str
    quantization: str | None = None

    @classmethod
    def registered(cls, uris: Sequence[str], store: str, base: str | None = None) -> NonPrivateRuns:
        """Return models, given their registry addresses.

        Raises:
            ValueError: there is no such model, one was trained with privacy, or the models have
                different bases.
        """
        shown = [show_model(uri, tracking_uri=store) for uri in uris]
        # A private run would hide what can be memorised.
        for uri, record in zip(uris, shown, strict=True):
            if record["epsilon"] != float("inf"):
                raise ValueError(
                    f"--model must be of a run without privacy, got {uri!r} with epsilon "
                    f"{record['epsilon']:g}. A private run does not show what can be memorised: "
                    "use method nonprivate."
                )
            if (stated := Statement.of(record.get("privacy", {}))) is not None:
                raise ValueError(
                    f"--model must be of a run without privacy, got {uri!r}, of which epsilon "
                    f"{stated.epsilon:g} is stated. Whoever trained it has added noise: name a model that "
                    "was trained without."
                )
        names = {record["base"]["name"] for record in shown}
        # A secret that the base model says must be judged by one base.
        if base is None and len(names) > 1:
            raise ValueError(
                f"--model must name models of one base, got {', '.join(sorted(names))}. Filter "
                "apart."
            )
        recorded = shown[0]["base"]
        return cls(
            uris=tuple(uris),
            store=store,
            base_name=base or names.pop(),
            dtype=recorded.get("dtype", "float32"),
            quantization=recorded.get("quantization"),
        )

    @classmethod
    def of_sweep(cls, source: str, storage: str) -> NonPrivateRuns:
        """Return every finished run of a sweep, by the sweep's folder or name.

        Raises:
            ValueError: there is no such sweep, none of its runs has finished, or it is private.
        """
        return cls._of_folder(sweep_folder(source, storage))

    @classmethod
    def trained(cls, spec: Path) -> NonPrivateRuns:
        """Train the runs of a spec with the method nonprivate now.

        Resume from partial results, if there are any.

        Raises:
            ValueError: the spec has mistakes, or its method is another one.
        """
        sweep = Sweep(spec)
        if sweep.spec.method.name != "nonprivate":
            raise ValueError(
                f"method.name must be nonprivate in --train, got {sweep.spec.method.name!r}. "
                "Change it."
            )
        sweep.run(resume=sweep.begun)
        return cls._of_folder(sweep.folder)

    @classmethod
    def _of_folder(cls, folder: SweepFolder) -> NonPrivateRuns:
        table = points_table(folder)
        finished = table[table["status"] == "finished"]
        if finished.empty:
            raise ValueError(
                f"SWEEP must have a finished run, got none in {folder.path.name!r}. Run it to its "
                "end."
            )
        spec = folder.spec()
        return cls.registered(list(finished["model_uri"]), spec.tracking.uri)

    def base(self) -> LoadedModel:
        """Return the untrained model."""
        # As recorded: another type or quantisation would be another base.
        spec = {"name": self.base_name, "dtype": self.dtype, "quantization": self.quantization}
        loaded = load_base(ModelSpec.model_validate(spec))
        quantise(loaded)
        return LoadedModel(
            model=loaded.model, tokenizer=cast("PreTrainedTokenizerBase", loaded.tokenizer)
        )

    def models(self) -> Iterator[LoadedModel]:
        """Yield the trained models; one is in memory at a time."""
        for uri in self.uris:
            yield LoadedModel(
                model=load_model(uri, tracking_uri=self.store, base=self.base_name),
                tokenizer=load_tokenizer(uri, tracking_uri=self.store, base=self.base_name),
            )
