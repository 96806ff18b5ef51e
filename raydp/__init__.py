"""raydp: hyperparameter sweeps under one differential-privacy guarantee, scored for what the models
leak."""

from importlib import import_module
from typing import Any

_LAZY = {
    "Selection": "raydp.analysis",
    "Sweep": "raydp.sweep.api",
    "SweepResult": "raydp.sweep.ending.result",
    "__version__": "raydp.version",
    "find_models": "raydp.tracking",
    "load_model": "raydp.tracking",
    "load_points": "raydp.analysis",
    "load_tokenizer": "raydp.tracking",
    "plan": "raydp.sweep.api",
    "report": "raydp.sweep.reports",
    "select": "raydp.sweep.api",
}
__all__ = [
    "Selection",
    "Sweep",
    "SweepResult",
    "find_models",
    "load_model",
    "load_points",
    "load_tokenizer",
    "plan",
    "report",
    "score",
    "select",
]
NO_SPARK = (
    "raydp.spark is of Spark's RayDP, another project whose import name is raydp, too. This is "
    "raydp-tune, which reads no data frames of Spark. Make an environment without raydp-tune, run "
    "`pip install raydp` there, and convert the data frame in it, for example to Parquet."
)


def __getattr__(name: str) -> Any:
    if name == "spark":  # ray.data.from_spark and Dataset.to_spark ask for it
        raise AttributeError(NO_SPARK)
    if name == "score":
        from raydp.plugins.registries import service

        return service(name, needed_by="raydp.score")
    if name not in _LAZY:
        raise AttributeError(
            f"module 'raydp' has no attribute {name!r}. Known: {', '.join(__all__)}."
        )
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
