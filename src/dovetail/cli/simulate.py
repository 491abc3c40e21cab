"""`dovetail simulate`: a cluster and its jobs under a policy, in virtual time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.cli.options import AsJson
from dovetail.cli.output import errors_shown, print_json, say
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dovetail.simulator.metrics import Trial
    from dovetail.spec.workload import Workload


def simulate(
    workload_file: Annotated[
        Path, typer.Argument(metavar="WORKLOAD", help="JSON or TOML; also Gavel's .trace and .csv, with --nodes.")
    ],
    policy: Annotated[
        str, typer.Option(help="Who gets which workers: a name, or package.module:Class for your own.")
    ] = "dovetail",
    compare: Annotated[bool, typer.Option("--compare", help="Run every policy and print them side by side.")] = False,
    knowledge: Annotated[
        Literal["oracle", "estimated"], typer.Option(help="Work left and speeds: known, or learnt by watching.")
    ] = "oracle",
    knob: Annotated[
        float | None, typer.Option(min=0, max=1, help="For `dovetail`: 0 = mean completion time, 1 = makespan.")
    ] = None,
    round_s: Annotated[float | None, typer.Option(help="Decide this often too, instead of the file's.")] = None,
    restart_s: Annotated[float | None, typer.Option(min=0, help="What a start takes, instead of the file's.")] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="TYPE:WORKERSxCOUNT,...", help="The cluster, instead of the file's.")
    ] = None,
    speeds: Annotated[Path | None, typer.Option(help="For a .trace: Gavel's steps per second.")] = None,
    elastic: Annotated[bool, typer.Option("--elastic", help="For a .trace: sizes may change, as measured.")] = False,
    events: Annotated[Path | None, typer.Option(help="Write one JSON line for every change.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw what ran when: FILE.png, FILE.svg or FILE.html.")] = None,
    seed: Annotated[int, typer.Option(help="For policies and measurements that draw random numbers.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Simulate many jobs on one cluster: when each starts and finishes under a policy."""
    if compare and events is not None:
        raise typer.BadParameter("--events goes with one policy, not with --compare")
    with errors_shown(as_json=as_json):
        from dovetail.scheduler.registry import POLICIES, make_policy
        from dovetail.simulator.engine import simulate as run
        from dovetail.simulator.traces.read import read_any

        is_own = ":" in policy
        if not compare or is_own:
            make_policy(policy, knob=knob)  # a wrong name is told before a long file is read
        if plot is not None:
            from dovetail.charts.figure import check_chart_path

            check_chart_path(plot)
        workload = read_any(
            workload_file, nodes=nodes, speeds=speeds, restart_s=restart_s, round_s=round_s, elastic=elastic
        )
        trials = []
        for name in [*POLICIES, *([policy] if is_own else [])] if compare else [policy]:
            if compare:
                say(f"running {name}")
            if ":" not in name:  # one's own is asked about the workload alone, and brings no kernels of ours
                _compile(name)
            chosen = make_policy(name, knob=knob)
            shown = name.rpartition(":")[2]
            trials.append(run(workload, chosen, name=shown, knowledge=knowledge, seed=seed, clock=time.perf_counter))
        _write_events(trials[0], events)
        if plot is not None:
            _draw(workload, trials, plot)
        _show(workload, trials, compare=compare, as_json=as_json)


def _compile(policy: str) -> None:
    """Load a policy's compiled loops before its decisions are timed."""
    from dovetail.scheduler.registry import make_policy
    from dovetail.simulator.engine import simulate as run
    from dovetail.simulator.traces.make import make_workload

    run(make_workload(num_jobs=3, with_loss=False), make_policy(policy), name=policy)


def _write_events(trial: Trial, events: Path | None) -> None:
    """Write every change as one JSON line."""
    if events is None:
        return
    import msgspec

    try:
        events.write_bytes(msgspec.json.Encoder().encode_lines(trial.changes))
    except OSError as error:
        raise DovetailError(f"{events}: cannot be written: {error.strerror}", hint="give another --events") from None


def _draw(workload: Workload, trials: Sequence[Trial], plot: Path) -> None:
    """Draw what ran when, or the policies side by side."""
    from dovetail.charts.figure import save_figure
    from dovetail.charts.policies import draw_policies, policy_facts
    from dovetail.charts.schedule import draw_schedule, schedule_facts

    if len(trials) == 1:
        save_figure(draw_schedule(workload, trials[0]), plot, table=schedule_facts(workload, trials[0]))
    else:
        save_figure(draw_policies(workload, trials), plot, table=policy_facts(trials))
    say(f"drawn: {plot}")


def _show(workload: Workload, trials: Sequence[Trial], *, compare: bool, as_json: bool) -> None:
    """Print the outcome, or all of them, as JSON or as a table."""
    import msgspec

    if as_json and not compare:
        print_json(msgspec.json.encode({**msgspec.to_builtins(trials[0].outcome), **_missed(workload, trials[0])}))
    elif as_json:
        facts = [{**_facts(trial), **_missed(workload, trial)} for trial in trials]
        print_json(msgspec.json.encode({"policies": facts}))
    else:
        _print_table(workload, trials)


def _missed(workload: Workload, trial: Trial) -> dict[str, int]:
    """Return how many jobs were done after their deadline; nothing where no job has one."""
    deadlines = {job.id: job.deadline_s for job in workload.jobs if job.deadline_s is not None}
    if not deadlines:
        return {}
    late = [job for job in trial.outcome.jobs if job.id in deadlines and job.finish_s > deadlines[job.id]]
    return {"missed_deadlines": len(late)}


def _facts(trial: Trial) -> dict[str, object]:
    """Return a policy's figures without its jobs, with what its decisions cost."""
    outcome = trial.outcome
    names = ("policy", "mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "restarts", "utilization")
    facts: dict[str, object] = {name: getattr(outcome, name) for name in names}
    egress = {} if outcome.egress_cost is None else {"egress_cost": outcome.egress_cost}
    return {**facts, **egress, "decisions": trial.decisions, "decision_ms": 1000 * trial.decision_s_mean}


def _print_table(workload: Workload, trials: Sequence[Trial]) -> None:
    """Print policies side by side, the least mean completion time first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from dovetail.cli.tables import wide_console
    from dovetail.units import format_duration, format_usd

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    headings = ["policy", "mean JCT", "p50 JCT", "p99 JCT", "makespan", "restarts", "utilisation", "decision ms"]
    egress = ["egress"] if workload.site_links else []
    for heading in [*headings, *egress, *(["missed"] if _missed(workload, trials[0]) else [])]:
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for trial in sorted(trials, key=lambda trial: trial.outcome.mean_jct_s):
        outcome = trial.outcome
        times = (outcome.mean_jct_s, outcome.p50_jct_s, outcome.p99_jct_s, outcome.makespan_s)
        table.add_row(
            outcome.policy,
            *(format_duration(seconds) for seconds in times),
            f"{outcome.restarts:,}",
            f"{outcome.utilization:.1%}",
            f"{1000 * trial.decision_s_mean:.3g}",
            *([format_usd(outcome.egress_cost)] if outcome.egress_cost is not None else []),
            *(f"{count:,}" for count in _missed(workload, trial).values()),
        )
    console = wide_console()
    console.print(table)
    cluster = " + ".join(f"{workers:,} {name}" for name, workers in workload.capacity.items())
    count = len(workload.jobs)
    console.print(f"{count:,} {'job' if count == 1 else 'jobs'} on {cluster}", highlight=False)
