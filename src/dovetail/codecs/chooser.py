"""How many bits a link needs: decided from what is measured on it, while a run goes on.

Of the widths that are allowed, the widest for which transfers hide behind computing is taken; where none hides, the
narrowest. With 32 bits there is no codec at all, so a link that is fast enough never has one. Nor is a width taken that
needs longer to code than its fewer bytes save.

A narrower width is kept only where bytes are measured to be what takes the time: where less than half of the time is
saved that fewer bytes promise, coding taken off, or where steps take longer than all did before, the link goes back,
and tries again later, each time twice as late. That steps take as long as before proves nothing: in `sync` they wait
for other workers, whose links may be the slower ones. A wider width that turns out slower, and does not hide, goes back
too. Where computing takes longer than transfers, a narrower width is taken only when they are too long twice in a row:
once may have been something else.

The first transfers of a run may have been slow for other reasons, so a link that stays narrow has the next wider width
now and then, and keeps it where that is no slower or hides. Where codes add more noise to gradients than `MOST_NOISE`,
the width goes up and stays there.

Of several transfers the fastest counts: bytes take no longer than that, and what made the others slower (a busy server,
another process) no codec makes faster.

The chooser knows no clock and no link: observations in, decisions out. `coding_s` measures what a width costs in
processor time on this machine, once, when somebody first thinks of using it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dovetail.codecs.payload import pack, unpack
from dovetail.codecs.registry import codec_of

NUMBERS = 1 << 16
REPEATS = 4
"""The first compiles; of the others the fastest counts."""


@cache
def coding_s(bits: int) -> float:
    """Return the seconds that one byte of float32 numbers takes to be coded, something kept back, and read again."""
    codec = codec_of(bits)
    if codec is None:
        return 0.0
    numbers = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32)
    kept = np.zeros_like(numbers)
    took_s = []
    for _ in range(REPEATS):
        begun_s = time.thread_time()
        unpack(pack(numbers, codec, seed=0, residual=kept), numbers.shape)
        took_s.append(time.thread_time() - begun_s)
    return min(took_s[1:]) / numbers.nbytes


WINDOW = 6
"""Tasks from one decision to the next, the first of which does not count."""
FIRST_WINDOW = 4
"""The same before the first decision: until then a slow link is at its slowest."""
LEAST_S = 0.002
"""Transfers shorter than this are left alone."""
SLOWER = 1.1
"""A wider width whose transfers take so many times as long is slower."""
MOST_NOISE = 0.01
"""Of what arrives, in squares: noise that is an order of magnitude smaller than the gradient it is added to."""
PATIENCE = 20
"""Decisions before a link tries a width again, or a wider one; twice as many after every try that failed."""
SAFETY = 0.7
"""A wider width is taken when its transfers would need this part of the time that hides them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One task on a link: bytes as they went and as they would have gone in 32 bits, and the seconds beside them."""

    sent_bytes: int
    plain_bytes: int
    transfer_s: float
    compute_s: float
    noise: float = 0.0
    """What codes of the width added, in parts of what arrived (`noise`)."""
    step_s: float = 0.0
    """From the end of the task before to the end of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A change of width, with what was measured before it; or, with the same width twice, what came of the last one."""

    before: int
    bits: int
    reason: str
    transfer_s: float
    gain: float = 1.0
    """Of transfers, measured: how many times as fast as before the last change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """How it was before a change, until what it brought is judged."""

    bits: int
    transfer_s: float
    ratio: float
    """The part of bytes that went."""
    slowest_step_s: float


