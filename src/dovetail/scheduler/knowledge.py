"""What a policy is told of jobs: the truth, or what has been learnt by watching them."""

from __future__ import annotations

from typing import Protocol

from dovetail.scheduler.view import FloatArray


class Knowledge(Protocol):
    """What is believed of every job, by row, with relative errors (0 = known)."""

    left: FloatArray
    left_error: FloatArray
    speed: FloatArray
    speed_error: FloatArray
    batch_speed: tuple[FloatArray, ...]
