"""The files of a tracked model.

transformers and peft can load the folder without raydp. It holds PEFT's adapter layout, or a full
model as save_pretrained writes it. Added files are privacy.json and privacy.md (the guarantee, for
programs and people), base.json (name and weight hash of the base model), code/ (the loader of
`mlflow.pyfunc`, which needs no raydp) and seal.json, which binds all files.

The MLmodel file describes the folder in MLflow's own format. Its flavours are raydp's own, a
python_function, and for language models MLflow's `transformers`. That flavour names a base of the
hub by its id and commit, and any other base as the folder `base` beside the adapter, which an
export writes. MLflow itself would record an absolute path, which no other machine has. No flavour
reads or writes a pickle.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec

from raydp.models.families import family_of
from raydp.tracking.portable import (
    ADAPTER_CONFIG,
    CHAT_TEMPLATE,
    model_files,
    portable,
    portable_config,
    to_json,
)
from raydp.tracking.records import TrialRecord
from raydp.tracking.sealing.folders import hash_of_file, hashes_of
from raydp.tracking.sealing.seal import (
    BASE_FILE,
    EXPORTED_BASE,
    PRIVACY_FILE,
    SEAL_FILE,
    SEAL_TAG,
    Seal,
    Signer,
    hash_of,
    statement,
)
from raydp.tracking.store import Store, artifact_bytes

CARD_FILE = "privacy.md"
MODEL_FILE = "MLmodel"
LOADER = "raydp.tracking.serving"
CODE_FOLDER = "code"
"""Folder of the modules by which MLflow loads a language model, with or without raydp."""
STANDALONE = "raydp_standalone"
_CODE = {
    STANDALONE: Path(__file__).parents[1] / "standalone.py",
    "raydp_plain": Path(__file__).with_name("plain.py"),
}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The files of one model for the upload.

    Attributes:
        written: a folder with the files that are written for the upload.
        as_they_are: files of the trial that are uploaded unchanged.
        hashes: SHA-256 (hex) of all files, by name.
    """

    written: Path
    as_they_are: tuple[Path, ...]
    hashes: dict[str, str]

    @classmethod
    def of(cls, trial: TrialRecord, written: Path, model_id: str, mlflow_run_id: str) -> Folder:
        """Write the files that the trial's folder lacks into an empty folder."""
        # Configurations are rewritten without paths of this machine; other files go up as they are.
        base: dict[str, Any] = portable(trial.base)
        base_name, kept = base["name"], []
        for path in model_files(trial.model_dir):
            if (config := portable_config(path, base_name)) is not None:
                (written / path.name).write_text(config, encoding="utf-8")
            else:
                kept.append(path)
        # The cards and MLflow's description, then a hash of every file for the seal.
        _write_cards(trial, written)
        kind = "adapter" if (trial.model_dir / ADAPTER_CONFIG).is_file() else "full"
        chats = (trial.model_dir / CHAT_TEMPLATE).is_file()
        write_mlmodel(written, kind, base, model_id=model_id, run_id=mlflow_run_id, chats=chats)
        hashes = hashes_of(written) | {path.name: hash_of_file(path) for path in kept}
        return cls(written=written, as_they_are=tuple(kept), hashes=hashes)

    def seal(self, trial: TrialRecord, model_id: str, key: Signer | None) -> Seal:
        """Make the seal over all files, and write seal.json."""
        sealed = _sealed(trial, model_id, self.hashes, key)
        (self.written / SEAL_FILE).write_text(sealed.file(self.hashes), encoding="utf-8")
        return sealed


def upload(
    client: MlflowClient, model_id: str, mlflow_run_id: str, trial: TrialRecord, key: Signer | None
) -> str:
    """Upload a trial's model folder to a logged model, and return its seal for the tag SEAL_TAG.

    Existing files are replaced.
    """
    # Files that raydp writes go through a scratch folder: the trial's own folder stays as it is.
    with tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
        folder = Folder.of(trial, Path(scratch), model_id, mlflow_run_id)
        sealed = folder.seal(trial, model_id, key)
        for path in folder.as_they_are:
            client.log_model_artifact(model_id, str(path))
        client.log_model_artifacts(model_id, str(folder.written))
    return sealed.tag()


def replace_cards(store: Store, model: LoggedModel, trial: TrialRecord, key: Signer | None) -> None:
    """Replace privacy.json, privacy.md and the seal. Do nothing if they are unchanged.

    The other files' hashes come from the trial's own folder. If the folder is gone, they come from
    the old seal, and only if the same key made it: files that exist on the server alone are never
    signed unseen.

    Raises:
        ValueError: the folder is gone, and this key did not seal the files on the server.
    """
    old = Seal.read(model.tags.get(SEAL_TAG, ""))
    with tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
        written = Path(scratch)
        # Seal the trial's own folder again, if it still exists.
        if trial.model_dir.is_dir():
            folder = Folder.of(trial, written, model.model_id, str(model.source_run_id))
            same = folder.hashes[PRIVACY_FILE] == (old.statement["privacy_sha256"] if old else None)
            if (
                old
                and same
                and old.key == (key.public if key else None)
                and old.signature_problem(None) is None
            ):
                return
            sealed = folder.seal(trial, model.model_id, key)
        else:
            # Otherwise take the other files' hashes from the old seal.
            _write_cards(trial, written)
            if old and hashes_of(written)[PRIVACY_FILE] == old.statement["privacy_sha256"]:
                return
            hashes = {**_sealed_hashes(store, model, old, key), **hashes_of(written)}
            sealed = _sealed(trial, model.model_id, hashes, key)
            (written / SEAL_FILE).write_text(sealed.file(hashes), encoding="utf-8")
        store.client.log_model_artifacts(model.model_id, scratch)
    store.client.set_logged_model_tags(model.model_id, {SEAL_TAG: sealed.tag()})


