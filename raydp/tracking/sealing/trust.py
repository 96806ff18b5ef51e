"""Checks whether a model's guarantee is reliable: its seal, its signature, and audits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion

from raydp.tracking.records import tags_of
from raydp.tracking.sealing.folders import copy_problem, folder_problem
from raydp.tracking.sealing.seal import (
    NO_CARD,
    NO_FILES,
    OTHER_FIGURES,
    OTHER_MODEL,
    SEAL_TAG,
    Seal,
    public_keys,
)
from raydp.tracking.store import Store, artifact

ALARM_TAG = "audit_alarm"
ALARM = "an audit refutes its ε"


@dataclass(frozen=True, kw_only=True)
class Trust:
    """A reader's demands on a model.

    Attributes:
        keys: public keys, one of which must have signed. With None the model need not be signed,
            but an existing signature must fit.
        verify: also read the model's files, and not only the registry's tags.

    The tags of a signed model bind ε, δ, unit, accountant, noise, configuration and the identity of
    the model. Anybody who edits the tags cannot change or exchange these values undetected. The
    signature does not bind utility, scores and aliases, which are added later, nor the absence of
    an alarm. Only reading the files shows that they are the signed ones.
    """

    keys: frozenset[str] | None = None
    verify: bool = False

    @classmethod
    def given(cls, keys: Iterable[str | Path] | None, *, verify: bool = False) -> Trust:
        """Make the demands from public keys or files of public keys.

        Raises:
            ValueError: an item is not a public key.
        """
        public = public_keys(keys)
        if public is not None and not public:
            raise ValueError(
                "trusted_keys must name at least one key, got none. Leave it out to trust any."
            )
        return cls(keys=public, verify=verify)

    def problem(self, store: Store, model: LoggedModel, version: ModelVersion | None) -> str | None:
        """Return why the model's guarantee is unreliable; None if it is reliable."""
        problem = self.tag_problem(model, version)
        if problem is None and self.verify:
            with artifact(store, model.artifact_location) as folder:
                problem = folder_problem(folder, _sealed(model), self.keys)
        return problem

    def tag_problem(self, model: LoggedModel, version: ModelVersion | None) -> str | None:
        """Return why the guarantee is unreliable by the tags alone, without reading any file."""
        # The seal must be there, be of this model, and not be refuted by an audit.
        sealed = _sealed(model)
        if sealed is None:
            return NO_CARD
        said = sealed.statement
        if said.get("model_id") != model.model_id:
            return OTHER_MODEL
        if version is not None and ALARM_TAG in version.tags:
            return ALARM
        if version is not None and version.source not in (
            model.artifact_location,
            f"models:/{model.model_id}",
        ):
            return OTHER_MODEL  # MLflow itself would load the files at version.source
        if (problem := sealed.signature_problem(self.keys)) is not None:
            return problem
        # What look-ups read, in both places, must be what was sealed.
        places = [model.tags] if version is None else [model.tags, tags_of(version)]
        expected = {**said["guarantee"], "run_id": said.get("run_id")}
        same = all(tags.get(name) == text for tags in places for name, text in expected.items())
        configuration = said.get("configuration")
        same &= (
            isinstance(configuration, dict) and configuration.items() <= dict(model.params).items()
        )
        return None if same else OTHER_FIGURES

    def copy_checked(self, folder: Path, copy: Path, model: LoggedModel, uri: str) -> None:
        """Copy a model's files, and refuse them if they differ from the sealed ones.

        Read the copy, not the folder.

        Args:
            folder: the model's files. Somebody may change them at any moment.
            copy: a new folder in a place that nobody else can write to.

        Raises:
            ValueError: the message says which files differ, that they are gone, or what is wrong
                with the signature.
        """
        # Tags first: they cost nothing. No version here, because the URI may name a model without
        # one.
        problem = self.tag_problem(model, None) or copy_problem(
            folder, copy, _sealed(model), self.keys
        )
        if problem == NO_FILES:
            raise ValueError(
                f"MODEL must be complete, got {uri}: {NO_FILES} from {model.artifact_location}. "
                "Restore them. A SQLite store also finds them in the folder mlruns beside it."
            )
        if problem is not None:
            raise ValueError(
                f"MODEL must hold what its privacy card was made for, got {uri}: {problem}. "
                "Restore it, or check it and seal it by `raydp models seal`."
            )


def _sealed(model: LoggedModel) -> Seal | None:
    """Return the seal that the registry holds of a model."""
    return Seal.read(model.tags.get(SEAL_TAG, ""))
