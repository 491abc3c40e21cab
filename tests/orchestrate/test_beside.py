"""What runs beside the layers: shares of the time, parts from a run's figures, and real short runs."""

from __future__ import annotations

import threading
import time

import pytest

from dovetail.cost import evaluate
from dovetail.orchestrate import beside as beside_module
from dovetail.orchestrate.beside import (
    Allowance,
    BesideMeasurer,
    machine_here,
    read_seconds,
    said_to_go_on,
    server_parts,
    shared_part,
    with_fed_units,
    with_those_between,
)
from dovetail.orchestrate.choosing import chosen_by
from dovetail.orchestrate.run_files import model_run
from dovetail.orchestrate.short_runs import ShortRun, short_run
from dovetail.planner.demands import Demands
from dovetail.runtime.planned.from_plan import Machine
from dovetail.runtime.planned.layouts import in_one_process
from dovetail.spec import Beside, Plan, Problem, Whole
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages

SMALL = {"hidden": [8, 4], "width": 4, "num_rows": 26_000}
BATCH, PIECES = 100, 4


def small_run(samples: int = 20_000, batch: int = 500):
    return model_run(
        "ctr-dnn", model_options=SMALL, data="clicks", data_options={}, samples=samples, batch=batch, seed=0
    )


def test_every_part_has_its_share_of_what_is_left_by_weight():
    now = [0.0]
    allowance = Allowance(30.0, [1.0, 1.0, 4.0], clock=lambda: now[0])

    assert allowance.next() == 5.0
    now[0] = 4.0  # it took less
    assert allowance.next() == pytest.approx(26.0 / 5)
    assert allowance.left_s == 26.0
    now[0] = 31.0  # this took more
    assert allowance.next() == 0.0
    assert allowance.where() == "3 of 3, 31 of 30 s gone"


def test_a_part_whose_share_is_too_little_to_begin_has_enough_while_there_is_any():
    now = [0.0]
    allowance = Allowance(10.0, [1.0] * 20, clock=lambda: now[0])

    assert allowance.next() == 2.0  # a share would be half a second
    now[0] = 9.0
    assert allowance.next() == 1.0


def test_what_takes_long_says_so_until_it_is_over():
    told: list[str] = []
    spoken = threading.Event()

    def tell(words: str) -> None:
        told.append(words)
        spoken.set()

    with said_to_go_on("planning", tell, every_s=0.01):
        assert spoken.wait(60)
    count = len(told)
    time.sleep(0.05)

    assert told[0].startswith("planning ... ")
    assert len(told) == count


def ran(whole_s: float, *, worker_s: float, server_s: float) -> ShortRun:
    used_s = {"here": 0.5, "coordinator": 0.1, "worker": worker_s, "server-0": server_s}
    return ShortRun(seconds_per_batch=whole_s, error=0.0, steps=9, used_s=used_s)


def problem_with(beside: Beside, **layers_s: float) -> Problem:
    on = {name: make_layer_time(seconds) for name, seconds in layers_s.items()}
    rows = {name: make_layer_time(1e9) for name in layers_s}  # their own times are not asked for
    return Problem(
        training=make_problem(batch=BATCH).training,
        resources=tuple(make_resource(name, kind=name) for name in layers_s),
        layers=(make_layer("rows", rows, kind="embedding", output_bytes=1.0), make_layer("rest", on)),
        beside=beside,
    )


def predicted_s(problem: Problem, resource: str) -> float:
    found = evaluate(problem, make_stages((resource, 0, 1, 1)), place="servers", servers=1, readers=1)
    return BATCH / found.samples_per_s


@pytest.mark.parametrize(
    ("whole_s", "worker_s", "server_s", "read_s"),
    [(1.0, 0.6, 0.2, 0.1), (1.0, 0.9, 0.2, 0.1), (1.0, 1.8, 0.2, 0.1), (1.0, 0.5, 0.3, 0.9), (1.0, 0.2, 0.8, 0.1)],
)
def test_the_cost_model_says_of_a_server_and_a_worker_what_they_took(whole_s, worker_s, server_s, read_s):
    found = ran(whole_s, worker_s=worker_s, server_s=server_s)
    parts = server_parts(found, 0.25, read_core_s=read_s, step_s=None, micro_batches=PIECES)
    beside = Beside(
        read_core_s=read_s,
        micro_batch=BATCH // PIECES,
        step_s=parts.step_s,
        server_core_s=parts.server_core_s,
        client_s={"cpu": parts.client_s},
    )

    assert predicted_s(problem_with(beside, cpu=0.25), "cpu") == pytest.approx(whole_s)
    assert parts.server_core_s == server_s


