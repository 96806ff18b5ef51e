"""The sections of a sweep's specification, each with what it may hold."""

from raydp.sections.base import AtLeastOne, Positive, Section
from raydp.sections.cluster import ClusterSpec, TrackingSpec
from raydp.sections.model import AdapterSpec, ModelSpec
from raydp.sections.privacy import NumRunsSpec, PrivacySpec
from raydp.sections.space import SelectSpec, SpaceSpec
from raydp.sections.stopping import StoppingSpec

__all__ = [
    "AdapterSpec",
    "AtLeastOne",
    "ClusterSpec",
    "ModelSpec",
    "NumRunsSpec",
    "Positive",
    "PrivacySpec",
    "Section",
    "SelectSpec",
    "SpaceSpec",
    "StoppingSpec",
    "TrackingSpec",
]
