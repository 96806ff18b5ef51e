"""The folder of a registered model, fetched and compared with its seal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raydp.tracking.delivery import answering
from raydp.tracking.portable import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from raydp.tracking.sealing.seal import BASE_FILE
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import artifact, open_store, resolve_uri


@contextmanager
def checked_folder(
    uri: str, *, tracking_uri: str | None = None, trusted_keys: Iterable[str | Path] | None = None
) -> Iterator[Path]:
    """Return a private copy of a registered model's folder for the block, compared with the seal.

    The copy holds the sealed files alone, and nobody can change them between the check and the use.

    Raises:
        ValueError: there is no such model, a file differs from the sealed one, or no trusted key
            has signed the seal.
    """
    # A store that is away is reported as such; errors in the block are the caller's.
    trust = Trust.given(trusted_keys)
    with answering():
        store = open_store(tracking_uri)
        model = store.client.get_logged_model(resolve_uri(store, uri).model_id)
    with (
        artifact(store, model.artifact_location) as folder,
        tempfile.TemporaryDirectory(prefix="raydp-") as scratch,
    ):
        # peft would unpickle other weights, which can run code.
        require_safetensors(folder)
        copy = Path(scratch) / "model"
        trust.copy_checked(folder, copy, model, uri)
        yield copy


def recorded_base(folder: Path) -> dict[str, str]:
    """Return the content of base.json: name, weight_hash, dtype."""
    record: dict[str, str] = json.loads((folder / BASE_FILE).read_text(encoding="utf-8"))
    return record


def require_safetensors(folder: Path) -> None:
    """Raise ValueError for an adapter without safetensors, for which peft would load a pickle."""
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / ADAPTER_WEIGHTS).is_file():
        raise ValueError(
            f"MODEL must hold {ADAPTER_WEIGHTS}, got {sorted(p.name for p in folder.iterdir())}. "
            "Log it again."
        )
