"""Requests to workers of later stages that are under way, each on a line of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from dovetail.runtime.blueprint import ServerSpec
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Collect, Forward, Stale
from dovetail.runtime.process import Process
from dovetail.transport import Caller, Envelope, Refused, Sendable


@dataclass(slots=True, eq=False)
class StageRequest:
    """A request that was sent; `envelope` is its answer, whose arrays hold until the call is ended."""

    name: str
    line: Caller
    request: int
    envelope: Envelope | None = None


class StageRequests:
    """Lines to the workers of later stages; one thread uses them.

    A line takes one request at a time through shared memory, so there are as many lines as requests under way.
    """

    def __init__(self, process: Process, purpose: str, *, dense_size: int) -> None:
        """Open no line yet; `purpose` tells these from other lines of the process.

        Some are asked for so many dense gradients.
        """
        self._process, self._purpose = process, purpose
        self._dense_bytes = 4 * dense_size if process.blueprint.run.training.dense == "ps" else 0
        self._most_samples = process.blueprint.run.training.micro_batch
        self._specs = process.blueprint.stage_workers
        self._free: dict[str, list[Caller]] = {name: [] for name in self._specs}
        self._num_lines = 0
        self._under_way: dict[zmq.Socket[bytes], StageRequest] = {}
        self._answered: set[StageRequest] = set()
        """Whose answers are still being used."""
        self.poller = zmq.Poller()
        """Of all lines under way; whoever owns this may watch others with it."""

    def ask(self, name: str, message: Forward | Collect, arrays: Sequence[Sendable] = ()) -> StageRequest:
        """Send a request to a worker of a later stage."""
        free = self._free[name]
        line = free.pop() if free else self._open(self._specs[name], message, arrays)
        call = StageRequest(name, line, line.ask(message, arrays))
        self._under_way[line.socket] = call
        self.poller.register(line.socket, zmq.POLLIN)
        return call

    def _open(self, spec: ServerSpec, message: Forward | Collect, arrays: Sequence[Sendable]) -> Caller:
        """Return a new line, with room in shared memory for a whole micro-batch of what it is opened for.

        Shared memory that a GPU reads is pinned, all of it: no more than is needed.
        """
        self._num_lines += 1
        samples = max(1, message.samples) if isinstance(message, Forward) else self._most_samples
        bytes_each = -(-sum(array.nbytes for array in arrays) // samples)
        lane_bytes = max(self._dense_bytes, 2 * bytes_each * self._most_samples) + (1 << 20)
        return self._process.call(spec, suffix=f"/{self._purpose}-{self._num_lines}", lane_bytes=lane_bytes)

    def answered(self, timeout_s: float) -> list[StageRequest]:
        """Return the requests that were answered, after a while where there are none yet."""
        found = []
        for socket, _ in self.poller.poll(int(timeout_s * 1000)):
            call = self._under_way.get(socket)
            envelope = call.line.receive(0) if call is not None else None
            if call is None or envelope is None:
                continue
            if isinstance(envelope.message, Refused):
                raise TrainingError(
                    f"{call.name} refused a request: {envelope.message.reason}",
                    hint="all processes of a run must have the same version of Dovetail",
                )
            call.envelope = envelope
            self.poller.unregister(call.line.socket)
            del self._under_way[call.line.socket]
            self._answered.add(call)
            found.append(call)
        return found

    def end(self, call: StageRequest) -> None:
        """Let go of an answer: its line is free again."""
        if call in self._answered:
            self._answered.remove(call)
            self._free[call.name].append(call.line)

    def give_up(self) -> None:
        """Want no answer any more: what still comes goes nowhere."""
        for call in self._under_way.values():
            self.poller.unregister(call.line.socket)
            call.line.abandon()
            self._free[call.name].append(call.line)
        self._under_way.clear()
        for call in list(self._answered):
            self.end(call)

    def close(self) -> None:
        """Close all lines."""
        self.give_up()
        for lines in self._free.values():
            for line in lines:
                line.close()


def is_stale(call: StageRequest) -> bool:
    """Say whether an answer says that the request was of work that is thrown away."""
    return call.envelope is not None and isinstance(call.envelope.message, Stale)
