"""Requests to workers of later stages that are under way, each on a connection of its own."""

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
    """A request that was sent; `envelope` is its answer, whose arrays hold until it is ended."""

    name: str
    connection: Caller
    number: int
    envelope: Envelope | None = None


class StageRequests:
    """Lines to the workers of later stages; one thread uses them.

    A connection takes one request at a time through shared memory: there are as many as requests under way.
    """

    def __init__(self, process: Process, purpose: str, *, dense_size: int) -> None:
        """Open no connection yet; `purpose` tells these from other connections of the process.

        Some are asked for so many dense gradients.
        """
        self._process, self._purpose = process, purpose
        self._dense_bytes = 4 * dense_size if process.blueprint.run.training.dense == "ps" else 0
        self._most_samples = process.blueprint.run.training.micro_batch
        self._specs = process.blueprint.stage_workers
        self._free: dict[str, list[Caller]] = {name: [] for name in self._specs}
        self._num_connections = 0
        self._under_way: dict[zmq.Socket[bytes], StageRequest] = {}
        self._answered: set[StageRequest] = set()
        """Whose answers are still being used."""
        self.poller = zmq.Poller()
        """Of all connections under way; whoever owns this may watch others with it."""

    def ask(self, name: str, message: Forward | Collect, arrays: Sequence[Sendable] = ()) -> StageRequest:
        """Send a request to a worker of a later stage."""
        free = self._free[name]
        connection = free.pop() if free else self._open(self._specs[name], message, arrays)
        request = StageRequest(name, connection, connection.ask(message, arrays))
        self._under_way[connection.socket] = request
        self.poller.register(connection.socket, zmq.POLLIN)
        return request

    def _open(self, spec: ServerSpec, message: Forward | Collect, arrays: Sequence[Sendable]) -> Caller:
        """Return a new connection, with room in shared memory for a whole micro-batch of what it is opened for.

        Shared memory that a GPU reads is pinned, all of it: no more than is needed.
        """
        self._num_connections += 1
        samples = max(1, message.samples) if isinstance(message, Forward) else self._most_samples
        bytes_each = -(-sum(array.nbytes for array in arrays) // samples)
        lane_bytes = max(self._dense_bytes, 2 * bytes_each * self._most_samples) + (1 << 20)
        return self._process.call(spec, suffix=f"/{self._purpose}-{self._num_connections}", lane_bytes=lane_bytes)

    def answered(self, timeout_s: float) -> list[StageRequest]:
        """Return the requests that were answered, after a while where there are none yet."""
        found = []
        for socket, _ in self.poller.poll(int(timeout_s * 1000)):
            request = self._under_way.get(socket)
            envelope = request.connection.receive(0) if request is not None else None
            if request is None or envelope is None:
                continue
            if isinstance(envelope.message, Refused):
                raise TrainingError(
                    f"{request.name} refused a request: {envelope.message.reason}",
                    hint="all processes of a run must have the same version of Dovetail",
                )
            request.envelope = envelope
            self.poller.unregister(request.connection.socket)
            del self._under_way[request.connection.socket]
            self._answered.add(request)
            found.append(request)
        return found

    def end(self, request: StageRequest) -> None:
        """Let go of an answer: its connection is free again."""
        if request in self._answered:
            self._answered.remove(request)
            self._free[request.name].append(request.connection)

    def give_up(self) -> None:
        """Want no answer any more: what still comes goes nowhere."""
        for request in self._under_way.values():
            self.poller.unregister(request.connection.socket)
            request.connection.abandon()
            self._free[request.name].append(request.connection)
        self._under_way.clear()
        for request in list(self._answered):
            self.end(request)

    def close(self) -> None:
        """Close all connections."""
        self.give_up()
        for connections in self._free.values():
            for connection in connections:
                connection.close()


def is_stale(request: StageRequest) -> bool:
    """Say whether an answer says that the request was of work that is thrown away."""
    return request.envelope is not None and isinstance(request.envelope.message, Stale)
