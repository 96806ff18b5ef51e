"""Signatures of exported models in the format of OpenSSF Model Signing.

They are for verifiers that read no seals of raydp.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raydp.extensions.publishing.signing import private_key
from raydp.tracking.sealing.seal import OPENSSF_FILE

REMEDY = "Make one by `openssl ecparam -name prime256v1 -genkey -noout -out FILE`."


@dataclass(frozen=True, kw_only=True)
class OpenSSFSigner:
    """Signs folders by a local key on an elliptic curve. No service and no network is needed.

    Attributes:
        key: file of the private key.
    """

    key: Path

    @classmethod
    def load(cls, key: Path) -> OpenSSFSigner:
        """Check the package and the key before anything is written.

        Raises:
            ValueError: the package model-signing is not installed, others can read the file, or it
                holds no such key.
        """
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

        # An optional package: say how to install it before anything is written.
        try:
            import model_signing.signing  # noqa: F401
        except ImportError as error:
            raise ValueError(
                "--openssf-key must have the package model-signing, got none. pip install "
                "'.[signing]'."
            ) from error
        if not isinstance(private_key(key, "--openssf-key", REMEDY), EllipticCurvePrivateKey):
            raise ValueError(
                "--openssf-key must hold a key on an elliptic curve in PEM without a password, got "
                f"{str(key)!r} with something else. {REMEDY}"
            )
        return cls(key=key)

    def sign(self, folder: Path) -> None:
        """Write the signature of all other files of a folder into the folder."""
        from model_signing import hashing, signing

        signature = folder / OPENSSF_FILE
        config = signing.Config().use_elliptic_key_signer(private_key=self.key)
        # The signature cannot sign itself.
        config.set_hashing_config(
            hashing.Config().set_ignored_paths(paths=[signature], ignore_git_paths=True)
        )
        config.sign(folder, signature)
