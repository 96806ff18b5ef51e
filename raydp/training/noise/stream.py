"""The randomness that the guarantee rests on: a keyed, counter-based stream.

Every draw is a function of (key, run_id, step, purpose, name): ChaCha20 (RFC 8439) under a key
derived with HMAC-SHA-256. So no two runs share noise, a replayed step redraws the same noise, and
there is no generator state to checkpoint.

Each stream has random access: any part of it can be drawn without the rest. Normals are sampled in
double precision (Box-Muller on 53-bit uniforms) and end at 8.65 standard deviations.
`raydp.training.noise.lattice` ensures that their low-order bits do not leak. On a GPU they are
drawn there (`raydp.training.noise.chacha`), from the same words.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from raydp.training.noise import chacha

KEY_BYTES = 32
CHUNK_PAIRS = {"cpu": 1 << 15, "cuda": 1 << 21}
"""Number of pairs of normals computed at a time, to fit the cache of the processor or GPU."""
_ZEROS = memoryview(bytes(8 * (CHUNK_PAIRS["cpu"] + chacha.BLOCK_WORDS)))
"""The plaintext that ChaCha20 encrypts, to give its key stream.

Zeros for one chunk are made once.
"""
CPU = torch.device("cpu")
TEST_KEY = bytes(KEY_BYTES)
"""The public key of `privacy.noise_key: test`. Records of runs that use it are not certified."""


def new_key() -> bytes:
    """Return a secret 256-bit sweep key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def key_fingerprint(key: bytes) -> str:
    """Return a one-way hash of a key, which names the key and says nothing of its streams.

    The prefix separates it from every other use of the key. 256 random bits cannot be guessed from
    it.
    """
    return hashlib.sha256(b"raydp: fingerprint of a sweep's key\0" + key).hexdigest()


