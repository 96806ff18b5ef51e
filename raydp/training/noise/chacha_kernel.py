"""The Triton kernel of `raydp.training.noise.chacha`: a thread computes a block in registers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import triton
import triton.language as tl

BLOCK_WORDS = 8
MOST_SEGMENTS = 65_535
BLOCKS = 256
"""Number of blocks that one program computes."""


def drawn_uniforms(
    segments: Sequence[tuple[bytes, int, int]], device: torch.device
) -> torch.Tensor:
    """Return uniforms in (0, 1] (fp64) for the words of segments: key, first position, count."""
    # A row of inputs for each segment: key, first block, words to skip, words to fill, where.
    rows, largest, total = [], 0, 0
    for subkey, start, count in segments:
        first, skip = divmod(start, BLOCK_WORDS)
        rows.append((*struct.unpack("<8i", subkey), first, skip, count, total))
        largest, total = max(largest, -(-(skip + count) // BLOCK_WORDS)), total + count
    out = torch.empty(total, dtype=torch.float64, device=device)
    # Numbers travel in a tensor: as arguments, their divisibility would compile a kernel of its own
    # for each key.
    inputs = torch.tensor(rows, dtype=torch.int64).to(device)
    if total:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            # CUDA allows 2^31 programs along the first axis, and 65,535 along the second.
            for first in range(0, len(rows), MOST_SEGMENTS):
                some = inputs[first : first + MOST_SEGMENTS]
                _uniform_kernel[(triton.cdiv(largest, BLOCKS), len(some))](
                    out, some, SIZE=BLOCKS, FIELDS=len(rows[0])
                )
    return out


@triton.jit
def _rotated(x, bits: tl.constexpr):  # type: ignore[no-untyped-def]
    return (x << bits) | (x >> (32 - bits))


@triton.jit
def _quarter_round(a, b, c, d):  # type: ignore[no-untyped-def]
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _store(out, position, count, low, high):  # type: ignore[no-untyped-def]
    """Store the uniform of the 64-bit words (low, high) at a position, if it is wanted."""
    word = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    value = ((word >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2^-53
    tl.store(out + position, value, mask=(position >= 0) & (position < count))


@triton.jit
def _uniform_kernel(out, inputs, SIZE: tl.constexpr, FIELDS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Compute SIZE blocks of a segment.

    A segment's inputs are the 8 words of its key, its first block, how many positions to skip and
    to fill, and where.
    """
    inputs += tl.program_id(1) * FIELDS
    row = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    # One variable for each word of the state: Triton cannot index registers.
    zero = tl.zeros([SIZE], dtype=tl.uint32)
    k0 = zero + tl.load(inputs + 0).to(tl.uint32)
    k1 = zero + tl.load(inputs + 1).to(tl.uint32)
    k2 = zero + tl.load(inputs + 2).to(tl.uint32)
    k3 = zero + tl.load(inputs + 3).to(tl.uint32)
    k4 = zero + tl.load(inputs + 4).to(tl.uint32)
    k5 = zero + tl.load(inputs + 5).to(tl.uint32)
    k6 = zero + tl.load(inputs + 6).to(tl.uint32)
    k7 = zero + tl.load(inputs + 7).to(tl.uint32)
    block = tl.load(inputs + 8) + row
    skip = tl.load(inputs + 9)
    count = tl.load(inputs + 10)
    out += tl.load(inputs + 11)
    low = block.to(tl.uint32)
    high = (block >> 32).to(tl.uint32)
    x0 = zero + 0x61707865
    x1 = zero + 0x3320646E
    x2 = zero + 0x79622D32
    x3 = zero + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12 = low
    x13 = high
    x14 = zero
    x15 = zero
    # Ten double rounds: columns, then diagonals (RFC 8439, section 2.3).
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    # Add the initial state, and store two words of 32 bits as one uniform.
    position = row * 8 - skip
    _store(out, position + 0, count, x0 + 0x61707865, x1 + 0x3320646E)
    _store(out, position + 1, count, x2 + 0x79622D32, x3 + 0x6B206574)
    _store(out, position + 2, count, x4 + k0, x5 + k1)
    _store(out, position + 3, count, x6 + k2, x7 + k3)
    _store(out, position + 4, count, x8 + k4, x9 + k5)
    _store(out, position + 5, count, x10 + k6, x11 + k7)
    _store(out, position + 6, count, x12 + low, x13 + high)
    _store(out, position + 7, count, x14, x15)
