"""Nodes of a Ray cluster, which carry a plan wherever it is started: each says of which type its units are."""

from __future__ import annotations

import json

from dovetail.manifests.pool import NodePool

PORT = 6379
"""Where the first node of a Ray cluster listens, unless told otherwise."""


def resources(group: NodePool) -> str:
    """Return what a node of a type offers, as `ray start --resources` takes it: one a thread or GPU of its workers."""
    return json.dumps({group.type: group.gpus or group.cores})


def head_words(*, port: int = PORT) -> list[str]:
    """Return the words that start the first node, which offers nothing: no worker goes there."""
    return ["ray", "start", "--head", f"--port={port}", "--num-cpus=0", "--num-gpus=0"]


def node_words(group: NodePool, *, head: str, port: int = PORT) -> list[str]:
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
