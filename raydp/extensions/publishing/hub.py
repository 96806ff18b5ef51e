"""Sends a registered model to the Hugging Face hub."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from raydp.extensions.publishing.export import export_model
from raydp.tracking.delivery import answering
from raydp.tracking.sealing.seal import PRIVACY_FILE
from raydp.tracking.sealing.trust import ALARM_TAG
from raydp.tracking.store import artifact_bytes, open_store, resolve_uri

if TYPE_CHECKING:
    from huggingface_hub import HfApi

HUB = "hub:"


def push_model(
    uri: str,
    repo: str,
    *,
    tracking_uri: str | None = None,
    public: bool = False,
    uncertified: bool = False,
    trusted_keys: Iterable[str | Path] | None = None,
    **export: Any,
) -> str:
    """Send a registered model to a repository of the Hugging Face hub, with card and record.

    The files are those of `export_model`. The hub is the one of HF_ENDPOINT, and the token the one
    of `hf auth login` or HF_TOKEN.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        repo: OWNER/NAME. A repository that does not exist is created.
        tracking_uri: the store of the model; by default MLFLOW_TRACKING_URI, else
            sqlite:///raydp.db.
        public: create a public repository, or send the model to one that is public.
        uncertified: also send a model whose guarantee is not certified.
        trusted_keys: as in `export_model`.
        export: further arguments of `export_model`: merge, with_base, base, dtype, signing_key,
            license, with_figures, openssf_key.

    Returns:
        The address of the commit.

    Raises:
        ValueError: as `export_model`; or the model has no certified guarantee, an audit has refuted
            its ε, the repository is public, or the hub refuses the request.
    """
    from huggingface_hub import HfApi

    _check_name(repo)
    # First by the registry, then by the exported record, whose seal was checked.
    _check_guarantee(uri, tracking_uri, uncertified=uncertified)
    api = HfApi()
    with tempfile.TemporaryDirectory(prefix="raydp-") as scratch:
        folder = export_model(
            uri,
            Path(scratch) / "model",
            tracking_uri=tracking_uri,
            trusted_keys=trusted_keys,
            **export,
        )
        _check_certified(
            json.loads((folder / PRIVACY_FILE).read_bytes()), uri, uncertified=uncertified
        )
        with _hub_errors(repo):
            _make_repository(api, repo, public=public)
            message = f"{uri.removeprefix('models:/')} from raydp's registry"
            return str(
                api.upload_folder(
                    repo_id=repo, folder_path=folder, commit_message=message
                ).commit_url
            )


def _check_name(repo: str) -> None:
    """Check the name of a repository before anything is exported or sent."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ValueError(
            f"--to must be {HUB}OWNER/NAME, got {HUB + repo!r}: {error}. Correct it."
        ) from error
    if "/" not in repo:
        raise ValueError(f"--to must be {HUB}OWNER/NAME, got {HUB + repo!r}. Name the owner too.")


@answering()
def _check_guarantee(uri: str, tracking_uri: str | None, *, uncertified: bool) -> None:
    """Refuse a model whose ε is refuted, or that has no certified guarantee unless it is wanted.

    An audit refutes the ε of a version.

    The record is read before its seal is checked, so the exported record is checked again.
    """
    store = open_store(tracking_uri)
    model = resolve_uri(store, uri)
    # Alarms are tags of the version.
    if model.name is not None and model.version is not None:
        alarm = store.client.get_model_version(model.name, model.version).tags.get(ALARM_TAG)
        if alarm is not None:
            raise ValueError(
                f"MODEL must have a guarantee that holds to be sent, got {uri}: {alarm}"
            )
    location = store.client.get_logged_model(model.model_id).artifact_location
    _check_certified(
        json.loads(artifact_bytes(store, location, PRIVACY_FILE) or b"{}"),
        uri,
        uncertified=uncertified,
    )


def _check_certified(record: Mapping[str, Any], uri: str, *, uncertified: bool) -> None:
    """Refuse a record without a certified guarantee, unless it is wanted."""
    if not record.get("certified") and not uncertified:
        reasons = (
            "; ".join(record.get("not_certified_because", ())) or "its record does not say why"
        )
        raise ValueError(
            f"MODEL must have a certified guarantee to be sent, got {uri}: {reasons}. Choose "
            "another model, or add --uncertified; its README.md says that it is not certified."
        )


def _make_repository(api: HfApi, repo: str, *, public: bool) -> None:
    """Create the repository. An existing one must not be public unless that is wanted."""
    # A repository that exists keeps its visibility, whatever was asked for.
    api.create_repo(repo, private=not public, exist_ok=True)
    if not public and not api.model_info(repo).private:
        raise ValueError(
            f"--to must be a private repository, got {repo!r}, which is public. Add --public, or "
            "name another."
        )


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turn the hub's errors into a ValueError for the user."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    # The error of the HTTP library is the base class of the hub's error. The library depends on the
    # hub's version.
    http_error = cast(type[Exception], HfHubHTTPError.__mro__[1])
    try:
        yield
    except (HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled, http_error) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        # The remedy depends on whether the hub refused the login or did not answer.
        remedy = "Check the connection and HF_ENDPOINT."
        if status in (401, 403) or isinstance(error, LocalTokenNotFoundError):
            remedy = "Log in by `hf auth login`, or set HF_TOKEN to a token that may write there."
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"--to must be a repository that the hub lets you write, got {repo!r} ({cause}). "
            f"{remedy}"
        ) from error
