"""The key stream of `raydp.training.noise.stream` on a GPU, in integer operations on tensors.

The cipher is ChaCha20 (RFC 8439).

Every device computes the same words bit for bit. torch's own operations are the reference and run
on every device. On CUDA, a Triton kernel keeps the state of a block in registers, where torch's
operations write it to memory 500 times.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch

try:
    from raydp.training.noise.chacha_kernel import drawn_uniforms
except ImportError:  # Triton comes with torch's builds for CUDA only
    drawn_uniforms = None  # type: ignore[assignment]

CONSTANTS = struct.unpack("<4i", b"expand 32-byte k")
BLOCK_WORDS = 8
"""Number of 64-bit words in a block."""
ROUNDS = 10
"""Number of double rounds."""


class Segment(NamedTuple):
    """A piece of a key stream: its key of 32 bytes, first word and number of words."""

    subkey: bytes
    start: int
    length: int


@cache
def kernel_runs(device: torch.device) -> bool:
    """Return whether the kernel runs on a device: Triton must be installed and find a compiler."""
    if device.type != "cuda" or drawn_uniforms is None:
        return False
    try:
        drawn_uniforms([Segment(bytes(32), 0, 1)], device)
    except Exception as error:  # noqa: BLE001 - whatever keeps Triton from running, torch's operations draw the same
        logging.getLogger(__name__).warning(
            "noise is drawn without Triton, which takes longer: %s", error
        )
        return False
    return True


def uniforms(segments: Sequence[Segment], device: torch.device) -> torch.Tensor:
    """Return uniforms in (0, 1] (fp64) for the words of all segments, as `KeyedStream.uniform`."""
    if kernel_runs(device):
        return drawn_uniforms(segments, device)
    bits = torch.cat([words(*segment, device) for segment in segments])
    return ((bits >> 11) & (2**53 - 1)).double().add_(0.5).mul_(2.0**-53)  # >> repeats the sign bit


def words(subkey: bytes, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Return [count] 64-bit words (int64) of a ChaCha20 stream, nonce 0, from `start` on."""
    # A stream has random access: skip whole blocks by the counter, and words within the first
    # block.
    first, skip = divmod(start, BLOCK_WORDS)
    blocks = torch.arange(first, first + -(-(skip + count) // BLOCK_WORDS), device=device)
    fixed = torch.tensor(
        [*CONSTANTS, *struct.unpack("<8i", subkey)], dtype=torch.int32, device=device
    )
    counter = blocks.view(torch.int32).view(-1, 2).T  # [2, blocks] low and high half
    # The initial state (RFC 8439, section 2.3): constants, key, counter, nonce. The counter has 64
    # bits here, as in Bernstein's original, and the nonce 64 bits of 0.
    begin = torch.cat([fixed[:, None].expand(-1, len(blocks)), counter, torch.zeros_like(counter)])
    a, b, c, d = begin.clone().split(4)
    for _ in range(ROUNDS):
        a, b, c, d = _quarter_rounds(a, b, c, d)  # columns of the state
        # The diagonals of the state.
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    # The final sum with the initial state makes the function one-way.
    stream = (
        torch.cat([a, b, c, d]) + begin
    ).T.flatten()  # the 16 words of a block, one block after another
    return stream.view(torch.int64)[skip : skip + count]


def _quarter_rounds(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return four quarter rounds (RFC 8439, section 2.1) on [4, blocks] int32; sums wrap around."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Rotate the 32 bits of each value to the left."""
    return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))  # >> repeats the sign bit
