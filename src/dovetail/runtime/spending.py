"""What a private run has spent: a record beside its checkpoints that no crash makes forget a step.

A step is in the record before anything that comes of it leaves its process: the record on disk is a few steps ahead of
the run, and cut back to what was done where a run ends by itself. What was begun under one stream of noise counts once,
however often its steps are done again: they get the same noise, and come to the same.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dovetail.privacy.accountant import SpentSteps, epsilon_of
from dovetail.privacy.steps import PrivateSteps
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import SPENDING, PrivacySummary
from dovetail.runtime.sealed import read_sealed, write_sealed

MOST_WRITES = 128
"""Of the record in a run: it is ahead by so much of the run's steps."""


class SpentStream(msgspec.Struct, frozen=True, kw_only=True):
    """Steps `first` up to but not including `last` of a run, with the noise of one stream."""

    stream: str
    rate: float
    noise: float
    first: int
    last: int


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run has spent, stream after stream."""

    streams: tuple[SpentStream, ...] = ()

    @property
    def steps(self) -> list[SpentSteps]:
        """What the accountant composes."""
        return [
            SpentSteps(rate=each.rate, noise=each.noise, steps=each.last - each.first)
            for each in self.streams
            if each.last > each.first
        ]

    def of(self, stream: str) -> SpentStream | None:
        """Return what was spent on a stream."""
        return next((each for each in self.streams if each.stream == stream), None)

    def without(self, stream: str) -> Spending:
        """Return all but one stream."""
        return Spending(streams=tuple(each for each in self.streams if each.stream != stream))

    def reaching(self, private: PrivateSteps, last: int) -> Spending:
        """Return the same with the steps of a stream up to, not including, `last`: as many as that, or more."""
        known = self.of(private.stream)
        entry = SpentStream(
            stream=private.stream,
            rate=private.rate,
            noise=private.noise,
            first=private.first_step,
            last=max(last, private.first_step, 0 if known is None else known.last),
        )
        return Spending(streams=(*self.without(private.stream).streams, entry))

    def cut(self, private: PrivateSteps, last: int) -> Spending:
        """Return the same with a stream's steps ending at `last`: none after it was begun."""
        return self.without(private.stream).reaching(private, last)

    def joined(self, other: Spending) -> Spending:
        """Return what either of two records knows: of each stream the longer stretch."""
        found = {each.stream: each for each in self.streams}
        for each in other.streams:
            mine = found.get(each.stream, each)
            found[each.stream] = msgspec.structs.replace(
                mine, first=min(mine.first, each.first), last=max(mine.last, each.last)
            )
        return Spending(streams=tuple(found.values()))

    def write(self, folder: Path) -> None:
        """Write it into a run's folder; it is on disk when this returns."""
        write_sealed(folder / SPENDING, self)

    @classmethod
    def read(cls, folder: Path) -> Spending | None:
        """Return what a run's folder says, None where it says nothing; refuse a record that is damaged."""
        path = folder / SPENDING
        if not path.exists():
            return None
        return read_sealed(
            path, cls, hint="without it nobody knows what the run has spent: restore it, or start a new run"
        )


class SpendingRecord:
    """The record of a run that goes on: whoever decides that a step counts has it written before."""

    def __init__(self, folder: Path, private: PrivateSteps) -> None:
        """Go on with the record in a run's folder."""
        self._folder, self._private = folder, private
        self._spending = Spending.read(folder) or Spending()
        known = self._spending.of(private.stream)
        self._reserved = private.first_step if known is None else known.last
        self._known = self._reserved
        """Steps below were begun before, for all that anybody knows."""
        self._ahead = max(1, (private.until_step - private.first_step) // MOST_WRITES)

    @property
    def spending(self) -> Spending:
        """What the record says now."""
        return self._spending

    def begin(self, step: int) -> None:
        """Have it on disk that a step is spent; raise `OSError` where that cannot be, and the step must not be done."""
        if step < self._reserved:
            if step < self._private.first_step:  # another stream's: the steps after it would come to something else
                raise TrainingError(
                    f"the run went back to step {step:,}, before its noise began at step {self._private.first_step:,}",
                    hint="go on with --resume: its steps get new noise then",
                )
            return
        reserved = max(step + 1, min(self._private.until_step, step + self._ahead))
        self._write(self._spending.reaching(self._private, reserved))
        self._reserved = reserved

    def end(self, step: int) -> None:
        """Cut back what is ahead: from here on steps below `step` were done, and none from it on was begun."""
        last = max(step, self._known)
        if last < self._reserved:
            self._write(self._spending.cut(self._private, last))
            self._reserved = last

    def at(self, step: int) -> Spending:
        """Return what a checkpoint of `step` steps says was spent for it."""
        return self._spending.cut(self._private, step)

    def _write(self, spending: Spending) -> None:
        spending.write(self._folder)
        self._spending = spending


def privacy_summary(blueprint: Blueprint, spending: Spending, step: int) -> PrivacySummary:
    """Return what a run has promised, and spent by the time that so many of its steps count."""
    privacy, private = blueprint.run.privacy, blueprint.private
    if private is None or privacy.epsilon is None or privacy.delta is None:
        raise ValueError("a run without a promise spends nothing")
    return PrivacySummary(
        epsilon=epsilon_of(spending.steps, privacy.delta, privacy.accountant),
        budget=privacy.epsilon,
        delta=privacy.delta,
        clip=private.clip,
        noise=private.noise,
        rate=private.rate,
        steps=sum(each.steps for each in spending.steps),
        accountant=privacy.accountant,
        is_spent=not private.lasts and step >= private.until_step,
    )
