"""`dovetail plan`: the cheapest plan at the speed asked for, the fastest for the money, or the curve between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.output import errors_shown, print_json, say
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.planner.demands import Demands
    from dovetail.spec import Plan, Problem


def plan(
    problem_file: Annotated[Path, typer.Argument(metavar="PROBLEM", help="The problem: TOML or JSON.")],
    method: Annotated[str, typer.Option(help="How to plan.")] = "exact",
    min_samples_per_s: Annotated[float | None, typer.Option(help="The floor, instead of the file's.")] = None,
    finish_in: Annotated[str | None, typer.Option(metavar="TIME", help="The floor as a time: 90m, 6h, 2d.")] = None,
    max_cost_per_hour: Annotated[float | None, typer.Option(help="The fastest plan for this many USD/h.")] = None,
    max_stages: Annotated[int | None, typer.Option(min=1, help="At most so many stages.")] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="The curve of cost against speed.")] = False,
    points: Annotated[int, typer.Option(min=2, help="How many points of the curve.")] = 20,
    time_limit: Annotated[float, typer.Option(help="Seconds to plan; then the best so far, with its gap.")] = 30.0,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan: FILE.png, FILE.svg or FILE.html.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to a JSON file.")] = None,
    seed: Annotated[int, typer.Option(help="For methods that draw random numbers.")] = 0,  # noqa: ARG001
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")] = False,
) -> None:
    """Find which layers to run on which type, on how many units, for the least money at the speed you need."""
    if min_samples_per_s is not None and finish_in is not None:
        raise typer.BadParameter("give --min-samples-per-s or --finish-in, not both")
    if max_cost_per_hour is not None and (pareto or method != "exact"):
        raise typer.BadParameter("--max-cost-per-hour goes with --method exact and without --pareto")
    with errors_shown(as_json=as_json):
        from dovetail.planner.compile import compile_kernels
        from dovetail.planner.demands import Demands
        from dovetail.planner.methods import plan_with
        from dovetail.planner.plan import fastest_plan, pareto_plans
        from dovetail.spec import read_problem

        problem = _with_floor(read_problem(problem_file), min_samples_per_s, finish_in)
        demands = Demands(
            max_cost_per_hour=max_cost_per_hour,
            max_stages=max_stages,
            time_limit_s=time_limit,
        )
        with _told_if_slow("compiling the planner for this machine, once"):
            compile_kernels(clock=time.perf_counter)
        if pareto:
            plans = pareto_plans(problem, demands, points=points, clock=time.perf_counter)
        elif max_cost_per_hour is not None:
            plans = [fastest_plan(problem, demands, clock=time.perf_counter)]
        else:
            plans = [plan_with(method, problem, demands, clock=time.perf_counter)]
        _write(plans, pareto=pareto, out=out)
        if plot is not None:
            _draw(problem, plans, pareto=pareto, plot=plot)
        _show(problem, demands, plans, pareto=pareto, as_json=as_json)


def _with_floor(problem: Problem, min_samples_per_s: float | None, finish_in: str | None) -> Problem:
    """Return the problem with the floor that the command line gives, if it gives one."""
    from dovetail.units import parse_duration_s

    if finish_in is not None:
        min_samples_per_s = problem.training.total_samples / parse_duration_s(finish_in)
    if min_samples_per_s is None:
        return problem
    return problem.with_floor(min_samples_per_s)


@contextlib.contextmanager
def _told_if_slow(what: str) -> Iterator[None]:
    """Say what is being waited for, once it takes longer than a second."""
    timer = threading.Timer(1.0, say, args=[what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _write(plans: list[Plan], *, pareto: bool, out: Path | None) -> None:
    """Write the plan, or the curve, to a file."""
    if out is None:
        return
    try:
        out.write_bytes(_encode(plans, pareto=pareto) + b"\n")
    except OSError as error:
        raise DovetailError(f"{out}: cannot be written: {error.strerror}", hint="give another --out") from None


def _encode(plans: list[Plan], *, pareto: bool) -> bytes:
    """Return the plan, or the curve, as one JSON object."""
    import msgspec

    return msgspec.json.encode({"method": plans[0].method, "pareto": plans} if pareto else plans[0])


def _draw(problem: Problem, plans: list[Plan], *, pareto: bool, plot: Path) -> None:
    """Draw the plan, or the curve, to a file."""
    from dovetail.charts import draw_pareto, draw_plan, save_figure

    figure = draw_pareto(plans) if pareto else draw_plan(problem, plans[0])
    save_figure(figure, plot)
    say(f"drawn: {plot}")


def _show(problem: Problem, demands: Demands, plans: list[Plan], *, pareto: bool, as_json: bool) -> None:
    """Print the plan, or the curve, as JSON or as a table."""
    if as_json:
        print_json(_encode(plans, pareto=pareto))
        return
    from dovetail.cli.tables import print_pareto, print_plan

    if pareto:
        print_pareto(plans)
    else:
        print_plan(problem, demands, plans[0])
