"""The sections of a sweep's specification, each with its fields and its rules."""

from raydp.spec.sections.cluster import ClusterSpec, TrackingSpec
from raydp.spec.sections.model import ALL_LINEAR, AdapterSpec, ModelSpec
from raydp.spec.sections.privacy import BudgetSpec, PrivacySpec
from raydp.spec.sections.section import LATER, AtLeastOne, Of, Positive, Section
from raydp.spec.sections.seeds import AdaptiveSeeds, PrecisionArguments
from raydp.spec.sections.selection import Bounds, SelectSpec
from raydp.spec.sections.space import SpaceSpec
from raydp.spec.sections.stopping import StoppingSpec

__all__ = [
    "ALL_LINEAR",
    "LATER",
    "AdapterSpec",
    "AdaptiveSeeds",
    "AtLeastOne",
    "Bounds",
    "BudgetSpec",
    "ClusterSpec",
    "ModelSpec",
    "Of",
    "Positive",
    "PrecisionArguments",
    "PrivacySpec",
    "Section",
    "SelectSpec",
    "SpaceSpec",
    "StoppingSpec",
    "TrackingSpec",
]
