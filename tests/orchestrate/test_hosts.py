"""What hosts measured, put together: what runs beside the layers where workers are on several machines."""

from __future__ import annotations

import time

import pytest

from dovetail.cost import evaluate
from dovetail.orchestrate.hosts import beside_on_hosts, launching_core
from dovetail.planner.demands import Demands
from dovetail.planner.plan import fastest_plan
from dovetail.spec import Beside, Problem
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages


def measured(read_s: float, server_s: float | None, client_s: float, *, bytes_s: float = 0.0) -> Problem:
    """Return what a host measured: rows whose bytes take so long over the network, and a layer of 0.2 s."""
    rows = make_layer("rows", {"cpu": make_layer_time(9.0, comm_s=bytes_s)}, kind="embedding", output_bytes=1.0)
    rest = make_layer("rest", {"cpu": make_layer_time(0.2)})
    bare = make_problem(layers=[rows, rest], resources=[make_resource("cpu", kind="cpu")], batch=100)
    clients = {} if server_s is None else {"cpu": client_s}
    shared = {} if server_s is None else {"cpu": 0.5}
    beside = Beside(
        read_core_s=read_s, server_core_s=server_s, client_s=clients, client_parallel=shared, step_s=0.1, micro_batch=50
    )
    return Problem(training=bare.training, resources=bare.resources, layers=bare.layers, beside=beside)


def test_a_worker_on_a_host_reads_in_its_own_cores_and_waits_for_the_bytes_of_its_rows():
    found = {"fast": measured(0.1, 0.3, 0.4), "slow": measured(0.2, 0.6, 0.8, bytes_s=5.0)}

    beside = beside_on_hosts(found, {"fast": False, "slow": False}, latency_s=0.01)

    assert beside is not None
    assert beside.client_s == pytest.approx({"fast": 0.5, "slow": 5.0})
    assert beside.client_parallel["fast"] == pytest.approx((0.5 * 0.4 + 0.1) / 0.5)  # reading is shared wholly
    assert (beside.read_core_s, beside.server_core_s, beside.places) == (0.0, 0.6, ("servers",))
    assert beside.step_s == pytest.approx(0.12)


def test_where_a_host_measured_no_servers_nothing_is_priced_beside_the_layers():
    found = {"fast": measured(0.1, 0.3, 0.4), "slow": measured(0.2, None, 0.8)}

    assert beside_on_hosts(found, {"fast": False, "slow": False}, latency_s=0.01) is None


def test_servers_take_the_launching_machines_cores_and_workers_those_of_the_hosts():
    host = measured(0.1, 0.6, 0.4)
    beside = beside_on_hosts({"cpu": host}, {"cpu": False}, latency_s=0.0)
    resources = (make_resource("cpu", kind="cpu", limit=3), launching_core(2.0, {"cpu"}))
    problem = Problem(training=host.training, resources=resources, layers=host.layers, beside=beside)

    plan = fastest_plan(problem, Demands(), clock=time.perf_counter)
    three = evaluate(problem, make_stages(("cpu", 0, 1, 3)), place="servers", servers=2)

    assert resources[1].name == "here"
    assert plan.place == "servers"
    assert [stage.units for stage in plan.stages] == [3]  # all of them: servers take none
    assert 1 <= (plan.servers or 0) <= 2
    assert plan.samples_per_s >= three.samples_per_s * (1 - 1e-9)
    assert not three.violations
