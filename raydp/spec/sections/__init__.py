"""The sections of a sweep's specification, each with its fields and its rules."""

from raydp.spec.sections.base import AtLeastOne, Positive, Section
from raydp.spec.sections.cluster import ClusterSpec, TrackingSpec
from raydp.spec.sections.model import ALL_LINEAR, AdapterSpec, ModelSpec
from raydp.spec.sections.privacy import NumRunsSpec, PrivacySpec
from raydp.spec.sections.seeds import AdaptiveSeeds, PrecisionArguments
from raydp.spec.sections.selection import BOUNDS, Bounds, SelectSpec
from raydp.spec.sections.space import SpaceSpec
from raydp.spec.sections.stopping import StoppingSpec

__all__ = [
    "ALL_LINEAR",
    "BOUNDS",
    "AdapterSpec",
    "AdaptiveSeeds",
    "AtLeastOne",
    "Bounds",
    "ClusterSpec",
    "ModelSpec",
    "NumRunsSpec",
    "Positive",
    "PrecisionArguments",
    "PrivacySpec",
    "Section",
    "SelectSpec",
    "SpaceSpec",
    "StoppingSpec",
    "TrackingSpec",
]
