"""Time to sample continuations: transformers' generate, one by one and batched, against the scores'
own sampler.

    python benchmarks/generation.py --dtype float32 -o generation.json
    python benchmarks/generation.py --model FOLDER --dtype bfloat16

Without --model it measures random weights in the shape of SmolLM2-135M. Their samples share few
tokens; those of a trained model agree for longer, which is faster. End tokens are switched off, so
that every way decodes as many tokens. The ways alternate within one run: a part of the sequential
prompts, then one round of the others. On a CPU the times are processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from machine import describe

from raydp.models.base_models import LoadedModel
from raydp.scores.language.encoding import EncodedSecret
from raydp.scores.language.generation import Sampling, sample_continuations, uniforms
from raydp.scores.language.teacher_forcing import over_continuations


def load(folder: str | None, dtype: torch.dtype, device: str) -> LoadedModel:
    """The model of a folder, or random weights in the shape of SmolLM2-135M."""
    if folder is not None:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    else:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=49_152,
            hidden_size=576,
            intermediate_size=1_536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=2_048,
            tie_word_embeddings=True,
        )
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config.eos_token_id = None
    return LoadedModel(model=model.eval().to(device), tokenizer=None)


def generate(
    model: LoadedModel, prompts: list[list[int]], args: argparse.Namespace, num_samples: int
) -> None:
    """transformers' generate on one left-padded batch."""
    width = max(map(len, prompts))
    ids = torch.tensor(
        [[0] * (width - len(prompt)) + prompt for prompt in prompts], device=args.device
    )
    mask = torch.tensor(
        [[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=args.device
    )
    output = model.model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        top_k=50,
        max_new_tokens=args.tokens,
        num_return_sequences=num_samples,
        pad_token_id=0,
    )
    assert output.shape == (len(prompts) * num_samples, width + args.tokens)


def ours(model: LoadedModel, prompts: list[list[int]], args: argparse.Namespace) -> None:
    """The scores' sampler: what `air`, `vmr_text` and `vmr_near` take."""
    draws = [
        uniforms(0, "benchmark", str(i), args.samples, args.tokens) for i in range(len(prompts))
    ]
    samples = sample_continuations(model, prompts, draws, Sampling(), stop=np.array([], np.int64))
    assert all(len(sample) == args.tokens for of_prompt in samples for sample in of_prompt)


def one_pass(model: LoadedModel, prompts: list[list[int]], args: argparse.Namespace) -> None:
    """Teacher forcing over continuations of the same length: what `vmr`, `vmr_exact` and
    `extraction` take."""
    continuation = tuple(range(2, 2 + args.tokens))
    secrets = [
        EncodedSecret(
            id=str(i),
            name=f"secret-{i:03d}",
            prompt_ids=tuple(prompt),
            continuation_ids=continuation,
        )
        for i, prompt in enumerate(prompts)
    ]
    over_continuations(model, secrets, lambda logits, _: Sampling().distribution(logits))


def seconds(run: Callable[[], None], device: str) -> float:
    """Processor time of a run on a CPU, which other processes share; wall-clock time on an
    accelerator."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    run()
    if device != "cpu":
        torch.accelerator.synchronize()
    return clock() - start


def compare(args: argparse.Namespace) -> dict[str, object]:
    """Measure all ways side by side."""
    torch.set_num_threads(args.threads)
    model = load(args.model, getattr(torch, args.dtype), args.device)
    rng = np.random.default_rng(0)
    prompts = [
        rng.integers(2, model.model.config.vocab_size, size).tolist()
        for size in rng.integers(6, 33, args.prompts)
    ]
    ways: dict[str, Callable[[], None]] = {
        "batched_generate": lambda: generate(model, prompts, args, args.samples),
        "sample_continuations": lambda: ours(model, prompts, args),
        "teacher_forcing": lambda: one_pass(model, prompts, args),
    }
    for run in (lambda: generate(model, prompts[:1], args, 1), *ways.values()):
        run()  # warm up: kernels are chosen, weights are packed
    sequential, times = 0.0, {name: [] for name in ways}
    for part in np.array_split(np.arange(len(prompts)), args.rounds):
        for i in part.repeat(args.sequential_samples):
            sequential += seconds(lambda i=i: generate(model, [prompts[i]], args, 1), args.device)
        for name, run in ways.items():
            times[name].append(seconds(run, args.device))
    sequential *= args.samples / args.sequential_samples
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        **describe("torch", "transformers"),
        "settings": {
            "threads": args.threads,
            "device": args.device,
            "model": Path(args.model).name if args.model else "random weights, SmolLM2-135M shape",
            "dtype": args.dtype,
            "prompts": args.prompts,
            "prompt_tokens": sum(map(len, prompts)),
            "samples": args.samples,
            "sequential_samples": args.sequential_samples,
            "new_tokens": args.tokens,
            "top_k": 50,
            "seed": 0,
        },
        "seconds": {"sequential_generate": sequential, **medians},
        "rounds_seconds": times,
        "ratio_to_sequential": {name: value / sequential for name, value in medians.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder with a causal language model")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=13)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--sequential-samples", type=int, default=10, help="of each prompt; their time is scaled up"
    )
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument(
        "-o", "--output", type=Path, help="write the JSON here instead of to stdout"
    )
    args = parser.parse_args()
    result = json.dumps(compare(args), indent=2)
    if args.output:
        args.output.write_text(result + "\n")
    else:
        print(result)


if __name__ == "__main__":
    main()
