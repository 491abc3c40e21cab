"""Letters about batch norms: from workers to `norm_sums`, and answers to all who wait when the last part is there."""

from __future__ import annotations

import numpy as np

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import AddedUp, AddUp, Push
from dovetail.runtime.server.norm_sums import Answers
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Envelope, Listener, Refused


class NormCalls:
    """The workers that wait at the batch norms of a step."""

    def __init__(self, shard: Shard, listener: Listener) -> None:
        """Answer by a listener what a shard's norms come to."""
        self._shard, self._listener = shard, listener

    def add_up(self, envelope: Envelope, message: AddUp) -> None:
        """Put statistics of a norm together; whoever waits for the last part of them is answered with it."""
        norms = self._shard.norms
        if norms is None or message.step != self._shard.version or len(envelope.arrays) != 1:
            raise TrainingError(f"a norm of step {message.step}", hint="a bug: report it")
        bits = envelope.arrays[0]
        if bits.dtype != np.int64 or bits.ndim != 1:
            raise TrainingError(f"sums of a norm are {bits.dtype} {bits.shape}", hint="a bug: report it")
        self._answer(norms.add(message, bits.view(np.float64), envelope))

    def pushed(self, message: Push) -> None:
        """Note that a task comes to no further norm."""
        if self._shard.norms is not None and message.last:
            self._answer(self._shard.norms.pushed(message.task, message.positions))

    def _answer(self, answers: Answers) -> None:
        """Answer those who wait."""
        for envelope, sums in answers:
            if sums is None:
                self._listener.reply(envelope, Refused(reason="the workers' samples do not all pass the same norms"))
            else:
                self._listener.reply(envelope, AddedUp(), [sums.view(np.int64)])
