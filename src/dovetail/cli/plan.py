"""`dovetail plan`: the cheapest plan at the speed asked for, the fastest for the money, or the curve between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli.catalogue import FinishIn, MinSamplesPerS, OwnCatalogues, ProblemFile, Spot, problem_from
from dovetail.cli.options import AsJson
from dovetail.cli.output import errors_shown, print_json, say, write_file
from dovetail.errors import DovetailError, NoPlanError, PlanError

if TYPE_CHECKING:
    from dovetail.planner.baselines.measured import Measure
    from dovetail.planner.baselines.search import SearchRound
    from dovetail.planner.demands import Demands
    from dovetail.planner.methods import Options
    from dovetail.spec import Plan, Problem


METHOD_NAMES = (
    "exact",
    "rl",
    "rl-rnn",
    "rl-joint",
    "bayesian",
    "genetic",
    "greedy",
    "heuristic",
    "cpu",
    "gpu",
    "brute-force",
)
"""The methods of dovetail.planner, named here so that `--help` need not import them."""


def plan(
    problem_file: ProblemFile,
    method: Annotated[str, typer.Option(help=f"How to plan: {', '.join(METHOD_NAMES)}.")] = "exact",
    compare: Annotated[bool, typer.Option("--compare", help="Plan by every method, side by side.")] = False,
    min_samples_per_s: MinSamplesPerS = None,
    finish_in: FinishIn = None,
    max_cost_per_hour: Annotated[float | None, typer.Option(help="The fastest plan for this many USD/h.")] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="The curve of cost against speed.")] = False,
    points: Annotated[int, typer.Option(min=2, help="How many points of the curve.")] = 20,
    max_stages: Annotated[int | None, typer.Option(min=1, help="At most so many stages.")] = None,
    split_stages: Annotated[bool, typer.Option("--split-stages", help="Allow cuts inside one type.")] = False,
    provision: Annotated[
        Literal["exact", "paper"], typer.Option(help="How searching methods choose units: ours, or as HeterPS does.")
    ] = "exact",
    model: Annotated[
        Literal["full", "paper"],
        typer.Option(help="What is priced: all that the problem says, or without machines and what runs beside."),
    ] = "full",
    spot: Spot = False,
    catalogue: OwnCatalogues = None,
    rounds: Annotated[int | None, typer.Option(min=0, help="How long methods search; 0 = ask a loaded policy.")] = None,
    load_policy: Annotated[Path | None, typer.Option(help="rl: start from a saved policy.")] = None,
    save_policy: Annotated[Path | None, typer.Option(help="rl: keep the policy.")] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|MODULE:FUNCTION",
            help="rl: refine on what plans of this run reach here, or on runs that this function measures.",
        ),
    ] = None,
    plot_learning: Annotated[Path | None, typer.Option(help="rl: draw how cost fell over the rounds.")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Show what each unit of each stage will hold.")] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds to plan; then the best so far, with its gap.")] = 30.0,
    plot: Annotated[Path | None, typer.Option(help="Draw the result: FILE.png, FILE.svg or FILE.html.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to a JSON file.")] = None,
    seed: Annotated[int, typer.Option(help="For methods that draw random numbers.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find which layers to run on which type, on how many units, for the least money at the speed you need."""
    if (max_cost_per_hour is not None) + pareto + compare + (method != "exact") > 1:
        raise typer.BadParameter("give one of --method, --compare, --pareto and --max-cost-per-hour")
    if compare:
        _refuse_with_compare(load_policy, save_policy, measured, plot_learning)
    with errors_shown(as_json=as_json):
        import msgspec

        from dovetail.planner.compile import compile_kernels
        from dovetail.planner.demands import Demands
        from dovetail.planner.methods import Options, check_method
        from dovetail.planner.plan import pareto_plans

        _check_time_limit(time_limit)
        for picture in (plot, plot_learning):
            _check_picture(picture)
        problem = _modelled(
            problem_from(problem_file, catalogue, spot=spot, min_samples_per_s=min_samples_per_s, finish_in=finish_in),
            model,
        )
        if measured is not None and _is_run(measured):
            from dovetail.orchestrate.measured import limited_to_here

            problem = limited_to_here(problem)
        demands = Demands(
            max_cost_per_hour=max_cost_per_hour,
            max_stages=max_stages,
            split_stages=split_stages,
            time_limit_s=time_limit,
        )
        history: list[SearchRound] = []
        options = Options(
            seed=seed,
            provisioning=provision,
            rounds=rounds,
            load_policy=load_policy,
            save_policy=save_policy,
            measure=None if measured is None else _measure(measured),
            progress=history.append,
        )
        if not compare:
            check_method(method, options)
        with _told_if_slow(_getting_ready()):
            compile_kernels(clock=time.perf_counter)
        if compare:
            from dovetail.cli.compare import compare_methods

            with _told_what_time_would_do(problem, demands, finish_in):
                compare_methods(problem, demands, options, plot=plot, out=out, as_json=as_json)
            return
        with _told_if_slow(f"planning by `{method}`"), _told_what_time_would_do(problem, demands, finish_in):
            if pareto:
                plans = pareto_plans(problem, demands, points=points, clock=time.perf_counter)
            else:
                plans = [_one_plan(method, problem, demands, options)]
        plans = [msgspec.structs.replace(plan, spot=spot) for plan in plans]
        encoded = _encode(plans, pareto=pareto)
        if out is not None:
            write_file(out, encoded + b"\n")
        if plot is not None:
            _draw(problem, plans, pareto=pareto, plot=plot)
        if plot_learning is not None:
            _draw_learning(problem, plans[0], history, plot_learning, measured=measured is not None)
        if as_json:
            print_json(encoded)
        else:
            _print(problem, demands, plans, pareto=pareto, memory=memory)