@dataclass(frozen=True, kw_only=True)
class KeyedStream:
    """The random streams of one run.

    Args:
        key: the sweep's key, 32 secret bytes.
        run_id: the run's identity. Runs never share a stream.
    """

    key: bytes
    run_id: str

    def __post_init__(self) -> None:
        assert len(self.key) == KEY_BYTES, "the sweep key has 32 bytes"

    def __repr__(self) -> str:
        return f"KeyedStream(run_id={self.run_id!r})"  # the key is never shown

    def bits(
        self, count: int, *, step: int, purpose: str, name: str = "", start: int = 0
    ) -> NDArray[np.uint64]:
        """Return [count] uniform 64-bit integers of the stream, from position start on."""
        return _words(self._subkey(step, purpose, name), start, count)

    def _subkey(self, step: int, purpose: str, name: str) -> bytes:
        """Return the 32 bytes that are the key of one stream."""
        label = json.dumps(
            [self.run_id, step, purpose, name]
        ).encode()  # unambiguous: quoted and separated
        return hmac.digest(self.key, label, "sha256")

    def uniform(
        self, count: int, *, step: int, purpose: str, name: str = "", start: int = 0
    ) -> NDArray[np.float64]:
        """Return [count] uniforms in (0, 1], from position start on.

        They are midpoints of 2^53 equal cells, never 0. Above 1/2 they are rounded to 53 bits, the
        last one to 1.
        """
        words = self.bits(count, step=step, purpose=purpose, name=name, start=start)
        # The upper 53 bits, which a double holds exactly.
        words >>= np.uint64(11)
        uniform = words.view(np.int64).astype(np.float64)
        uniform += 0.5
        uniform *= 2.0**-53
        return uniform

    def normal(
        self, count: int, *, step: int, purpose: str, name: str = "", part: slice = slice(None)
    ) -> NDArray[np.float64]:
        """Return independent standard normals as an array; see `normal_on`."""
        return self.normal_on(CPU, count, step=step, purpose=purpose, name=name, part=part).numpy()

    def normal_on(
        self,
        device: torch.device,
        count: int,
        *,
        step: int,
        purpose: str,
        name: str = "",
        part: slice = slice(None),
    ) -> torch.Tensor:
        """Return independent standard normals, fp64, drawn on a device.

        Args:
            count: length of the whole stream.
            part: the part to draw, without stride. The result is that part of all normals, at the
                cost of this part.

        Returns:
            [length of part], the pieces of `normal_pieces`.
        """
        start, stop, _ = part.indices(count)
        pieces = self.normal_pieces(device, count, step=step, purpose=purpose, name=name, part=part)
        return assembled(pieces, max(0, stop - start), device)

    def normal_pieces(
        self,
        device: torch.device,
        count: int,
        *,
        step: int,
        purpose: str,
        name: str = "",
        part: slice = slice(None),
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Draw independent standard normals (Box and Muller 1958), fp64, in pieces.

        A piece fits the cache of `device`.

        Args:
            count: length of the whole stream.
            part: the part to draw, without stride. It is that part of all normals, at the cost of
                this part.

        Yields:
            Positions in the part, and the normals there. Each position comes once, in no order. The
            pair of uniforms at positions i and half + i gives the values at these positions, where
            half = count / 2, rounded up. Values are the same on every machine and device, up to the
            last bits of logarithm, sine and cosine.
        """
        start, stop, stride = part.indices(count)
        assert stride == 1, "a part has no stride"
        half = (count + 1) // 2
        # Positions below half are cosines and the others sines of the same pairs.
        cosines, sines = (start, min(stop, half)), (max(start, half) - half, stop - half)
        for first, last in _chunks(
            CHUNK_PAIRS.get(device.type, CHUNK_PAIRS["cpu"]), cosines, sines
        ):
            radius, angle = (
                self._uniform_on(
                    device, last - first, step=step, purpose=purpose, name=name, start=position
                )
                for position in (first, half + first)
            )
            _to_polar(radius, angle)
            if cosines[0] <= first < cosines[1]:
                yield slice(first - start, last - start), radius * angle.cos()
            if sines[0] <= first < sines[1]:
                yield slice(half + first - start, half + last - start), radius * angle.sin()

    def _uniform_on(
        self, device: torch.device, count: int, *, step: int, purpose: str, name: str, start: int
    ) -> torch.Tensor:
        """Return [count] uniforms on a device, bit for bit those of `uniform`."""
        if device.type == "cpu":  # the library's ChaCha20 is the fastest there
            return torch.from_numpy(
                self.uniform(count, step=step, purpose=purpose, name=name, start=start)
            )
        return chacha.uniforms(
            [chacha.Segment(self._subkey(step, purpose, name), start, count)], device
        )

    def normals_on(
        self, device: torch.device, counts: Mapping[str, int], *, step: int, purpose: str
    ) -> torch.Tensor:
        """Return the normals of several streams, one after another, drawn together.

        They are `normal_on` of each name.

        Args:
            counts: name -> length of its whole stream. All of them must fit into the device's
                memory.
        """
        # The first half of each stream gives radii and the second half angles, as in
        # `normal_pieces`.
        keys = [self._subkey(step, purpose, name) for name in counts]
        halves = [(count + 1) // 2 for count in counts.values()]
        radius = chacha.uniforms(
            [chacha.Segment(key, 0, half) for key, half in zip(keys, halves, strict=True)], device
        )
        angle = chacha.uniforms(
            [chacha.Segment(k, half, half) for k, half in zip(keys, halves, strict=True)], device
        )
        _to_polar(radius, angle)
        cosines, sines = (
            (radius * of_angle).split(halves) for of_angle in (angle.cos(), angle.sin())
        )
        # An odd count leaves one sine over.
        lengths = [count - half for count, half in zip(counts.values(), halves, strict=True)]
        pairs = zip(cosines, sines, lengths, strict=True)
        return torch.cat(
            [piece for cosine, sine, length in pairs for piece in (cosine, sine[:length])]
        )

    def poisson_mask(
        self, num_examples: int, batch_size: int, *, step: int, purpose: str = "mask"
    ) -> NDArray[np.bool_]:
        """Return [n] a mask that includes each example independently with probability b/n.

        Source: Poisson subsampling as in Hu et al. 2025, Algorithm 2, line 2. The threshold is the
        integer floor(2^64 b/n), so the probability is never above b/n and at most 2^-64 below it.
        """
        assert 1 <= batch_size <= num_examples
        # 2^64 does not fit a 64-bit threshold.
        if batch_size == num_examples:
            return np.ones(num_examples, np.bool_)
        threshold = np.uint64((batch_size << 64) // num_examples)
        return self.bits(num_examples, step=step, purpose=purpose) < threshold


def assembled(
    pieces: Iterable[tuple[slice, torch.Tensor]], length: int, device: torch.device
) -> torch.Tensor:
    """Return [length] the normals of pieces, each at its positions."""
    whole = torch.empty(length, dtype=torch.float64, device=device)
    for place, normals in pieces:
        whole[place] = normals
    return whole


def _words(subkey: bytes, start: int, count: int) -> NDArray[np.uint64]:
    """Return [count] 64-bit words of a ChaCha20 key stream, from position start on.

    RFC 8439 has a 32-bit counter of blocks, then the nonce. The nonce is 0, because every subkey is
    used for one stream. The library raises an error if the counter would overflow.
    """
    # Seek: the counter skips whole blocks, and `skip` words are cut off.
    block, skip = divmod(start, chacha.BLOCK_WORDS)
    encryptor = Cipher(ChaCha20(subkey, block.to_bytes(16, "little")), mode=None).encryptor()
    stream = np.empty(8 * (skip + count), np.uint8)
    zeros = _ZEROS[: len(stream)] if len(stream) <= len(_ZEROS) else bytes(len(stream))
    encryptor.update_into(zeros, stream.data)
    return stream.view("<u8")[skip:]


def _to_polar(radius: torch.Tensor, angle: torch.Tensor) -> None:
    """Turn pairs of uniforms into the radii and angles of Box and Muller, in place."""
    radius.log_().mul_(-2).sqrt_()
    angle.mul_(2 * math.pi)


def _chunks(size: int, *ranges: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of pieces of at most `size` that cover the ranges.

    No piece crosses a range's edge.
    """
    # Cut at the edges of all ranges, so that each piece belongs to a fixed set of them.
    edges = sorted({edge for first, last in ranges if first < last for edge in (first, last)})
    for begin, end in pairwise(edges):
        if any(first <= begin < last for first, last in ranges):
            for first in range(begin, end, size):
                yield first, min(first + size, end)
