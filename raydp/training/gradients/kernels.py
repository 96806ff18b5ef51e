"""Triton kernels: sums of products with a factor for each example, and a ghost norm's sums."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

TILE = {"ROWS": 128, "COLUMNS": 128, "STEPS": 64, "GROUP": 8, "num_warps": 8, "num_stages": 4}
"""Sizes of a tile, and the compiler's settings.

ROWS and COLUMNS of a tile, STEPS tokens of one product, GROUP rows of tiles that are neighbours.
"""
TERMS = {"ROWS": 16, "COLUMNS": 128}
"""Rows and columns of the terms that one program adds up at a time."""


def add_weighted_product(
    into: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    weights: torch.Tensor,
    *,
    chain: int,
) -> None:
    """Add Σ_i weights_i · leftᵀ_i right_i of two 16-bit tensors to an fp32 [m, n], in place.

    left is [B, T, m] and right [B, T, n], of one dtype.

    A program makes one tile of the result. It sums the products of an example in fp32, multiplies
    the sums by the example's factor, and adds them to the tile's total. An example of weight 0 adds
    nothing.

    Args:
        chain: largest number of products that are added without rounding. Longer examples are added
            piece by piece.
    """
    left, right = left.contiguous(), right.contiguous()
    size, length, rows = left.shape
    columns = right.shape[2]
    assert into.is_contiguous()

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(rows, meta["ROWS"]) * triton.cdiv(columns, meta["COLUMNS"]),)

    # Cut long examples into pieces of about equal length, in whole steps of the kernel.
    pieces = triton.cdiv(length, chain)
    piece = triton.cdiv(triton.cdiv(length, pieces), TILE["STEPS"]) * TILE["STEPS"]
    factors = weights.float().contiguous()
    # The tensor memory accelerator needs rows of multiples of 16 bytes, and an aligned start.
    described = all(t.shape[2] % 8 == 0 and t.data_ptr() % 16 == 0 for t in (left, right))
    inputs: tuple[object, object] = (left, right)
    if described:
        inputs = (
            TensorDescriptor.from_tensor(left, [1, TILE["STEPS"], TILE["ROWS"]]),
            TensorDescriptor.from_tensor(right, [1, TILE["STEPS"], TILE["COLUMNS"]]),
        )
    with torch.cuda.device(left.device) if left.is_cuda else nullcontext():
        _weighted_product[grid](
            *inputs,
            factors,
            into,
            size,
            length,
            pieces,
            piece,
            rows,
            columns,
            DESCRIBED=described,
            **TILE,
        )


@triton.jit
def _weighted_product(  # type: ignore[no-untyped-def]
    left, right, weights, into, size, length, pieces, piece, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
    DESCRIBED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    # Neighbouring programs share rows or columns, which then are in the cache.
    program = tl.program_id(0)
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    group = program // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    first_row = (group * GROUP + (program % (GROUP * across)) % height) * ROWS
    first_column = ((program % (GROUP * across)) // height) * COLUMNS
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    # The next part is read while this one is multiplied.
    for part in tl.range(0, size * pieces, flatten=True):
        example, first = part // pieces, (part % pieces) * piece
        # The fp32 sum of one piece of one example.
        own = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for offset in range(0, piece, STEPS):
            start = first + offset
            if DESCRIBED:  # by the copy engine, which reads zeros outside the tensor
                a = left.load([example, start, first_row]).reshape(STEPS, ROWS)
                b = right.load([example, start, first_column]).reshape(STEPS, COLUMNS)
            else:
                step = start + tl.arange(0, STEPS)
                inside = (step < length)[:, None]
                position = (example * length + step).to(tl.int64)[:, None]
                in_left, in_right = (
                    inside & (row < rows)[None, :],
                    inside & (column < columns)[None, :],
                )
                a = tl.load(left + position * rows + row[None, :], mask=in_left, other=0.0)
                b = tl.load(right + position * columns + column[None, :], mask=in_right, other=0.0)
            own = tl.dot(tl.trans(a), b, own)
        # Only here can the example's factor be applied: in 16 bits it would be rounded. Infinite
        # values of an example of weight 0 must not become NaN.
        weight = tl.load(weights + example)
        total += tl.where(weight == 0, 0.0, own * weight)
    # One program owns the tile, so it adds without an atomic operation, in a fixed order.
    place = into + row.to(tl.int64)[:, None] * columns + column[None, :]
    chosen = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(place, tl.load(place, mask=chosen, other=0.0) + total, mask=chosen)


def add_up_terms(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return [3, B] sums of the elementwise product of two fp32 [B, T, T].

    The product is not written to memory.

    They are the sum of all terms, the sum of the square roots of those on the diagonal, and the sum
    of the latter. A negative term of the diagonal counts as 0 in the last two.
    """
    size, length = left.shape[:2]
    assert left.is_contiguous()
    assert right.is_contiguous()
    tiles = triton.cdiv(length, TERMS["ROWS"])
    parts = torch.empty(3, size, tiles, device=left.device)
    with torch.cuda.device(left.device) if left.is_cuda else nullcontext():
        _add_up_terms[(tiles, size)](left, right, parts, size, length, tiles, **TERMS)
    return parts.sum(dim=2)


@triton.jit
def _add_up_terms(  # type: ignore[no-untyped-def]
    left, right, parts, size, length, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr  # noqa: N803
):  # fmt: skip
    # A program adds up some rows of one example's matrix.
    tile, example = tl.program_id(0), tl.program_id(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    line = (example.to(tl.int64) * length + row) * length
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for first in range(0, length, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        place = line[:, None] + column[None, :]
        chosen = (row < length)[:, None] & (column < length)[None, :]
        total += tl.load(left + place, mask=chosen, other=0.0) * tl.load(
            right + place, mask=chosen, other=0.0
        )
    # The terms on the diagonal are squares, but rounding may make them negative.
    inside = row < length
    diagonal = tl.load(left + line + row, mask=inside, other=0.0) * tl.load(
        right + line + row, mask=inside, other=0.0
    )
    diagonal = tl.maximum(diagonal, 0.0)
    place = parts + example * tiles + tile
    tl.store(place, tl.sum(total))
    tl.store(place + size * tiles, tl.sum(tl.sqrt(diagonal)))
    tl.store(place + 2 * size * tiles, tl.sum(diagonal))