def _modelled(problem: Problem, model: str) -> Problem:
    """Return what is to be priced of a problem."""
    return problem.as_in_paper() if model == "paper" else problem


def _one_plan(method: str, problem: Problem, demands: Demands, options: Options) -> Plan:
    """Return the cheapest plan at the floor, or the fastest for the money where a cap is given."""
    from dovetail.planner.methods import plan_with
    from dovetail.planner.plan import fastest_plan

    if demands.max_cost_per_hour is not None:
        return fastest_plan(problem, demands, clock=time.perf_counter)
    return plan_with(method, problem, demands, clock=time.perf_counter, options=options)


def _print(problem: Problem, demands: Demands, plans: list[Plan], *, pareto: bool, memory: bool) -> None:
    """Print the plan, or the curve, as a table."""
    from dovetail.cli.compare import print_dependence
    from dovetail.cli.layout import print_layout
    from dovetail.cli.tables import print_memory, print_pareto, print_plan, print_row_budgets

    if pareto:
        print_pareto(plans)
        return
    print_plan(problem, demands, plans[0])
    print_layout(plans[0])
    print_dependence(problem, plans[0], demands, clock=time.perf_counter)
    if memory:
        print_memory(problem, plans[0])
        print_row_budgets(problem, plans[0])


def _refuse_with_compare(
    load_policy: Path | None, save_policy: Path | None, measured: str | None, plot_learning: Path | None
) -> None:
    """Refuse what speaks of one policy where several methods would each have their own."""
    given = {
        "--load-policy": load_policy,
        "--save-policy": save_policy,
        "--measured": measured,
        "--plot-learning": plot_learning,
    }
    for flag, value in given.items():
        if value is not None:
            raise typer.BadParameter(f"{flag} goes with one --method, not with --compare")


def _check_time_limit(time_limit: float) -> None:
    """Refuse what is no length of time."""
    if not time_limit >= 0:
        raise DovetailError(f"--time-limit is {time_limit:g}", hint="give it in seconds, 0 or more, e.g. 30")


@contextlib.contextmanager
def _told_what_time_would_do(problem: Problem, demands: Demands, finish_in: str | None) -> Iterator[None]:
    """Where no plan keeps the time that was asked for, name the shortest time that one keeps."""
    try:
        yield
    except NoPlanError as error:
        shortest_s = None if finish_in is None else _shortest_s(problem, demands)
        if shortest_s is None:
            raise
        hint = f"{error.hint}, or give it more time: --finish-in {_as_time(shortest_s)}"
        raise NoPlanError(error.message, hint=hint) from None


