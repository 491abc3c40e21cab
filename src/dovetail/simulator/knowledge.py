"""What a policy is told of jobs: the truth, or what can be learnt by watching them."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from dovetail.scheduler.view import FloatArray
from dovetail.simulator.state import ClusterState

KnowledgeName = Literal["oracle", "estimated"]


class Knowledge(Protocol):
    """What is believed of every job, by row; `refresh` brings it up to date before a decision."""

    left: FloatArray
    left_error: FloatArray
    speed: FloatArray
    speed_error: FloatArray

    def refresh(self, state: ClusterState, arrived: list[int], done: list[int], now_s: float) -> None:
        """Take in what has happened since the last decision."""
        ...


class Oracle:
    """The truth: work left and speeds are known exactly, for jobs that have never run too."""

    def __init__(self, state: ClusterState) -> None:
        """Look at the simulation's own columns."""
        self.left = state.left
        self.speed = state.table.speed
        self.left_error = np.zeros(len(state.left))
        self.speed_error = np.zeros(len(state.left))

    def refresh(self, state: ClusterState, arrived: list[int], done: list[int], now_s: float) -> None:
        """Do nothing: the columns are the simulation's own."""
