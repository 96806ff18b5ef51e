"""Kaplan et al. 2024 on the embedded digits: Tables 2 and 3 and Figures 2 and 3, and WERM under
DP-SGD.

    OMP_NUM_THREADS=1 python benchmarks/reference_data.py --output reference_data.json --figures
    docs/images python benchmarks/reference_data.py --from reference_data.json # the tables again,
    as Markdown

Eight tenths of the 1,797 digits are held out (1,438, non-members and test data at once, as in the
paper), the rest is training and reference data in equal parts (180 and 179). Network, Adam and
evaluation are the same for all; the paper's networks, data sets, numbers of epochs and grids are
others. Attack: the confidence, by a threshold that is chosen on half of the examples and tried on
the other half.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

from raydp.analysis.figures.files import save_figures
from raydp.analysis.figures.style import SEQUENCE, blank, quiet_axes
from raydp.extensions.classification.labelled import ClassificationTask
from raydp.extensions.classification.networks import NetworkName
from raydp.extensions.membership.mia_outputs import (
    OutputMembershipInference,
    ReferenceOutputMembershipInference,
)
from raydp.extensions.reference_data.advreg import (
    AdversarialRegularization,
    AdversarialRegularizationOnBoth,
)
from raydp.extensions.reference_data.mmd import MMDRegularization
from raydp.extensions.reference_data.record import epsilons_of_sets
from raydp.extensions.reference_data.sets import WeightedSets
from raydp.extensions.reference_data.settings import (
    EQUAL_PRIVACY,
    PRIVATE_REFERENCE,
    PUBLIC_REFERENCE,
)
from raydp.extensions.reference_data.task import WithReferenceTask
from raydp.extensions.reference_data.weighted import WeightedDPSGD
from raydp.extensions.reference_data.werm import WeightedRiskMinimization
from raydp.models.base_models import LoadedModel
from raydp.privacy import (
    CalibrationRequest,
    PoissonGaussian,
    PrivacyTarget,
    calibrate,
)
from raydp.training.comm import LocalComm
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

NETWORK, BATCH, RATE = "mlp:1x8x8:10", 128, 3e-3
W = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)
STRENGTHS = {
    "AdvReg": (0.1, 0.5, 2.0),
    "AdvReg-RT": (0.1, 0.5, 2.0),
    "MMD": (0.1, 0.35, 0.7, 1.5, 5.0),
}
FIGURES = ("test_accuracy", "mia_training", "mia_reference")
SETTINGS = {
    "public-reference": PUBLIC_REFERENCE,
    "equal-privacy": EQUAL_PRIVACY,
    "private-reference": PRIVATE_REFERENCE,
}
STEPS = {"WERM": 400, "WERM-ES": 100, "AdvReg": 150, "AdvReg-RT": 150, "MMD": 400}
DP = {"num_steps": 200, "learning_rate": 0.5, "max_grad_norm": 1.0, "epsilon": 8.0}
PAPER_PCC = {"WERM": 0.84, "AdvReg": 0.07, "MMD": 0.48}


def method_of(defense: str, parameter: float) -> Any:
    if defense.startswith("WERM"):
        return WeightedRiskMinimization(reference_weight=parameter)
    if defense == "MMD":
        return MMDRegularization(strength=parameter)
    kind = AdversarialRegularization if defense == "AdvReg" else AdversarialRegularizationOnBoth
    return kind(strength=parameter, attack_width=64)


def task_of(seed: int) -> ClassificationTask:
    of = {"name": "digits", "heldout_fraction": 0.8, "data_seed": seed}
    return WithReferenceTask(of=of, fraction=0.5, data_seed=seed).build(None)


def run(
    task: ClassificationTask, method: Any, seed: int, *, num_steps: int, rate: float, sigma: float
) -> list[float]:
    """Test accuracy, membership inference accuracies of training and reference data, seconds of
    training."""
    model = NetworkName.parse(NETWORK).build(seed)
    context = TrainingContext(
        model=model, parameters=dict(sorted(model.named_parameters())), microbatch_size=10**6
    )
    plan = TrialPlan(
        run_id=f"{method}-{seed}", batch_size=BATCH, num_steps=num_steps, learning_rate=rate, seed=seed,
        num_examples=task.facts().num_units, noise_multiplier=sigma,
    )  # fmt: skip
    trained = method.train(plan, context, task, LocalComm(), bytes(32), None)
    loaded = LoadedModel(model=model, tokenizer=None, base_weights={})
    kinds = (OutputMembershipInference, ReferenceOutputMembershipInference)
    scores = [kind(figure="accuracy").measure(loaded, task, seed=seed).value for kind in kinds]
    return [1 - task.utility(model), *scores, trained.seconds]


def row(label: dict[str, Any], found: list[list[float]]) -> dict[str, Any]:
    names = ("test_accuracy", "mia_training", "mia_reference", "seconds")
    columns = dict(zip(names, zip(*found, strict=True), strict=True))
    errors = {
        f"{k}_se": statistics.stdev(v) / math.sqrt(len(v)) if len(v) > 1 else None
        for k, v in columns.items()
    }
    answer = {
        **label,
        "seeds": len(found),
        **{k: statistics.mean(v) for k, v in columns.items()},
        **errors,
    }
    print(
        " ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in answer.items()),
        flush=True,
    )
    return answer


def instances(seeds: int) -> list[dict[str, Any]]:
    grid = [(d, p) for d in STEPS for p in (W if d.startswith("WERM") else STRENGTHS[d])]
    tasks = [task_of(seed) for seed in range(seeds)]
    return [
        row(
            {"defense": defense, "parameter": parameter},
            [
                run(
                    task,
                    method_of(defense, parameter),
                    s,
                    num_steps=STEPS[defense],
                    rate=RATE,
                    sigma=0.0,
                )
                for s, task in enumerate(tasks)
            ],
        )
        for defense, parameter in grid
    ]


def private(seeds: int) -> list[dict[str, Any]]:
    """WERM under DP-SGD: at one ε for the larger of the two, what each set has."""
    tasks, rows = [task_of(seed) for seed in range(seeds)], []
    facts = tasks[0].facts()
    target = PrivacyTarget(epsilon=DP["epsilon"], delta=facts.num_units**-1.1)
    event = PoissonGaussian(
        sample_rate=BATCH / facts.num_units, noise_multiplier=1.0, num_steps=DP["num_steps"]
    )
    solved = calibrate(CalibrationRequest(event=event, target=target), "pld")
    for weight in W:
        method = WeightedDPSGD(max_grad_norm=DP["max_grad_norm"], reference_weight=weight)
        label = {
            "w": weight,
            **guarantees(weight, tasks, solved.event, solved.epsilon, target.delta),
        }
        found = [
            run(
                task,
                method,
                s,
                num_steps=DP["num_steps"],
                rate=DP["learning_rate"],
                sigma=solved.noise_multiplier,
            )
            for s, task in enumerate(tasks)
        ]
        rows.append(row(label, found))
    return rows


def guarantees(
    weight: float,
    tasks: list[ClassificationTask],
    event: PoissonGaussian,
    epsilon: float,
    delta: float,
) -> dict[str, float]:
    """ε of both sets and the effective number of examples, means over the divisions, which are of
    different sizes."""
    found = []
    for task in tasks:
        facts = task.facts()
        sets = WeightedSets(
            weight=weight, num_training=facts.num_training, num_reference=facts.num_reference
        )
        own = epsilons_of_sets(sets, event, epsilon, delta, "pld")
        found.append((own["training"].epsilon, own["reference"].epsilon, sets.effective_examples))
    names = ("epsilon_training", "epsilon_reference", "effective_examples")
    return dict(zip(names, map(statistics.mean, zip(*found, strict=True)), strict=True))


def curves() -> list[dict[str, Any]]:
    """Figure 2: N = 20,000 in three proportions, b = 512, T = 1,000, noise of std 3 c for the sum
    in which an example weighs 1 where all weigh alike. So the noise stays and w moves both sets' ε,
    as ε_0 does in the paper."""
    rows, total, delta = [], 20_000, 1e-5
    for ratio in (0.25, 1.0, 9.0):
        reference = round(total / (1 + ratio))
        for weight in np.linspace(0, 1, 21).round(3).tolist():
            sets = WeightedSets(
                weight=weight, num_training=total - reference, num_reference=reference
            )
            event = PoissonGaussian(
                sample_rate=512 / total, noise_multiplier=3.0 / sets.scale, num_steps=1000
            )
            own = epsilons_of_sets(sets, event, epsilon_of(event, delta), delta, "rdp")
            rows.append({
                "ratio": ratio, "w": weight, "effective_examples": sets.effective_examples,
                "epsilon_training": own["training"].epsilon, "epsilon_reference": own["reference"].epsilon,
                "paper_training": 1000 * (1 - weight) / sets.num_training,
                "paper_reference": 1000 * weight / sets.num_reference,
            })  # fmt: skip
    return rows


def epsilon_of(event: PoissonGaussian, delta: float) -> float:
    from raydp.privacy import RDPAccountant

    return RDPAccountant().epsilon(event, delta)


def correlation(rows: list[dict[str, Any]], defense: str) -> float:
    """Pearson's, of the wanted and the measured relative privacy; w = 0 wants an infinite one and
    is left out."""
    chosen = [r for r in rows if r["defense"] == defense and r["parameter"] > 0]
    wanted = [
        (1 - p) / p if defense.startswith("WERM") else 1 / p
        for p in (r["parameter"] for r in chosen)
    ]
    return float(
        np.corrcoef(wanted, [r["mia_training"] / r["mia_reference"] for r in chosen])[0, 1]
    )


def selected(rows: list[dict[str, Any]], setting: str, defense: str) -> dict[str, Any] | None:
    own = [r for r in rows if r["defense"] == defense]
    accuracy, training, reference = (
        np.array([r[k] for r in own]) for k in ("test_accuracy", "mia_training", "mia_reference")
    )
    kept = SETTINGS[setting].keeps(training, reference)
    return own[int(np.where(kept, accuracy, -np.inf).argmax())] if kept.any() else None


def tables(found: dict[str, Any]) -> str:
    rows, lines = found["instances"], []
    lines += ["| defense | " + " | ".join(SETTINGS) + " |", "| --- | --- | --- | --- |"]
    for defense in STEPS:
        cells = []
        for setting in SETTINGS:
            best = selected(rows, setting, defense)
            cells.append("–" if best is None else " / ".join(
                [f"{100 * best[k]:.1f}" for k in FIGURES]
            ) + f" ({best['parameter']:g})")  # fmt: skip
        lines.append(f"| {defense} | " + " | ".join(cells) + " |")
    lines += ["", "| defense | here | paper |", "| --- | --- | --- |"]
    for defense in STEPS:
        lines.append(
            f"| {defense} | {correlation(rows, defense):.2f} | {PAPER_PCC.get(defense, '–')} |"
        )
    lines += [
        "",
        "| defense | w or λ | test accuracy | MIA training | MIA reference | seconds |",
        "| --- " * 6 + "|",
    ]
    for r in rows:
        cells = [
            f"{100 * r[k]:.1f} ± {100 * r[k + '_se']:.1f}"
            for k in ("test_accuracy", "mia_training", "mia_reference")
        ]
        lines.append(
            f"| {r['defense']} | {r['parameter']:g} | "
            + " | ".join(cells)
            + f" | {r['seconds']:.2f} |"
        )
    head = (
        "w",
        "ε training",
        "ε reference",
        "N_eff",
        "test accuracy",
        "MIA training",
        "MIA reference",
    )
    lines += ["", f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for r in found["private"]:
        cells = [
            f"{100 * r[k]:.1f} ± {100 * r[k + '_se']:.1f}"
            for k in ("test_accuracy", "mia_training", "mia_reference")
        ]
        front = [
            f"{r[k]:.4g}"
            for k in ("w", "epsilon_training", "epsilon_reference", "effective_examples")
        ]
        lines.append("| " + " | ".join([*front, *cells]) + " |")
    return "\n".join(lines)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    theory = blank(xaxis_title="Effective number of examples", yaxis_title="ε", yaxis_type="log")
    for position, ratio in enumerate(sorted({r["ratio"] for r in found["curves"]})):
        own = [r for r in found["curves"] if r["ratio"] == ratio]
        for name, symbol in (("training", "circle"), ("reference", "x")):
            theory.add_scatter(
                x=[r["effective_examples"] for r in own], y=[r[f"epsilon_{name}"] for r in own], mode="lines+markers",
                marker={"color": SEQUENCE[position], "symbol": symbol}, name=f"{name}, N_T/N_R = {ratio:g}",
            )  # fmt: skip
    measured = blank(xaxis_title="Test accuracy", yaxis_title="Membership inference accuracy")
    for position, defense in enumerate(STEPS):
        own = [r for r in found["instances"] if r["defense"] == defense]
        for name, symbol in (("training", "circle"), ("reference", "x")):
            measured.add_scatter(
                x=[r["test_accuracy"] for r in own], y=[r[f"mia_{name}"] for r in own], mode="lines+markers",
                marker={"color": SEQUENCE[position], "symbol": symbol}, name=f"{defense}, {name}",
            )  # fmt: skip
    return {
        "reference-data-theory": quiet_axes(theory),
        "reference-data-measured": quiet_axes(measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--figures", type=Path, help="folder for two SVG files; needs a browser")
    parser.add_argument(
        "--from", dest="given", type=Path, help="a file that --output wrote: train nothing"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.given:
        found = json.loads(args.given.read_text())
    else:
        started = time.perf_counter()
        found = {
            "curves": curves(),
            "private": private(args.seeds),
            "instances": instances(args.seeds),
        }
        settings = {
            "network": NETWORK,
            "batch": BATCH,
            "rate": RATE,
            "steps": STEPS,
            "dp": DP,
            "seeds": args.seeds,
        }
        found |= {
            "settings": settings,
            "seconds": time.perf_counter() - started,
            **describe("torch", "scikit-learn"),
        }
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(tables(found))
    if args.figures:
        save_figures(figures(found), args.figures)


if __name__ == "__main__":
    main()