def _shortest_s(problem: Problem, demands: Demands) -> float | None:
    """Return how long the fastest plan trains, or None where none is found at any speed."""
    from dovetail.planner.plan import fastest_plan

    try:
        fastest = fastest_plan(problem.with_floor(0.0), demands, clock=time.perf_counter)
    except PlanError:
        return None
    return problem.training.total_samples / fastest.samples_per_s


def _as_time(seconds: float) -> str:
    """Return a time as --finish-in takes it, three figures long and never shorter than it is."""
    from dovetail.planner.result import round_up
    from dovetail.units import SECONDS_PER

    unit = next((unit for unit in ("d", "h", "m") if seconds >= 2 * SECONDS_PER[unit]), "s")
    return f"{round_up(seconds / SECONDS_PER[unit], figures=3):.15g}{unit}"


@contextlib.contextmanager
def _told_if_slow(what: str) -> Iterator[None]:
    """Say what is being waited for, once it takes longer than a second."""
    timer = threading.Timer(1.0, say, args=[f"{what} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _getting_ready() -> str:
    """Return what a planner does before it plans: it is compiled once on a machine, and loaded from then on."""
    from dovetail.planner import cheapest_route

    dispatcher: Any = cheapest_route.cheapest
    kept = Path(dispatcher._cache.cache_path)  # where numba, which compiles it, keeps what it has compiled
    is_compiled = any(kept.glob("cheapest_route.*.nbi"))
    return "loading the planner" if is_compiled else "compiling the planner for this machine, once"


def _is_run(name: str) -> bool:
    from dovetail.orchestrate.run_files import is_run

    return is_run(name)


def _measure(name: str) -> Measure:
    """Return what runs the plans of a run file or model here, or the function that `package.module:function` names."""
    from dovetail.references import import_function

    if _is_run(name):
        from dovetail.orchestrate.measured import measure_runs
        from dovetail.orchestrate.run_files import read_run

        return measure_runs(read_run(name), tell=say)
    return import_function(name, what="--measured")


def _encode(plans: list[Plan], *, pareto: bool) -> bytes:
    """Return the plan, or the curve, as one JSON object."""
    import msgspec

    return msgspec.json.encode({"method": plans[0].method, "pareto": plans} if pareto else plans[0])


def _check_picture(path: Path | None) -> None:
    """Refuse a picture that could not be written, before any work is done for it."""
    if path is not None:
        from dovetail.charts import check_chart_path

        check_chart_path(path)


def _draw(problem: Problem, plans: list[Plan], *, pareto: bool, plot: Path) -> None:
    """Draw the plan, or the curve, to a file."""
    from dovetail.charts import draw_pareto, draw_plan, pareto_facts, plan_facts, save_figure

    if pareto:
        save_figure(draw_pareto(plans), plot, table=pareto_facts(plans))
    else:
        save_figure(draw_plan(problem, plans[0]), plot, table=plan_facts(problem, plans[0]))
    say(f"drawn: {plot}")


def _draw_learning(problem: Problem, plan: Plan, history: list[SearchRound], path: Path, *, measured: bool) -> None:
    """Draw how a method's cost fell over its rounds, numbered through where measured rounds start again at 1."""
    from dovetail.charts import draw_learning, learning_facts, save_figure

    if not history:
        raise DovetailError(
            f"`{plan.method}` has no rounds to draw", hint="--plot-learning goes with methods that search, such as rl"
        )
    usd_per_rate = problem.training.total_samples / 3600
    numbers = list(range(1, len(history) + 1))
    phases = [number for number, turn in zip(numbers, history, strict=True) if turn.number == 1]
    measured_from = phases[-1] if measured else None
    lower_bound = plan.lower_bound or None
    mean_usd = [turn.mean_rate * usd_per_rate for turn in history]
    best_usd = [turn.best_rate * usd_per_rate for turn in history]
    title = f"How `{plan.method}` learned"
    figure = draw_learning(numbers, mean_usd, best_usd, lower_bound, title, measured_from=measured_from)
    facts = learning_facts(numbers, mean_usd, best_usd, lower_bound, measured_from=measured_from)
    save_figure(figure, path, table=facts)
    say(f"drawn: {path}")
