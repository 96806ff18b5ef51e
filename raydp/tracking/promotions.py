"""Aliases of registered models: who may get one, and the trail of who gave it, when and why.

A trail is a tag for each entry on the version that it is about, named by its time, so that none takes another's place.
MLflow has no tag that cannot be deleted: who may write to the registry can.
"""

from __future__ import annotations

import getpass
import json
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from raydp.tracking.sealing.trust import ALARM_TAG, Trust

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

    from raydp.tracking.store import Store

PRIVACY_PREFERRED = "privacy-preferred"
BEST_UTILITY = "best-utility"
PROMOTION_TAG = "promotion"
MAX_REASON_CHARS = 4000
"""MLflow keeps tags of 5,000 characters in some databases; the rest of the entry needs its place too."""


def check_alias(alias: str) -> None:
    """MLflow's rule for aliases, before anything is written."""
    if not re.fullmatch(r"[\w-]+", alias, re.ASCII) or re.fullmatch(r"[vV]?\d+", alias) or alias == "latest":
        raise ValueError(
            f"alias must be letters a to z, digits, '_' and '-' and no version, got {alias!r}. "
            f"Usual ones: {PRIVACY_PREFERRED}, {BEST_UTILITY}."
        )


def check_reason(reason: str) -> None:
    """A reason in words, short enough to be kept."""
    if not reason.strip():
        raise ValueError(f"reason must say why the model is promoted, got {reason!r}. Give --reason.")
    if len(reason) > MAX_REASON_CHARS:
        raise ValueError(
            f"reason must have at most {MAX_REASON_CHARS} characters, got {len(reason)}. Shorten it; name a document."
        )


def claims_privacy(alias: str) -> bool:
    """Whether an alias is privacy-preferred, or the same in other letters, which nobody would tell apart."""
    return re.sub(r"[\W_]+", "", alias.casefold()) == PRIVACY_PREFERRED.replace("-", "")


def check_claim(store: Store, version: ModelVersion, model: LoggedModel, alias: str, trust: Trust) -> None:
    """Refuse `privacy-preferred` for a model whose guarantee cannot be relied on.

    Raises:
        ValueError: an audit has refuted its ε, it has none, or its card is missing or not what was sealed.
    """
    if not claims_privacy(alias):
        return
    alarm = version.tags.get(ALARM_TAG)
    uri = f"models:/{version.name}/{version.version}"
    if alarm is not None:
        raise ValueError(f"alias must not be {alias} for {uri}, got {alias}: {alarm}")
    problem = trust.problem(store, model, version)
    if problem is None and model.tags.get("epsilon") == "inf":
        problem = "trained without a guarantee"
    if problem is not None:
        raise ValueError(
            f"alias must not be {alias} for {uri}, got {alias}: {problem}. Choose a model whose privacy card holds; "
            "`raydp models show` says what is wrong with this one's."
        )


def note(
    store: Store, name: str, version: str, alias: str, reason: str, *, previous: str | None, by: str | None = None
) -> dict[str, Any]:
    """Add an entry to a version's trail.

    Returns:
        alias, reason, at (UTC, ISO 8601), by and previous_version.
    """
    at = datetime.now(UTC)
    entry = {"alias": alias, "reason": reason, "at": at.isoformat(), "by": by or _user(), "previous_version": previous}
    # The random part is for two entries of one moment: a tag of the same name would replace the first.
    key = f"{PROMOTION_TAG}.{at:%Y%m%dT%H%M%S.%fZ}.{secrets.token_hex(4)}"
    store.client.set_model_version_tag(name, version, key, json.dumps(entry, ensure_ascii=False))
    return entry


def trail(tags: dict[str, str]) -> list[dict[str, Any]]:
    """The entries on a version, oldest first."""
    return [json.loads(tags[key]) for key in sorted(tags) if key.startswith(f"{PROMOTION_TAG}.")]


def aliases_of(store: Store, name: str) -> dict[str, str]:
    """Alias -> version; not through get_registered_model, which reads every version."""
    (found,) = store.client.search_registered_models(f"name = {name!r}", 1)
    return {alias: str(version) for alias, version in found.aliases.items()}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return "unknown"
