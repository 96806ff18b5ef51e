"""The model registry: looking models up by guarantee, utility, score and configuration, and promoting one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydp.tracking.lookup.conditions import Conditions, Where
from raydp.tracking.lookup.search import Lookup, tracked
from raydp.tracking.lookup.table import table
from raydp.tracking.promotions import aliases_of, check_alias, check_claim, check_reason, note, trail
from raydp.tracking.sealing.seal import BASE_FILE, OTHER_FILES, PRIVACY_FILE, SEAL_TAG, Seal
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import Store, artifact_bytes, open_store, resolve_uri

if TYPE_CHECKING:
    import pandas as pd


def find_models(
    tracking_uri: str,
    *,
    registered_model: str | None = None,
    alias: str | None = None,
    where: Sequence[str] = (),
    min_epsilon: float | None = None,
    max_epsilon: float | None = None,
    max_delta: float | None = None,
    max_loss: float | None = None,
    score: str | None = None,
    max_score: float | None = None,
    batch_size: int | None = None,
    num_steps: int | None = None,
    learning_rate: float | None = None,
    certified: bool | None = None,
    order_by: str | None = None,
    limit: int | None = None,
    trusted_keys: Iterable[str | Path] | None = None,
    verify: bool = False,
) -> pd.DataFrame:
    """Registered models that meet every condition given.

    Who bounds ε or δ, asks for certified ones or names trusted keys asks for a guarantee: then a model is left out if
    its privacy card is missing, is not its own or is not what was sealed with it, or if an audit refutes it.

    Args:
        tracking_uri: the store.
        registered_model: only its versions; all that raydp registered by default.
        alias: only versions that it points at.
        where: COLUMN OPERATOR VALUE, such as "score.vmr < 0.05", "epsilon <= 8" or "method = dp_adam", on any column of
            the answer; operators are < <= = != >= >. An undefined figure meets none.
        min_epsilon, max_epsilon: bounds of ε, included. A non-private model (ε = inf) never satisfies a max_epsilon.
        max_delta: largest δ; a model without one does not satisfy it.
        max_loss: largest utility_loss.
        score: name of the score (`vmr`) that the column `score`, max_score and the order mean; may be left out where
            the models have one only.
        max_score: largest score.
        batch_size, num_steps, learning_rate: the configuration, exactly.
        certified: only models whose guarantee is certified, or only the others.
        order_by: "score", "loss", "epsilon" or another column, ascending, undefined last; by name and version without.
        limit: at most so many rows.
        trusted_keys: public keys (`ed25519:...`) or files of such: only models that one of them has signed.
        verify: also read every returned model's files and compare them with what was sealed; without it that happens
            when a model is loaded.

    Returns:
        One row per version: name, version, aliases, the points table's columns, certified, sweep, model_uri
        (models:/name/version) and model_id. No row where nothing matches. Its `attrs["left_out"]` says why how many
        models that meet the conditions were left out (where there is a limit: of those that were looked at).

    Guarantee:
        With trusted keys, epsilon, delta, unit, certified, noise_multiplier, accountant and the configuration are as
        the key's owner signed them for this model; with verify, the files are those that were signed. Utility, scores
        and aliases are as whoever may write to the registry left them, and such a person can also take an audit's alarm
        away. Without trusted keys only mistakes are found, and changes by someone who did not also change the seal.

    Raises:
        ValueError: a condition makes no sense, the score or column is unknown or must be named, or a key is none.
    """
    conditions = Conditions(
        min_epsilon=min_epsilon,
        max_epsilon=max_epsilon,
        max_delta=max_delta,
        max_loss=max_loss,
        score=score,
        max_score=max_score,
        batch_size=batch_size,
        num_steps=num_steps,
        learning_rate=learning_rate,
        certified=certified,
        where=tuple(map(Where.parse, [where] if isinstance(where, str) else where)),
    )
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}. Leave it out for all models.")
    trust = Trust.given(trusted_keys, verify=verify)
    demanded = conditions.ask_for_a_guarantee or trusted_keys is not None or verify
    return Lookup(
        store=open_store(tracking_uri),
        registered_model=registered_model,
        alias=alias,
        conditions=conditions,
        trust=trust if demanded else None,
        order_by=order_by,
        limit=limit,
    ).run()


def show_model(
    uri: str, *, tracking_uri: str, trusted_keys: Iterable[str | Path] | None = None, verify: bool = False
) -> dict[str, Any]:
    """Everything that is recorded of a model.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        tracking_uri: the store.
        trusted_keys: public keys or files of such; a model that none of them has signed is refused.
        verify: also read the model's files and compare them with what was sealed.

    Returns:
        The columns of `find_models` that are defined, and privacy (the guarantee's record), base (name and weight
        hash), card (signed_by: a public key or None; problem: why the guarantee cannot be relied on, None where it can;
        verified: whether all files were read) and promotions (newest last).

    Raises:
        ValueError: there is no such model, or trusted keys are given and its guarantee cannot be relied on.
    """
    trust = Trust.given(trusted_keys, verify=verify)
    store = open_store(tracking_uri)
    name, version = _version(store, uri)
    entry = store.client.get_model_version(name, version)
    model = store.client.get_logged_model(entry.tags["model_id"])
    problem = trust.problem(store, model, entry)
    files = {name: artifact_bytes(store, model.artifact_location, name) for name in (PRIVACY_FILE, BASE_FILE)}
    sealed = Seal.read(model.tags.get(SEAL_TAG, ""))
    if sealed is not None and problem is None and not sealed.is_of_record(files[PRIVACY_FILE]):
        problem = f"{OTHER_FILES}: {PRIVACY_FILE}"
    if problem is not None and trust.keys is not None:
        raise ValueError(
            f"MODEL must be signed by a trusted key, got {uri}: {problem}. Give its key, or another model."
        )
    (row,) = table(tracked(store, [(entry, model)]), Conditions()).to_dict("records")
    shown = {str(k): v for k, v in row.items() if not _undefined(v)}
    shown["privacy"], shown["base"] = (None if text is None else json.loads(text) for text in files.values())
    shown["card"] = {"signed_by": sealed.key if sealed else None, "problem": problem, "verified": verify}
    shown["promotions"] = trail(entry.tags)
    return shown


def set_alias(name: str, alias: str, version: str | int, *, tracking_uri: str) -> None:
    """Point an alias (`privacy-preferred`, `best-utility`, ...) at a version; a later call moves it.

    Raises:
        ValueError: the alias is not allowed, or there is no such version, or it is privacy-preferred and the model's
            guarantee cannot be relied on (see `promote_model`).
    """
    check_alias(alias)
    store = open_store(tracking_uri)
    model_id = resolve_uri(store, f"models:/{name}/{version}").model_id
    entry, model = store.client.get_model_version(name, str(version)), store.client.get_logged_model(model_id)
    check_claim(store, entry, model, alias, Trust())
    store.client.set_registered_model_alias(name, alias, str(version))


def promote_model(
    uri: str,
    alias: str,
    reason: str,
    *,
    tracking_uri: str,
    by: str | None = None,
    trusted_keys: Iterable[str | Path] | None = None,
) -> dict[str, object]:
    """Point an alias at a model and record on it why, when and by whom; earlier records stay.

    The record is written before the alias moves, so that no alias points anywhere without a reason.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        alias: `privacy-preferred`, `best-utility` or one's own. For the first the model's files are read and compared
            with its seal.
        reason: why, in words; kept in the registry, so it must not quote training text.
        tracking_uri: the store.
        by: who; the name that one is logged in by where it is left out. MLflow does not check it.
        trusted_keys: for privacy-preferred: one of them must have signed the model.

    Returns:
        name, version, model_uri, alias, reason, at (UTC, ISO 8601), by and previous_version (None at first).

    Raises:
        ValueError: the reason is empty, the alias is not allowed, there is no such registered model, or the alias is
            privacy-preferred and the model has no guarantee, an audit has refuted it, or its card, weights or signature
            are not what was sealed.
    """
    check_alias(alias)
    check_reason(reason)
    trust = Trust.given(trusted_keys, verify=True)
    store = open_store(tracking_uri)
    name, version = _version(store, uri)
    entry = store.client.get_model_version(name, version)
    check_claim(store, entry, store.client.get_logged_model(entry.tags["model_id"]), alias, trust)
    record = note(store, name, version, alias, reason, previous=aliases_of(store, name).get(alias), by=by)
    store.client.set_registered_model_alias(name, alias, version)
    return {"name": name, "version": version, "model_uri": f"models:/{name}/{version}", **record}


def _version(store: Store, uri: str) -> tuple[str, str]:
    reference = resolve_uri(store, uri)
    if reference.name is None or reference.version is None:
        raise ValueError(f"MODEL must be a registered version, got {uri!r}. `raydp models find` lists them.")
    return reference.name, reference.version


def _undefined(value: object) -> bool:
    import pandas as pd

    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))
