"""What becomes of what a worker keeps back: told to servers for checkpoints, given to them when it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

from dovetail.runtime.messages import AskResidual, Message, Reset, Residual, ResidualTold
from dovetail.runtime.process import Process
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.runtime.worker.send import Sender

LEAVING_S = 5.0
"""How long a worker that leaves tries to give servers what it keeps back."""


class ResidualKeeper:
    """Does with a residual what the coordinator says, in the thread that sends: nothing is under way then."""

    def __init__(
        self,
        process: Process,
        compression: LinkCompression,
        sender: Sender,
        tell: Callable[[Message], None],
        is_now: Callable[[int], bool],
        leaves: Callable[[], bool],
    ) -> None:
        """Use the connections of the sender; `is_now` says whether a generation is the one that goes on."""
        self._name, self._is_sync = process.name, process.blueprint.run.training.mode == "sync"
        self._compression, self._feedback = compression, compression.feedback
        self._sender, self._connections = sender, sender.connections
        self._tell, self._is_now, self._leaves = tell, is_now, leaves
        self._generation = 0

    def handle(self, message: Message) -> bool:
        """Do what the coordinator says, from any thread; True where there is nothing else to do about a message."""
        if isinstance(message, AskResidual):
            self._sender.run_errand(lambda: self._tell_servers(message))
            return True
        if isinstance(message, Reset):
            self._generation = message.generation
            self._sender.run_errand(lambda: self._go_back(message))
        return False

    def _tell_servers(self, message: AskResidual) -> None:
        """Tell servers what is kept back at the step of a checkpoint, then say so."""
        if not self._is_now(message.generation):
            return
        if self._feedback is not None and self._feedback.is_any:
            kept = self._feedback.at(message.step) if self._is_sync else self._feedback.now
            residual = Residual(generation=message.generation, worker=self._name, number=message.number)
            self._connections.tell_residual(residual, kept, lambda: self._is_now(message.generation))
        self._tell(ResidualTold(name=self._name, generation=message.generation, number=message.number))

    def _go_back(self, message: Reset) -> None:
        """Keep back what was kept where the run goes on: nothing at a checkpoint, whose servers have it."""
        if message.went_back:
            self._compression.give_away()
        else:
            self._compression.go_on_at(message.step)

    def leave(self) -> None:
        """Give servers what is kept back, for good, where this worker leaves; where they are gone it is lost."""
        if self._feedback is not None and self._leaves():
            self._sender.run_errand(self._give)

    def _give(self) -> None:
        if self._feedback is None or not self._feedback.is_any:
            return
        until_s = time.monotonic() + LEAVING_S
        residual = Residual(generation=self._generation, worker=self._name)
        self._connections.tell_residual(residual, self._compression.give_away(), lambda: time.monotonic() < until_s)
