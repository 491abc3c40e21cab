"""What a server does so that its death costs no step: its redo log, the copy of it elsewhere, and coming back."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any

from dovetail.runtime.folder import redo_of
from dovetail.runtime.messages import Message, Stale
from dovetail.runtime.process import Process
from dovetail.runtime.server.redo.copies import PART_BYTES, CopyKeeper, CopySender, fetch_copy
from dovetail.runtime.server.redo.log import RedoLog
from dovetail.runtime.server.redo.recover import Comeback, come_back
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Caller, Envelope, Listener


class Safekeeping:
    """The log of one server, and what the coordinator may hear once everything in the log is safe."""

    def __init__(self, process: Process, number: int, shard: Shard, listener: Listener, coordinator: Caller) -> None:
        """Look after a shard; with replicas, the next server has a copy of the log."""
        blueprint = process.blueprint
        faults = blueprint.run.faults
        folder = redo_of(process.folder, process.name, faults.log_folder)
        self._process, self._shard, self._listener, self._coordinator = process, shard, listener, coordinator
        self.log = RedoLog(blueprint, number, folder, shard, process.lanes)
        self._keeper = CopyKeeper(folder)
        self._sender: CopySender | None = None
        if faults.replicas and self.log.is_on:
            self._next = blueprint.servers[(number + 1) % blueprint.num_servers]
            self._sender = CopySender(self.log, self._call(), self._next.name)
        self._held: list[Message] = []
        """What the coordinator is not told yet."""

    def _call(self) -> Caller:
        """Return a line to the server that keeps the copy."""
        return self._process.call(self._next, suffix="/copy", lane_bytes=PART_BYTES + (1 << 16))

    @property
    def sockets(self) -> list[Any]:
        """Return the sockets on which something may come."""
        return [] if self._sender is None else [self._sender.socket]

    def come_back(self) -> Comeback:
        """Bring the shard to where it was when the last process of this server died."""
        return come_back(self.log, self._shard, self._process.folder, self._fetch if self._sender is not None else None)

    def _fetch(self) -> bool:
        """Get the copy of the log; others may want theirs of us meanwhile."""
        line = self._call()
        try:
            return fetch_copy(self.log, line, self._answer)
        except OSError:
            return False
        finally:
            line.close()

    def _answer(self) -> None:
        """Answer other servers, and nobody else yet."""
        while (envelope := self._listener.receive(0)) is not None:
            if self._process.senders().why_not_to_server(envelope.owner, envelope.message) is None and self.handle(
                envelope
            ):
                continue
            self._listener.reply(envelope, Stale(generation=0))

    def handle(self, envelope: Envelope) -> bool:
        """Answer a server that keeps its copy here; False where an envelope is about something else."""
        answer = self._keeper.answer(envelope)
        if answer is not None:
            self._listener.reply(envelope, *answer)
        return answer is not None

    def tell(self, message: Message) -> None:
        """Tell the coordinator something that rests on what the log has, once that is safe."""
        if self._sender is not None:
            self._sender.go_on()
        if self._held or not (self._sender is None or self._sender.is_safe):
            self._held.append(message)
        else:
            self._coordinator.send(message)

    def go_on(self) -> None:
        """See to the copy, and tell what has become safe."""
        if self._sender is None:
            return
        self._sender.go_on()
        if self._held and self._sender.is_safe:
            held, self._held = self._held, []
            for message in held:
                self._coordinator.send(message)

    def end(self) -> None:
        """Remove everything: the run is over, and its checkpoint has it all."""
        self.log.drop()
        for copy in self.log.folder.glob("of-*"):
            shutil.rmtree(copy, ignore_errors=True)
        with suppress(OSError):
            self.log.folder.rmdir()

    def close(self) -> None:
        """Let go of what is open."""
        self.log.close()
        if self._sender is not None:
            self._sender.close()
