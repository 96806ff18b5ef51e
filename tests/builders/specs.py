"""Specs of small sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SMALL_TASK = {"name": "builtin", "num_examples": 2000, "num_heldout": 50}
"""The built-in task, as small as it may be."""


def small_spec(folder: Path, **changes: Any) -> dict[str, Any]:
    """A sweep of two configurations of the built-in task, seconds long; `changes` replace
    sections."""
    return {
        "name": "small",
        "task": {**SMALL_TASK},
        "model": {
            "name": "tiny",
            "adapter": {"type": "lora", "r": 2, "alpha": 4, "target_modules": ["q_proj", "v_proj"]},
        },
        "method": {"name": "dp_adam", "max_grad_norm": 0.1},
        "privacy": {
            "target_epsilon": 8,
            "delta_exponent": 1.1,
            "accountant": "rdp",
            "noise_key": "test",
        },
        "space": {"batch_size": [32], "num_steps": [3, 6], "learning_rate": [0.01]},
        "seeds": [0],
        "cluster": {"max_concurrent_trials": 1},
        "scores": [{"name": "vmr_exact"}],
        "select": {"score": "vmr_exact", "min_gain_share": 0},
        "storage": str(folder / "runs"),
        "tracking": {
            "uri": f"sqlite:///{folder}/mlflow.db",
            "experiment": "small",
            "registered_model": "small",
        },
        **changes,
    }


def public_digits_spec(folder: Path, **changes: Any) -> dict[str, Any]:
    """The small spec of a linear network on digits, some of which are public; `changes` replace
    sections."""
    return small_spec(
        folder,
        **{
            "task": {"name": "with_public", "of": {"name": "digits"}},
            "model": {"name": "linear:1x8x8:10", "adapter": {"type": "none"}},
            "scores": [{"name": "mia_outputs"}],
            "select": {"score": "mia_outputs"},
            **changes,
        },
    )
