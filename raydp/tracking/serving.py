"""Loader for `mlflow models serve` and `mlflow.pyfunc.load_model` where raydp is installed.

Without raydp, language models are loaded by the copies of `raydp.tracking.standalone` and
`raydp.tracking.models.plain` in their folder. A language model takes prompts and returns texts; a
classifier takes arrays and returns probabilities. MLflow reads the folder's MLmodel, which names
the loader, before anything can be compared with the seal. If the artifact store is not trusted,
serve a folder that `raydp models export` wrote.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydp.models.families import family_of
from raydp.tracking.models.fetching import recorded_base
from raydp.tracking.models.loading import load_folder, tokenizer_in
from raydp.tracking.models.plain import TextGenerator
from raydp.tracking.sealing.folders import copy_problem
from raydp.tracking.sealing.seal import public_keys

OPTIONS = ("base", "dtype", "trusted_keys")


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> object:
    """Load a model's folder, after comparing every file with the seal; MLflow's entry point.

    Args:
        path: the model's folder.
        model_config: base (name or folder of the base model), dtype, and trusted_keys (a list), all
            optional.

    Raises:
        ValueError: an option is unknown, or the folder differs from the sealed one.
    """
    options = dict(model_config or {})
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise ValueError(
            f"model_config must hold {', '.join(OPTIONS)} only, got {', '.join(unknown)}. Correct "
            "it."
        )
    # Check a private copy, and load from it.
    with tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
        folder = Path(scratch) / "model"  # the sealed files alone
        public = public_keys(options.get("trusted_keys"))
        problem = copy_problem(Path(path), folder, None, public, exported=True)
        if problem is not None:
            raise ValueError(
                f"MODEL must hold what its privacy card was made for, got {path}: {problem}. Fetch "
                "it again."
            )
        model = load_folder(folder, options.get("base"), options.get("dtype"))
        if (family := family_of(recorded_base(folder)["name"])) is not None:
            return family.served(model)
        # An exported adapter's tokenizer is not sealed, so the base's own is read.
        return TextGenerator(model=model, tokenizer=tokenizer_in(folder, options.get("base")))
