"""The network of the RL planner: one recurrent cell per layer, and a softmax over types (and, jointly, units).

Five features a layer, as in HeterPS: its index and its kind, each one-hot, the size of its input, the size of its
weights, and its communication time on each type. A saved policy is a safetensors file whose header says its shape.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dovetail.errors import DovetailError
from dovetail.spec import Problem
from dovetail.spec.layer import LayerKind

Cell = Literal["lstm", "rnn"]
KINDS: tuple[str, ...] = get_args(LayerKind)
NUM_POSITIONS = 64
"""Layers beyond the last position share it."""
HIDDEN = 64
NEAR_UNIFORM = 0.1
"""What the first weights of the choice of types are shrunk by, so that every type is tried to begin with."""
UNIT_CHOICES: tuple[int, ...] = tuple(
    sorted({*range(1, 17), *(round(2 ** (quarter / 4)) for quarter in range(16, 81))})
)
"""The units a joint policy can choose: all up to 16, then steps of about a fifth up to a million."""


class Shape(NamedTuple):
    """What a policy was built for; it can be loaded for any problem with as many types."""

    cell: Cell
    num_types: int
    joint: bool


class PolicyNetwork(nn.Module):
    """Scores for every layer: one per type, and one per number of units where the policy is joint."""

    def __init__(self, shape: Shape, *, seed: int) -> None:
        """Build it; the same seed gives the same start."""
        super().__init__()
        self.shape = shape
        num_features = NUM_POSITIONS + len(KINDS) + 2 + shape.num_types
        build = nn.LSTM if shape.cell == "lstm" else nn.RNN
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.cells = build(num_features, HIDDEN, batch_first=True)
            self.types = nn.Linear(HIDDEN, shape.num_types)
            self.units = nn.Linear(HIDDEN, len(UNIT_CHOICES)) if shape.joint else None
        # What the type of the layer before adds to each type's score. To start with, a layer likes to stay where the
        # one before it is, as stages do; the rest of the choice is near uniform.
        self.after_type = nn.Parameter(math.log(max(shape.num_types, 2)) * torch.eye(shape.num_types))
        with torch.no_grad():
            self.types.weight.mul_(NEAR_UNIFORM)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return scores of types [L, T] and of units [L, U] for the features [L, F] of a problem's layers."""
        states, _ = self.cells(features.unsqueeze(0))
        states = states.squeeze(0)
        return self.types(states), None if self.units is None else self.units(states)


def layer_features(problem: Problem) -> Tensor:
    """Return the features [L, F] of a problem's layers; sizes and times on logarithmic scales of about one."""
    rows = []
    for position, layer in enumerate(problem.layers):
        index = [0.0] * NUM_POSITIONS
        index[min(position, NUM_POSITIONS - 1)] = 1.0
        kind = [float(layer.kind == known) for known in KINDS]
        sizes = [math.log1p(layer.input_bytes) / 20, math.log1p(layer.weight_bytes) / 20]
        times = [layer.on[resource.name].comm_s if resource.name in layer.on else 0.0 for resource in problem.resources]
        rows.append(index + kind + sizes + [math.log1p(time * 1e6) / 14 for time in times])
    return torch.tensor(rows, dtype=torch.float32)


def save_policy(policy: PolicyNetwork, path: Path) -> None:
    """Write a policy to a safetensors file."""
    shape = json.dumps(policy.shape._asdict())
    try:
        save_file(policy.state_dict(), path, metadata={"dovetail_policy": shape})
    except (OSError, SafetensorError) as error:
        raise DovetailError(f"{path}: cannot be written: {error}", hint="give a path in a folder that exists") from None


def load_policy(path: Path, wanted: Shape) -> PolicyNetwork:
    """Return the policy in a file; refuse one that was built for something else."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["dovetail_policy"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = Shape(**header)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        raise DovetailError(
            f"{path}: is not a policy", hint="give a file that `dovetail plan --save-policy` wrote"
        ) from None
    if found != wanted:
        raise DovetailError(
            f"{path}: is a {_in_words(found)}, and this needs a {_in_words(wanted)}",
            hint="a policy serves the method it was trained by, on problems with as many resource types",
        )
    policy = PolicyNetwork(found, seed=0)
    try:
        policy.load_state_dict(tensors)
    except RuntimeError:
        raise DovetailError(f"{path}: holds tensors of other shapes", hint="train it again with this version") from None
    return policy


def _in_words(shape: Shape) -> str:
    """Return a policy's shape for a message."""
    return f"{'joint ' if shape.joint else ''}{shape.cell} policy for {shape.num_types} types"
