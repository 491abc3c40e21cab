"""SkyPilot: a job group, whose tasks are the first node and the nodes of each type, in one region or cluster."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from dovetail.manifests.nodes import PlannedNodes, notes, train_line
from dovetail.manifests.pool import NodePool
from dovetail.manifests.ray import PORT, head_words, node_words
from dovetail.manifests.yaml import yaml_of

HEAD = "head"
GIB = 1 << 30


class SkyPilot:
    """`sky jobs launch` finds machines of all types at once, and ends them when the training does."""

    file = "sky.yaml"
    start = "sky jobs launch sky.yaml"
    here = "beside this file: its folder is copied to every node (workdir)"

    def write(self, planned: PlannedNodes) -> str:
        """Return the job group."""
        header = {"name": planned.name, "execution": "parallel", "primary_tasks": [HEAD]}
        tasks = [_head(planned), *(_nodes(planned, group) for group in planned.groups)]
        said = [
            f"Start it in the folder that holds plan.json and run.toml: {self.start}",
            *notes(planned, here=self.here),
        ]
        return "".join(f"# {line}\n" for line in said) + yaml_of(header, *tasks)


def _head(planned: PlannedNodes) -> dict[str, Any]:
    """Return the first node, which trains."""
    need = {"cpus": f"{planned.head_cores}+", "memory": f"{-(-planned.head_bytes // GIB)}+"}
    training = train_line("run", on=f"127.0.0.1:{PORT}")
    return _task(planned, HEAD, 1, need, f"{shlex.join(head_words())}\nexec {training}\n")


def _nodes(planned: PlannedNodes, group: NodePool) -> dict[str, Any]:
    """Return the nodes of one type; they find the first one by the name that SkyPilot gives it."""
    words = shlex.join(node_words(group, head=f"{HEAD}-0.{planned.name}"))
    need: dict[str, str | bool] = {"cpus": f"{group.cores}+"}
    if group.instance is not None:
        need = {"infra": str(group.cloud), "instance_type": group.instance}
        need |= {"use_spot": True} if group.is_spot else {}
    elif group.gpus:
        need["accelerators"] = f"{group.type.upper()}:{group.gpus}"
    return _task(planned, group.name, group.nodes, need, f"until {words}; do sleep 2; done\n")


def _task(planned: PlannedNodes, name: str, nodes: int, need: Mapping[str, str | bool], run: str) -> dict[str, Any]:
    """Return a task in the image; all are of one cloud, where the plan's types are."""
    where = {} if planned.cloud is None else {"infra": planned.cloud}
    return {
        "name": name,
        "workdir": ".",
        "num_nodes": nodes,
        "resources": {**where, **need, "image_id": f"docker:{planned.image}"},
        "run": run,
    }