def test_a_worker_on_a_gpu_has_the_same_step_and_its_own_rows():
    on_core = server_parts(
        ran(1.0, worker_s=0.7, server_s=0.2), 0.25, read_core_s=0.1, step_s=None, micro_batches=PIECES
    )
    on_gpu = server_parts(
        ran(0.9, worker_s=1.2, server_s=0.2), 0.05, read_core_s=0.1, step_s=on_core.step_s, micro_batches=PIECES
    )
    beside = Beside(
        read_core_s=0.1,
        micro_batch=BATCH // PIECES,
        step_s=on_core.step_s,
        server_core_s=0.2,
        client_s={"cpu": on_core.client_s, "gpu": on_gpu.client_s},
    )
    problem = problem_with(beside, cpu=0.25, gpu=0.05)

    assert predicted_s(problem, "cpu") == pytest.approx(1.0)
    assert predicted_s(problem, "gpu") == pytest.approx(0.9)
    assert on_gpu.host_cores == 1  # (1.2 - 0.1) / 0.9, rounded up but for a quarter


def test_a_layout_on_a_gpu_has_the_cores_that_feed_it_whatever_it_kept_busy():
    alone = Whole(place="local", resource="gpu", units=1, cores=1, seconds_per_batch=1.0)
    served = Whole(place="servers", resource="gpu", units=1, servers=1, cores=2, seconds_per_batch=1.0)
    on_cores = Whole(place="local", resource="cpu", units=2, cores=2, seconds_per_batch=1.0)

    found = [with_fed_units(whole, {"gpu": 2}).cores for whole in (alone, served, on_cores)]

    assert found == [2, 3, 2]


def test_a_machine_in_a_problem_has_the_cores_that_may_be_used_and_no_gpus_where_there_are_none():
    problem = make_problem(resources=[make_resource("cpu", kind="cpu"), make_resource("gpu", kind="gpu")])

    without = machine_here(Machine(cores=3, gpus=0, memory_bytes=1e9), problem)
    with_one = machine_here(Machine(cores=3, gpus=1), problem)

    assert (without.cores, without.units, without.memory_bytes) == (3, {}, 1e9)
    assert with_one.units == {"gpu": 1}


def test_where_some_types_stand_elsewhere_nothing_is_shared_with_this_machine():
    layer = make_layer("rest", {"cpu": make_layer_time(), "a100": make_layer_time()})
    problem = make_problem(layers=[layer], resources=[make_resource("cpu"), make_resource("a100", 9.0)], batch=500)

    found = BesideMeasurer(small_run(), problem, Machine(cores=2, gpus=0), seconds=0.5).measure()

    assert found.machines == ()
    assert found.beside is not None
    assert found.beside.read_core_s > 0
    assert found.beside.wholes == ()  # there was no time for any


def test_reading_a_batch_takes_some_of_a_core():
    found = read_seconds(small_run(), 500, seconds=0.2)

    assert found is not None
    assert 0 < found < 5


def test_a_short_run_ends_by_its_time_and_is_none_where_no_step_was_done():
    run = in_one_process(small_run(), device="cpu", threads=1)

    assert short_run(run, 500, seconds=0.1, limit_s=0.0) is None
    found = short_run(run, 500, seconds=0.3, limit_s=60.0)

    assert found is not None
    assert found.seconds_per_batch > 0
    assert found.used_s["here"] > 0


