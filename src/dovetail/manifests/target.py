"""Where a plan can be started, by name. A new target is one new file and one line here."""

from __future__ import annotations

from typing import Protocol

from dovetail.errors import SpecError, did_you_mean
from dovetail.manifests.compose import Compose
from dovetail.manifests.kuberay import KubeRay
from dovetail.manifests.nodes import PlannedNodes
from dovetail.manifests.skypilot import SkyPilot
from dovetail.manifests.slurm import Slurm


class Target(Protocol):
    """A system that starts machines or processes from a file."""

    file: str
    """What the file is called."""
    start: str
    """The command that starts what the file says."""
    here: str
    """Where data that the run file names from its own folder are put."""

    def write(self, planned: PlannedNodes) -> str:
        """Return the file's text."""
        ...


TARGETS: dict[str, Target] = {
    "kuberay": KubeRay(),
    "skypilot": SkyPilot(),
    "slurm": Slurm(),
    "compose": Compose(),
}


def target_of(name: str) -> Target:
    """Return a target by its name."""
    if name not in TARGETS:
        raise SpecError(f"is `{name}`", key="--to", hint=did_you_mean(name, TARGETS))
    return TARGETS[name]
