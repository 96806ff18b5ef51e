"""Ways to the sum of weighted per-example products, Σ_i f_i · g_iᵀ x_i in bf16 with 32-bit sums, on
a GPU.

    python benchmarks/gpu/products.py --output products.json

`plain` is the product without factors and with a 16-bit result, as the gradient of a weight without
privacy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from raydp.training.gradients import narrow_products

try:
    from raydp.training.gradients import kernels
except ImportError:  # no Triton, no GPU
    kernels = None

SHAPES = [
    (64, 2048, 8192),
    (512, 2048, 8192),
    (2048, 2048, 8192),
    (512, 2048, 2048),
    (512, 768, 3072),
]
"""Tokens of an example, inputs, outputs."""
THIN = [(512, 4096, 16), (512, 16, 4096), (512, 14_336, 16), (512, 16, 14_336)]
"""The same of LoRA's matrices at 8B, whose per-example gradients are written out."""
TOKENS = 8192
TILES = [
    {
        "ROWS": rows,
        "COLUMNS": columns,
        "STEPS": steps,
        "GROUP": 8,
        "num_warps": warps,
        "num_stages": stages,
    }
    for rows, columns, steps, warps, stages in (
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (256, 128, 64, 8, 3),
    )
]


def milliseconds(call: Callable[[], object], synchronise: Callable[[], object]) -> float:
    """Median of seven, after two calls to warm up."""
    times = []
    for _ in range(9):
        synchronise()
        start = time.perf_counter()
        call()
        synchronise()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[2:])


def with_tile(tile: dict[str, int], *inputs: torch.Tensor) -> None:
    """Run the kernel with tiles of a size."""
    kernels.TILE.update(tile)
    kernels.add_weighted_product(*inputs, chain=narrow_products.CHAIN)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small shapes")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    on_gpu = args.device != "cpu"
    synchronise = torch.accelerator.synchronize if on_gpu else lambda: None
    results = {}
    for length, inputs, outputs in [(4, 8, 16), (8, 16, 4)] if args.small else [*SHAPES, *THIN]:
        count = 4 if args.small else TOKENS // length
        x, g = (
            torch.randn(count, length, n, device=args.device, dtype=torch.bfloat16)
            for n in (inputs, outputs)
        )
        factors = torch.rand(count, device=args.device)
        ways: dict[str, Callable[[], object]] = {
            "plain": lambda x=x, g=g: g.flatten(0, 1).T @ x.flatten(0, 1),
            "fp32": lambda x=x, g=g, f=factors: (
                (g.float() * f[:, None, None]).flatten(0, 1).T @ x.float().flatten(0, 1)
            ),
            "each_example": lambda x=x, g=g: narrow_products.batched(g.mT, x),
            "each_example_16_bits": lambda x=x, g=g: torch.bmm(g.mT, x),
            "ghost_norm": lambda x=x, g=g: narrow_products.sums_of_terms(
                narrow_products.batched(g, g.mT), narrow_products.batched(x, x.mT)
            ),
        }
        if on_gpu and min(inputs, outputs) > 16:
            sums = torch.zeros(outputs, inputs, device=args.device)
            ways["by_example"] = lambda x=x, g=g, f=factors, s=sums: narrow_products.add_by_example(
                s, g, x, f
            )
            for number, tile in enumerate(TILES):
                ways[f"triton_{number}"] = lambda x=x, g=g, f=factors, s=sums, tile=tile: with_tile(
                    tile, s, g, x, f
                )
        name = f"{count} examples of {length} tokens, {inputs} to {outputs}"
        results[name] = {}
        for way, call in ways.items():
            try:
                results[name][way] = milliseconds(call, synchronise)
            except Exception as error:  # noqa: BLE001 - a tile that does not fit
                results[name][way] = f"{type(error).__name__}: {str(error)[:100]}"
        print(name, results[name], flush=True)
        args.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
