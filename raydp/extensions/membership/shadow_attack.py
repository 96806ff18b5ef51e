"""The attack on models trained on halves: their losses on a common pool, and attacks' scores."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raydp.extensions.later_scores.sets import TrainedModels
from raydp.extensions.membership.half import Divisible, HalfTask
from raydp.extensions.membership.metrics import best_accuracy, curve_figures
from raydp.extensions.membership.mia import fresh, sample
from raydp.extensions.membership.mia_signals import losses
from raydp.extensions.membership.shadows import Losses, shadow_attacks
from raydp.models import base_models as models
from raydp.privacy.accounting.infinity import json_number
from raydp.search_spaces.configuration import Hyperparameters
from raydp.spec.document import SweepSpec
from raydp.sweep.store.folder import SweepFolder
from raydp.system.damaged_files import NUMERIC_ARRAYS, naming
from raydp.system.files import write_atomically
from raydp.system.output import stderr

POOL = 10_000
"""The largest number of attacked examples, and of population examples. Larger sets are sampled."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The examples that every model is evaluated on.

    Attributes:
        task: the whole task that the halves are made of.
        examples: [N] positions in its training examples.
        population: [Z] positions in its held-out examples, which no model was trained on.
    """

    task: Divisible
    examples: NDArray[np.int64]
    population: NDArray[np.int64]

    @classmethod
    def of(cls, task: Divisible, seed: int) -> Pool:
        """Return all examples, or a sample, without held-out copies of training examples."""
        rng = np.random.default_rng([seed, POOL])
        parts = (np.arange(len(task.train)), fresh(task))
        if not len(parts[1]):
            raise ValueError(
                "task must hold out examples that are not trained on, got none. Hold out more."
            )
        chosen = [sample(rng, p, POOL) for p in parts]
        return cls(task=task, examples=chosen[0], population=chosen[1])

    def digest(self) -> str:
        """Return an identifier of the pool, for file names of stored losses."""
        content = (
            self.task.facts().content_hash.encode()
            + self.examples.tobytes()
            + self.population.tobytes()
        )
        return hashlib.sha256(content).hexdigest()[:16]


class ShadowAttack(Hyperparameters):
    """The result of an attack with shadow models, as `raydp mia SPEC --json` prints it."""

    noise_multiplier: float
    epsilon: float | str
    delta: float
    num_examples: int
    num_examples_of_the_whole: int
    num_members: int
    num_nonmembers: int
    num_population: int
    num_shadows: int
    sweeps: list[str]
    attacks: dict[str, dict[str, object]]


def attack(specs: Sequence[SweepSpec], folders: Sequence[SweepFolder], seed: int) -> ShadowAttack:
    """Attack the first model with the others as its shadows.

    Args:
        specs, folders: the sweep of each model; the first is the target's.
        seed: seed of the pool, if the pool is a sample.

    Returns:
        The target's configuration and guarantee, the numbers of examples, and every attack's
        figures.

    Raises:
        ValueError: the data have changed since the models were trained.
    """
    # Find which examples each model was trained on, and the pool.
    halves = [spec.task.params for spec in specs]
    tokenizer = models.tokenizer_if_any(specs[0].model.name)
    whole = halves[0].whole(tokenizer)
    included = np.stack(
        [_included(h, f, whole) for h, f in zip(halves, folders, strict=True)], axis=1
    )
    pool = Pool.of(whole, seed)
    # Attack with the losses of the base model, the target and the shadows.
    losses_by_model = list(_all_losses(specs[0], folders, pool))
    # Column 0 is the target's half; the others are the shadows'.
    member = included[pool.examples, 0]
    base, target, *shadows = losses_by_model
    scores = shadow_attacks(base, target, shadows, included[pool.examples, 1:])
    results: dict[str, dict[str, object]] = {
        name: {
            **best_accuracy(s[member], s[~member]).document("best_accuracy"),
            **curve_figures(s[member], s[~member]),
        }
        for name, s in scores.items()
    }
    # The guarantee that the figures are compared with is the target's.
    plan = folders[0].plan()
    (trial,) = plan.trials
    return {
        **trial.configuration.to_json(),
        "noise_multiplier": trial.noise_multiplier,
        "epsilon": json_number(plan.record.accounted.epsilon),
        "delta": plan.delta,
        "num_examples": plan.facts.num_examples,
        "num_examples_of_the_whole": len(whole.train),
        "num_members": int(member.sum()),
        "num_nonmembers": int((~member).sum()),
        "num_population": len(pool.population),
        "num_shadows": len(specs) - 1,
        "sweeps": [spec.name for spec in specs],
        "attacks": results,
    }


def _included(half: HalfTask, folder: SweepFolder, whole: Divisible) -> NDArray[np.bool_]:
    """Return which examples of the whole task a model was trained on."""
    included = half.includes(whole.train)
    trained_on = folder.plan().facts.content_hash
    # The coins belong to one data set: other data would give other halves.
    if whole.subset(np.flatnonzero(included)).facts().content_hash != trained_on:
        raise ValueError(
            f"task must have the data that {folder.path.name!r} was trained on, got others. "
            "Restore them, or give the sweep a new name."
        )
    return included


def kept_arrays(folder: SweepFolder, name: str, run_id: str | None) -> Path:
    """Return the file of a model's losses in its sweep's folder; None for the base model."""
    return (
        folder.path / f"base-{name}.npz" if run_id is None else folder.trial(run_id) / f"{name}.npz"
    )


def _all_losses(spec: SweepSpec, folders: Sequence[SweepFolder], pool: Pool) -> Iterator[Losses]:
    """Yield the losses of base model, target and shadows, from the sweeps' folders if there."""
    name = f"mia-{pool.digest()}"
    # Compute the losses that are not stored yet.
    kept = [
        kept_arrays(folders[0], name, None),
        *(kept_arrays(f, name, run_id_of(f)) for f in folders),
    ]
    missing = [path for path in kept if not path.is_file()]
    if missing:
        device = torch.device(
            "cuda" if spec.cluster.gpus_per_worker and torch.cuda.is_available() else "cpu"
        )
        # None stands for the base model, which no run has trained.
        trained = {
            str(path): None if path == kept[0] else path.parent / "model" for path in missing
        }
        with stderr.status("reading the examples") as status:
            (trial,) = folders[0].plan().trials  # a shadow has the configuration of the target
            base = models.load_base(spec.of_run(trial.settings).model)
            many = TrainedModels(base, trained, device=device)
            for done, path in enumerate(missing):
                status.update(f"reading the examples with model {done + 1}/{len(missing)}")
                with many.loaded(done) as loaded:
                    _write(path, losses_of(loaded.model, pool))
    for path in kept:
        yield _read(path)


def losses_of(model: nn.Module, pool: Pool) -> Losses:
    """Return a model's losses on the pool."""
    return Losses(
        examples=losses(model, pool.task, "train", pool.examples),
        population=losses(model, pool.task, "heldout", pool.population),
    )


def _read(path: Path) -> Losses:
    """Read what `_write` wrote."""
    remedy = "Delete it: `raydp mia` computes the losses again."
    with (
        naming(path, "the file of losses", NUMERIC_ARRAYS, remedy),
        np.load(path, allow_pickle=False) as stored,
    ):
        return Losses(examples=stored["examples"], population=stored["population"])


def _write(path: Path, of_model: Losses) -> None:
    """Write losses, whole or not at all. Only the owner may read losses of private examples."""
    content = io.BytesIO()
    np.savez(content, examples=of_model.examples, population=of_model.population)
    write_atomically(path, content.getvalue(), private=True)


def run_id_of(folder: SweepFolder) -> str:
    """Return the run of a sweep that has one run."""
    (trial,) = folder.plan().trials
    return trial.run_id
