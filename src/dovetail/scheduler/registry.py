"""Every policy, by name. A new one is one new file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.errors import DovetailError, did_you_mean
from dovetail.scheduler.policies.doubling import Doubling
from dovetail.scheduler.policies.fifo import Fifo
from dovetail.scheduler.policy import Policy

DEFAULT_POLICY = "dovetail"

POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "doubling": Doubling,
}


def make_policy(name: str, *, knob: float = 0.0, seed: int = 0) -> Policy:  # noqa: ARG001
    """Return a policy by its name; `knob` is for `dovetail`: 0 = mean completion time, 1 = makespan."""
    if name not in POLICIES:
        raise DovetailError(f"`{name}` is not a policy", hint=did_you_mean(name, POLICIES))
    return POLICIES[name]()