@pytest.mark.processes
def test_what_runs_beside_the_layers_is_measured_by_real_runs(monkeypatch):
    monkeypatch.setattr(beside_module, "STEADY_PART", 0.02)  # that they begin may take long, not that they are seen
    told: list[str] = []
    layers = [make_layer("embedding", {"cpu": make_layer_time(1e-3)}, kind="embedding")]
    layers += [make_layer("rest", {"cpu": make_layer_time(1e-4)})]
    problem = make_problem(layers=layers, resources=[make_resource("cpu", kind="cpu")], batch=500)

    found = BesideMeasurer(small_run(), problem, Machine(cores=2, gpus=0), seconds=120.0, tell=told.append).measure()

    beside = found.beside
    assert beside is not None
    assert beside.read_core_s > 0
    assert beside.server_core_s is not None
    assert beside.server_core_s > 0
    assert beside.client_s["cpu"] > 0
    assert 0 <= beside.client_parallel["cpu"] <= 1
    layouts = [(whole.place, whole.units, whole.servers) for whole in beside.wholes]
    assert layouts == [("local", 2, 0), ("servers", 1, 1), ("servers", 2, 1), ("sharded", 2, 0), ("local", 1, 0)]
    assert [machine.cores for machine in found.machines] == [2]
    assert any("reading: " in line for line in told)
    assert any("(6 of 6, " in line for line in told)


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("workers", [2, 7])
def test_what_several_workers_share_is_found_from_what_each_takes(shared: float, workers: int):
    each_s = 0.4 * (1 - shared + shared / workers)

    assert shared_part(0.4, each_s, workers) == pytest.approx(shared)
    assert shared_part(0.4, 0.9, workers) == 0.0  # each takes more than one alone
    assert shared_part(0.4, -0.1, workers) == 1.0


def test_between_two_numbers_of_threads_that_were_run_amdahl_holds_and_beyond_them_nothing_is_said():
    def whole(units: int, seconds: float) -> Whole:
        return Whole(place="local", resource="cpu", units=units, cores=units, seconds_per_batch=seconds, error=0.1)

    # 0.2 s are serial and 0.8 s shared: 1.0 s on one thread, 0.4 s on four, 0.25 s on sixteen.
    found = with_those_between([whole(16, 0.25), whole(1, 1.0), whole(4, 0.4)])

    by_units = {each.units: each for each in found}
    assert sorted(by_units) == list(range(1, 17))
    assert all(by_units[k].seconds_per_batch == pytest.approx(0.2 + 0.8 / k) for k in by_units)
    assert {k for k, each in by_units.items() if not each.between} == {1, 4, 16}
    assert all(each.cores >= each.units for each in found)


def test_where_threads_are_in_each_others_way_those_between_lie_on_a_line():
    one = Whole(place="local", resource="cpu", units=1, cores=1, seconds_per_batch=1.0)
    three = Whole(place="local", resource="cpu", units=3, cores=3, seconds_per_batch=2.0)

    assert [each.seconds_per_batch for each in with_those_between([one, three])][-1] == pytest.approx(1.5)


@pytest.mark.slow
@pytest.mark.processes
def test_what_is_chosen_has_been_run_twice_and_a_plan_on_a_formula_alone_is_not_believed():
    layers = [make_layer("embedding", {"cpu": make_layer_time(1e-9)}, kind="embedding")]
    layers += [make_layer("rest", {"cpu": make_layer_time(1e-9)})]  # over servers it is next to nothing
    cpu = make_resource("cpu", kind="cpu", limit=8)
    problem = make_problem(layers=layers, resources=[cpu], batch=500)
    told: list[str] = []
    chosen: list[Plan] = []

    def choose(found: Problem) -> Plan:
        chosen.append(chosen_by(Demands())(found))
        return chosen[-1]

    measurer = BesideMeasurer(
        small_run(), problem, Machine(cores=1, gpus=0), seconds=16.0, choose=choose, tell=told.append
    )
    found = measurer.measure()

    assert found.beside is not None
    last = chosen[-1]
    known = next(
        each for each in found.beside.wholes if each.place == last.place and each.units == last.stages[0].units
    )
    assert last.samples_per_s == pytest.approx(500 / known.seconds_per_batch)
    runs = [line for line in told if " samples/s ± " in line]
    assert len(runs) >= 3  # one process, a server and a worker, and one of them again


@pytest.mark.processes
def test_what_cannot_be_measured_is_said_and_left_out():
    told: list[str] = []
    layers, cpu = [make_layer("rest", {"cpu": make_layer_time()})], make_resource("cpu", kind="cpu")
    problem = make_problem(layers=layers, resources=[cpu], batch=64)
    run = model_run(
        "ctr-dnn", model_options={"hidden": "none"}, data="clicks", data_options={}, samples=640, batch=64, seed=0
    )

    found = BesideMeasurer(run, problem, Machine(cores=1, gpus=0), seconds=20.0, tell=told.append).measure()

    assert found.beside is not None
    assert found.beside.wholes == ()
    assert found.beside.server_core_s is None
    assert len(found.machines) == 1
    assert any(line.startswith("one process on 1 core cannot be measured: ") for line in told), told
