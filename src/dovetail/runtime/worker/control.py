"""The thread that talks with the coordinator: signs of life, tasks in, reports out."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import zmq
from numpy.typing import NDArray

from dovetail.errors import DovetailError
from dovetail.runtime.clocks import AwakeClock
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import log_of
from dovetail.runtime.messages import Alive, AskResidual, Assign, Failed, Hello, Leaves, Message, Stop, WhoAreYou
from dovetail.runtime.messages.membership import Role
from dovetail.runtime.process import HEARTBEAT_S, Process
from dovetail.transport import Envelope

Arrays = tuple[NDArray[np.generic], ...]
LOOK_MS = 200
"""How often a connection without messages looks what is due: well within the time from one sign of life to the next."""


class Control:
    """The connection to the coordinator, which one thread owns; others `tell` it what to say."""

    def __init__(
        self,
        process: Process,
        handle: Callable[[Message], None],
        generation: Callable[[], int],
        most_samples: Callable[[], int | None],
        leaves: Callable[[], bool] = lambda: False,
        *,
        role: Role = "worker",
        mask_key: str = "",
    ) -> None:
        """Open the connection; `handle` is called with every message of the coordinator, in this thread.

        The next two are what the coordinator is told of this worker, and so is its `mask_key`; once `leaves` returns
        True, it goes.
        """
        self._leaves, self._role, self._mask_key = leaves, role, mask_key
        self._process, self._handle = process, handle
        self._generation, self._most_samples = generation, most_samples
        self._clock = AwakeClock()
        self.pulse = Pulse(self._clock)
        self._connection = process.call_coordinator()
        self._outbox: queue.SimpleQueue[tuple[Message, Arrays]] = queue.SimpleQueue()
        self._waker = Waker()
        self.stopped = threading.Event()
        self.problem: DovetailError | None = None

    def tell(self, message: Message, arrays: Arrays = ()) -> None:
        """Send a message, from any thread."""
        self._outbox.put((message, arrays))
        self._waker.wake()

    def run(self) -> None:
        """Pass messages until told to stop."""
        poller = zmq.Poller()
        poller.register(self._connection.socket, zmq.POLLIN)
        poller.register(self._waker.socket, zmq.POLLIN)
        heard_s, beat_s = self._clock.now(), -HEARTBEAT_S
        self._say_hello()
        try:
            while not self.stopped.is_set() and not self._leaves():
                poller.poll(LOOK_MS)
                self._waker.clear()
                while not self._outbox.empty():
                    self._connection.send(*self._outbox.get())
                while (envelope := self._connection.receive(0)) is not None:
                    heard_s = self._clock.now()
                    self._receive(envelope)
                if self._clock.now() - beat_s > HEARTBEAT_S:
                    beat_s = self._clock.last_s
                    self._say_alive()
                self._process.check_coordinator(beat_s - heard_s)
        except DovetailError as problem:
            self.fail(problem)
        finally:
            while not self._outbox.empty():
                self._connection.send(*self._outbox.get())
            if self._leaves():
                self._connection.send(Leaves(name=self._process.name, why="it leaves, as it was told to"))
            self.stopped.set()
            self._connection.close()
            self._waker.close()

    def fail(self, problem: DovetailError) -> None:
        """End the worker, and tell the coordinator why."""
        if self.problem is None:
            self.problem = problem
        self.tell(Failed(name=self._process.name, error=str(problem), hint=problem.hint))
        self.stopped.set()

    def fail_by(self, problem: Exception) -> None:
        """End the worker for what a model, data or we did not foresee.

        The traceback is written first: once the coordinator knows, the launcher may end this process at any moment.
        """
        with suppress(OSError):  # a full disk
            traceback.print_exception(problem)
        is_here = self._process.is_local  # else the log is brought to the run's folder
        log = log_of(self._process.folder if is_here else Path("RUN"), self._process.name)
        self.fail(
            TrainingError(
                f"{type(problem).__name__}: {problem}",
                hint=f"its traceback is in {log}; `dovetail train --in-process` stops where the model fails",
            )
        )

    def _receive(self, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, Stop):
            self.stopped.set()
        elif isinstance(message, WhoAreYou):
            self._say_hello()
        elif not isinstance(message, Alive):
            if isinstance(message, Assign | AskResidual) and message.generation > self._generation():
                self._say_hello(missed=message.generation)
            self._handle(message)

    def _say_alive(self) -> None:
        """Give a sign of life, and say whether the other threads get on."""
        self._connection.send(
            Alive(
                name=self._process.name,
                most_samples=self._most_samples(),
                stuck_s=round(self.pulse.stuck_s, 1),
                longest_s=round(self.pulse.longest_s, 1),
            )
        )

    def _say_hello(self, missed: int = 0) -> None:
        """Tell the coordinator who this is, and of a generation whose beginning it was not told of."""
        self._connection.send(
            Hello(
                role=self._role,
                name=self._process.name,
                process_id=self._process.process_id,
                generation=self._generation(),
                most_samples=self._most_samples(),
                missed=missed,
                mask_key=self._mask_key,
            )
        )


class Pulse:
    """When each thread that works last showed that it gets on; waiting for work is rest, waiting in small steps is not.

    Any thread beats; the one that owns the clock asks.
    """

    def __init__(self, clock: AwakeClock) -> None:
        """Start with nobody at work."""
        self._clock = clock
        self._beats_s: dict[int, float] = {}
        self.longest_s = 0.0
        """The longest that a thread ever took from one beat to the next."""

    def beat(self) -> None:
        """Note that the calling thread gets on."""
        thread, now_s = threading.get_ident(), self._clock.last_s
        last_s = self._beats_s.get(thread)
        if last_s is not None and now_s - last_s > self.longest_s:
            self.longest_s = now_s - last_s
        self._beats_s[thread] = now_s

    def rest(self) -> None:
        """Note that the calling thread has nothing to do."""
        self.beat()
        self._beats_s.pop(threading.get_ident(), None)

    @property
    def stuck_s(self) -> float:
        """Return the longest time for which a thread has been at the same thing."""
        return max((self._clock.last_s - beat_s for beat_s in list(self._beats_s.values())), default=0.0)


class Waker:
    """A socket that becomes readable when somebody wakes whoever polls it."""

    def __init__(self) -> None:
        """Connect both ends within this process."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._lock = threading.Lock()
        self.socket = context.socket(zmq.PAIR)
        """For the poller of the thread that is woken."""
        self._other = context.socket(zmq.PAIR)
        place = f"inproc://waker-{id(self)}"
        self.socket.bind(place)
        self._other.connect(place)

    def wake(self) -> None:
        """Wake it; a waker that is closed wakes nobody."""
        with self._lock:
            if not self._other.closed:
                with suppress(zmq.Again):  # whoever was woken so often is awake
                    self._other.send(b"", zmq.NOBLOCK)

    def clear(self) -> None:
        """Be awake: sleep again at the next poll."""
        while self.socket.poll(0):
            self.socket.recv()

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            self.socket.close()
            self._other.close()
