"""The worker's model through `torch.compile`: one program for batches of any size, and none where no compiler is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def compiler_problem(device: torch.device) -> str | None:
    """Return why nothing can be compiled for a device on this machine, or None where something was."""

    def something(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2.0 + 1.0

    try:
        torch.compile(something, dynamic=True)(torch.ones(8, device=device))
    except Exception as problem:  # of a compiler, of a driver, of Triton: each has its own
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        return f"{type(problem).__name__}: {lines[0] if lines else ''}"[:300]
    return None


def can_compile(device: torch.device, say: Callable[[str], None]) -> bool:
    """Return whether a model can be compiled for a device; where it cannot, `say` why."""
    problem = compiler_problem(device)
    if problem is not None:
        say(f"torch.compile does not work here, and the model runs as it is: {problem}")
    return problem is None


def compiled(function: F) -> F:
    """Return a function that is compiled as it is first called; parts that cannot be compiled run as they are."""
    import torch._dynamo  # noqa: PLC0415 - takes a second to import, and most workers do without

    torch._dynamo.config.suppress_errors = True
    return torch.compile(function, dynamic=True)  # type: ignore[return-value]


def uncompiled(function: F) -> F:
    """Return a function that runs as it is inside of what is compiled: what talks with servers."""
    return torch.compiler.disable(function)  # type: ignore[no-any-return,no-untyped-call]
