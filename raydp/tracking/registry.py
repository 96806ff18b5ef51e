"""The model registry: look models up by guarantee, utility, score or configuration; promote one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion

from raydp.privacy.records.cautions import cautions_of_model
from raydp.tracking.delivery import answering
from raydp.tracking.lookup.conditions import Conditions, Where
from raydp.tracking.lookup.search import Lookup, tracked
from raydp.tracking.lookup.table import table
from raydp.tracking.promotions import (
    aliases_of,
    check_alias,
    check_claim,
    check_reason,
    note,
    trail,
)
from raydp.tracking.records import json_object
from raydp.tracking.sealing.seal import BASE_FILE, OTHER_FILES, PRIVACY_FILE, SEAL_TAG, Seal
from raydp.tracking.sealing.trust import Trust
from raydp.tracking.store import Store, artifact_bytes, open_store, resolve_uri


@answering()
def find_models(
    tracking_uri: str | None = None,
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
    """Return the registered models that meet every given condition.

    Bounds on ε or δ, `certified=True`, trusted keys and `verify` ask for a guarantee. A model is
    then left out if its privacy card is missing, belongs to another model or differs from the
    sealed one, or if an audit refutes it.

    Args:
        tracking_uri: the store; by default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.
        registered_model: only versions of this model; by default of all models that raydp
            registered.
        alias: only versions that this alias points at.
        where: COLUMN OPERATOR VALUE, such as "score.vmr < 0.05", "epsilon <= 8" or "method =
            dp_adam", on any column of the result; operators are < <= = != >= >. An undefined value
            meets no condition.
        min_epsilon, max_epsilon: bounds of ε, included. A non-private model (ε = inf) never
            satisfies a max_epsilon.
        max_delta: largest δ; a model without a δ does not satisfy it.
        max_loss: largest utility_loss.
        score: name of the score (`vmr`) that the column `score`, max_score and the order refer to.
            It may be left out if the models have only one score.
        max_score: largest score.
        batch_size, num_steps, learning_rate: the configuration, exactly.
        certified: only models with a certified guarantee (True), or only the others (False).
        order_by: "score", "loss", "epsilon" or another column, ascending, undefined values last; by
            default name and version.
        limit: largest number of rows.
        trusted_keys: public keys (`ed25519:...`) or files of public keys. Only models signed by one
            of them are returned.
        verify: also read every returned model's files and compare them with the sealed ones.
            Otherwise the files are compared when a model is loaded.

    Returns:
        One row per version: name, version, aliases, the points table's columns, certified, sweep,
        model_uri (models:/name/version) and model_id. There is no row if nothing matches.
        `attrs["left_out"]` counts, by reason, the models that meet the conditions but were left
        out. `attrs["unreadable"]` counts, by column, the values of the registry that could not be
        read and are null. (With a limit: only among the models that were read.)

    Guarantee:
        With trusted keys, epsilon, delta, unit, certified, noise_multiplier, accountant and the
        configuration are as the key's owner signed them for this model. With verify, the files are
        the signed ones. Utility, scores and aliases are not protected against anybody who may write
        to the registry. Such a person can also remove an audit's alarm. Without trusted keys, the
        check detects only mistakes, and changes by somebody who did not also change the seal.

    Raises:
        ValueError: a condition makes no sense, the registered model, score or column is unknown or
            must be named, or a key is invalid.
    """
    # Conditions and keys are checked before the store is opened.
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
    # Seals are checked only if something demands a guarantee: with `verify` each check is a
    # download.
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


@answering()
def show_model(
    uri: str,
    *,
    tracking_uri: str | None = None,
    trusted_keys: Iterable[str | Path] | None = None,
    verify: bool = False,
) -> dict[str, Any]:
    """Return everything that is recorded of a model.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        tracking_uri: the store; by default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.
        trusted_keys: public keys or files of public keys. A model that none of them has signed is
            refused.
        verify: also read the model's files and compare them with the sealed ones.

    Returns:
        The columns of `find_models` that are defined, and warnings (sentences about ε, δ and the
        joint ε), privacy (the guarantee's record), base (name and weight hash), card and promotions
        (newest last). The card has signed_by (a public key or None), problem (why the guarantee is
        unreliable, or None) and verified (whether all files were read).

    Raises:
        ValueError: there is no such model, or trusted keys are given and the model's guarantee is
            unreliable.
    """
    # The version, its model, and whether its guarantee is reliable.
    trust = Trust.given(trusted_keys, verify=verify)
    store = open_store(tracking_uri)
    entry, model = _registered(store, uri)
    problem = trust.problem(store, model, entry)
    # Record and base are compared with the sealed hashes, as the tags alone do not bind files.
    record, said = (
        artifact_bytes(store, model.artifact_location, name) for name in (PRIVACY_FILE, BASE_FILE)
    )
    privacy, base = json_object(record), json_object(said)
    sealed = Seal.read(model.tags.get(SEAL_TAG, ""))
    if sealed is not None and problem is None:
        if not sealed.is_of_record(record):
            problem = f"{OTHER_FILES}: {PRIVACY_FILE}"
        elif base is None or base.get("weight_hash") != sealed.statement.get("base_weight_hash"):
            problem = f"{OTHER_FILES}: {BASE_FILE}"
    # With trusted keys an unreliable guarantee is an error; without them it is shown.
    if problem is not None and trust.keys is not None:
        raise ValueError(
            f"MODEL must be signed by a trusted key, got {uri}: {problem}. Give its key, or "
            "another model."
        )
    # What is defined, with warnings on the figures.
    (row,) = table(tracked(store, [(entry, model)]), Conditions()).to_dict("records")
    shown = {str(k): v for k, v in row.items() if not _undefined(v)}
    if not _undefined(row["epsilon"]) and not _undefined(row["delta"]):
        together = None if privacy is None else privacy.get("released_together")
        found = cautions_of_model(epsilon=row["epsilon"], delta=row["delta"], together=together)
        shown["warnings"] = [str(caution) for caution in found]
    card = {"signed_by": sealed.key if sealed else None, "problem": problem, "verified": verify}
    recorded = {"privacy": privacy, "base": base, "card": card, "promotions": trail(entry.tags)}
    return {**shown, **recorded}


@answering()
def set_alias(
    name: str,
    alias: str,
    version: str | int,
    *,
    tracking_uri: str | None = None,
    reason: str | None = None,
) -> None:
    """Point an alias (`privacy-preferred`, `best-utility`, ...) at a version; later calls move it.

    Args:
        name, alias, version: the registered model, the alias, and the version.
        tracking_uri: the store; by default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.
        reason: why, to be recorded in the version's trail. The same reason is recorded once.

    Raises:
        ValueError: the alias is not allowed, there is no such version, or the alias is
            privacy-preferred and the model's guarantee is unreliable (see `promote_model`).
    """
    check_alias(alias)
    store = open_store(tracking_uri)
    model_id = resolve_uri(store, f"models:/{name}/{version}").model_id
    entry, model = (
        store.client.get_model_version(name, str(version)),
        store.client.get_logged_model(model_id),
    )
    # By the tags alone; `promote_model` also reads the files.
    check_claim(store, entry, model, alias, Trust())
    # A resume sets the alias again; its reason is already there.
    told = {(record["alias"], record["reason"]) for record in trail(entry.tags)}
    if reason is not None and (alias, reason) not in told:
        note(store, name, str(version), alias, reason, previous=aliases_of(store, name).get(alias))
    store.client.set_registered_model_alias(name, alias, str(version))


@answering()
def promote_model(
    uri: str,
    alias: str,
    reason: str,
    *,
    tracking_uri: str | None = None,
    by: str | None = None,
    trusted_keys: Iterable[str | Path] | None = None,
) -> dict[str, object]:
    """Point an alias at a model, and record on the model why, when and by whom.

    Earlier records stay.

    The record is written before the alias moves, so that every alias has a recorded reason.

    Args:
        uri: models:/NAME/VERSION, models:/NAME@ALIAS or models:/m-ID.
        alias: `privacy-preferred`, `best-utility` or your own. For `privacy-preferred` the model's
            files are read and compared with its seal.
        reason: why, in words. It is stored in the registry, so it must not quote training text.
        tracking_uri: the store; by default MLFLOW_TRACKING_URI, else sqlite:///raydp.db.
        by: who promotes the model; by default the login name. MLflow does not check it.
        trusted_keys: for privacy-preferred: one of these keys must have signed the model.

    Returns:
        name, version, model_uri, alias, reason, at (UTC, ISO 8601), by and previous_version (None
        at first).

    Raises:
        ValueError: the reason is empty, the alias is not allowed, or there is no such registered
            model. For privacy-preferred also: the model has no guarantee, an audit has refuted it,
            or its card, weights or signature differ from the sealed ones.
    """
    check_alias(alias)
    check_reason(reason)
    trust = Trust.given(trusted_keys, verify=True)
    store = open_store(tracking_uri)
    entry, model = _registered(store, uri)
    name, version = entry.name, str(entry.version)
    check_claim(store, entry, model, alias, trust)
    record = note(
        store, name, version, alias, reason, previous=aliases_of(store, name).get(alias), by=by
    )
    store.client.set_registered_model_alias(name, alias, version)
    return {"name": name, "version": version, "model_uri": f"models:/{name}/{version}", **record}


def _registered(store: Store, uri: str) -> tuple[ModelVersion, LoggedModel]:
    """Return a registered version and its model."""
    reference = resolve_uri(store, uri)
    if reference.name is None or reference.version is None:
        raise ValueError(
            f"MODEL must be a registered version, got {uri!r}. `raydp models find` lists them."
        )
    entry = store.client.get_model_version(reference.name, reference.version)
    return entry, store.client.get_logged_model(entry.tags["model_id"])


def _undefined(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))
