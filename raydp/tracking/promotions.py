"""Aliases of registered models: which model may get one, and the trail of who, when and why.

Each entry of a trail is a tag on the version that it is about. The tag's name holds the time, so
that no entry replaces another. MLflow has no tags that cannot be deleted: anybody who may write to
the registry can delete an entry.
"""

from __future__ import annotations

import getpass
import json
import re
import secrets
from datetime import UTC, datetime
from typing import TypedDict, cast

from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion

from raydp.tracking.records import BEST_UTILITY, PRIVACY_PREFERRED, json_object
from raydp.tracking.sealing.trust import ALARM_TAG, Trust
from raydp.tracking.store import Store

PROMOTION_TAG = "promotion"
MAX_REASON_CHARS = 4000
"""Longest reason.

Some databases limit MLflow's tags to 5,000 characters, and the rest of the entry needs space too.
"""


class Promotion(TypedDict):
    """An entry of a trail.

    Keys:
        at: when the alias was set (UTC, ISO 8601).
        by: who set it.
        previous_version: the version that the alias pointed at before; None if there was none.
    """

    alias: str
    reason: str
    at: str
    by: str
    previous_version: str | None


def check_alias(alias: str) -> None:
    """Check an alias by MLflow's rule before anything is written."""
    if (
        not re.fullmatch(r"[\w-]+", alias, re.ASCII)
        or re.fullmatch(r"[vV]?\d+", alias)
        or alias == "latest"
    ):
        raise ValueError(
            f"alias must be letters a to z, digits, '_' and '-' and no version, got {alias!r}. "
            f"Usual ones: {PRIVACY_PREFERRED}, {BEST_UTILITY}."
        )


def check_reason(reason: str) -> None:
    """Check that a reason is not blank and short enough to store."""
    if not reason.strip():
        raise ValueError(
            f"reason must say why the model is promoted, got {reason!r}. Give --reason."
        )
    if len(reason) > MAX_REASON_CHARS:
        raise ValueError(
            f"reason must have at most {MAX_REASON_CHARS} characters, got {len(reason)}. Shorten "
            "it; name a document."
        )


def claims_privacy(alias: str) -> bool:
    """Return whether an alias is privacy-preferred, or is so but for case and separators."""
    return re.sub(r"[\W_]+", "", alias.casefold()) == PRIVACY_PREFERRED.replace("-", "")


def check_claim(
    store: Store, version: ModelVersion, model: LoggedModel, alias: str, trust: Trust
) -> None:
    """Refuse `privacy-preferred` for a model whose guarantee is unreliable.

    Raises:
        ValueError: an audit has refuted the model's ε, the model has no guarantee, or its card is
            missing or differs from the sealed one.
    """
    if not claims_privacy(alias):
        return
    # An audit's alarm weighs more than any seal.
    alarm = version.tags.get(ALARM_TAG)
    uri = f"models:/{version.name}/{version.version}"
    if alarm is not None:
        raise ValueError(f"alias must not be {alias} for {uri}, got {alias}: {alarm}")
    problem = trust.problem(store, model, version)
    # Sealed and intact, but without a guarantee: nothing to prefer.
    if problem is None and model.tags.get("epsilon") == "inf":
        problem = "trained without a guarantee"
    if problem is not None:
        raise ValueError(
            f"alias must not be {alias} for {uri}, got {alias}: {problem}. Choose a model whose "
            "privacy card holds; `raydp models show` says what is wrong with this one's."
        )


def note(
    store: Store,
    name: str,
    version: str,
    alias: str,
    reason: str,
    *,
    previous: str | None,
    by: str | None = None,
) -> Promotion:
    """Add an entry to a version's trail, and return the entry."""
    at = datetime.now(UTC)
    entry: Promotion = {
        "alias": alias,
        "reason": reason,
        "at": at.isoformat(),
        "by": by or _user(),
        "previous_version": previous,
    }
    # The random part separates two entries of the same moment: a tag of the same name would replace
    # the first.
    key = f"{PROMOTION_TAG}.{at:%Y%m%dT%H%M%S.%fZ}.{secrets.token_hex(4)}"
    store.client.set_model_version_tag(name, version, key, json.dumps(entry, ensure_ascii=False))
    return entry


def take_away(store: Store, name: str, alias: str, version: str, reason: str) -> None:
    """Take an alias away from the version that has it, with an entry in the version's trail."""
    # The entry first: an alias that is gone must have a reason.
    note(store, name, version, alias, f"taken away: {reason}"[:MAX_REASON_CHARS], previous=version)
    store.client.delete_registered_model_alias(name, alias)


def trail(tags: dict[str, str]) -> list[Promotion]:
    """Return the entries on a version, oldest first. A tag that somebody damaged is left out."""
    entries = list[Promotion]()
    for key in sorted(tags):
        if key.startswith(f"{PROMOTION_TAG}."):
            entry = json_object(tags[key])
            if entry is not None and entry.keys() >= Promotion.__required_keys__:
                entries.append(cast(Promotion, entry))
    return entries


def aliases_of(store: Store, name: str) -> dict[str, str]:
    """Return alias -> version; nothing if there is no such model.

    It avoids get_registered_model, which reads every version.
    """
    found = store.client.search_registered_models(f"name = {name!r}", 1)
    return {
        alias: str(version) for registered in found for alias, version in registered.aliases.items()
    }


def origin() -> dict[str, str]:
    """Return the tags by which MLflow shows who made a run, and by what."""
    source = {"mlflow.source.type": "LOCAL", "mlflow.source.name": "raydp sweep"}
    return {"mlflow.user": _user(), **source}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return "unknown"
