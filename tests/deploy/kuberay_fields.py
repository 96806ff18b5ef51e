"""The fields of KubeRay's RayCluster and RayJob (ray.io/v1, KubeRay 1.7) that our manifests use,
written down by hand: no package of PyPI, npm or Debian carries the CRDs. What is not listed is
refused. Pod templates are Kubernetes' own."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
YES_OR_NO: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
ANYTHING: Schema = {"type": "object"}


def fields(required: str = "", **properties: Schema) -> Schema:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


AUTOSCALER = fields(
    version={"enum": ["v1", "v2"]},
    idleTimeoutSeconds=COUNT,
    upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
    securityContext=ANYTHING,
    env={"type": "array"},
)
HEAD = fields("template", rayStartParams=TEXTS, template=ANYTHING)
WORKERS = fields(
    "groupName minReplicas maxReplicas template",
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=TEXTS,
    template=ANYTHING,
)
CLUSTER = fields(
    "headGroupSpec",
    rayVersion=TEXT,
    authOptions=fields(mode={"enum": ["disabled", "token"]}, secretName=TEXT),
    enableInTreeAutoscaling=YES_OR_NO,
    autoscalerOptions=AUTOSCALER,
    headGroupSpec=HEAD,
    workerGroupSpecs={"type": "array", "items": WORKERS},
)
JOB = fields(
    entrypoint=TEXT,
    backoffLimit=COUNT,
    shutdownAfterJobFinishes=YES_OR_NO,
    ttlSecondsAfterFinished=COUNT,
    rayClusterSpec=CLUSTER,
)


def resource(kind: str, spec: Schema) -> Schema:
    """A custom resource of ray.io/v1."""
    return fields(
        "apiVersion kind metadata spec",
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=ANYTHING,
        spec=spec,
    )


SCHEMAS = {"RayCluster": resource("RayCluster", CLUSTER), "RayJob": resource("RayJob", JOB)}
