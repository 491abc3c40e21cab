"""`dovetail plan`: the cheapest plan at the speed asked for, the fastest for the money, or the curve between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.cli.catalogue import problem_from
from dovetail.cli.output import errors_shown, print_json, say, write_file
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.planner.demands import Demands
    from dovetail.planner.methods import Options
    from dovetail.planner.search import Round
    from dovetail.spec import Plan, Problem


def plan(
    problem_file: Annotated[Path, typer.Argument(metavar="PROBLEM", help="The problem: TOML or JSON.")],
    method: Annotated[str, typer.Option(help="How to plan; --compare names them all.")] = "exact",
    compare: Annotated[bool, typer.Option("--compare", help="Plan by every method, side by side.")] = False,
    min_samples_per_s: Annotated[float | None, typer.Option(help="The floor, instead of the file's.")] = None,
    finish_in: Annotated[str | None, typer.Option(metavar="TIME", help="The floor as a time: 90m, 6h, 2d.")] = None,
    max_cost_per_hour: Annotated[float | None, typer.Option(help="The fastest plan for this many USD/h.")] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="The curve of cost against speed.")] = False,
    points: Annotated[int, typer.Option(min=2, help="How many points of the curve.")] = 20,
    max_stages: Annotated[int | None, typer.Option(min=1, help="At most so many stages.")] = None,
    split_stages: Annotated[bool, typer.Option("--split-stages", help="Allow cuts inside one type.")] = False,
    provision: Annotated[
        Literal["exact", "paper"], typer.Option(help="How searching methods choose units: ours, or as HeterPS does.")
    ] = "exact",
    spot: Annotated[bool, typer.Option("--spot", help="Spot prices for types from the catalogue.")] = False,
    catalogue: Annotated[list[Path] | None, typer.Option(help="Your own catalogue file, beside ours.")] = None,
    rounds: Annotated[int | None, typer.Option(min=0, help="How long methods search; 0 = ask a loaded policy.")] = None,
    load_policy: Annotated[Path | None, typer.Option(help="rl: start from a saved policy.")] = None,
    save_policy: Annotated[Path | None, typer.Option(help="rl: keep the policy.")] = None,
    measured: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="rl: refine on runs that this function measures.")
    ] = None,
    plot_learning: Annotated[Path | None, typer.Option(help="rl: draw how cost fell over the rounds.")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Show what each unit of each stage will hold.")] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds to plan; then the best so far, with its gap.")] = 30.0,
    plot: Annotated[Path | None, typer.Option(help="Draw the result: FILE.png, FILE.svg or FILE.html.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to a JSON file.")] = None,
    seed: Annotated[int, typer.Option(help="For methods that draw random numbers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")] = False,
) -> None:
    """Find which layers to run on which type, on how many units, for the least money at the speed you need."""
    if min_samples_per_s is not None and finish_in is not None:
        raise typer.BadParameter("give --min-samples-per-s or --finish-in, not both")
    if (max_cost_per_hour is not None) + pareto + compare + (method != "exact") > 1:
        raise typer.BadParameter("give one of --method, --compare, --pareto and --max-cost-per-hour")
    with errors_shown(as_json=as_json):
        from dovetail.planner.compile import compile_kernels
        from dovetail.planner.demands import Demands
        from dovetail.planner.methods import Options
        from dovetail.planner.plan import pareto_plans

        for picture in (plot, plot_learning):
            _check_picture(picture)
        problem = _with_floor(problem_from(problem_file, catalogue, spot=spot), min_samples_per_s, finish_in)
        demands = Demands(
            max_cost_per_hour=max_cost_per_hour,
            max_stages=max_stages,
            split_stages=split_stages,
            time_limit_s=time_limit,
        )
        history: list[Round] = []
        options = Options(
            seed=seed,
            provisioning=provision,
            rounds=rounds,
            load_policy=load_policy,
            save_policy=save_policy,
            measure=None if measured is None else _function(measured),
            progress=history.append,
        )
        with _told_if_slow("compiling the planner for this machine, once"):
            compile_kernels(clock=time.perf_counter)
        if compare:
            from dovetail.cli.compare import compare_methods

            compare_methods(problem, demands, options, plot=plot, out=out, as_json=as_json)
            return
        with _told_if_slow(f"planning by `{method}`"):
            if pareto:
                plans = pareto_plans(problem, demands, points=points, clock=time.perf_counter)
            else:
                plans = [_one_plan(method, problem, demands, options)]
        encoded = _encode(plans, pareto=pareto)
        if out is not None:
            write_file(out, encoded + b"\n")
        if plot is not None:
            _draw(problem, plans, pareto=pareto, plot=plot)
        if plot_learning is not None:
            _draw_learning(problem, plans[0], history, plot_learning)
        if as_json:
            print_json(encoded)
        else:
            _print(problem, demands, plans, pareto=pareto, memory=memory)


def _one_plan(method: str, problem: Problem, demands: Demands, options: Options) -> Plan:
    """Return the cheapest plan at the floor, or the fastest for the money where a cap is given."""
    from dovetail.planner.methods import plan_with
    from dovetail.planner.plan import fastest_plan

    if demands.max_cost_per_hour is not None:
        return fastest_plan(problem, demands, clock=time.perf_counter)
    return plan_with(method, problem, demands, clock=time.perf_counter, options=options)


def _print(problem: Problem, demands: Demands, plans: list[Plan], *, pareto: bool, memory: bool) -> None:
    """Print the plan, or the curve, as a table."""
    from dovetail.cli.tables import print_memory, print_pareto, print_plan

    if pareto:
        print_pareto(plans)
        return
    print_plan(problem, demands, plans[0])
    if memory:
        print_memory(problem, plans[0])


def _with_floor(problem: Problem, min_samples_per_s: float | None, finish_in: str | None) -> Problem:
    """Return the problem with the floor that the command line gives, if it gives one."""
    from dovetail.units import parse_duration_s

    if finish_in is not None:
        min_samples_per_s = problem.training.total_samples / parse_duration_s(finish_in)
    return problem if min_samples_per_s is None else problem.with_floor(min_samples_per_s)


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


def _function(name: str):  # type: ignore[no-untyped-def]
    """Return the function that `package.module:function` names."""
    import importlib
    import sys

    module, _, function = name.partition(":")
    sys.path.insert(0, "")  # as `python -m` does: a module beside the user's files
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise DovetailError(
            f"--measured {name}: {error}", hint="name it as package.module:function, importable from here"
        ) from None


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


def _draw_learning(problem: Problem, plan: Plan, history: list[Round], path: Path) -> None:
    """Draw how a method's cost fell over its rounds."""
    from dovetail.charts import draw_learning, learning_facts, save_figure

    if not history:
        raise DovetailError(
            f"`{plan.method}` has no rounds to draw", hint="--plot-learning goes with methods that search, such as rl"
        )
    usd_per_rate = problem.training.total_samples / 3600
    numbers = [turn.number for turn in history]
    mean_usd = [turn.mean_rate * usd_per_rate for turn in history]
    best_usd = [turn.best_rate * usd_per_rate for turn in history]
    title = f"How `{plan.method}` learned"
    figure = draw_learning(numbers, mean_usd, best_usd, plan.lower_bound, title)
    save_figure(figure, path, table=learning_facts(numbers, mean_usd, best_usd, plan.lower_bound))
    say(f"drawn: {path}")
