"""The files of a tracked model.

A folder that transformers and peft load by hand: PEFT's own adapter layout (or a full model as save_pretrained writes
it), with privacy.json and privacy.md (the guarantee, for programs and people) and base.json (name, weight hash of the
base model). The MLmodel file says in MLflow's own format what the folder is. Its flavour is ours and not
`transformers`: that one records the base model as an absolute local path, which no other machine has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydp.tracking.portable import ADAPTER_CONFIG, model_files, portable, portable_config, to_json
from raydp.tracking.records import TrialRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient

PRIVACY_FILE = "privacy.json"
CARD_FILE = "privacy.md"
BASE_FILE = "base.json"


def upload(client: MlflowClient, model_id: str, mlflow_run_id: str, trial: TrialRecord) -> None:
    """Write a trial's model folder to the artifacts of a logged model; a file that is there is replaced."""
    from mlflow.models import Model

    base_name = str(portable(trial.base["name"]))
    with tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
        written = Path(scratch)
        for path in model_files(trial.model_dir):
            if (config := portable_config(path, base_name)) is not None:
                (written / path.name).write_text(config, encoding="utf-8")
            else:
                client.log_model_artifact(model_id, str(path))
        write_privacy(written, trial.privacy, trial.card)
        (written / BASE_FILE).write_text(to_json(trial.base), encoding="utf-8")
        kind = "adapter" if (trial.model_dir / ADAPTER_CONFIG).is_file() else "full"
        flavor = {"kind": kind, "base": base_name, "loader": "raydp.load_model"}
        Model(model_id=model_id, run_id=mlflow_run_id, flavors={"raydp": flavor}).save(str(written / "MLmodel"))
        client.log_model_artifacts(model_id, str(written))


def write_privacy(folder: Path, privacy: Mapping[str, Any], card: str) -> None:
    """The guarantee's record and its card, as files of a model folder."""
    (folder / PRIVACY_FILE).write_text(to_json(privacy), encoding="utf-8")
    if card:
        (folder / CARD_FILE).write_text(str(portable(card)), encoding="utf-8")
