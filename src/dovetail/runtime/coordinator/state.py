"""The states of a run."""

from __future__ import annotations

from enum import Enum


class RunState(Enum):
    """How a run stands; the values are what people read."""

    STARTING = "starting"
    RUNNING = "running"
    GOING_BACK = "going back"
    """Work under way is thrown away; servers and workers get ready for the next generation."""
    SAVING = "saving"
    """Every sample is done, or the run was asked to stop: the last checkpoint is being written."""
    DONE = "done"
    FAILED = "failed"

    @property
    def is_working(self) -> bool:
        """Whether a generation is under way."""
        return self in (RunState.RUNNING, RunState.SAVING)

    @property
    def is_over(self) -> bool:
        """Whether nothing will happen any more."""
        return self in (RunState.DONE, RunState.FAILED)
