"""Every way to plan, by name. A new one is one new file and one line here."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.errors import PlanError, did_you_mean
from dovetail.planner.arrays import ProblemArrays, as_arrays
from dovetail.planner.baselines.bayesian import Bayesian
from dovetail.planner.baselines.brute_force import cheapest_of_all
from dovetail.planner.baselines.fixed import first_on_cpu, only
from dovetail.planner.baselines.genetic import Genetic
from dovetail.planner.baselines.greedy import Greedy
from dovetail.planner.baselines.measured import Measure, MeasuredScorer
from dovetail.planner.baselines.score import Provisioning, Scorer
from dovetail.planner.baselines.search import Learner, Progress, Proposer, search
from dovetail.planner.demands import Demands
from dovetail.planner.exact import CheapestSearch, Clock
from dovetail.planner.impossible import no_plan
from dovetail.planner.layouts.compared import compared_with
from dovetail.planner.layouts.families import hourly_prices, is_plain
from dovetail.planner.layouts.score import LayoutScorer, cheapest_layout_of_all
from dovetail.planner.plan import cheapest_plan
from dovetail.planner.result import refuse_timeless, to_plan
from dovetail.planner.row_budgets.best import best_of_budgets, over_budgets
from dovetail.spec import Plan, Problem

RL_METHODS = ("rl", "rl-rnn", "rl-joint")
_NO_POLICY = "has no policy to load, save or refine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a method goes about it; each method takes what concerns it."""

    seed: int = 0
    provisioning: Provisioning = "exact"
    rounds: int | None = None
    load_policy: Path | None = None
    save_policy: Path | None = None
    measure: Measure | None = None
    progress: Progress | None = None


Make = Callable[[Problem, ProblemArrays, Options], Proposer]


def _rl(method: str) -> Make:
    """Return the maker of an RL method; torch is imported only when one is used."""

    def make(problem: Problem, arrays: ProblemArrays, options: Options) -> Proposer:
        from dovetail.planner.baselines.heterps import reinforce  # noqa: PLC0415

        return reinforce(method, problem, arrays, seed=options.seed, rounds=options.rounds, load=options.load_policy)

    return make


SEARCHES: dict[str, Make] = {
    "rl": _rl("rl"),
    "rl-rnn": _rl("rl-rnn"),
    "rl-joint": _rl("rl-joint"),
    "bayesian": lambda _, arrays, options: Bayesian(arrays, seed=options.seed, trials=options.rounds),
    "genetic": lambda _, arrays, options: Genetic(arrays, seed=options.seed, generations=options.rounds),
    "greedy": lambda problem, arrays, _: Greedy(arrays, min_samples_per_s=problem.min_samples_per_s),
    "heuristic": lambda problem, *_: first_on_cpu(problem),
    "cpu": lambda problem, *_: only(problem, "cpu"),
    "gpu": lambda problem, *_: only(problem, "gpu"),
}
METHODS: tuple[str, ...] = ("exact", *SEARCHES, "brute-force")


class _Selective(NamedTuple):
    """An option that some methods take, and what the others lack for it."""

    field: str
    flag: str
    methods: tuple[str, ...]
    lack: str


_SELECTIVE = (
    _Selective("load_policy", "--load-policy", RL_METHODS, _NO_POLICY),
    _Selective("save_policy", "--save-policy", RL_METHODS, _NO_POLICY),
    _Selective("measure", "--measured", RL_METHODS, _NO_POLICY),
    _Selective("rounds", "--rounds", (*RL_METHODS, "bayesian", "genetic"), "has no rounds"),
    _Selective(
        "provisioning",
        "--provision",
        tuple(method for method in SEARCHES if method != "rl-joint"),
        "chooses units in its own way",
    ),
)


def options_for(method: str, options: Options) -> Options:
    """Return the options without those that a method has no use for."""
    unused: dict[str, Any] = {option.field: getattr(Options(), option.field) for option in _unused(method, options)}
    return replace(options, **unused)


def check_method(method: str, options: Options) -> None:
    """Refuse a name that is no method, and options that the method has no use for."""
    if method not in METHODS:
        raise PlanError(f"`{method}` is not a method", hint=did_you_mean(method, METHODS))
    for option in _unused(method, options):
        raise PlanError(
            f"`{method}` {option.lack}, so it takes no {option.flag}",
            hint=f"{option.flag} goes with the methods " + ", ".join(option.methods),
        )


def _unused(method: str, options: Options) -> list[_Selective]:
    """Return the options that are given though a method has no use for them."""
    return [
        option
        for option in _SELECTIVE
        if method not in option.methods and getattr(options, option.field) != getattr(Options(), option.field)
    ]


def plan_with(method: str, problem: Problem, demands: Demands, *, clock: Clock, options: Options | None = None) -> Plan:
    """Return the plan that a method makes, by the method's name.

    Raises NoPlanError where it is proven that there is none, and PlanError where only this method has none to offer.
    """
    options = options or Options()
    check_method(method, replace(options, rounds=None))  # a cap that methods without rounds keep anyway
    refuse_timeless(problem)
    if method == "exact":
        return cheapest_plan(problem, demands, clock=clock)
    if not is_plain(problem):
        return _planned_on_machines(method, problem, demands, options, clock=clock)
    if method != "brute-force" and demands.split_stages:
        raise PlanError(f"`{method}` cannot split stages", hint="use --method exact or brute-force with --split-stages")

    if method == "brute-force":
        return best_of_budgets(
            problem, demands, lambda given, within: _brute_force_plan(given, within, clock=clock), clock=clock
        )

    def plan_one(given: Problem, within: Demands) -> Plan:
        return _searched_plan(method, given, within, options, clock=clock)

    def lower_bound() -> float:
        return cheapest_plan(problem, demands, clock=clock).lower_bound

    return over_budgets(problem, demands, plan_one, lower_bound, clock=clock)


