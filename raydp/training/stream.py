"""The randomness that the guarantee rests on: a keyed, counter-based stream.

Every draw is a function of (key, run_id, step, purpose, name): ChaCha20 (RFC 8439) under a key derived with
HMAC-SHA-256. So no two runs share noise, a replayed step redraws the same noise, and there is no generator state to
checkpoint.

What it does not do: the Gaussian is sampled in floating point (Box-Muller on 53-bit uniforms). Mironov (2012) shows
that the low-order bits of such a draw can leak; the stated ε is that of the real-valued mechanism.
"""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

KEY_BYTES = 32
TEST_KEY = bytes(KEY_BYTES)
"""The fixed, public key of `privacy.noise_key: test`; records of runs that use it are not certified."""


def new_key() -> bytes:
    """A secret 256-bit sweep key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


@dataclass(frozen=True, kw_only=True)
class KeyedStream:
    """The random streams of one run.

    Args:
        key: 32 secret bytes, the sweep's.
        run_id: the run's identity; runs never share a stream.
    """

    key: bytes
    run_id: str

    def __post_init__(self) -> None:
        assert len(self.key) == KEY_BYTES, "the sweep key has 32 bytes"

    def __repr__(self) -> str:
        return f"KeyedStream(run_id={self.run_id!r})"  # the key is never shown

    def bits(self, count: int, *, step: int, purpose: str, name: str = "") -> NDArray[np.uint64]:
        """[count] uniform 64-bit integers."""
        label = json.dumps([self.run_id, step, purpose, name]).encode()  # unambiguous: quoted and separated
        subkey = hmac.digest(self.key, label, "sha256")
        encryptor = Cipher(ChaCha20(subkey, bytes(16)), mode=None).encryptor()
        return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8")

    def uniform(self, count: int, *, step: int, purpose: str, name: str = "") -> NDArray[np.float64]:
        """[count] uniforms in (0, 1): the midpoints of 2^53 equal cells, never 0 or 1."""
        return ((self.bits(count, step=step, purpose=purpose, name=name) >> np.uint64(11)) + 0.5) * 2.0**-53

    def normal(self, count: int, *, step: int, purpose: str, name: str = "") -> NDArray[np.float64]:
        """[count] independent standard normals (Box and Muller 1958)."""
        half = (count + 1) // 2
        uniform = self.uniform(2 * half, step=step, purpose=purpose, name=name)
        radius = np.sqrt(-2 * np.log(uniform[:half]))
        angle = 2 * np.pi * uniform[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def poisson_mask(self, num_examples: int, batch_size: int, *, step: int) -> NDArray[np.bool_]:
        """[n] mask: each example is in, independently, with probability b/n.

        Source: Poisson subsampling as in Hu et al. 2025, Algorithm 2, line 2. The threshold is the integer
        floor(2^64 b/n), so the probability is never above b/n and at most 2^-64 below it.
        """
        assert 1 <= batch_size <= num_examples
        if batch_size == num_examples:
            return np.ones(num_examples, np.bool_)
        threshold = np.uint64((batch_size << 64) // num_examples)
        return self.bits(num_examples, step=step, purpose="mask") < threshold
