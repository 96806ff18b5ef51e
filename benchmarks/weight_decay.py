"""Guo 2024, chapter 5, with our engine: decay decoupled and in the loss, in regressions, on images,
and with LoRA.

    OMP_NUM_THREADS=1 python benchmarks/weight_decay.py --output weight_decay.json --figure
    weight-decay.svg

Regressions (5.1, 5.2): data as in his appendix B: 800 examples to train on and 200 to test, x ~
N(0, I), noise 0.1, w = 10 or (10, 5), b = 0. Steps, sampling and noise are ours: Poisson batches of
10 on average, Gaussian noise on the sum. The listings of his appendix B are run too, as printed and
with gradients cleared. Images (5.3): his R and λ on scikit-learn's digits. LoRA: the demo's task.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
import yaml
from machine import describe
from numpy.typing import NDArray
from plotly.subplots import make_subplots
from torch import nn

import raydp
from raydp.analysis.figures.files import save_figures
from raydp.analysis.figures.style import INK, SEQUENCE, blank, quiet_axes
from raydp.extensions.classification.digits import DigitsTask
from raydp.extensions.classification.labelled import LabelledBatch
from raydp.extensions.classification.networks import NetworkName
from raydp.methods.dp import DPSGD
from raydp.training.comm import LocalComm
from raydp.training.trial import TrainingContext
from raydp.training.trial_plan import TrialPlan

BATCH, TRAIN, TEST = 10, 800, 200
SETTINGS = {
    "baseline": {
        "max_grad_norm": 0.1,
        "weight_decay": 0.01,
        "learning_rate": 0.03,
        "num_steps": 8000,
    },
    "small R": {
        "max_grad_norm": 0.01,
        "weight_decay": 0.01,
        "learning_rate": 0.1,
        "num_steps": 16_000,
    },
    "large λ": {
        "max_grad_norm": 0.1,
        "weight_decay": 0.1,
        "learning_rate": 0.03,
        "num_steps": 8000,
    },
}
"""100 epochs; 200 with the small R, as he has them."""
GUO = {
    ("simple", "baseline"): (5.93, 0.51), ("simple", "small R"): (84.81, 0.51), ("simple", "large λ"): (79.74, 4.81),
    ("multiple", "baseline"): (13.26, 0.63), ("multiple", "small R"): (101.66, 0.63),
    ("multiple", "large λ"): (95.47, 5.96),
}  # fmt: skip
"""What he prints: decoupled, in the loss. The second has λ/2 ‖w‖² in it, as his test loss has."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """As much of a Task as training asks for: squared error, without ½ as in his code."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]

    def lengths(self) -> NDArray[np.int64]:
        return np.ones(len(self.y), np.int64)

    def unit_sizes(self) -> None:
        return None

    def batch(self, indices: NDArray[np.int64]) -> LabelledBatch:
        return LabelledBatch(
            inputs=torch.from_numpy(self.x[indices]), labels=torch.from_numpy(self.y[indices])
        )

    def per_example_loss(self, model: nn.Module, batch: LabelledBatch) -> torch.Tensor:
        return (model(batch.inputs)[:, 0] - batch.labels).square()


def data(weights: list[float], seed: int) -> tuple[Regression, Regression]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(TRAIN + TEST, len(weights))).astype(np.float32)
    y = (x @ np.array(weights) + 0.1 * rng.normal(size=len(x))).astype(np.float32)
    return Regression(x=x[:TRAIN], y=y[:TRAIN]), Regression(x=x[TRAIN:], y=y[TRAIN:])