def write_mlmodel(
    folder: Path,
    kind: str,
    base: Mapping[str, Any],
    *,
    model_id: str | None,
    run_id: str | None,
    chats: bool,
) -> None:
    """Write MLflow's description of a model's folder, and the loader that it names.

    Args:
        kind: "adapter" or "full".
        base: the content of base.json.
        model_id, run_id: MLflow's ids of the logged model and of its run.
        chats: whether the model's tokenizer has a chat template of its own.
    """
    # MLflow loads a model of a family by raydp, and a language model by the copied loader, without raydp.
    name = base["name"]
    flavors: dict[str, Any] = {"raydp": {"kind": kind, "base": name, "loader": "raydp.load_model"}}
    if family_of(name) is not None:
        flavors["python_function"] = {"loader_module": LOADER}
    else:
        (folder / CODE_FOLDER).mkdir(exist_ok=True)
        for module, source in _CODE.items():
            shutil.copyfile(source, folder / CODE_FOLDER / f"{module}.py")
        flavors["python_function"] = {"loader_module": STANDALONE, "code": CODE_FOLDER}
        flavors["transformers"] = _transformers_flavor(kind, base)
    model = Model(
        model_id=model_id, run_id=run_id, flavors=flavors, signature=_signature(name, chats=chats)
    )
    model.save(str(folder / MODEL_FILE))


def _transformers_flavor(kind: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return MLflow's flavour `transformers` of a language model, as in its flavor_config."""
    flavor: dict[str, Any] = {
        "transformers_version": version("transformers"),
        "task": "text-generation",
        "instance_type": "TextGenerationPipeline",
        "torch_dtype": f"torch.{base.get('dtype', 'float32')}",
        "pipeline_model_type": "AutoModelForCausalLM",
        "source_model_name": base["name"],
        "components": ["tokenizer"],
        "tokenizer_type": "AutoTokenizer",
    }
    # A whole model needs no base; an adapter's is beside it or on the hub.
    if kind == "full":
        return {**flavor, "model_binary": "."}
    flavor["peft_adaptor"] = "."
    if (revision := base.get("revision")) is None:
        return {**flavor, "model_binary": EXPORTED_BASE}
    named = {
        "source_model_revision": revision,
        "tokenizer_name": base["name"],
        "tokenizer_revision": revision,
    }
    return {**flavor, **named}


def _signature(base_name: str, *, chats: bool) -> ModelSignature:
    """Return the signature: prompts in and texts out, or arrays in and probabilities out.

    Arrays and probabilities are those of a model of a family.
    """
    if (family := family_of(base_name)) is not None:
        shape, num_outputs = family.shapes(base_name)
        return ModelSignature(
            inputs=Schema([TensorSpec(np.dtype(np.float32), (-1, *shape))]),
            outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, num_outputs))]),
        )
    params = [
        ParamSpec("max_new_tokens", DataType.long, 32),
        ParamSpec("temperature", DataType.double, 0.0),
    ]
    if chats:
        params.append(ParamSpec("apply_chat_template", DataType.boolean, False))
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "prompt")]),
        outputs=Schema([ColSpec(DataType.string, "text")]),
        params=ParamSchema(params),
    )


def _write_cards(trial: TrialRecord, folder: Path) -> None:
    """Write the guarantee's record and card, and the base model's name and hash."""
    (folder / PRIVACY_FILE).write_text(to_json(trial.privacy), encoding="utf-8")
    if trial.card:
        (folder / CARD_FILE).write_text(str(portable(trial.card)), encoding="utf-8")
    (folder / BASE_FILE).write_text(to_json(trial.base), encoding="utf-8")


def _sealed(trial: TrialRecord, model_id: str, hashes: dict[str, str], key: Signer | None) -> Seal:
    said = statement(
        model_id=model_id,
        run_id=trial.run_id,
        configuration=trial.configuration(),
        privacy=trial.privacy,
        base_weight_hash=str(trial.base["weight_hash"]),
        hashes=hashes,
    )
    return Seal.make(said, key)


def _sealed_hashes(
    store: Store, model: LoggedModel, old: Seal | None, key: Signer | None
) -> dict[str, str]:
    """Return the hashes of a model's files from its earlier seal."""
    text = (artifact_bytes(store, model.artifact_location, SEAL_FILE) or b"").decode(
        errors="replace"
    )
    own = Seal.read(text)
    hashes: dict[str, str] = json.loads(text)["files"] if own is not None else {}
    # The list in the file counts only if the registry's seal vouches for its hash.
    intact = own is not None and own == old and hash_of(hashes) == own.statement["files_sha256"]
    problem = (
        own.signature_problem(frozenset({key.public}) if key else None)
        if own and intact
        else "not sealed as is"
    )
    if problem is not None:
        raise ValueError(
            "MODEL must be sealed by the same key before its card is replaced, got "
            f"{model.model_id}: {problem}. Restore the trial's model folder, or check the model "
            "and seal it by `raydp models seal`."
        )
    return hashes
