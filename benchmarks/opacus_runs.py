"""LoRA adapters that Opacus trains in a plain script, and the table that `raydp import` reads.

    python benchmarks/opacus_runs.py mails.jsonl --column text -o trained
    raydp import trained/runs.csv --spec spec.yaml

It shows what a run of another program must state to be scored, selected and registered here. The
data are the lines whose number is not a multiple of ten, as in any script of one's own; raydp's
task splits the same file by itself.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

import raydp

TINY = Path(raydp.__file__).parent / "data" / "tiny"
CLIP = 0.1


def examples(path: Path, column: str, length: int) -> torch.Tensor:
    """[n, length] token ids, padded with the first id of the vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    rows = [json.loads(line)[column] for line in path.read_text(encoding="utf-8").splitlines()]
    chosen = [tokenizer(text)["input_ids"][:length] for at, text in enumerate(rows) if at % 10]
    return torch.tensor([ids + [0] * (length - len(ids)) for ids in chosen])


def train(
    data: torch.Tensor,
    folder: Path,
    *,
    batch_size: int,
    steps: int,
    rate: float,
    sigma: float,
    seed: int,
) -> None:
    """DP-SGD with Opacus' own engine, Poisson batches and hooks."""
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(TINY)
    model = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    ).train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    loader = DataLoader(data, batch_size=batch_size)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=sigma,
        max_grad_norm=CLIP,
    )
    done = 0
    while done < steps:
        for batch in loader:
            if len(batch) and done < steps:
                optimizer.zero_grad()
                logits = private(input_ids=batch).logits[:, :-1]
                targets = batch[:, 1:].masked_fill(batch[:, 1:] == 0, -100)
                torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), targets.flatten()
                ).backward()
                optimizer.step()
            done += 1
    model.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="JSON Lines")
    parser.add_argument("--column", default="text")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 1e-2])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    data = examples(args.data, args.column, args.length)
    args.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for batch_size in args.batch_sizes:
        sigma = get_noise_multiplier(
            target_epsilon=args.epsilon,
            target_delta=args.delta,
            sample_rate=batch_size / len(data),
            steps=args.steps,
        )
        for rate in args.rates:
            for seed in range(args.seeds):
                name = f"b{batch_size}-lr{rate:g}-seed{seed}"
                train(
                    data,
                    args.output / name,
                    batch_size=batch_size,
                    steps=args.steps,
                    rate=rate,
                    sigma=sigma,
                    seed=seed,
                )
                rows.append({
                    "model": name, "batch_size": batch_size, "num_steps": args.steps, "learning_rate": rate,
                    "seed": seed, "noise_multiplier": sigma, "epsilon": args.epsilon, "delta": args.delta,
                    "library": "opacus",
                })  # fmt: skip
                print(f"{name}: σ = {sigma:.3f}", flush=True)
    with (args.output / "runs.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