def _planned_on_machines(method: str, problem: Problem, demands: Demands, options: Options, *, clock: Clock) -> Plan:
    """Return the plan of a method that chooses where layers run; what runs beside them is then the cheapest."""
    if demands.split_stages:
        raise PlanError(f"`{method}` cannot split stages on machines", hint="use --method exact with --split-stages")
    if method == "brute-force":
        started_s = clock()
        route, rate = cheapest_layout_of_all(problem, demands, clock=clock)
        if route is None:
            raise no_plan(problem, demands, clock=clock)
        plan = to_plan(problem, route, demands, method=method, rate_bound=rate, seconds=clock() - started_s)
    else:
        plan = _searched_plan(method, problem, demands, options, clock=clock)
    if problem.beside is None:
        return plan
    return msgspec.structs.replace(plan, compared=compared_with(problem, demands, fastest=False, clock=clock))


def _brute_force_plan(problem: Problem, demands: Demands, *, clock: Clock) -> Plan:
    """Return the cheapest of all plans by pricing every one."""
    started_s = clock()
    if problem.first_node_per_hour:
        if demands.split_stages:
            raise PlanError("`brute-force` cannot split stages with a first node", hint="use --method exact")
        route, rate = cheapest_layout_of_all(problem, demands, clock=clock)
    else:
        rate, route = cheapest_of_all(
            as_arrays(problem, split_stages=demands.split_stages),
            min_samples_per_s=problem.min_samples_per_s,
            max_stages=demands.max_stages,
            split_stages=demands.split_stages,
        )
    if route is None:
        raise no_plan(problem, demands, clock=clock)
    return to_plan(problem, route, demands, method="brute-force", rate_bound=rate, seconds=clock() - started_s)


def _searched_plan(method: str, problem: Problem, demands: Demands, options: Options, *, clock: Clock) -> Plan:
    """Return the cheapest plan that a search met; its bound is the exact planner's, whose time is not counted."""
    if method in RL_METHODS:
        importlib.import_module("torch")  # seconds on a cold machine, and no part of planning
    started_s = clock()
    arrays = as_arrays(problem)
    proposer = SEARCHES[method](problem, arrays, options)
    scorer = Scorer(
        arrays,
        min_samples_per_s=problem.min_samples_per_s,
        max_stages=demands.max_stages,
        provisioning=options.provisioning,
    )
    if not is_plain(problem) or problem.first_node_per_hour:
        scorer = LayoutScorer(problem, arrays, demands, clock=clock)
    deadline_s = started_s + demands.time_limit_s
    found = search(proposer, scorer, clock=clock, deadline_s=deadline_s, progress=options.progress)
    measured = None
    if isinstance(proposer, Learner) and options.measure is not None:
        proposer.begin_measured()
        measured = MeasuredScorer(scorer, problem, options.measure)
        found = search(proposer, measured, clock=clock, deadline_s=math.inf, progress=options.progress)
    if isinstance(proposer, Learner) and options.save_policy is not None:
        proposer.save(options.save_policy)
    seconds = clock() - started_s
    rate_bound = _rate_bound(problem, demands, clock=clock)
    if found.route is None:
        raise _nothing_found(method, problem, measured)
    plan = to_plan(problem, found.route, demands, method=method, rate_bound=rate_bound, seconds=seconds)
    if measured is None:
        return plan
    return msgspec.structs.replace(plan, measured_samples_per_s=measured.reached(found.route))


def _rate_bound(problem: Problem, demands: Demands, *, clock: Clock) -> float:
    """Return the least USD per hour over samples/s of any plan; raise NoPlanError where there is provably none."""
    hourly = hourly_prices(problem, demands)
    floor = problem.min_samples_per_s
    deadline_s = clock() + demands.time_limit_s
    try:
        exact = CheapestSearch(hourly, min_samples_per_s=floor, clock=clock, deadline_s=deadline_s).run()
    except PlanError:  # out of time: a weaker bound, at once
        return hourly.relaxed(floor if floor > 0 else hourly.slowest_pace())
    if exact is None:
        raise no_plan(problem, demands, clock=clock)
    return exact.rate_bound


def _nothing_found(method: str, problem: Problem, measured: MeasuredScorer | None) -> PlanError:
    """Return the error for a search that met no plan, though there may be one."""
    if measured is not None and measured.seen:
        fastest = max(measured.seen.values())
        return PlanError(
            f"of {len(measured.seen)} plans that were run none reached min_samples_per_s = "
            f"{problem.min_samples_per_s:,.0f}: the fastest reached {fastest:,.0f}",
            hint="the model is too hopeful: ask it for more with a higher --min-samples-per-s, or profile again",
        )
    return PlanError(
        f"`{method}` found no plan that meets the demands, though there is one",
        hint="use --method exact, which finds a plan wherever there is one",
    )
