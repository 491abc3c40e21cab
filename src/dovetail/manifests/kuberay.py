"""Kubernetes with the KubeRay operator: a RayJob, and a ConfigMap with the plan and the run file."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dovetail.manifests.nodes import PLAN, RUN, NodePool, PlannedNodes, train_words
from dovetail.manifests.ray import resources
from dovetail.manifests.yaml import yaml_of

JOB, OUT = "/dovetail-job/", "/dovetail-out"
INSTANCE = "node.kubernetes.io/instance-type"
TYPE = "dovetail/type"
"""A label for nodes of types that no cloud has a word for."""


class KubeRay:
    """`kubectl apply` has the operator make the cluster and submit the training to it."""

    file = "rayjob.yaml"
    start = "kubectl apply -f rayjob.yaml"

    def write(self, planned: PlannedNodes) -> str:
        """Return the manifest."""
        job = {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": planned.name},
            "spec": {
                "entrypoint": shlex.join(train_words(JOB, f"{OUT}/run", on="ray")),
                "shutdownAfterJobFinishes": False,
                "rayClusterSpec": {
                    "headGroupSpec": {
                        "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                        "template": {"spec": _head(planned)},
                    },
                    "workerGroupSpecs": [_workers(planned, group) for group in planned.groups],
                },
            },
        }
        files = {PLAN: planned.plan} | ({} if planned.run is None else {RUN: planned.run})
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": planned.name}, "data": files}
        return _preface(planned) + yaml_of(config, job)


def _preface(planned: PlannedNodes) -> str:
    lines = [
        f"# Start: kubectl apply -f {KubeRay.file}    needs the KubeRay operator",
        f"# Watch: kubectl logs -f -l job-name={planned.name}",
    ]
    lines += [
        f"# Label its nodes: kubectl label node NODE {TYPE}={group.name}"
        for group in planned.groups
        if group.instance is None
    ]
    if planned.run is None:
        lines.append(f"# Add the run file: put it as {RUN} beside {PLAN} in the ConfigMap below.")
    if planned.claim is None:
        lines.append("# The run's folder goes with its pod: dovetail launch --claim NAME keeps it in a volume.")
    return "\n".join(lines) + "\n"


def _head(planned: PlannedNodes) -> dict[str, Any]:
    """Return the pod of the first node, which has the files and keeps the run's folder."""
    amount = {"cpu": str(planned.head_cores), "memory": f"{planned.head_bytes >> 20}Mi"}
    kept = {"emptyDir": {}} if planned.claim is None else {"persistentVolumeClaim": {"claimName": planned.claim}}
    container = {
        "name": "ray-head",
        "image": planned.image,
        "resources": {"requests": amount, "limits": amount},
        "volumeMounts": [
            {"name": "job", "mountPath": JOB.rstrip("/")},
            {"name": "out", "mountPath": OUT},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - where the pod's shared memory is
        ],
    }
    volumes = [{"name": "job", "configMap": {"name": planned.name}}, {"name": "out", **kept}, _shared_memory()]
    return {"containers": [container], "volumes": volumes}


def _workers(planned: PlannedNodes, group: NodePool) -> dict[str, Any]:
    """Return the nodes of one type."""
    gpus = {"nvidia.com/gpu": str(group.gpus)} if group.gpus else {}
    container = {
        "name": "ray-worker",
        "image": planned.image,
        "resources": {"requests": {"cpu": _cores_asked(group), **gpus}, **({"limits": gpus} if gpus else {})},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    where = {INSTANCE: group.instance} if group.instance is not None else {TYPE: group.name}
    return {
        "groupName": group.name,
        "replicas": group.nodes,
        "minReplicas": group.nodes,
        "maxReplicas": group.nodes,
        # The operator hands these to a shell, so the JSON stands in quotes of its own.
        "rayStartParams": {
            "num-cpus": str(group.cores),
            "num-gpus": str(group.gpus),
            "resources": json.dumps(resources(group)),
        },
        "template": {
            "spec": {"nodeSelector": where, "containers": [container], "volumes": [_shared_memory()]},
        },
    }


def _cores_asked(group: NodePool) -> str:
    """Return what a pod asks for: all cores, or on an instance of its own all but what Kubernetes keeps there."""
    if group.instance is None:
        return str(group.cores)
    return "500m" if group.cores == 1 else str(group.cores - 1)


def _shared_memory() -> dict[str, Any]:
    """Return room for tensors that pass between processes of one pod."""
    return {"name": "shm", "emptyDir": {"medium": "Memory"}}
