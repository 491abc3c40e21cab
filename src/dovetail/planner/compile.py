"""Compiling the kernels: once per machine, then they load from a cache."""

from __future__ import annotations

import contextlib

import msgspec

from dovetail.errors import NoPlanError
from dovetail.planner.arrays import as_arrays
from dovetail.planner.baselines.brute_force import cheapest_of_all
from dovetail.planner.demands import Demands
from dovetail.planner.exact import Clock
from dovetail.planner.plan import cheapest_plan, fastest_plan
from dovetail.spec import Beside, Layer, LayerTime, Problem, ResourceType, SharedMachine, Training

PATIENT = Demands(time_limit_s=3600.0)
"""Compiling may take longer than a plan may."""


def compile_kernels(*, clock: Clock) -> None:
    """Plan a tiny problem, once possible and once impossible: then every kernel is there before anything is timed."""
    half = LayerTime(compute_s=1.0, comm_s=0.5, compute_parallel=0.9, comm_parallel=0.5)
    slow = LayerTime(compute_s=2.0, comm_s=0.5, compute_parallel=0.9, comm_parallel=0.5)
    problem = Problem(
        training=Training(samples=1, batch=1, min_samples_per_s=1.1),
        resources=(
            ResourceType(name="a", price_per_hour=1.0, limit=3),
            ResourceType(name="b", price_per_hour=3.0, limit=3),
        ),
        layers=tuple(
            Layer(name=str(position), on={"a": slow, "b": half} if position % 2 else {"a": half, "b": slow})
            for position in range(3)
        ),
    )
    with contextlib.suppress(NoPlanError):  # the remedies need every kernel
        cheapest_plan(problem, PATIENT, clock=clock)
    cheapest_plan(problem.with_floor(0.5), PATIENT, clock=clock)
    machine = SharedMachine(name="c", cores=8, units={"b": 2})
    beside = Beside(
        read_core_s=0.1, micro_batch=1, server_core_s=0.1, host_cores={"b": 1}, client_s={"a": 0.1, "b": 0.1}
    )
    on_machine = msgspec.structs.replace(problem, machines=(machine,), beside=beside)
    with contextlib.suppress(NoPlanError):
        fastest_plan(on_machine, PATIENT, clock=clock)
    cheapest_plan(on_machine.with_floor(0.2), PATIENT, clock=clock)
    cheapest_of_all(as_arrays(problem), min_samples_per_s=0.0, max_stages=None, split_stages=False)
