"""A planned run that closes the loop: what its stages took is written as a problem, and may lead to another plan.

Moving to another plan is going on from a checkpoint: the run stops at the end of a step, keeps it, and starts again
with the workers and stages of the new plan. No step is lost, and every sample counts once, as with `--resume`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dovetail.cost import measured_problem
from dovetail.errors import PlanError
from dovetail.orchestrate.beside import Choose
from dovetail.orchestrate.choosing import chosen_by
from dovetail.orchestrate.measured import base_problem, keep_measured, limited, measured_stages
from dovetail.orchestrate.parts import MeasuredParts, corrected
from dovetail.planner.compile import compile_kernels
from dovetail.planner.demands import Demands
from dovetail.planner.replan import LEAST_GAIN, ROUNDING, Difference, Move, Ran, better_plan, differences, way_back
from dovetail.runtime.finished.result import TrainingResult
from dovetail.runtime.folder import REPLANS
from dovetail.runtime.messages import Report
from dovetail.runtime.monitor.callbacks import Callback
from dovetail.runtime.monitor.steady_pace import SteadyPace
from dovetail.runtime.planned.from_plan import PlannedRun, Tell, check_memory, place, placed, quietly
from dovetail.runtime.planned.stage_times import StageWatch
from dovetail.spec import Plan, Problem, Stage
from dovetail.spec.run import Run

LEAST_S = 2.0
"""The least time that stages are measured over, however short a step is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanRule:
    """When to plan again."""

    above: float = 0.2
    """The fraction by which a stage's throughput may be off."""
    steps: int = 20
    """Over which stages are measured."""


