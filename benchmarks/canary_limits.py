"""Why canaries seen by their losses find little under LoRA: how alike their gradients are, what all
sums would show.

    python benchmarks/canary_limits.py docs/specs/demo-epsilon-4.yaml --output canary_limits.json

`effective dimension` is the participation ratio (tr G)² / tr G² of the Gram matrix of the canaries'
clipped gradients at the start of training. Gradients at right angles would have as many dimensions
as there are canaries. `observer` simulates an auditor who sees the exact sum of all noisy gradients
of a run, with canaries at right angles to each other and to everything else: no auditor with the
losses alone knows more about such canaries.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

from raydp.extensions.auditing.audits import audit_spec
from raydp.extensions.auditing.canaries import CanaryTask
from raydp.extensions.auditing.one_run import Guesses, one_run_bound
from raydp.extensions.auditing.source import AuditSubject
from raydp.models import adapters
from raydp.models import base_models as models
from raydp.privacy import CalibrationRequest, PoissonGaussian, PrivacyTarget, calibrate
from raydp.spec.document import SweepSpec
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import build_task

GUESSED = 0.2
"""Share of the canaries that are guessed, as in `raydp audit`."""


def audited_task(spec: SweepSpec, *, canaries: int) -> tuple[SweepSpec, CanaryTask]:
    """Return the audit's own spec, and its task."""
    audit = audit_spec(
        AuditSubject(spec=spec), name="canary-limits", coins=3, canary="known_token", num_canaries=canaries,
        confidence=0.95, seeds=(0,),
    )  # fmt: skip
    task, _ = build_task(audit)
    assert isinstance(task, CanaryTask)
    return audit, task


def effective_dimension(audit: SweepSpec, task: CanaryTask) -> float:
    """Return the participation ratio of the canaries' normed gradients at the start of training."""
    model = adapters.attach_adapter(models.load_base(audit.model), audit.model.adapter)
    parameters = adapters.trainable_parameters(model, audit.model.adapter)
    adapters.initialise(parameters, audit.model.adapter, {}, seed=0)
    model.eval()
    seen = task._with_train(task.canaries, "canary")
    rows = []
    for at in range(len(task.canaries)):
        loss = seen.per_example_loss(model, seen.batch(np.array([at]))).sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        row = torch.cat([gradient.flatten() for gradient in gradients])
        rows.append(row / row.norm())
    gram = torch.stack(rows).double()
    gram = gram @ gram.T
    return float(gram.trace().square() / gram.square().sum())


def observer(
    *, canaries: int, rate: float, num_steps: int, noise_multiplier: float, delta: float, runs: int
) -> list[float]:
    """Return ε̂ of simulated runs, audited by the sums of all noisy gradients in the direction of
    each canary."""
    rng = np.random.default_rng(0)
    found = []
    guesses = round(GUESSED * canaries)
    for _ in range(runs):
        included = rng.random(canaries) < 0.5
        drawn = rng.binomial(num_steps, rate, canaries) * included
        seen = drawn + noise_multiplier * np.sqrt(num_steps) * rng.standard_normal(canaries)
        order = np.argsort(seen)
        right = int(
            (~included[order[: guesses // 2]]).sum() + included[order[-(guesses // 2) :]].sum()
        )
        counted = Guesses(num_canaries=canaries, num_guesses=guesses, num_correct=right)
        found.append(one_run_bound(counted, delta).epsilon)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--num-steps", type=int, default=120)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    audit, task = audited_task(load_spec(args.spec), canaries=args.canaries)
    facts, target = task.facts(), audit.privacy.target_epsilon
    delta = audit.privacy.delta(facts.num_units)
    document: dict[str, Any] = describe("torch") | {
        "canaries": args.canaries,
        "effective_dimension": effective_dimension(audit, task),
        "observer": [],
    }
    print(
        f"effective dimension of {args.canaries} gradients: {document['effective_dimension']:.1f}",
        flush=True,
    )
    for batch_size in args.batch_sizes:
        rate = batch_size / facts.num_units
        event = PoissonGaussian(sample_rate=rate, noise_multiplier=1.0, num_steps=args.num_steps)
        request = CalibrationRequest(event=event, target=PrivacyTarget(epsilon=target, delta=delta))
        sigma = calibrate(request, "pld").noise_multiplier
        found = observer(
            canaries=args.canaries, rate=rate, num_steps=args.num_steps, noise_multiplier=sigma, delta=delta,
            runs=args.runs,
        )  # fmt: skip
        row = {
            "batch_size": batch_size,
            "num_steps": args.num_steps,
            "noise_multiplier": sigma,
            "epsilon_hat": found,
        }
        document["observer"].append(row)
        print(
            f"b={batch_size} T={args.num_steps} σ={sigma:.3f}: ε̂ {np.mean(found):.2f} ± "
            f"{np.std(found):.2f}",
            flush=True,
        )
    args.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
