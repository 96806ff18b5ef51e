"""Whether a model's guarantee can be relied on: its seal, its signature, and audits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.tracking.sealing.seal import (
    NO_CARD,
    OTHER_FIGURES,
    OTHER_MODEL,
    SEAL_TAG,
    Seal,
    folder_problem,
)
from raydp.tracking.sealing.signing import trusted_keys
from raydp.tracking.store import Store, artifact

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

ALARM_TAG = "audit_alarm"
ALARM = "an audit refutes its ε"


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What a reader demands of a model.

    Attributes:
        keys: public keys one of which must have signed; None: a signature need not be there, but must fit if it is.
        verify: whether the model's files are read too, and not only what the registry says of them.

    By the tags alone, a signature binds ε, δ, unit, accountant, noise, configuration and the identity of the model:
    who may edit tags cannot change or exchange them unseen. It does not bind utility, scores and aliases, which come
    later, nor the absence of an alarm. That the files are those that were signed is only known once they are read.
    """

    keys: frozenset[str] | None = None
    verify: bool = False

    @classmethod
    def given(cls, keys: Iterable[str | Path] | None, *, verify: bool = False) -> Trust:
        """From public keys or files of such.

        Raises:
            ValueError: one is no public key.
        """
        found = None if keys is None else trusted_keys(keys)
        if found is not None and not found:
            raise ValueError("trusted_keys must name at least one key, got none. Leave it out to trust any.")
        return cls(keys=found, verify=verify)

    def problem(self, store: Store, model: LoggedModel, version: ModelVersion | None) -> str | None:
        """Why the model's guarantee is not to be relied on; None where it is."""
        problem = self.tag_problem(model, version)
        if problem is None and self.verify:
            with artifact(store, model.artifact_location) as folder:
                problem = self.folder_problem(folder, model)
        return problem

    def tag_problem(self, model: LoggedModel, version: ModelVersion | None) -> str | None:
        """The same by what the registry says, without reading the model's files."""
        sealed = Seal.read(model.tags.get(SEAL_TAG, ""))
        if sealed is None:
            return NO_CARD
        said = sealed.statement
        if said.get("model_id") != model.model_id:
            return OTHER_MODEL
        if version is not None and ALARM_TAG in version.tags:
            return ALARM
        if version is not None and version.source not in (model.artifact_location, f"models:/{model.model_id}"):
            return OTHER_MODEL  # what MLflow itself would load
        if (problem := sealed.signature_problem(self.keys)) is not None:
            return problem
        places = [model.tags] if version is None else [model.tags, version.tags]
        expected = {**said["guarantee"], "run_id": said.get("run_id")}
        same = all(tags.get(name) == text for tags in places for name, text in expected.items())
        configuration = said.get("configuration")
        same &= isinstance(configuration, dict) and configuration.items() <= dict(model.params).items()
        return None if same else OTHER_FIGURES

    def folder_problem(self, folder: Path, model: LoggedModel) -> str | None:
        """The same by the model's files, against what the registry says of them."""
        return folder_problem(folder, Seal.read(model.tags.get(SEAL_TAG, "")), self.keys)

    def check_folder(self, folder: Path, model: LoggedModel, uri: str) -> None:
        """Refuse files that are not those which were sealed.

        Raises:
            ValueError: says which differ, or what is wrong with the signature.
        """
        problem = self.tag_problem(model, None) or self.folder_problem(folder, model)
        if problem is not None:
            raise ValueError(
                f"MODEL must hold what its privacy card was made for, got {uri}: {problem}. Restore it, or check it "
                "and seal it by `raydp models seal`."
            )
