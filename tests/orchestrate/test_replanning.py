"""`--replan`: a run whose stages do not take what was predicted moves to a better plan, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.orchestrate.choosing import chosen_by
from dovetail.orchestrate.replanning import Replanner, ReplanRule, StageReplanner, WholeReplanner
from dovetail.planner.demands import Demands
from dovetail.planner.replan import Ran
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.planned.from_plan import Machine, run_as_planned
from dovetail.spec import Beside, Plan, Problem, SharedMachine, Whole, read_plan, read_problem, write_problem
from dovetail.spec.run import Run
from tests.makers import make_layer, make_layer_time, make_problem, make_resource, make_stages
from tests.runtime.counting import COUNTING, PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.planned.test_stage_watch import make_report
from tests.runtime.runs import make_run

BATCH, SAMPLES, PAUSE_S = 60, 6000, 0.01
"""The loss sleeps 0.6 s with a batch, so that cores do not matter; what a test machine computes comes on top."""


def claimed(*, loss_s: float, samples: int = SAMPLES) -> Problem:
    """Return the problem of the counting model: rows are read on one type, and the loss is computed on another."""
    resources = [make_resource(name, kind="cpu") for name in ("reader", "tower")]
    on = {"embedding": ("reader", 0.03), "middle": ("reader", 0.002), "loss": ("tower", loss_s)}
    layers = [make_layer(name, on={where: make_layer_time(seconds)}) for name, (where, seconds) in on.items()]
    return make_problem(resources=resources, layers=layers, samples=samples, batch=BATCH)


def write_all(folder: Path, problem: Problem, units: tuple[int, int], *, samples: int = SAMPLES) -> None:
    """Write a run, a problem and a plan of two stages."""
    run = make_run(
        model=slow_counting(PAUSE_S, has_middle=True), samples=samples, optimizer=PLAIN, batch=BATCH, reduction="sum",
        micro_batch=10,
    )  # fmt: skip
    plain = msgspec.json.decode(msgspec.json.encode(run))
    del plain["training"]["dense"], plain["worker"], plain["stage"]
    (folder / "run.json").write_bytes(msgspec.json.encode(_said(plain)))
    write_problem(problem, folder / "problem.json")
    plan = Plan(
        method="exact", stages=make_stages(("reader", 0, 1, units[0]), ("tower", 2, 2, units[1])), samples_per_s=1800.0,
        cost_per_hour=4.0, cost=1.0, lower_bound=1.0, optimal=True, seconds=0.0, batch=BATCH,
    )  # fmt: skip
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))


def _said(value: object) -> object:
    """Return plain values without what is not said."""
    return {key: _said(each) for key, each in value.items() if each is not None} if isinstance(value, dict) else value


def train(folder: Path, *more: str) -> dict:
    arguments = ["train", str(folder / "run.json"), "--plan", str(folder / "plan.json"), "--replan", *more]
    result = CliRunner().invoke(app, [*arguments, "--out", str(folder / "run"), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1]) | {"told": result.stderr}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    """Have room for four workers, which mostly sleep."""
    monkeypatch.setattr(Machine, "this", classmethod(lambda _: Machine(cores=4, gpus=0)))


@pytest.mark.slow
@pytest.mark.processes
def test_workers_move_to_a_stage_that_is_slower_than_was_claimed_and_every_sample_counts_once(tmp_path):
    samples = 3600  # 0.6 s a batch while one worker computes the loss, 0.2 s with three
    write_all(tmp_path, claimed(loss_s=0.06, samples=samples), (3, 1), samples=samples)  # ten times as fast as it is

    found = train(tmp_path, "--replan-steps", "5")

    first, last = found["replans"][0], found["replans"][-1]  # one move, or two where the first steps are slow
    assert [stage["units"] for stage in first["from"]] == [3, 1]
    assert [stage["units"] for stage in last["to"]] == [1, 3]
    assert first["samples_per_s_after"] > first["samples_per_s_before"]
    assert "stage 1 takes" in first["why"]
    run = Blueprint.read(tmp_path / "run").run
    assert [len(run.workers_of(stage)) for stage in (0, 1)] == [1, 3]
    assert run.training.dense == "ring"
    assert [json.loads(line) for line in (tmp_path / "run" / "replans.jsonl").read_text().splitlines()] == found[
        "replans"
    ]
    assert f"at step {first['step']} the run moves" in found["told"]
    assert found["is_complete"]
    assert found["step"] == samples // BATCH  # no step was done twice, and none left out
    assert_each_sample_counts_once(tmp_path / "run")
    measured = read_problem(tmp_path / "run" / "measured-problem.json")
    assert measured.layers[2].on["tower"].compute_s > 0.59  # what it sleeps alone


def make_replanner(
    folder: Path, *, restart_s: float, now_s: list[float], earlier: Sequence[Ran] = ()
) -> tuple[Replanner, list[str]]:
    """Return who watches a run of the plan in a folder, and what it tells."""
    planned = run_as_planned(Run(model=COUNTING), folder / "plan.json", scale=False)
    problem = read_problem(folder / "problem.json")
    replanner = StageReplanner(
        planned, problem, ReplanRule(steps=5), restart_s=restart_s, earlier=earlier, clock=lambda: now_s[0]
    )
    told: list[str] = []
    replanner.tell = told.append
    return replanner, told


@pytest.mark.parametrize(("restart_s", "moves"), [(50.0, False), (30.0, True)])
def test_a_move_is_made_where_it_saves_more_than_a_restart_takes(tmp_path, restart_s, moves):
    write_all(tmp_path, claimed(loss_s=0.06), (3, 1))
    now_s = [0.0]
    replanner, told = make_replanner(tmp_path, restart_s=restart_s, now_s=now_s)

    for step in range(20):
        # A batch takes 0.6 s, and 0.2 s on three: what is left at step 9, 5460 samples at 100/s, is done in 18 s of 55.
        now_s[0] = 0.6 * step
        took = {"stages_s": (0.032 * step, 0.6 * step), "staged_samples": 60 * step, "samples": 60 * step}
        replanner.report(make_report(step, total_samples=SAMPLES, **took))

    assert replanner.stop is moves
    assert (replanner.move is not None) is moves
    assert len(told) == 1  # what is known now is what is compared with from here on
    assert ("keeping a checkpoint" if moves else "the run goes on as it is") in told[0]


def test_a_run_as_predicted_is_left_alone(tmp_path):
    write_all(tmp_path, claimed(loss_s=0.6), (3, 1))
    now_s = [0.0]
    replanner, told = make_replanner(tmp_path, restart_s=0.0, now_s=now_s)

    for step in range(20):
        now_s[0] = 0.6 * step
        took = {"stages_s": (0.035 * step, 0.65 * step), "staged_samples": 60 * step, "samples": 60 * step}
        replanner.report(make_report(step, total_samples=SAMPLES, **took))

    assert told == []
    assert not replanner.stop


@pytest.mark.parametrize(("reached", "goes_back"), [(102.0, False), (150.0, True)])
def test_a_plan_that_was_faster_in_truth_is_gone_back_to_and_not_left_for_the_slower_one_again(
    tmp_path, reached, goes_back
):
    write_all(tmp_path, claimed(loss_s=0.06), (1, 3))
    plan = read_plan(tmp_path / "plan.json")
    write_all(tmp_path, claimed(loss_s=0.06), (3, 1))
    now_s = [0.0]
    replanner, told = make_replanner(
        tmp_path, restart_s=5.0, now_s=now_s, earlier=[Ran(plan=plan, samples_per_s=reached)]
    )

    for step in range(20):  # at 100 samples/s; the model would move to one reader and three towers
        now_s[0] = 0.6 * step
        took = {"stages_s": (0.032 * step, 0.6 * step), "staged_samples": 60 * step, "samples": 60 * step}
        replanner.report(make_report(step, total_samples=SAMPLES, **took))

    assert replanner.stop is goes_back
    assert len(told) == 1
    if goes_back:
        assert replanner.move is not None
        assert replanner.move.plan == plan
        assert "back from 0-1 on 3 reader, 2-2 on 1 tower to 0-1 on 1 reader, 2-2 on 3 tower" in told[0]
        assert "100 samples/s seen before, 150 after" in told[0]
    else:
        assert "was tried, and is not" in told[0]


def test_a_run_that_came_back_stays(tmp_path):
    write_all(tmp_path, claimed(loss_s=0.6), (1, 3))
    plan = read_plan(tmp_path / "plan.json")
    write_all(tmp_path, claimed(loss_s=0.6), (3, 1))
    planned = run_as_planned(Run(model=COUNTING), tmp_path / "plan.json", scale=False)
    now_s = [0.0]
    replanner = StageReplanner(
        planned, read_problem(tmp_path / "problem.json"), ReplanRule(steps=5), came_back=True,
        earlier=[Ran(plan=plan, samples_per_s=150.0)], clock=lambda: now_s[0],
    )  # fmt: skip

    for step in range(20):
        now_s[0] = 0.6 * step
        took = {"stages_s": (0.032 * step, 0.6 * step), "staged_samples": 60 * step, "samples": 60 * step}
        replanner.report(make_report(step, total_samples=SAMPLES, **took))

    assert not replanner.stop


def in_one_process(folder: Path, claims_s: dict[int, float], *, samples: int) -> None:
    """Write a run, a problem and a plan of one process, with what is claimed of a batch by its number of threads."""
    resources = [make_resource("core", kind="cpu", limit=4)]
    layers = [make_layer(name, on={"core": make_layer_time(9.0)}) for name in ("embedding", "middle", "loss")]
    wholes = tuple(
        Whole(place="local", resource="core", units=units, cores=units, seconds_per_batch=seconds)
        for units, seconds in claims_s.items()
    )
    bare = make_problem(resources=resources, layers=layers, samples=samples, batch=BATCH)
    problem = msgspec.structs.replace(
        bare, beside=Beside(read_core_s=9.0, wholes=wholes), machines=(SharedMachine(name="here", cores=4),)
    )
    write_all(folder, problem, (1, 1), samples=samples)
    units = min(claims_s, key=claims_s.__getitem__)
    plan = Plan(
        method="exact", stages=make_stages(("core", 0, 2, units)), samples_per_s=BATCH / claims_s[units],
        cost_per_hour=4.0, cost=1.0, lower_bound=1.0, optimal=True, seconds=0.0, batch=BATCH, place="local",
        cores=units,
    )  # fmt: skip
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))


@pytest.mark.processes
def test_one_process_that_is_slower_than_was_claimed_moves_once_and_every_sample_counts_once(tmp_path):
    samples = 12_000  # a batch sleeps 0.06 s, whatever the threads: 12 s in all
    run = slow_counting(0.001, has_middle=True)
    in_one_process(tmp_path, {2: 0.001, 1: 0.002}, samples=samples)
    plain = json.loads((tmp_path / "run.json").read_text())
    plain["model"]["options"] = dict(run.options)
    (tmp_path / "run.json").write_text(json.dumps(plain))

    found = train(tmp_path, "--replan-steps", "5")

    (move,) = found["replans"]  # back to two threads it does not go: what they took is known by then
    assert ([stage["units"] for stage in move["from"]], [stage["units"] for stage in move["to"]]) == ([2], [1])
    assert "times what was predicted" in move["why"]
    assert "(local)" in found["told"]
    assert found["is_complete"]
    assert found["step"] == samples // BATCH
    assert_each_sample_counts_once(tmp_path / "run")
    measured = read_problem(tmp_path / "run" / "measured-problem.json")
    assert measured.beside is not None
    assert all(whole.seconds_per_batch > 0.059 for whole in measured.beside.wholes)


def test_one_process_as_fast_as_was_claimed_is_left_alone(tmp_path):
    in_one_process(tmp_path, {2: 0.06, 1: 0.002}, samples=SAMPLES)
    plan = msgspec.structs.replace(
        read_plan(tmp_path / "plan.json"), stages=make_stages(("core", 0, 2, 2)), samples_per_s=1000.0
    )
    problem = read_problem(tmp_path / "problem.json")
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    planned = run_as_planned(Run(model=COUNTING), tmp_path / "plan.json", scale=False)
    told: list[str] = []

    for step_s, moves in ((0.065, False), (0.6, True)):
        now_s = [0.0]
        replanner = WholeReplanner(
            planned, problem, ReplanRule(steps=5), choose=chosen_by(Demands()), clock=lambda now_s=now_s: now_s[0]
        )
        replanner.tell = told.append
        for step in range(60):
            now_s[0] = step_s * step
            replanner.report(make_report(step, total_samples=10**6, samples=60 * step))
        assert (replanner.move is not None) is moves
    assert len(told) == 1
