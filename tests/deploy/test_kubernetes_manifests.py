"""The manifests against Kubernetes' own JSON schemas (package kubernetes-validate), Ray's reading
of a RayCluster, and KubeRay's fields."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import ray
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler._private.util import validate_config

from tests.deploy.kuberay_fields import SCHEMAS

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUBERNETES = "1.37"

Manifest = dict[str, Any]


def load(name: str) -> Manifest:
    documents = list(yaml.safe_load_all((FOLDER / name).read_text()))
    assert len(documents) == 1
    return documents[0]


def of_values() -> Manifest:
    """What KubeRay's chart makes of values.yaml: the mapping that its template has, without
    Helm."""
    values = load("values.yaml")
    head, worker, common = values["head"], values["worker"], values["common"]["containerEnv"]
    image = f"{values['image']['repository']}:{values['image']['tag']}"

    def template(part: Manifest, name: str) -> Manifest:
        container = {"name": name, "image": image, "env": common + part.get("containerEnv", [])}
        container |= {k: part[k] for k in ("volumeMounts", "resources", "securityContext")}
        spec = {
            "containers": [container],
            "volumes": part["volumes"],
            "securityContext": part["podSecurityContext"],
        }
        return {
            "spec": spec | ({"tolerations": part["tolerations"]} if "tolerations" in part else {})
        }

    group = {k: worker[k] for k in ("groupName", "replicas", "minReplicas", "maxReplicas")}
    options = ("rayVersion", "enableInTreeAutoscaling", "autoscalerOptions")
    spec = {
        **{k: head[k] for k in options},
        "headGroupSpec": {
            "rayStartParams": head["rayStartParams"],
            "template": template(head, "ray-head"),
        },
        "workerGroupSpecs": [
            {**group, "rayStartParams": {}, "template": template(worker, "ray-worker")}
        ],
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "raydp"},
        "spec": spec,
    }


MANIFESTS: dict[str, Callable[[], Manifest]] = {
    "raycluster.yaml": lambda: load("raycluster.yaml"),
    "rayjob.yaml": lambda: load("rayjob.yaml"),
    "values.yaml": of_values,
}


@pytest.fixture(params=list(MANIFESTS))
def manifest(request: pytest.FixtureRequest) -> Manifest:
    return copy.deepcopy(MANIFESTS[request.param]())


def cluster_of(manifest: Manifest) -> Manifest:
    spec = manifest["spec"]
    return spec["rayClusterSpec"] if manifest["kind"] == "RayJob" else spec


def groups(manifest: Manifest) -> list[Manifest]:
    cluster = cluster_of(manifest)
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def check_core(resource: Manifest) -> None:
    """Kubernetes' own schema, with no field that it does not know."""
    kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def check_pods(manifest: Manifest) -> None:
    for group in groups(manifest):
        check_core(
            {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "x"},
                "template": group["template"],
            }
        )


def check_kuberay(manifest: Manifest) -> None:
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])


def check_ray(manifest: Manifest) -> Manifest:
    """What Ray's autoscaler reads out of the resource, validated by Ray."""
    resource = {"metadata": {"name": "raydp", "namespace": "default"}, "spec": cluster_of(manifest)}
    config: Manifest = _derive_autoscaling_config_from_ray_cr(resource)
    validate_config(config)
    return config


def test_everything_is_valid(manifest: Manifest) -> None:
    check_kuberay(manifest)
    check_pods(manifest)
    config = check_ray(manifest)
    worker = config["available_node_types"]["gpu"]
    assert worker["resources"]["GPU"] == 1
    assert (
        worker["min_workers"]
        <= cluster_of(manifest)["workerGroupSpecs"][0]["replicas"]
        <= worker["max_workers"]
    )
    assert config["available_node_types"]["headgroup"]["resources"]["CPU"] == 0
    assert config["idle_timeout_minutes"] == 10


def test_the_volume_is_valid_and_is_seen_by_all_pods() -> None:
    volume = load("storage.yaml")
    check_core(volume)
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]


def put(path: str, value: object) -> Callable[[Manifest], None]:
    """Sets a field by its path in the cluster's spec."""

    def change(manifest: Manifest) -> None:
        at: Any = cluster_of(manifest)
        *keys, last = [int(k) if k.isdigit() else k for k in path.split("/")]
        for key in keys:
            at = at[key]
        at[last] = value

    return change


CONTAINER = "workerGroupSpecs/0/template/spec/containers/0"


@pytest.mark.parametrize(
    ("check", "break_it"),
    [
        (check_kuberay, put("enableInTreeAutoScaling", True)),
        (check_kuberay, put("workerGroupSpecs/0/replicas", "2")),
        (check_kuberay, put("autoscalerOptions/upscalingMode", "Fast")),
        (check_pods, put(f"{CONTAINER}/volumeMount", [])),
        (check_pods, put(f"{CONTAINER}/resources/limits", ["1 GPU"])),
        (check_pods, put("headGroupSpec/template/spec/securityContext/runAsNonRoot", "yes")),
        (check_ray, put("workerGroupSpecs/0/maxReplicas", -1)),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_broken_manifests_are_refused(
    manifest: Manifest, check: Callable[[Manifest], object], break_it: Callable[[Manifest], None]
) -> None:
    broken = copy.deepcopy(manifest)
    break_it(broken)
    check(manifest)
    with pytest.raises(jsonschema.ValidationError):
        check(broken)


def test_a_broken_volume_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError):
        check_core({**load("storage.yaml"), "spec": {"accessMode": ["ReadWriteMany"]}})


def test_pods_run_without_rights_with_limits_and_the_same_image(manifest: Manifest) -> None:
    images = set()
    for group in groups(manifest):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        images.add(container["image"])
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {"/data", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }
    assert len(images) == 1


def test_ray_is_the_installed_one_and_asks_for_its_token(manifest: Manifest) -> None:
    cluster = cluster_of(manifest)
    assert cluster["rayVersion"] == ray.__version__
    by_kuberay = cluster.get("authOptions", {}).get("mode") == "token"
    environments = [group["template"]["spec"]["containers"][0]["env"] for group in groups(manifest)]
    environments.append(cluster["autoscalerOptions"].get("env", []))
    by_hand = all(
        {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= {v["name"] for v in env} for env in environments
    )
    assert by_kuberay or by_hand


def test_job_and_values_make_the_cluster_of_raycluster() -> None:
    """They differ in how many workers, in how the token comes, and in what the chart cannot say."""

    def core(manifest: Manifest) -> Manifest:
        cluster = copy.deepcopy(cluster_of(manifest))
        cluster.pop("authOptions", None)
        cluster["autoscalerOptions"].pop("env", None)
        for group in groups({"kind": "RayCluster", "spec": cluster}):
            for count in ("replicas", "minReplicas", "maxReplicas"):
                group.pop(count, None)
            pod = group["template"]["spec"]
            pod.pop("terminationGracePeriodSeconds", None)
            (container,) = pod["containers"]
            container.pop("ports", None)
            container["env"] = [
                v for v in container["env"] if not v["name"].startswith("RAY_AUTH_")
            ]
        return cluster

    expected = core(load("raycluster.yaml"))
    assert core(load("rayjob.yaml")) == expected
    assert core(of_values()) == expected
