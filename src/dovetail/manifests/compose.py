"""Docker Compose: containers that stand for the nodes, on one machine or, as a stack, on a swarm."""

from __future__ import annotations

import shlex
from typing import Any

from dovetail.manifests.nodes import PlannedNodes, notes, train_line
from dovetail.manifests.pool import NodePool
from dovetail.manifests.ray import head_words, node_words
from dovetail.manifests.yaml import yaml_of

HEAD = "head"
GRACE = "1m"


class Compose:
    """`docker compose up` starts a service for the first node and one for each type."""

    file = "compose.yaml"
    start = "docker compose up --abort-on-container-exit"
    here = "beside this file: every container has its folder as /job"

    def write(self, planned: PlannedNodes) -> str:
        """Return the compose file."""
        services: dict[str, Any] = {HEAD: _head(planned)}
        for group in planned.groups:
            services[group.name] = _nodes(planned, group)
        text = yaml_of({"name": planned.name, "services": services})
        how = f"Start it in the folder that holds plan.json and run.toml: {self.start}"
        said = [how, *notes(planned, here=self.here)]
        return "".join(f"# {line}\n" for line in said) + text


def _head(planned: PlannedNodes) -> dict[str, Any]:
    """Return the service that leads and trains; the others end when it does."""
    line = f"{shlex.join(head_words())} && exec {train_line('run', on='ray')}"
    limits = {"cpus": str(planned.head_cores), "memory": f"{planned.head_bytes >> 20}M"}
    return {
        "image": planned.image,
        "entrypoint": ["bash", "-c"],
        "command": [line.replace("$", "$$")],  # compose would take $ for its own
        "working_dir": "/job",
        "stop_grace_period": GRACE,
        "shm_size": "1gb",
        "volumes": [".:/job"],
        "deploy": {"resources": {"limits": limits}},
    }


def _nodes(planned: PlannedNodes, group: NodePool) -> dict[str, Any]:
    """Return the service of one type, a container a node."""
    words = node_words(group, head=HEAD)
    limits: dict[str, Any] = {"limits": {"cpus": str(group.cores)}}
    if group.gpus:
        device = {"driver": "nvidia", "count": group.gpus, "capabilities": ["gpu"]}
        limits["reservations"] = {"devices": [device]}
    return {
        "image": planned.image,
        "entrypoint": words[:1],
        "command": words[1:],
        "working_dir": "/job",
        "restart": "on-failure",  # until the first node listens
        "depends_on": [HEAD],
        "shm_size": "1gb",
        "volumes": [".:/job"],
        "deploy": {"replicas": group.nodes, "resources": limits},
    }
