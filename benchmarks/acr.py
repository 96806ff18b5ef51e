"""Adversarial compression: the search of the score `acr` against plain MiniPrompt (batch 100, top-k
250, 200 steps).

    python benchmarks/acr.py step --dtype float32 -o acr_step.json
    python benchmarks/acr.py sweep --sweep raydp_runs/demo -o acr_sweep.json

`step` times one GCG step on a target of random tokens, plain and ours in turn within one run.
`sweep` takes models and verbatim secrets of a finished sweep; the plain search does every model,
secret and seed by itself. It takes hours: --minutes ends it after that time, and the same command
resumes where it stopped. --seeds and --max-tokens make it smaller, for both sides alike. Seconds
are of the processor (one thread), which a busy machine changes least; wall-clock is beside them.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe
from plain_miniprompt import Plain

from raydp.extensions.later_scores.sets import TrainedModels
from raydp.extensions.prompt_search.gcg import Budget, PromptSearch
from raydp.extensions.prompt_search.objective import Objective
from raydp.extensions.prompt_search.score import AdversarialCompression
from raydp.extensions.prompt_search.tokens import Vocabulary, plain_tokens
from raydp.models.base_models import LoadedModel, load_base
from raydp.models.lookup import SMOLLM2
from raydp.scores.language.decoding import evaluating
from raydp.scores.score import Context
from raydp.spec.reading import load_spec
from raydp.spec.sections import ModelSpec
from raydp.tasks.task import task_of
from raydp.tasks.text.windows import start_tokens

BATCH_SIZE, TOP_K, NUM_STEPS = 100, 250, 200


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall-clock time of a run."""
    processor, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - processor, time.perf_counter() - wall


def step(args: argparse.Namespace) -> dict[str, Any]:
    """One GCG step: gradient, candidates, their losses, and whether one says the target."""
    base = load_base(ModelSpec(name=args.model, dtype=args.dtype))
    rng = np.random.default_rng(0)
    allowed = plain_tokens(base.tokenizer, len(base.model.get_input_embeddings().weight))
    target = rng.choice(allowed, args.target_tokens)
    plain = Plain(
        model=base.model, target=torch.from_numpy(target), allowed=torch.from_numpy(allowed),
        batch_size=BATCH_SIZE, topk=TOP_K,
    )  # fmt: skip
    with evaluating(base.model):
        objective = Objective(base.model, (), target.tolist())
    results = {}
    for length in args.prompt_tokens:
        prompt = rng.choice(allowed, length)

        def plainly(prompt=prompt) -> None:
            plain.says_target(plain.step(torch.from_numpy(prompt)))

        def ours(prompt=prompt) -> None:
            search = PromptSearch(
                objective=objective, vocabulary=Vocabulary(allowed=allowed), budget=Budget(),
                batch_size=BATCH_SIZE, top_k=TOP_K,
            )  # fmt: skip
            search.losses[tuple(prompt.tolist())] = (
                np.inf
            )  # the start was evaluated by the step before
            with evaluating(base.model):
                search.descend(tuple(prompt.tolist()), num_steps=1, rng=np.random.default_rng(0))

        times: dict[str, list[tuple[float, float]]] = {"plain": [], "ours": []}
        for turn in range(args.rounds + 1):
            for name, run in (("plain", plainly), ("ours", ours)):
                taken = seconds(run)
                if turn:  # the first warms up
                    times[name].append(taken)
        medians = {name: statistics.median(t[0] for t in values) for name, values in times.items()}
        results[f"prompt_of_{length}"] = {
            "processor_seconds": medians,
            "wall_seconds": {
                name: statistics.median(t[1] for t in values) for name, values in times.items()
            },
            "rounds": times,
            "ratio": medians["ours"] / medians["plain"],
        }
    settings = {
        "model": args.model,
        "dtype": args.dtype,
        "target_tokens": args.target_tokens,
        "threads": args.threads,
    }
    return {"settings": {**settings, "batch_size": BATCH_SIZE, "top_k": TOP_K}, "steps": results}


