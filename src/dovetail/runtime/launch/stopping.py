"""Ctrl-C and SIGTERM: the first asks for a checkpoint and an end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

ON_A_TERMINAL = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Whether the user or a scheduler wants the run to stop; restores the old handlers when it is left.

    A program's own handlers are left alone, and outside of its main thread there is nothing to heed.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        what: str = "keeping a checkpoint, then stopping; once more ends at once",
        *,
        signals: Sequence[signal.Signals] = ON_A_TERMINAL,
    ) -> None:
        """Say through `tell` `what` the first signal does."""
        self._tell, self._what, self._signals = tell, what, signals
        self._before: dict[int, Any] = {}
        self.is_asked = False

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            usual = [each for each in self._signals if signal.getsignal(each) in _USUAL]
            self._before = {number: signal.signal(number, self._heed) for number in usual}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Say whether the run is to stop."""
        return self.is_asked

    def _heed(self, number: int, _: FrameType | None) -> None:
        """Note the first signal; end at the second."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        self._tell(f"{signal.Signals(number).name}: {self._what}")


_USUAL = (signal.SIG_DFL, signal.default_int_handler)
"""What a program that cares nothing for signals has."""
