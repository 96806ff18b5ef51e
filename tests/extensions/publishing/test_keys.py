"""The keys that cards are signed with: kept by their owner, read from files, and what is no key or
signature."""

import shutil
import stat
from pathlib import Path

import pytest

from raydp.extensions.publishing.signing import SigningKey, signature_fits, trusted_keys
from raydp.tracking import find_models, new_key
from raydp.tracking.sealing.seal import Seal
from tests.tracking.conftest import open_tracker


def test_the_key_is_its_owners_and_is_never_shown(keys, uri, record, tmp_path, capfd):
    path = keys["team"][0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text().splitlines()[1]
    key = SigningKey.load(path)
    assert secret not in repr(key)
    assert str(path) not in repr(key)
    tracker = open_tracker(uri, signing_key=path)
    tracker.log_trial(record())
    said = [
        p.read_bytes()
        for p in Path(uri.removeprefix("sqlite:///")).parent.rglob("*")
        if p.is_file()
    ]
    assert not any(secret.encode() in content or str(path).encode() in content for content in said)
    assert secret not in "".join(capfd.readouterr())
    with pytest.raises(FileExistsError):
        new_key(path)


def test_a_key_that_cannot_be_used_is_refused_before_anything_is_written(tmp_path, keys, uri):
    open_to_all = tmp_path / "open"
    shutil.copy(keys["team"][0], open_to_all)
    open_to_all.chmod(0o644)
    other = tmp_path / "rsa"
    other.write_text(
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n"
    )
    other.chmod(0o600)
    for path, message in [
        (tmp_path / "none", "must be the file of a private key"),
        (open_to_all, "must be readable by its owner alone, got .* with mode 644. chmod 600"),
        (other, "must hold an Ed25519 key in PEM"),
    ]:
        with pytest.raises(ValueError, match=f"tracking.signing_key {message}") as error:
            open_tracker(uri, signing_key=path)
        assert "MC4CAQ" not in str(error.value)


@pytest.mark.parametrize("bit", [0o040, 0o020, 0o010, 0o004, 0o002, 0o001])
def test_a_key_that_anybody_else_may_use_in_any_way_is_refused(tmp_path, keys, uri, bit):
    path = tmp_path / "key"
    shutil.copy(keys["team"][0], path)
    path.chmod(0o600 | bit)
    with pytest.raises(
        ValueError, match=f"must be readable by its owner alone, got .* with mode {0o600 | bit:o}"
    ):
        open_tracker(uri, signing_key=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must name a file with at least one key"),
        ("# nobody\n", "must name a file with at least one key"),
        ("ed25519:AAAA", "must be ed25519: and 32 bytes"),
        ("-----BEGIN PRIVATE KEY-----\nx\n", "must be a public key, got the private one"),
        ("ssh-ed25519 AAAAC3Nz", "must be ed25519: and 32 bytes"),
    ],
)
def test_a_file_without_public_keys_is_refused(tmp_path, content, message):
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"--trusted-key {message}"):
        trusted_keys([path])
    with pytest.raises(ValueError, match="--trusted-key must be a public key or a file"):
        trusted_keys([tmp_path / "none"])


def test_the_content_of_a_file_that_is_no_key_is_not_repeated(tmp_path):
    path = tmp_path / "shadow"
    path.write_text("root:planted-hash:20000\n")
    with pytest.raises(ValueError, match="got 'line 1 of ") as error:
        trusted_keys([path])
    assert "planted-hash" not in str(error.value)


def test_a_file_may_hold_several_keys(tmp_path, keys):
    path = tmp_path / "keys"
    path.write_text("".join(f"{public}  # {name}\n\n" for name, (_, public) in keys.items()))
    assert trusted_keys([path]) == {public for _, public in keys.values()}
    with pytest.raises(ValueError, match="trusted_keys must name at least one key"):
        find_models("sqlite:///none.db", trusted_keys=[])


def test_a_signature_that_looks_like_a_path_is_kept():
    """Base64 has slashes; what leaves the machine is otherwise searched for paths."""
    statement = {"guarantee": {}, "privacy_sha256": "", "files_sha256": ""}
    seal = Seal(
        statement=statement, key="ed25519:/home/alice/key=", signature="/home/alice/mails/x"
    )
    assert Seal.read(seal.file({})) == Seal.read(seal.tag()) == seal


@pytest.mark.parametrize(
    "key", ["", "ed25519:", "ed25519:AAAA", "rsa:AAAA", "ed25519:" + "A" * 43 + "="]
)
@pytest.mark.parametrize("signature", ["", "AAAA", "ü", "A" * 86 + "=="])
def test_malformed_signatures_do_not_fit(key, signature):
    assert signature_fits(key, signature, b"message") is False
