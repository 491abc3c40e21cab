"""Kubernetes with the KubeRay operator: a RayJob, and a ConfigMap with the plan and the run file."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dovetail.errors import SpecError
from dovetail.manifests.nodes import PLAN, RUN, PlannedNodes, notes, train_words
from dovetail.manifests.pool import NodePool
from dovetail.manifests.ray import resources
from dovetail.manifests.yaml import yaml_of

JOB, OUT, DATA = "/dovetail-job", "/dovetail-out", "/dovetail-data"
STAYS_S, STAYS_FOR_RESULTS_S = 60, 1800
"""How long pods of a job that is over stay: for their logs, and where the run's folder goes with them, for that."""
MOST_BYTES = 1 << 20
"""What a ConfigMap holds."""
INSTANCE = "node.kubernetes.io/instance-type"
TYPE = "dovetail/type"
"""A label for nodes of types that no cloud has a word for."""


class KubeRay:
    """`kubectl apply` has the operator make the cluster and submit the training to it."""

    file = "rayjob.yaml"
    start = "kubectl apply -f rayjob.yaml"
    here = f"into the volume of --data-claim, and name it {DATA}/... in the run file"

    def write(self, planned: PlannedNodes) -> str:
        """Return the manifest."""
        job = {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": planned.name},
            "spec": {
                "entrypoint": f"cd {JOB} && {shlex.join(train_words('', f'{OUT}/run', on='ray'))}",
                "shutdownAfterJobFinishes": True,  # machines cost as long as they are there
                "ttlSecondsAfterFinished": _stays_s(planned),
                "rayClusterSpec": {
                    "headGroupSpec": {
                        "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                        "template": {"spec": _head(planned)},
                    },
                    "workerGroupSpecs": [_workers(planned, group) for group in planned.groups],
                },
            },
        }
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": planned.name}, "data": _files(planned)}
        return _preface(planned) + yaml_of(config, job)


def _files(planned: PlannedNodes) -> dict[str, str]:
    """Return the files that the first node has, by their keys in the ConfigMap."""
    files = {PLAN: planned.plan} | ({} if planned.run is None else {RUN: planned.run})
    files |= {_key(path): text.decode() for path, text in planned.code.items()}
    if (size := sum(len(text.encode()) for text in files.values())) > MOST_BYTES:
        raise SpecError(
            f"your own code and the plan are {size:,} bytes, and a ConfigMap holds {MOST_BYTES:,}",
            hint="put your package into the image, where it is installed",
        )
    return files


def _key(path: str) -> str:
    """Return a path as a key of a ConfigMap, which knows no folders."""
    return path.replace("/", "..")


def _stays_s(planned: PlannedNodes) -> int:
    return STAYS_FOR_RESULTS_S if planned.claim is None else STAYS_S


def _preface(planned: PlannedNodes) -> str:
    lines = [
        f"# Start: kubectl apply -f {KubeRay.file}    needs the KubeRay operator",
        f"# Watch: kubectl logs -f -l job-name={planned.name}",
        f"# The cluster goes {_stays_s(planned) // 60} min after the job is over.",
        *(f"# {line}" for line in notes(planned, here=KubeRay.here)),
    ]
    lines += [
        f"# Label its nodes: kubectl label node NODE {TYPE}={group.name}"
        for group in planned.groups
        if group.instance is None
    ]
    lines += [
        f"# Have {group.instance} be spot nodes: the price is theirs." for group in planned.groups if group.is_spot
    ]
    if planned.run is None:
        lines.append(f"# Add the run file: put it as {RUN} beside {PLAN} in the ConfigMap below.")
    if planned.claim is None:
        lines.append(
            f"# The run's folder goes with it: kubectl cp HEAD-POD:{OUT}/run run, or launch with --claim NAME."
        )
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
            {"name": "job", "mountPath": JOB},
            {"name": "out", "mountPath": OUT},
            *_mounts(planned),
        ],
    }
    config = {"name": planned.name, "items": [{"key": _key(path), "path": path} for path in _paths(planned)]}
    volumes = [{"name": "job", "configMap": config}, {"name": "out", **kept}, *_volumes(planned)]
    return {"containers": [container], "volumes": volumes}


def _paths(planned: PlannedNodes) -> list[str]:
    """Return where the files of the ConfigMap go."""
    return [PLAN, RUN, *planned.code]


def _workers(planned: PlannedNodes, group: NodePool) -> dict[str, Any]:
    """Return the nodes of one type."""
    gpus = {"nvidia.com/gpu": str(group.gpus)} if group.gpus else {}
    container = {
        "name": "ray-worker",
        "image": planned.image,
        "resources": {"requests": {"cpu": _cores_asked(group), **gpus}, **({"limits": gpus} if gpus else {})},
        "volumeMounts": _mounts(planned),
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
            "spec": {"nodeSelector": where, "containers": [container], "volumes": _volumes(planned)},
        },
    }


def _cores_asked(group: NodePool) -> str:
    """Return what a pod asks for: all cores, or on an instance of its own all but what Kubernetes keeps there."""
    if group.instance is None:
        return str(group.cores)
    return "500m" if group.cores == 1 else str(group.cores - 1)


def _volumes(planned: PlannedNodes) -> list[dict[str, Any]]:
    """Return what every pod has: room for tensors that pass between its processes, and the data's volume."""
    data = {"name": "data", "persistentVolumeClaim": {"claimName": planned.data_claim, "readOnly": True}}
    shared_memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    return [shared_memory, *([] if planned.data_claim is None else [data])]


def _mounts(planned: PlannedNodes) -> list[dict[str, Any]]:
    """Return where they are."""
    shared_memory = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - where a pod's shared memory is
    return [shared_memory, *([] if planned.data_claim is None else [{"name": "data", "mountPath": DATA}])]