def chosen(sweep: Path, num_models: int, num_secrets: int) -> tuple[list[str], list[str]]:
    """Runs of different configurations, spread evenly over the sweep's score, and the secrets that
    these leak most."""
    with (sweep / "points.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["status"] == "finished"]
    first = {
        (r["batch_size"], r["num_steps"], r["learning_rate"]): r
        for r in sorted(rows, key=lambda r: r["seed"])[::-1]
    }
    by_score = sorted(first.values(), key=lambda r: float(r["score"]))
    runs = [
        by_score[i]["run_id"]
        for i in np.linspace(0, len(by_score) - 1, num_models).round().astype(int)
    ]
    leaks: dict[str, float] = {}
    for run in runs:
        scores = json.loads((sweep / "trials" / run / "result.json").read_text(encoding="utf-8"))[
            "scores"
        ]
        for name, value in scores["vmr_exact"]["per_secret"].items():
            leaks[name] = leaks.get(name, 0.0) + value
    return runs, sorted(sorted(leaks, key=leaks.__getitem__)[-num_secrets:])


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Both searches over models and secrets of a sweep."""
    before = (
        json.loads(args.output.read_text(encoding="utf-8"))
        if args.output and args.output.exists()
        else {}
    )
    end = time.perf_counter() + 60 * args.minutes
    spec = load_spec(args.sweep / "spec.yaml")
    runs, names = chosen(args.sweep, args.models, args.secrets)
    folders = {run: args.sweep / "trials" / run / "model" for run in runs}
    models = TrainedModels(load_base(spec.model), folders)
    with models.loaded(0) as model:
        task = task_of(spec, model.tokenizer)
    task = replace(task, task_secrets=tuple(s for s in task.secrets() if s.name in names))
    settings = {
        "sweep": args.sweep.name, "runs": runs, "secrets": names, "seeds": args.seeds, "num_steps": NUM_STEPS,
        "batch_size": BATCH_SIZE, "top_k": TOP_K, "max_tokens": args.max_tokens, "threads": args.threads,
    }  # fmt: skip
    assert before.get("settings", settings) == settings, "the file is of other settings"
    ours = before.get("ours") or measured(models, task, args)
    plain = before.get("plain", {})
    for index, run in enumerate(runs):
        for name in names:
            if f"{run} {name}" not in plain and time.perf_counter() < end:
                with models.loaded(index) as model:
                    plain[f"{run} {name}"] = plainly(model, task, name, args)
                if args.output:  # an interrupted comparison goes on from here
                    write({"settings": settings, "ours": ours, "plain": plain}, args)
    return {"settings": settings, "ours": ours, "plain": plain, "summary": summary(ours, plain)}


def measured(models: TrainedModels, task: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The score, with its own defaults."""
    longest = 5 * ((args.max_tokens - 1) // 5)  # the reference's bound is not reached
    score = AdversarialCompression(num_seeds=args.seeds, max_prompt_tokens=longest)
    results: dict[str, Any] = {}

    def run() -> None:
        context = Context(
            progress=lambda done, total: print(f"ours: {done} of {total} models", file=sys.stderr)
        )
        for name, result in score.measure_many(models, task, seed=0, context=context):
            results[name] = {"acr": dict(result.per_secret), **result.cost}

    processor, wall = seconds(run)
    return {"processor_seconds": processor, "wall_seconds": wall, "models": results}


def plainly(model: LoadedModel, task: Any, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Plain MiniPrompt, the best of its seeds."""
    (target,) = [t for t in AdversarialCompression.targets(model, task) if t.name == name]
    allowed = plain_tokens(model.tokenizer, len(model.model.get_input_embeddings().weight))
    plain = Plain(
        model=model.model, target=torch.tensor(target.ids), allowed=torch.from_numpy(allowed),
        before=start_tokens(model.tokenizer), batch_size=BATCH_SIZE, topk=TOP_K,
    )  # fmt: skip
    found: list[torch.Tensor | None] = []

    def run() -> None:
        found.extend(
            plain.minimise(k, num_steps=NUM_STEPS, max_tokens=args.max_tokens)
            for k in range(args.seeds)
        )

    processor, wall = seconds(run)
    lengths = [len(prompt) for prompt in found if prompt is not None]
    return {
        "acr": len(target.ids) / min(lengths) if lengths else 0.0, "processor_seconds": processor,
        "wall_seconds": wall, "forward_passes": plain.forward_passes, "gcg_steps": plain.gcg_steps,
    }  # fmt: skip


def summary(ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Totals over the pairs; ratios only where the plain search has done all of them."""
    pairs = {
        f"{run} {name}": acr for run, r in ours["models"].items() for name, acr in r["acr"].items()
    }
    differences = {pair: pairs[pair] - result["acr"] for pair, result in plain.items()}
    totals = {
        "pairs": len(pairs),
        "pairs_of_plain": len(plain),
        "better": sum(d > 0 for d in differences.values()),
        "equal": sum(d == 0 for d in differences.values()),
        "worse": sum(d < 0 for d in differences.values()),
        "plain": {
            key: sum(r[key] for r in plain.values())
            for key in ("processor_seconds", "wall_seconds")
        },
        "plain_forward_passes": sum(r["forward_passes"] for r in plain.values()),
        "our_forward_passes": sum(r["forward_passes"] for r in ours["models"].values()),
    }
    if len(plain) == len(pairs):
        totals["times_fewer_seconds"] = (
            totals["plain"]["processor_seconds"] / ours["processor_seconds"]
        )
        totals["times_fewer_forward_passes"] = (
            totals["plain_forward_passes"] / totals["our_forward_passes"]
        )
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--threads", type=int, default=1)
    common.add_argument(
        "-o", "--output", type=Path, help="write the JSON here instead of to stdout"
    )
    ways = parser.add_subparsers(required=True)
    one = ways.add_parser("step", parents=[common])
    one.add_argument("--model", default=SMOLLM2)
    one.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    one.add_argument("--target-tokens", type=int, default=20)
    one.add_argument("--prompt-tokens", type=int, nargs="+", default=[5, 20])
    one.add_argument("--rounds", type=int, default=3)
    one.set_defaults(run=step)
    many = ways.add_parser("sweep", parents=[common])
    many.add_argument(
        "--sweep", type=Path, required=True, help="folder of a finished sweep with LoRA adapters"
    )
    many.add_argument("--models", type=int, default=8)
    many.add_argument("--secrets", type=int, default=3)
    many.add_argument("--seeds", type=int, default=3)
    many.add_argument("--max-tokens", type=int, default=30, help="prompts are shorter than this")
    many.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no further plain search after these",
    )
    many.set_defaults(run=compare)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    write(args.run(args), args)


def write(result: dict[str, Any], args: argparse.Namespace) -> None:
    """As JSON, with where it ran."""
    text = json.dumps({**describe("torch", "transformers"), **result}, indent=2)
    if args.output:
        args.output.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
