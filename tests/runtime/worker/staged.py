"""All workers of a run that is cut, in threads of this process: the test is their coordinator, over real sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import Apply, Hello, InRing, JoinRing, Message, Reset, RingMeets, Stop, SumUp
from dovetail.runtime.process import Process
from dovetail.runtime.worker.loop import work
from dovetail.runtime.worker.stages.loop import work_in_stage
from dovetail.transport import Listener
from testbed.direct_servers import answer_as
from tests.runtime.worker.makers import Bench, running
from tests.transport.makers import serving


class Coordinator:
    """What workers say, and a way to answer."""

    def __init__(self, listener: Listener, bench: Bench, names: list[str]) -> None:
        self._listener, self.bench, self.names = listener, bench, names
        self._heard: list[tuple[str, Any]] = []
        self._senders: dict[str, bytes] = {}
        for name in names:
            self.hear(Hello, name)

    def tell(self, name: str, *messages: Message) -> None:
        """Send messages to a worker."""
        for message in messages:
            self._listener.send(self._senders[name], message)

    def hear(self, kind: type, name: str, timeout_s: float = 60.0) -> Any:
        """Return the next message of some kind of a worker; others are kept for later."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            for at, (who, message) in enumerate(self._heard):
                if who == name and isinstance(message, kind):
                    del self._heard[at]
                    return message
            assert time.monotonic() < deadline_s, f"no {kind.__name__} of {name} among {self._heard}"
            envelope = self._listener.receive(0.1)
            if envelope is not None:
                self._senders[envelope.owner] = envelope.sender
                self._heard.append((envelope.owner, envelope.message))

    def said(self, kind: type) -> list[Any]:
        """Return what was heard of some kind and not asked for."""
        return [message for _, message in self._heard if isinstance(message, kind)]

    @property
    def heads(self) -> list[str]:
        """Return the workers of the first stage that are there."""
        return [name for name in self.names if name.startswith("stage-0")]

    def of_stage(self, stage: int) -> list[str]:
        """Return the workers of a stage that are there."""
        return [name for name in self.names if name.startswith(f"stage-{stage}")]

    def begin(self, generation: int = 1) -> None:
        """Begin a generation."""
        stages = tuple(tuple(self.of_stage(stage)) for stage in range(1, len(self.bench.blueprint.stages)))
        for name in sorted(self.names, reverse=True):  # later stages know before anybody calls them
            self.tell(name, Reset(generation=generation, stages=stages))
        for shard in self.bench.shards:
            shard.discard()

    def form(self, stage: int, *, generation: int = 1, step: int = 0, source: str = "") -> None:
        """Have a stage form a ring."""
        members, folder = self.of_stage(stage), "" if source else str(checkpoints.newest(self.bench.folder))
        how = {"generation": generation, "era": 1, "step": step, "members": tuple(members), "source": source}
        meeting = ""
        if len(members) > 1:
            self.tell(members[0], JoinRing(**how, folder=folder))
            meeting = self.hear(RingMeets, members[0]).meeting
        for name in members:
            self.tell(name, JoinRing(**how, folder=folder, meeting=meeting))
        for name in members:
            assert self.hear(InRing, name).version == step

    def sum_up(self, stage: int, *, generation: int = 1, step: int = 0) -> None:
        """Have a later stage add up."""
        for name in self.of_stage(stage):
            self.tell(name, SumUp(generation=generation, step=step))

    def apply(self, *, generation: int = 1, step: int = 0, scale: float = 1.0) -> None:
        """Have everyone apply a step."""
        for shard in self.bench.shards:
            shard.commit(scale=scale, dense_scale=scale, factor=1.0)
        for name in self.names:
            self.tell(name, Apply(generation=generation, step=step, scale=scale, factor=1.0))


@contextmanager
def workers_of(bench: Bench, *, only: list[str] | None = None) -> Iterator[Coordinator]:
    """Run the workers of a run, or `only` some, until the block ends and they are told to stop."""
    coordinator = Process(bench.folder, "coordinator")
    with ExitStack() as stack:
        listener = coordinator.listen([coordinator.blueprint.coordinator.local_address])
        stack.callback(listener.close)
        for spec, shard in zip(bench.blueprint.servers, bench.shards, strict=True):
            server = Process(bench.folder, spec.name).listen([spec.local_address])
            stack.enter_context(serving(server, answer_as(shard)))
        loops, names = [], []
        for name, settings in bench.run.each_worker():
            if only is None or name in only:
                process = Process(bench.folder, name)
                begin = work_in_stage if settings.stage else work
                loops.append(lambda b=begin, p=process, s=settings: b(p, s, bench.source))
                names.append(name)
        stack.enter_context(running(*loops))
        told = Coordinator(listener, bench, names)
        try:
            yield told
        finally:
            for name in names:
                told.tell(name, Stop())
