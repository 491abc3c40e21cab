"""In how many bits numbers go over each of a worker's links to servers, and what it keeps back of them.

Rows and their gradients are coded without feedback, so never in so few bits that their noise would matter: a residual
for every row would be a second table on every worker, and stale by the time the row comes again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.codecs import Codec, TopK, codec_of, pack, unpack
from dovetail.codecs.chooser import WINDOW, Chooser, Decision, Observation, coding_s
from dovetail.codecs.feedback import Feedback
from dovetail.codecs.noise import Noise, sampled
from dovetail.data.streams import stream_number
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.dense.coding import exact_places

Floats = NDArray[np.float32]
Tell = Callable[[str, Decision], None]
ROW_BLOCK = 32
LEAST_GRADIENT_BITS, LEAST_VALUE_BITS = 4, 8
"""Of rows' gradients, and of rows: the fewest that their noise allows."""
AUTO_WIDTHS = (32, 16, 8, 4)
HIDDEN_PART = {"sync": 0.25, "ssp": 1.0, "async": 1.0}
"""Of the time of computing, by mode: in sync, dense parameters come and go while nothing is computed."""
FIRST_WINDOWS, MOST_WINDOWS = 8, 16
"""That links rest at a stretch: a link that gets slow is noticed after so many. Looking takes processor time."""


@dataclass(slots=True)
class LinkDirection:
    """One direction of one link: its width, and what was measured since the last task."""

    bits: int
    chooser: Chooser | None = None
    sent_bytes: int = 0
    plain_bytes: int = 0
    seconds: float = 0.0
    noise: Noise = field(default_factory=Noise)

    def observed(self, compute_s: float, step_s: float) -> Decision | None:
        """End a task: have the width chosen, where it is not fixed."""
        seen = Observation(
            sent_bytes=self.sent_bytes,
            plain_bytes=self.plain_bytes,
            transfer_s=self.seconds,
            compute_s=compute_s,
            noise=self.noise.part,
            step_s=step_s,
        )
        self.forget()
        if self.chooser is None:
            return None
        decision = self.chooser.observe(seen)
        if self.bits != self.chooser.bits:
            self.bits, self.noise = self.chooser.bits, Noise()
        return decision

    def forget(self) -> None:
        """Begin another task."""
        self.sent_bytes = self.plain_bytes = 0
        self.seconds = 0.0


@dataclass(slots=True)
class ServerLink:
    """A link to one server."""

    part: slice
    exact: NDArray[np.int64]
    up: LinkDirection
    down: LinkDirection
    keeps: bool = False
    """Whether anything is kept back of what goes there."""
    is_awaited: bool = False
    """Whether dense gradients are on the way of which nobody knows yet whether they count."""
    base: int = -1
    held: Floats = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    """The dense parameters that this worker holds, where they come in fewer bits, and their number."""