class Chooser:
    """The width of one direction of one link."""

    def __init__(
        self, widths: Sequence[int], *, hidden_part: float, coding_s: Callable[[int], float] = lambda _: 0.0
    ) -> None:
        """Begin without a codec; transfers hide when they take at most `hidden_part` of the time of computing.

        `coding_s` says how long a byte takes to be coded in a width and read again.
        """
        self._coding_s = coding_s
        self._widths = sorted(widths, reverse=True)
        self._hidden_part = hidden_part
        self.bits = self._widths[0]
        self._window: list[Observation] = []
        self._least = self._widths[-1]
        """The narrowest that is allowed by its noise."""
        self._tried: Before | None = None
        self._ratio, self._plain_bytes = 1.0, 0.0
        self._steps_s: tuple[float, ...] = (0.0,)
        self._pause, self._patience = 0, PATIENCE
        self._settled, self._check_after, self._is_check = 0, PATIENCE, False
        """Decisions since the width stays narrow, with how many a wider one is tried, and whether one is."""
        self._first = FIRST_WINDOW
        self._is_suspected = False
        """Whether transfers were too long the last time, though computing takes longer."""

    def observe(self, observation: Observation) -> Decision | None:
        """Take in a task; return what is decided, once in a while."""
        self._window.append(observation)
        if len(self._window) < self._first:
            return None
        self._first = WINDOW
        window, self._window = self._window[1:], []  # the first may still have been of the width before
        transfer_s = min(each.transfer_s for each in window)
        compute_s = statistics.median(each.compute_s for each in window)
        budget_s = self._hidden_part * compute_s
        noise = window[-1].noise
        ratio = max(1, sum(each.sent_bytes for each in window)) / max(1, sum(each.plain_bytes for each in window))
        self._ratio = ratio
        self._plain_bytes = statistics.median(each.plain_bytes for each in window)
        self._steps_s = tuple(each.step_s for each in window)
        if noise > MOST_NOISE and self.bits < self._widths[0]:
            self._least = self._wider(self.bits)
            reason = f"{noise:.1%} of what arrives is noise of codes, of {MOST_NOISE:.0%} that do no harm"
            return self._change(self._least, reason, transfer_s)
        if self._tried is not None:
            return self._judge(transfer_s, budget_s)
        if self._pause:
            self._pause -= 1
            return self._check_wider(transfer_s)
        wanted = self._wanted(transfer_s / ratio, transfer_s, budget_s)
        was_suspected, self._is_suspected = self._is_suspected, wanted < self.bits and transfer_s <= compute_s
        if wanted == self.bits or (self._is_suspected and not was_suspected):
            return self._check_wider(transfer_s)
        hides = f"transfers take {transfer_s * 1e3:.0f} ms, and {budget_s * 1e3:.0f} ms would hide behind computing"
        return self._change(wanted, hides, transfer_s)

    def _wanted(self, plain_s: float, now_s: float, budget_s: float) -> int:
        """Return the width to have, by how long transfers take in 32 bits and now."""
        if now_s < LEAST_S and self.bits == self._widths[0]:
            return self.bits
        allowed = []
        for bits in self._widths:
            limit_s = budget_s * SAFETY if bits > self.bits else budget_s
            expected_s = now_s if bits == self.bits else plain_s * bits / 32
            if bits < self._least or (bits < self.bits and now_s - expected_s <= self._more_coding_s(self.bits, bits)):
                continue
            if expected_s <= limit_s:
                return bits
            allowed.append(bits)
        return allowed[-1]

    def _more_coding_s(self, before: int, bits: int) -> float:
        """Return how much longer a task is coded in a width than in the one before."""
        return (self._coding_s(bits) - self._coding_s(before)) * self._plain_bytes

    def _check_wider(self, transfer_s: float) -> Decision | None:
        """Try the next wider width, once in a while."""
        self._settled += 1
        if self.bits == self._widths[0] or self._settled < self._check_after:
            return None
        self._is_check = True
        return self._change(self._wider(self.bits), "to see whether so few are still needed", transfer_s)

    def _judge(self, transfer_s: float, budget_s: float) -> Decision:
        """Say what the last change brought, and go back where that is nothing."""
        tried = self._tried or self._now(transfer_s)
        before, before_s = tried.bits, tried.transfer_s
        is_check, self._is_check, self._tried = self._is_check, False, None
        gain = before_s / max(transfer_s, 1e-9)
        is_wider = self.bits > before >= self._least
        is_slower = is_wider and gain * SLOWER < 1 and transfer_s > budget_s
        promised_s = before_s * (1.0 - self._ratio / tried.ratio)
        saved_s = before_s - transfer_s - self._more_coding_s(before, self.bits)
        step_s = statistics.median(self._steps_s)
        steps_are_slower = step_s > tried.slowest_step_s
        if is_slower or (self.bits < before and (saved_s < promised_s / 2 or steps_are_slower)):
            if is_check:
                self._check_after *= 2
            else:
                self._pause, self._patience = self._patience, 2 * self._patience
            how = "slower" if is_slower else "hardly faster"
            reason = f"transfers are {how} ({before_s * 1e3:.0f} ms before, {transfer_s * 1e3:.0f} ms now)"
            if self.bits < before and saved_s >= promised_s / 2:
                reason = f"steps take {step_s * 1e3:.0f} ms, {tried.slowest_step_s * 1e3:.0f} ms at most before"
            decision = Decision(before=self.bits, bits=before, reason=reason, transfer_s=transfer_s, gain=gain)
            self.bits = before
            return decision
        self._settled = self._check_after if is_check else 0  # what was no mistake may not be the last
        reason = f"transfers take {transfer_s * 1e3:.0f} ms, {before_s * 1e3:.0f} ms before"
        return Decision(before=self.bits, bits=self.bits, reason=reason, transfer_s=transfer_s, gain=gain)

    def _change(self, bits: int, reason: str, transfer_s: float) -> Decision:
        """Take another width, and remember what there was to compare with: before a width that was not judged yet."""
        self._tried, self._settled = self._tried or self._now(transfer_s), 0
        decision = Decision(before=self.bits, bits=bits, reason=reason, transfer_s=transfer_s)
        self.bits = bits
        return decision

    def _now(self, transfer_s: float) -> Before:
        """Return how it is now, to compare with."""
        slowest_s = max(self._steps_s)
        return Before(bits=self.bits, transfer_s=transfer_s, ratio=self._ratio, slowest_step_s=slowest_s)

    @property
    def is_quiet(self) -> bool:
        """Say whether there is no codec, nothing is tried, and nothing is about to be."""
        return self.bits == self._widths[0] and self._tried is None and not self._pause and not self._is_suspected

    def _wider(self, bits: int) -> int:
        """Return the next wider width."""
        return min(each for each in self._widths if each > bits)
