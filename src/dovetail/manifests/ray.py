"""Nodes of a Ray cluster, which carry a plan wherever it is started: each says of which type its units are."""

from __future__ import annotations

import json

from dovetail.manifests.fleet import Fleet, Group

PORT = 6379
"""Where the first node of a Ray cluster listens, unless told otherwise."""


def resources(group: Group) -> str:
    """Return what a node of a type offers, as `ray start --resources` takes it."""
    return json.dumps({group.type: group.units})


def head_words(fleet: Fleet, *, port: int = PORT) -> list[str]:
    """Return the words that start the first node."""
    return ["ray", "start", "--head", f"--port={port}", f"--num-cpus={fleet.head_cores}", "--num-gpus=0"]


def node_words(group: Group, *, head: str, port: int = PORT) -> list[str]:
    """Return the words that start a node of a type and stay with it."""
    return [
        "ray",
        "start",
        f"--address={head}:{port}",
        f"--num-cpus={group.cores}",
        f"--num-gpus={group.gpus}",
        f"--resources={resources(group)}",
        "--block",
    ]