class LinkCompression:
    """The links of a worker; pushes are one thread's, pulls of dense parameters one other's."""

    def __init__(
        self, blueprint: Blueprint, *, name: str = "", is_slow: bool = False, tell: Tell | None = None
    ) -> None:
        """Take widths from the run file; without a network (not `is_slow`) automatic ones stay off.

        `tell` hears which link has another width.
        """
        settings, mode = blueprint.run.compression, blueprint.run.training.mode
        self._tell, self._names = tell, [spec.name for spec in blueprint.servers]
        self._top_k: Codec | None = TopK(settings.topk) if settings.topk is not None else None
        self._is_auto, self._is_sync = settings.bits == "auto" and is_slow, mode == "sync"
        self.rest = MeasuringBackoff()
        bits = settings.bits if isinstance(settings.bits, int) else 32
        up, down = (32, 8) if self._top_k is not None else (bits, bits)
        self._links = [
            ServerLink(
                part, exact_places(blueprint.dense, part), self._direction(up, mode), self._direction(down, mode)
            )
            for part in map(blueprint.dense_slice, range(blueprint.num_servers))
        ]
        keeps = settings.is_wanted and blueprint.run.training.dense == "ps"
        self.feedback = Feedback(blueprint.dense_size) if keeps else None
        self._is_kept = False
        """Whether what was kept before the sending under way is known."""
        self._seed = stream_number(blueprint.run.training.seed, f"wire/{name}")

    def _direction(self, bits: int, mode: str) -> LinkDirection:
        """Return a direction of a link, whose width is chosen or fixed."""
        if not self._is_auto:
            return LinkDirection(bits)
        return LinkDirection(bits, Chooser(AUTO_WIDTHS, hidden_part=HIDDEN_PART[mode], coding_s=coding_s))

    @property
    def measures(self) -> bool:
        """Say whether it matters how long transfers take."""
        return self._is_auto and not self.rest.is_now

    def _next_seed(self) -> int:
        self._seed += 1 << 32
        return self._seed

    # -- to a server ---------------------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Say that gradients of a step, the dense ones among them, are about to be sent."""
        self._is_kept = any(link.keeps or link.up.bits < 32 for link in self._links) or self._top_k is not None
        if self.feedback is not None and self._is_kept:
            self.feedback.begin(step)

    def rows_up(self, server: int, gradients: Floats) -> NDArray[Any]:
        """Return gradients of rows as they go to a server."""
        up = self._links[server].up
        bits = 16 if self._top_k is not None else up.bits if up.bits == 32 else max(up.bits, LEAST_GRADIENT_BITS)
        array = pack(gradients, codec_of(bits, block=ROW_BLOCK), seed=self._next_seed())
        _count(up, array, gradients.nbytes)
        if self._is_auto and array is not gradients:
            some = sampled(len(gradients))
            up.noise.add_rows(gradients[some], unpack(array, gradients.shape)[some])
        return array

    def dense_up(self, server: int, dense: Floats) -> NDArray[Any]:
        """Return a server's part of the dense gradients, with what was kept back, as it goes there."""
        link = self._links[server]
        part = dense[link.part]
        if self.feedback is None:
            return part
        residual = self.feedback.now[link.part]
        codec = self._top_k or codec_of(link.up.bits)
        array: NDArray[Any] = part
        if codec is not None:
            some = sampled(len(part))
            before = residual[some].copy()
            array = pack(part, codec, seed=self._next_seed(), residual=residual, exact=link.exact)
            if self._is_auto:
                link.up.noise.add_dense(part[some], before, residual[some])
        elif link.keeps:  # a width may go back to 32: what was kept goes now
            array = part + residual
            residual[:] = 0
        link.keeps, link.is_awaited = codec is not None, True
        _count(link.up, array, part.nbytes)
        return array

    def acknowledged(self, server: int, seconds: float, *, counts: bool, dense: bool) -> None:
        """Take in that a server has what was sent; where it does not count, what was kept before is kept again."""
        link = self._links[server]
        link.up.seconds += seconds
        if dense and not counts:
            self._take_back(link)
        link.is_awaited = link.is_awaited and not dense

    def abandoned(self) -> None:
        """Take in that nobody knows whether what was sent last arrived: the run has gone elsewhere.

        Where servers take tasks one by one, what they did not acknowledge is taken for lost. Where there are steps, it
        is known as soon as it is known with which step the run goes on: a step before that has counted (`go_on_at`).
        """
        if not self._is_sync:
            self._take_back_awaited()

    def go_on_at(self, step: int) -> None:
        """Take in with which step the run goes on, where there are steps; -1 where nobody says so."""
        if self.feedback is None or not self.feedback.is_any or not self._is_sync:
            return
        if step < 0:
            self._take_back_awaited()
            return
        is_back = self.feedback.go_back(step)
        for link in self._links:
            link.keeps, link.is_awaited = link.keeps or is_back, False

    def give_away(self) -> Floats:
        """Return what is kept back, which is somebody else's from now on."""
        self._take_back_awaited()
        return self.feedback.clear() if self.feedback is not None else np.empty(0, dtype=np.float32)

    def _take_back_awaited(self) -> None:
        """Keep again what was kept before a sending that nobody acknowledged."""
        for link in self._links:
            if link.is_awaited:
                self._take_back(link)
                link.is_awaited = False

    def _take_back(self, link: ServerLink) -> None:
        """Keep again what was kept before the last sending."""
        if self.feedback is not None and self._is_kept:
            self.feedback.take_back(link.part)
            link.keeps = True

    # -- from a server -------------------------------------------------------------------------------------------------

    def wants(self, server: int) -> dict[str, int]:
        """Return what a request tells a server of the widths of its answer."""
        link = self._links[server]
        bits = link.down.bits
        if bits == 32:
            return {}
        return {"row_bits": max(bits, LEAST_VALUE_BITS), "dense_bits": bits, "base": link.base}

    def rows_down(self, server: int, array: NDArray[Any], shape: tuple[int, int]) -> Floats:
        """Return the rows in a server's answer."""
        rows = unpack(array, shape, where=f"an answer of {self._names[server]}")
        _count(self._links[server].down, array, rows.nbytes)
        return rows

    def dense_down(self, server: int, array: NDArray[Any], base: int) -> Floats:
        """Return a server's dense parameters by its answer: they themselves, or what changed."""
        link = self._links[server]
        size = link.part.stop - link.part.start
        exact = link.exact if array.dtype == np.uint8 else link.exact[:0]
        values = unpack(array, (size,), exact=exact, where=f"an answer of {self._names[server]}")
        _count(link.down, array, 4 * size)
        if array.dtype == np.uint8:
            values += link.held
            link.held, link.base = values, base
        elif base >= 0:
            link.held, link.base = values.copy(), base
        return values

    def answered(self, server: int, seconds: float) -> None:
        """Take in how long an answer took, apart from waiting for a step."""
        self._links[server].down.seconds += seconds

    # -- after a task --------------------------------------------------------------------------------------------------

    def task_done(self, compute_s: float) -> None:
        """Choose widths by what the task took, where they are not fixed."""
        if not self._is_auto:
            return
        is_resting, directions = self.rest.is_now, [way for link in self._links for way in (link.up, link.down)]
        step_s = self.rest.task_done(is_quiet=all(each.chooser is None or each.chooser.is_quiet for each in directions))
        if is_resting:
            for each in directions:
                each.forget()
            return
        for name, link in zip(self._names, self._links, strict=True):
            for words, direction in ((f"to {name}", link.up), (f"from {name}", link.down)):
                decision = direction.observed(compute_s, step_s)
                if decision is not None and self._tell is not None:
                    self._tell(words, decision)


