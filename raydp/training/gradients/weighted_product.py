"""A Triton kernel for sums of products in which every example has a factor."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

TILE = {"ROWS": 128, "COLUMNS": 256, "STEPS": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}
"""Rows and columns of a tile, tokens of one product, rows of tiles that are neighbours, and the compiler's settings."""


def add_weighted_product(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor) -> None:
    """Add Σ_i weights_i · leftᵀ_i right_i of [B, T, m] and [B, T, n] of one 16-bit dtype to an fp32 [m, n], in place.

    A program makes one tile of the result. It sums the products of an example in fp32, multiplies the sums by the
    example's factor, and adds them to the tile's total. An example of weight 0 adds nothing.
    """
    left, right = left.contiguous(), right.contiguous()
    size, length, rows = left.shape
    columns = right.shape[2]
    assert into.is_contiguous()

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(rows, meta["ROWS"]) * triton.cdiv(columns, meta["COLUMNS"]),)

    factors = weights.float().contiguous()
    with torch.cuda.device(left.device) if left.is_cuda else nullcontext():
        _weighted_product[grid](left, right, factors, into, size, length, rows, columns, **TILE)


@triton.jit
def _weighted_product(  # type: ignore[no-untyped-def]
    left, right, weights, into, size, length, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
):  # fmt: skip
    # Neighbouring programs share rows or columns, which then are in the cache.
    program = tl.program_id(0)
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    group = program // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    row = (group * GROUP + (program % (GROUP * across)) % height) * ROWS + tl.arange(0, ROWS)
    column = ((program % (GROUP * across)) // height) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for example in range(size):
        own = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for start in range(0, length, STEPS):
            step = start + tl.arange(0, STEPS)
            inside = (step < length)[:, None]
            position = (example * length + step).to(tl.int64)[:, None]
            in_left, in_right = inside & (row < rows)[None, :], inside & (column < columns)[None, :]
            a = tl.load(left + position * rows + row[None, :], mask=in_left, other=0.0)
            b = tl.load(right + position * columns + column[None, :], mask=in_right, other=0.0)
            own = tl.dot(tl.trans(a), b, own)
        weight = tl.load(weights + example)
        total += tl.where(weight == 0, 0.0, own * weight)
    place = into + row.to(tl.int64)[:, None] * columns + column[None, :]
    chosen = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(place, tl.load(place, mask=chosen, other=0.0) + total, mask=chosen)
