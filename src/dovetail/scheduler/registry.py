"""Every policy, by name. A new one is one new file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dovetail.errors import DovetailError, did_you_mean
from dovetail.references import import_function
from dovetail.scheduler.baselines.doubling import Doubling
from dovetail.scheduler.baselines.exact import Exact
from dovetail.scheduler.baselines.exploratory import Exploratory
from dovetail.scheduler.baselines.fifo import Fifo
from dovetail.scheduler.baselines.fixed import Fixed
from dovetail.scheduler.baselines.goodput import Goodput
from dovetail.scheduler.baselines.las import LeastAttained
from dovetail.scheduler.baselines.max_min import MaxMin
from dovetail.scheduler.baselines.optimus import Optimus
from dovetail.scheduler.baselines.srtf import Srtf
from dovetail.scheduler.default.policy import DEFAULT_KNOB, Dovetail
from dovetail.scheduler.policy import Policy

POLICIES: dict[str, Callable[[], Policy]] = {
    "dovetail": Dovetail,
    "fixed-1": partial(Fixed, 1),
    "fixed-2": partial(Fixed, 2),
    "fixed-4": partial(Fixed, 4),
    "fixed-8": partial(Fixed, 8),
    "fifo": Fifo,
    "srtf": Srtf,
    "las": LeastAttained,
    "optimus": Optimus,
    "doubling": Doubling,
    "exploratory": Exploratory,
    "exact": Exact,
    "max-min": MaxMin,
    "goodput": Goodput,
}


def make_policy(name: str, *, knob: float | None = None) -> Policy:
    """Return a policy by its name; `knob` is for `dovetail`: 0 = mean completion time, 1 = makespan.

    `package.module:Class` is one's own, made without arguments.
    """
    if ":" in name:
        return own_policy(name)
    if name not in POLICIES:
        raise DovetailError(f"`{name}` is not a policy", hint=did_you_mean(name, POLICIES))
    if name == "dovetail":
        return Dovetail(DEFAULT_KNOB if knob is None else knob)
    return POLICIES[name]()


def own_policy(name: str) -> Policy:
    """Return what `package.module:Class` makes, where that is a policy."""
    maker = import_function(name, what="policy")
    try:
        policy = maker()
    except Exception as problem:  # whatever a user's class raises
        raise DovetailError(
            f"policy `{name}` could not be made: {type(problem).__name__}: {problem}",
            hint="a policy is made without arguments; give them defaults",
        ) from None
    if not callable(getattr(policy, "decide", None)):
        raise DovetailError(
            f"`{name}` makes a {type(policy).__name__}, which is no policy", hint="write decide(self, view, now_s)"
        )
    made: Policy = policy
    return made