def _count(direction: LinkDirection, array: NDArray[Any], plain_bytes: int) -> None:
    """Add an array to what was measured."""
    direction.sent_bytes += array.nbytes
    direction.plain_bytes += plain_bytes


class MeasuringBackoff:
    """When links are measured: always at first and while a codec is on, ever less often while none is needed."""

    def __init__(self) -> None:
        """Begin awake."""
        self.clock: Callable[[], float] = time.perf_counter
        self._windows, self._left, self._needed = FIRST_WINDOWS, 0, 2 * WINDOW
        self._quiet = 0
        """Tasks in a row, measured, with no codec and nothing tried."""
        self._last_s = self.clock()

    @property
    def is_now(self) -> bool:
        """Say whether links rest."""
        return self._left > 0

    def task_done(self, *, is_quiet: bool) -> float:
        """Take in a task, and whether all links are quiet; return how long it took."""
        now_s = self.clock()
        step_s, self._last_s = now_s - self._last_s, now_s
        if self._left:
            self._left -= 1
        elif not is_quiet:
            self._windows, self._quiet, self._needed = FIRST_WINDOWS, 0, 2 * WINDOW
        else:
            self._quiet += 1
            if self._quiet >= self._needed:
                self._left, self._quiet, self._needed = self._windows * WINDOW, 0, WINDOW
                self._windows = min(MOST_WINDOWS, 2 * self._windows)
        return step_s