class Replanner(Callback):
    """Watches a run, and has it stop where moving to another plan pays."""

    def __init__(
        self, planned: PlannedRun, problem: Problem, *, restart_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Get ready; a restart is known to take at least `restart_s`."""
        self._planned, self._clock = planned, clock
        self._problem = limited(problem, planned.machine, planned.units, planned.stages)
        self.reached = 0.0
        """The speed that was seen last, in samples/s."""
        self.restart_s = restart_s
        """From the start of the processes to the first step."""
        self._begun_s = self._clock()
        self._first_step: int | None = None
        self._is_under_way = False
        self.tell: Tell = quietly
        self.move: Move | None = None
        """Where the run moves to."""
        self.why = ""
        self._reasons: set[str] = set()

    def begin(self, folder: Path, run: Run) -> None:
        """Take in that processes are being started."""
        self._begun_s = self._clock()

    def _time_the_start(self, report: Report) -> None:
        """Note how long it took to start: moving to another plan takes that long again."""
        if self._first_step is None:
            self._first_step = report.step
        if not self._is_under_way and report.step > self._first_step:
            self._is_under_way = True
            self.restart_s = max(self.restart_s, self._clock() - self._begun_s)

    def _move_where_it_pays(self, move: Move, left: int) -> None:
        """Move, where that saves more of what is left than a restart takes."""
        saved_s = move.saves_s(left, self.reached)
        if saved_s > self.restart_s:
            self._go(move)
            return
        self._stay(
            "another plan would save less than starting again takes",
            f": {_told(self._planned.plan, self._stages, move)}, {saved_s:.1f} s of what is left and "
            f"{self.restart_s:.1f} s",
        )

    def _stay(self, reason: str, more: str = "") -> None:
        """Say why the run goes on as it is, once for each reason: what is measured differs again with every window."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self.tell(f"{self.why}; the run goes on as it is: {reason}{more}")

    def _go(self, move: Move) -> None:
        """Have the run keep a checkpoint and stop, to go on with another plan."""
        self.move, self.stop = move, True
        told = _told(self._planned.plan, self._stages, move)
        self.tell(f"{self.why}; {told}; keeping a checkpoint to go on from")

    @property
    def _stages(self) -> list[Stage]:
        """Return the stages with the units that they have here."""
        return [stage.here for stage in self._planned.stages]


class WholeReplanner(Replanner):
    """Watches a run whose rows lie with who trains: what it takes as a whole, which is all that is priced of it.

    What it takes becomes what is known of its layout, and the planner is asked again.
    """

    def __init__(
        self,
        planned: PlannedRun,
        problem: Problem,
        rule: ReplanRule,
        *,
        choose: Choose,
        restart_s: float = 0.0,
        earlier: Sequence[Ran] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compare with what the plan says; `choose` says which would be run by what is known, `earlier` what ran."""
        super().__init__(planned, problem, restart_s=restart_s, clock=clock)
        self._rule, self._choose, self._earlier = rule, choose, earlier
        self._pace = SteadyPace(clock)
        self._known_s = (planned.plan.batch or problem.training.batch) / planned.plan.samples_per_s

    def report(self, report: Report) -> None:
        """Take in how the run goes."""
        self._time_the_start(report)
        if self.stop:
            return
        self._pace.report(report)
        since_s, seconds = self._pace.since_s, self._pace.seconds_per_sample
        if self._pace.steps < self._rule.steps or since_s is None or seconds is None or not self._pace.holds:
            return
        batch = self._problem.training.batch
        measured_s, self.reached = seconds * batch, 1 / seconds
        if self._clock() - since_s < LEAST_S or abs(self._known_s / measured_s - 1) <= self._rule.above:
            return
        self.why = f"a batch takes {measured_s / self._known_s:.2f} times what was predicted"
        self._known_s = measured_s
        measured = MeasuredParts(
            stages=(None,) * len(self._planned.stages), whole_s=measured_s, error=self._pace.spread
        )
        self._problem = corrected(self._problem, self._planned, measured)
        self._decide(report.total_samples - report.samples)

    def _decide(self, left: int) -> None:
        """Move where the planner would choose another plan, and it saves more than a restart takes."""
        try:
            plan = self._choose(self._problem)
            placed(self._planned.before, plan, self._problem, self._planned.machine)
        except PlanError:  # out of time, or nothing reaches what is asked for
            self._stay("there is no other plan")
            return
        here = msgspec.structs.replace(self._planned.plan, stages=tuple(self._stages))
        if Ran(plan=here, samples_per_s=self.reached).is_like(plan) or plan.samples_per_s < LEAST_GAIN * self.reached:
            self._stay("no other plan is faster")
            return
        is_seen = any(ran.is_like(plan) for ran in self._earlier)
        move = Move(
            plan=plan, before_samples_per_s=self.reached, after_samples_per_s=plan.samples_per_s, is_seen=is_seen
        )
        self._move_where_it_pays(move, left)


class StageReplanner(Replanner):
    """Watches the stages of a run over servers."""

    def __init__(
        self,
        planned: PlannedRun,
        problem: Problem,
        rule: ReplanRule,
        *,
        restart_s: float = 0.0,
        earlier: Sequence[Ran] = (),
        came_back: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compare with what a problem says, and with plans that ran before.

        A run that `came_back` to a plan stays, unless the model knows one that was not tried: speeds that are seen are
        not steady enough to go to and fro by.
        """
        super().__init__(planned, problem, restart_s=restart_s, clock=clock)
        self._earlier, self._came_back, self._rule = earlier, came_back, rule
        self._watch = StageWatch(steps=rule.steps, seconds=LEAST_S)

    def report(self, report: Report) -> None:
        """Take in how the run goes."""
        self._time_the_start(report)
        window = None if self.stop else self._watch.add(report, self._clock())
        if window is None:
            return
        self.reached, left = window.samples_per_s, report.total_samples - report.samples
        back = None if self._came_back else way_back(self.reached, self._earlier)
        if back is not None and back.saves_s(left, self.reached) > self.restart_s:
            self.why = "this plan is slower than one before"
            self._go(back)
            return
        batch = self._problem.training.batch
        measured = measured_stages(self._planned.stages, window.stages_s, samples=window.samples, batch=batch)
        found = differences(self._problem, measured, above=self._rule.above)
        if found:
            self._problem = measured_problem(self._problem, measured)
            self._decide(found, left)

    def _decide(self, found: Sequence[Difference], left: int) -> None:
        """Move where there is a better plan, and it saves more than a restart takes."""
        self.why = "; ".join(map(str, found))
        move = better_plan(self._problem, self._stages, clock=time.perf_counter)
        if move is None or not self._fits(move):
            self._stay("no plan within the price of this one is faster")
            return
        if any(ran.is_like(move.plan) for ran in self._earlier):
            self._stay("the plan that should be faster was tried, and is not")
            return
        self._move_where_it_pays(move, left)

    def _fits(self, move: Move) -> bool:
        """Say whether a plan can run on this machine: types may share its cores."""
        try:
            stages = place(move.plan.stages, self._planned.machine, units=self._planned.units)
            check_memory(self._problem, stages, self._planned.machine)
        except PlanError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResult:
    """What a planned run came to."""

    result: TrainingResult
    planned: PlannedRun
    """As it ran last."""
    replans: Sequence[dict[str, Any]]


def train_planned(
    planned: PlannedRun,
    folder: Path,
    train: Callable[[Run, bool, Replanner | None], TrainingResult],
    *,
    resumed: bool = False,
    rule: ReplanRule | None = None,
    choose: Choose | None = None,
    show: Callable[[PlannedRun], None] = lambda _: None,
    tell: Tell = quietly,
) -> PlannedResult:
    """Train as planned, moving to other plans where a rule says when; write what the stages took.

    `train` takes a run to its end, given whether it goes on and who may stop it; `show` is given each plan that the
    run moves to. `choose` says which plan would be run by what is known, for runs whose rows lie with who trains:
    absent, the fastest that costs no more an hour.
    """
    problem, restart_s, came_back = base_problem(planned), 0.0, False
    replans: list[dict[str, Any]] = []
    earlier: list[Ran] = []
    if rule is not None:
        compile_kernels(clock=time.perf_counter)  # not while the run waits to be seen to
    while True:
        watching: Replanner | None = None
        if rule is not None and planned.plan.place in ("local", "sharded"):
            cap = planned.plan.cost_per_hour * (1 + ROUNDING)
            within = choose or chosen_by(Demands(max_cost_per_hour=cap))
            watching = WholeReplanner(planned, problem, rule, choose=within, restart_s=restart_s, earlier=earlier)
        elif rule is not None:
            watching = StageReplanner(planned, problem, rule, restart_s=restart_s, earlier=earlier, came_back=came_back)
        if watching is not None:
            watching.tell = tell
        result = train(planned.run, resumed, watching)
        problem = keep_measured(planned, problem, result)
        if watching is None or watching.move is None or result.is_complete:
            return PlannedResult(result=result, planned=planned, replans=replans)
        move, restart_s, came_back = watching.move, watching.restart_s, watching.move.is_seen
        replans.append(_noted(watching, move, planned, result.step))
        with (folder / REPLANS).open("ab") as lines:
            lines.write(msgspec.json.encode(replans[-1]) + b"\n")
        before = [stage.here for stage in planned.stages]
        ran = msgspec.structs.replace(planned.plan, stages=tuple(before))
        earlier = [
            each for each in [*earlier, Ran(plan=ran, samples_per_s=watching.reached)] if not each.is_like(move.plan)
        ]
        tell(f"at step {result.step:,} the run moves: {watching.why}; {_told(planned.plan, before, move)}")
        plan = msgspec.structs.replace(move.plan, batch=planned.run.training.batch)
        planned = placed(planned.before, plan, problem, planned.machine, dense=planned.dense, tell=tell)
        show(planned)
        resumed = True


def _told(plan: Plan, before: Sequence[Stage], move: Move) -> str:
    """Return a move from a plan, with the stages that it has here, in words."""
    what, how = ("back", "seen") if move.is_seen else ("planned again,", "predicted")
    return (
        f"{what} from {_layout(before, plan)} to {_layout(move.plan.stages, move.plan)}: "
        f"{move.before_samples_per_s:,.0f} samples/s {how} before, {move.after_samples_per_s:,.0f} after"
    )


def _layout(stages: Sequence[Stage], plan: Plan) -> str:
    """Return stages in short: `0-1 on 2 cpu, 2-9 on 1 gpu`; of one process, or workers that own rows, that too."""
    words = ", ".join(f"{stage.first_layer}-{stage.last_layer} on {stage.units} {stage.resource}" for stage in stages)
    return words if plan.place in (None, "servers") else f"{words} ({plan.place})"


def _noted(watching: Replanner, move: Move, planned: PlannedRun, step: int) -> dict[str, Any]:
    """Return a move as a line of a file."""
    stages = {"from": [stage.here for stage in planned.stages], "to": move.plan.stages}
    return {
        "step": step,
        "why": watching.why,
        **{
            key: [
                {
                    "resource": stage.resource,
                    "first_layer": stage.first_layer,
                    "last_layer": stage.last_layer,
                    "units": stage.units,
                }
                for stage in each
            ]
            for key, each in stages.items()
        },
        "speeds_are": "seen" if move.is_seen else "predicted",
        "samples_per_s_before": move.before_samples_per_s,
        "samples_per_s_after": move.after_samples_per_s,
        "restart_s": round(watching.restart_s, 3),
    }
