"""Shadow models: a target and shadows, trained on random halves of a task, and attacked.

Each is a sweep of one run.

The attack measures a configuration, not an existing model. Whoever releases a model trained on all
data learns how well an attacker detects membership in a model that was trained in the same way on
half of the data.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from raydp.extensions.membership.shadow_attack import run_id_of
from raydp.search_spaces.configuration import Configuration, point_of
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.api import Sweep
from raydp.sweep.store.folder import SweepFolder

DEFAULT_SHADOWS = 4


def shadow_specs(
    spec: SweepSpec, num_shadows: int, configuration: Configuration | None, seed: int
) -> list[SweepSpec]:
    """Return the target's sweep and then the shadows', each of one configuration and one seed.

    Shadows come in pairs of complementary halves, so half of the shadows were trained on each
    example.

    Args:
        spec: the sweep to derive from.
        num_shadows: number of shadows, even.
        configuration: by default the first of the spec's space.
        seed: seed of the halves.

    Raises:
        ValueError: the spec does not allow halves, or num_shadows is odd.
    """
    if num_shadows < 2 or num_shadows % 2:
        raise ValueError(
            f"--shadows must be an even number from 2, got {num_shadows}. Shadows are trained in "
            "pairs."
        )
    spec.privacy.require_ignored_tuning("for shadow models", "Remove it: a shadow is one run.")
    if spec.privacy.unit == "user":
        raise ValueError(
            "privacy.unit must be example for shadow models, got user. Remove it: coins are per "
            "example."
        )
    point = first_configuration(spec)
    if configuration is not None:
        point = replace(configuration, settings=spec.settings(configuration.settings))
    # Pairs of one coin and its complement, so that each example is in half of the shadows.
    halves = [
        ("target", 0, False),
        *((f"shadow-{k + 1}", 1 + k // 2, k % 2 == 1) for k in range(num_shadows)),
    ]
    return [
        _derived(spec, name, (seed << 16) + coin, complement, point)
        for name, coin, complement in halves
    ]


def _derived(
    spec: SweepSpec, part: str, coin: int, complement: bool, point: Configuration
) -> SweepSpec:
    name = f"{spec.name}-{part}-{coin >> 16}-{point.batch_size}-{point.num_steps}-{point.learning_rate:g}"
    if point.settings:
        name += f"-{hashlib.sha256(point.settings.text.encode()).hexdigest()[:8]}"
    score = "mia_outputs" if spec.task.params.classifies else "mia"
    tracking = {
        "experiment": f"{spec.tracking.experiment}-shadows",
        "registered_model": f"{spec.name}-shadows",
    }
    # Everything of the spec but what makes it one run on a half.
    return load_spec(
        {
            **spec.model_dump(mode="json"),
            "name": name,
            "task": {
                "name": "half",
                "of": spec.task.as_dict(),
                "seed": coin,
                "complement": complement,
            },
            "space": {"points": [point_of(point)]},
            "seeds": [spec.seed_labels[0]],
            "scores": [{"name": score}],
            "select": {"score": score, "rule": "best-utility", "min_gain_share": None},
            "tracking": {**spec.tracking.model_dump(mode="json"), **tracking},
        }
    )


def first_configuration(spec: SweepSpec) -> Configuration:
    """Return the first configuration of a spec's space, in the spec's order."""
    point, own = next(spec.space.listed())
    return replace(
        Configuration.from_json(point),
        settings=spec.settings(spec.space.combinations(point, own)[0]),
    )


def train(spec: SweepSpec) -> SweepFolder | None:
    """Run or resume a sweep of one run. Return None if the run has failed."""
    sweep = Sweep(spec)
    # A begun sweep goes on, if its spec is still the same.
    if sweep.begun:
        kept = SweepFolder.resume(spec)
        if kept.is_finished(run_id_of(kept)):
            return kept
    sweep.run(resume=sweep.begun)
    kept = sweep.folder
    return kept if kept.is_finished(run_id_of(kept)) else None
