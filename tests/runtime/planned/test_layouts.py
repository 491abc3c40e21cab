"""From a plan that says where rows lie to the run file that does it."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.errors import PlanError
from dovetail.runtime.planned.from_plan import Machine, layout_in_words, placed
from dovetail.runtime.planned.layouts import GPU_PART, ROOM, rows_on_gpu
from dovetail.runtime.trainer.one_process import threads_of
from dovetail.spec import Part, Plan, Stage
from dovetail.spec.run import Run, RunData, RunModel, RunTraining, run_from
from dovetail.spec.run_sections import RunTable
from tests.makers import make_layer, make_problem

HERE = Machine(cores=8, gpus=1, gpu_memory_bytes=1e10)
RUN = Run(model=RunModel(name="ctr-dnn"))


def make_plan(*stages: tuple[str, int, int, int], **keys) -> Plan:
    return Plan(
        method="exact",
        stages=tuple(Stage(resource=r, kind=r, first_layer=f, last_layer=last, units=u) for r, f, last, u in stages),
        samples_per_s=1000.0, cost_per_hour=1.0, cost=1.0, lower_bound=1.0, optimal=True, seconds=0.0, batch=500,
        **keys,
    )  # fmt: skip


def test_one_process_on_cores_has_the_plans_threads_and_readers():
    plan = make_plan(("cpu", 0, 9, 6), place="local", readers=2, cores=8)

    planned = placed(RUN, plan, None, HERE)

    run = planned.run
    assert (run.table.place, run.table.device, run.data.readers, run.training.batch) == ("local", "cpu", 2, 500)
    assert threads_of(run) == 6
    assert not run.stages
    assert run.is_one_process
    assert layout_in_words(planned) == "one process on cpu, 6 threads"


def test_one_process_with_one_thread_has_one_however_many_cores_there_are():
    assert threads_of(placed(RUN, make_plan(("cpu", 0, 9, 1), place="local"), None, HERE).run) == 1


def test_one_process_on_a_gpu_has_room_for_all_rows_as_far_as_there_is_any():
    small = make_layer("rows", kind="embedding", weight_bytes=2e9, optimizer_bytes=1e9)
    problem = make_problem(layers=[small, make_layer("rest")])
    plan = make_plan(("gpu", 0, 1, 1), place="local")

    run = placed(RUN, plan, problem, HERE).run

    assert (run.table.place, run.table.device, run.table.device_bytes) == ("local", "cuda", int(ROOM * 3e9))
    assert rows_on_gpu([small, small], 1e10, least=1) == int(GPU_PART * 1e10)
    assert rows_on_gpu([], 1e10, least=77) == 77


def test_all_rows_have_memory_as_far_as_there_is_any_and_what_a_run_gives_is_kept():
    rows = make_layer("rows", kind="embedding", weight_bytes=3e10, optimizer_bytes=1e10)
    problem = make_problem(layers=[rows, make_layer("rest")])
    large, small = Machine(cores=8, gpus=0, memory_bytes=1e11), Machine(cores=8, gpus=0, memory_bytes=2e10)
    alone, spread = (
        make_plan(("cpu", 0, 1, 2), place="local"),
        make_plan(("cpu", 0, 1, 2), place="servers", servers=2, readers=1),
    )
    given = run_from({"model": {"name": "ctr-dnn"}, "servers": {"host_bytes": 10**12}}, {}, place="a file")

    assert placed(RUN, alone, problem, large).run.servers.host_bytes == int(ROOM * 4e10)
    assert placed(RUN, alone, problem, small).run.servers.host_bytes == int(0.8 * 2e10)
    assert placed(RUN, spread, problem, large).run.servers.host_bytes == int(ROOM * 4e10 / 2)
    assert placed(given, alone, problem, large).run.servers.host_bytes == 10**12
    assert placed(RUN, alone, None, large).run.servers.host_bytes == RUN.servers.host_bytes


def test_sharded_rows_have_a_worker_for_each_unit_and_no_servers():
    planned = placed(RUN, make_plan(("cpu", 0, 9, 3), place="sharded", readers=3, cores=6), None, HERE)

    run = planned.run
    assert run.table.place == "sharded"
    assert [(worker.count, worker.threads) for worker in run.workers] == [(3, 1)]
    assert run.data.readers == 1  # of each
    assert layout_in_words(planned) == "3 workers on cpu that own the rows"


def test_servers_are_as_many_as_planned_with_a_core_each_and_readers_are_shared_by_the_first_stage():
    plan = make_plan(("cpu", 0, 1, 2), ("gpu", 2, 9, 1), place="servers", servers=2, readers=4, cores=8)

    planned = placed(RUN, plan, None, HERE)

    run = planned.run
    assert (run.table.place, run.servers.count, run.servers.threads, run.data.readers) == ("servers", 2, 1, 2)
    assert [(worker.name, worker.count, worker.device) for worker in run.workers] == [
        ("stage-0-cpu", 2, "cpu"),
        ("stage-1-gpu-0", 1, "cuda:0"),
    ]
    assert [(stage.first_layer, stage.last_layer) for stage in run.stages] == [(0, 1), (2, 9)]
    assert run.training.dense == "ring"
    assert layout_in_words(planned) == "2 servers; stage 0: 2 x cpu; stage 1: 1 x gpu"


def test_what_a_plan_says_survives_the_run_file():
    run = placed(RUN, make_plan(("cpu", 0, 9, 6), place="local", readers=2), None, HERE).run

    again = run_from(msgspec.json.decode(msgspec.json.encode(run)), {}, place="a file")

    assert msgspec.json.encode(again) == msgspec.json.encode(run)
    assert again.is_one_process


def test_the_prediction_is_the_plans_own():
    parts = (Part(part="read", seconds_per_batch=0.1, cores=1), Part(part="stage 0", seconds_per_batch=0.5, cores=6))
    planned = placed(RUN, make_plan(("cpu", 0, 9, 6), place="local", readers=1, parts=parts), None, HERE)

    assert planned.prediction.samples_per_s == 1000.0
    assert planned.prediction.stage_seconds == (0.5,)


@pytest.mark.parametrize(
    ("stages", "keys", "run", "machine", "complaint"),
    [
        ([("cpu", 0, 9, 6)], {"place": "servers", "servers": 2, "cores": 9}, RUN, HERE, "takes 9 cores .* has 8"),
        ([("cpu", 0, 1, 1), ("cpu", 2, 9, 1)], {"place": "local"}, RUN, HERE, '"local" and 2 stages'),
        ([("gpu", 0, 9, 2)], {"place": "local"}, RUN, Machine(cores=8, gpus=2), "and 2 GPUs"),
        (
            [("cpu", 0, 9, 1)],
            {"place": "local"},
            Run(model=RunModel(name="ctr-dnn"), training=RunTraining(mode="async")),
            HERE,
            'training.mode = "async"',
        ),
        (
            [("cpu", 0, 9, 1)],
            {"place": "sharded"},
            RUN,
            Machine(cores=8, gpus=0, is_elsewhere=True, called="the hosts have"),
            'place = "sharded", and the hosts have several',
        ),
    ],
)
def test_a_plan_that_cannot_run_here_is_refused_with_the_values(stages, keys, run, machine, complaint):
    with pytest.raises(PlanError, match=complaint) as refused:
        placed(run, make_plan(*stages, **keys), None, machine)

    assert refused.value.hint


def test_no_readers_and_no_threads_are_refused():
    with pytest.raises(Exception, match="readers"):
        RunData(readers=0)
    with pytest.raises(Exception, match="threads"):
        RunTable(threads=0)
