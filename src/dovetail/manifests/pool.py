"""Nodes of a plan that are all alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """The nodes of one type, all alike."""

    type: str
    name: str
    """The type as a name that any system takes."""
    nodes: int
    units: int
    """Of each node; the last one may have fewer to do."""
    cores: int
    """Of each node."""
    gpus: int
    """Of each node."""
    cloud: str | None = None
    instance: str | None = None
    """As the cloud calls it, where the type is the catalogue's."""
    accelerator: str | None = None
    is_spot: bool = False
    """Whether the cloud may take them back."""
