"""Which plug-ins the core has, and which an extension."""

from __future__ import annotations

from raydp.plugins.registries import BUILTIN, Kind, own_names


def of_core(kind: Kind) -> set[str]:
    return set(BUILTIN[kind])


def of_extensions(kind: Kind) -> set[str]:
    return set(own_names(kind)) - of_core(kind)
