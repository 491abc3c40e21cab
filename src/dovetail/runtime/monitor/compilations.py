"""Whether kernels are being compiled in this process: by Numba, by `torch.compile`, by Triton.

A step that waits for a compiler says nothing of the steps after it, and kernels that compile one after another look
like a slow run that goes steadily. Nothing is imported here: what was not imported has compiled nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any


class Compilations:
    """How many times something was compiled while this was watched."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._watched: set[str] = set()
        self._things = ExitStack()

    def look(self) -> int:
        """Return the count; compilers that were loaded meanwhile are watched from now on."""
        for module, watch in COMPILERS.items():
            if module in sys.modules and module not in self._watched:
                self._watched.add(module)
                with suppress(ImportError, AttributeError):  # another version, that tells nobody
                    self._things.enter_context(watch(self._add))
        return self.count

    def _add(self) -> None:
        self.count += 1

    def close(self) -> None:
        """Watch no more."""
        self._things.close()


@contextmanager
def watched_compilations() -> Iterator[Compilations]:
    """Watch the compilers of this process for as long as the block lasts."""
    found = Compilations()
    found.look()
    try:
        yield found
    finally:
        found.close()


@contextmanager
def _numba(add: Callable[[], None]) -> Iterator[None]:
    """Count what Numba compiles; kernels that it loads from its cache are no compilations."""
    event: Any = importlib.import_module("numba.core.event")

    class CompileListener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            add()

        def on_end(self, event: Any) -> None:
            add()

    listener = CompileListener()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


@contextmanager
def _dynamo(add: Callable[[], None]) -> Iterator[None]:
    """Count what `torch.compile` compiles."""
    from torch._dynamo.callback import callback_handler  # noqa: PLC0415

    def told(_: Any) -> None:
        add()

    callback_handler.register_start_callback(told)
    callback_handler.register_end_callback(told)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(told)
        callback_handler.remove_end_callback(told)


@contextmanager
def _triton(add: Callable[[], None]) -> Iterator[None]:
    """Count the variants of kernels that Triton compiles; what was there to be told of them still is."""
    from triton import knobs  # noqa: PLC0415

    before = knobs.runtime.jit_post_compile_hook

    def told(*args: Any, **kwargs: Any) -> Any:
        add()
        return None if before is None else before(*args, **kwargs)

    knobs.runtime.jit_post_compile_hook = told
    try:
        yield
    finally:
        knobs.runtime.jit_post_compile_hook = before


COMPILERS = {"numba.core.event": _numba, "torch._dynamo.callback": _dynamo, "triton": _triton}
"""By the module that has to be loaded before anything can be compiled."""