def run(
    weights: list[float], setting: str, decay: str, seed: int, noise_multiplier: float
) -> dict[str, Any]:
    """Mean squared error on the test set after training."""
    train, test = data(weights, seed)
    options = SETTINGS[setting]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(len(weights), 1).eval()
    plan = TrialPlan(
        run_id=f"{weights}-{setting}-{seed}", batch_size=BATCH, num_steps=options["num_steps"], seed=seed,
        num_examples=TRAIN, learning_rate=options["learning_rate"], noise_multiplier=noise_multiplier,
    )  # fmt: skip
    method = DPSGD(
        max_grad_norm=options["max_grad_norm"], weight_decay=options["weight_decay"], decay=decay
    )
    context = TrainingContext(
        model=model, parameters=dict(sorted(model.named_parameters())), microbatch_size=1000
    )
    method.train(plan, context, train, LocalComm(), bytes(32), None)
    with torch.no_grad():
        error = float(test.per_example_loss(model, test.batch(np.arange(TEST))).mean())
        size = sum(float(p.square().sum()) for p in model.parameters())
    return {"test_loss": error, "with_penalty": error + options["weight_decay"] / 2 * size,
            "weights": model.weight[0].tolist()}  # fmt: skip


def as_listed(
    weights: list[float], setting: str, seed: int, *, in_loss: bool, clear: bool, decay: bool
) -> float:
    """Test loss by the arithmetic of his listings B.2 and B.3, with λ/2 ‖w‖² in it for his method.

    Args:
        in_loss: his method, else DP-SGD with decoupled decay.
        clear: whether gradients are cleared between the examples of a batch. His listings do not
            clear them.
        decay: whether the penalty has a gradient. In his listings it is computed from `.data`, and
            has none.
    """
    options, rng = SETTINGS[setting], np.random.default_rng(seed)
    bound, decay_rate, rate = (
        options["max_grad_norm"],
        options["weight_decay"],
        options["learning_rate"],
    )
    x = rng.normal(size=(TRAIN + TEST, len(weights)))
    y = x @ np.array(weights) + 0.1 * rng.normal(size=len(x))
    inputs = np.column_stack([x, np.ones(len(x))])  # the last weight is the bias
    theta = rng.uniform(-1, 1, len(weights) + 1) / np.sqrt(len(weights))
    for _ in range(options["num_steps"] * BATCH // TRAIN):
        for batch in rng.permutation(TRAIN).reshape(-1, BATCH):
            gradients = 2 * (inputs[batch] @ theta - y[batch])[:, None] * inputs[batch]
            gradients = gradients + decay_rate * theta if in_loss and decay else gradients
            gradients = gradients if clear else gradients.cumsum(axis=0)
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            step = (gradients * np.minimum(bound / (1e-8 + norms), 1)).mean(axis=0)
            shrunk = theta if in_loss else (1 - rate * decay_rate) * theta
            theta = shrunk - rate * step + 0.1 * bound * rng.normal(size=len(theta))
    error = float(np.square(inputs[TRAIN:] @ theta - y[TRAIN:]).mean())
    return error + decay_rate / 2 * float(theta @ theta) if in_loss else error


VARIANTS = {
    "as listed": (False, False),
    "cleared": (True, False),
    "cleared, with decay": (True, True),
}
"""clear and decay of `as_listed`."""


def listing_rows(seeds: int) -> list[dict[str, Any]]:
    """One row per model, setting, method and variant of the listings: the test losses of all
    seeds."""
    rows = []
    for model, weights in (("simple", [10.0]), ("multiple", [10.0, 5.0])):
        for setting, in_loss, (name, (clear, decay)) in product(
            SETTINGS, (False, True), VARIANTS.items()
        ):
            if decay and not in_loss:
                continue
            losses = [
                as_listed(weights, setting, k, in_loss=in_loss, clear=clear, decay=decay)
                for k in range(seeds)
            ]
            row = {"model": model, "setting": setting, "in_loss": in_loss, "variant": name, "test_losses": losses,
                   "guo": GUO[model, setting][in_loss]}  # fmt: skip
            rows.append(row)
            print(" ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    return rows


CLIPPING = (0.03, 0.15, 0.5, 1.5, 3.0)
DECAYS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
DIGITS = {
    "max_grad_norm": 3.0,
    "weight_decay": 1e-4,
    "learning_rate": 0.2,
    "batch_size": 64,
    "num_steps": 500,
}
"""His baseline for MNIST (section 5.3: R, λ, σ = 1.3), with rate, batch and steps of ours: it gives
none."""
LORA_DECAYS = (0.01, 0.1, 1.0)


def digits(decay: str, seed: int, **changes: float) -> float:
    """Accuracy on scikit-learn's digits, his R and λ experiments on data that can be had: a small
    network of two convolutions and σ = 1.3."""
    options = {**DIGITS, **changes}
    task = DigitsTask().build(None)
    model = NetworkName(architecture="cnn", input_shape=task.input_shape, num_classes=10).build(
        seed
    )
    plan = TrialPlan(
        run_id=f"digits-{decay}-{seed}-{sorted(changes.items())}", seed=seed, num_examples=len(task.train),
        noise_multiplier=1.3, **{k: options[k] for k in ("batch_size", "num_steps", "learning_rate")},
    )  # fmt: skip
    method = DPSGD(
        max_grad_norm=options["max_grad_norm"], weight_decay=options["weight_decay"], decay=decay
    )
    context = TrainingContext(
        model=model, parameters=dict(sorted(model.named_parameters())), microbatch_size=1000
    )
    method.train(plan, context, task, LocalComm(), bytes(32), None)
    return 1 - task.utility(model)


def digits_rows(seeds: int) -> list[dict[str, Any]]:
    """One row per varied value and placement."""
    rows = []
    for varied, values in (("max_grad_norm", CLIPPING), ("weight_decay", DECAYS)):
        for value in values:
            for decay in ("decoupled", "in_loss"):
                found = [digits(decay, seed, **{varied: value}) for seed in range(seeds)]
                row = {"varied": varied, "value": value, "decay": decay, "accuracy": statistics.mean(found),
                       "std": statistics.stdev(found) if seeds > 1 else None}  # fmt: skip
                rows.append(row)
                print(
                    f"digits {varied} {value:g} {decay}: accuracy {row['accuracy']:.4f}", flush=True
                )
    return rows


def lora_rows(storage: Path) -> list[dict[str, Any]]:
    """The demo's task and LoRA adapter at ε = 8, (b, T, η) = (128 and 256, 120, 0.01), two seeds;
    sweeps that are in the storage are read."""
    demo = yaml.safe_load((Path(raydp.__file__).parent / "data" / "demo.yaml").read_text())
    rows = []
    for decay, weight in [(None, 0.0), *product(("decoupled", "in_loss"), LORA_DECAYS)]:
        name = f"lora-{decay or 'none'}-{weight:g}"
        method = {**demo["method"], **({"weight_decay": weight, "decay": decay} if decay else {})}
        if not (storage / name / "points.csv").is_file():
            raydp.Sweep({
                **demo, "name": name, "method": method, "storage": str(storage),
                "space": {"points": [[128, 120, 0.01], [256, 120, 0.01]]},
                "select": {**demo["select"], "min_gain_share": 0},
                "tracking": {**demo["tracking"], "uri": f"sqlite:///{storage.resolve()}/mlflow.db"},
            }).run()  # fmt: skip
        points = raydp.load_points(storage / name / "points.csv")
        for batch_size, of_one in points.groupby("batch_size"):
            row = {"decay": decay, "weight_decay": weight, "batch_size": int(batch_size),
                   "utility_loss": of_one["utility_loss"].mean(), "score": of_one["score"].mean(),
                   "loss_std": of_one["utility_loss"].std(), "score_std": of_one["score"].std()}  # fmt: skip
            rows.append(row)
            print(
                f"{name} b {batch_size}: loss {row['utility_loss']:.4f} vmr_exact "
                f"{row['score']:.4f}",
                flush=True,
            )
    return rows


def figure(found: list[dict[str, Any]], lora: list[dict[str, Any]]) -> go.Figure:
    """Accuracy against R and λ, and with LoRA the loss and the score against λ, with lines where
    there is no decay."""
    titles = ("Digits: accuracy against R", "Digits: accuracy against λ", "LoRA: utility loss against λ",
              "LoRA: vmr_exact against λ")  # fmt: skip
    shown = make_subplots(rows=2, cols=2, subplot_titles=titles, figure=blank())
    panels: list[tuple[str, list[dict[str, Any]], str]] = [
        (x, [r for r in found if r["varied"] == x], "accuracy")
        for x in ("max_grad_norm", "weight_decay")
    ]
    panels += [("weight_decay", lora, y) for y in ("utility_loss", "score")]
    for place, (x, rows, y) in enumerate(panels):
        for colour, decay in zip(SEQUENCE, ("decoupled", "in_loss"), strict=False):
            for batch_size, dash in ((128, "solid"), (256, "dot")):
                of_one = [
                    r
                    for r in rows
                    if r["decay"] == decay and r.get("batch_size", 128) == batch_size
                ]
                if not of_one:
                    continue
                shown.add_scatter(
                    x=[r.get("value", r.get(x)) for r in of_one], y=[r[y] for r in of_one], mode="lines+markers",
                    line={"color": colour, "dash": dash}, row=1 + place // 2, col=1 + place % 2,
                    name=decay + (f", b = {batch_size}" if y != "accuracy" else ""), legendgroup=decay,
                    showlegend=place in (0, 2),
                )  # fmt: skip
    for place, y in ((3, "utility_loss"), (4, "score")):
        for row in (r for r in lora if r["decay"] is None):
            shown.add_hline(
                y=row[y], row=1 + (place - 1) // 2, col=1 + (place - 1) % 2,
                line={"color": INK, "width": 1, "dash": "solid" if row["batch_size"] == 128 else "dot"},
            )  # fmt: skip
    shown.update_xaxes(type="log", dtick=1, exponentformat="power")
    shown.update_layout(
        margin={"l": 40, "r": 20, "t": 60, "b": 30}, legend={"y": -0.08, "yanchor": "top"}
    )
    return quiet_axes(shown)


def regression_rows(seeds: int, noise_multiplier: float) -> list[dict[str, Any]]:
    """One row per model, setting and placement."""
    rows = []
    for model, weights in (("simple", [10.0]), ("multiple", [10.0, 5.0])):
        for setting, decay in product(SETTINGS, ("decoupled", "in_loss")):
            started = time.perf_counter()
            found = [run(weights, setting, decay, seed, noise_multiplier) for seed in range(seeds)]
            row = {
                "model": model, "setting": setting, "decay": decay, "seeds": seeds,
                "test_loss": statistics.mean(r["test_loss"] for r in found),
                "with_penalty": statistics.mean(r["with_penalty"] for r in found),
                "guo": GUO[model, setting][decay == "in_loss"], "weights": found[0]["weights"],
                "seconds": time.perf_counter() - started,
            }  # fmt: skip
            rows.append(row)
            print(
                " ".join(
                    f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
                ),
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--noise-multiplier", type=float, default=1.0, help="of the regressions, on the sum, over R"
    )
    parser.add_argument(
        "--storage", type=Path, default=Path("raydp_runs/weight-decay"), help="of the LoRA sweeps"
    )
    parser.add_argument("--figure", type=Path, help="an .svg, with a browser at hand")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    regressions, listings = (
        regression_rows(args.seeds, args.noise_multiplier),
        listing_rows(args.seeds),
    )
    images = digits_rows(args.seeds)
    args.storage.mkdir(parents=True, exist_ok=True)
    lora = lora_rows(args.storage)
    if args.figure:
        save_figures(
            {args.figure.stem: figure(images, lora)},
            args.figure.parent,
            file_format=args.figure.suffix[1:],
        )
    if args.output:
        settings = {"regressions": SETTINGS, "digits": DIGITS}
        document = {**describe("torch", "raydp-tune"), "settings": settings, "regressions": regressions,
                    "listings": listings, "digits": images, "lora": lora}  # fmt: skip
        args.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
