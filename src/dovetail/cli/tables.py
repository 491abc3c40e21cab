"""Plans, and what runs came to, as tables for people."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dovetail.cli.output import say
from dovetail.cost import plan_memory
from dovetail.cost.plan import stage_times
from dovetail.planner.demands import Demands
from dovetail.runtime.folder import LinkSummary, RunSummary, StageSummary, TableSummary, WorkerSummary
from dovetail.spec import Plan, Problem, Stage
from dovetail.units import format_bytes, format_count, format_duration, format_plain, format_usd

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from dovetail.runtime.finished.result import TrainingResult
    from dovetail.runtime.planned.from_plan import PlannedRun
    from dovetail.spec.run import Run

STAGE_FIGURES = ("units", "USD/h", "s/batch", "samples/s", "")


def print_plan(problem: Problem, demands: Demands, plan: Plan) -> None:
    """Print the stages of a plan, then what it costs and how far that is proven."""
    console = wide_console()
    at_sites = bool(problem.site_links)
    table = make_table(
        ("stage", "layers", "resource", *(["site"] if at_sites else []), *STAGE_FIGURES),
        text=("layers", "resource", "site", ""),
    )
    slowest = max(plan.stages, key=lambda stage: stage.seconds_per_batch or 0.0)
    for position, stage in enumerate(plan.stages):
        seconds = stage.seconds_per_batch or 0.0
        table.add_row(
            str(position + 1),
            _layers(stage),
            stage.resource,
            *([problem.resource(stage.resource).site or ""] if at_sites else []),
            f"{stage.units:,}",
            f"{problem.resource(stage.resource).price_per_hour * stage.units:,.2f}",
            f"{seconds:.4g}",
            format_count(problem.training.batch / seconds) if seconds > 0 else "-",
            "<- bottleneck" if stage is slowest else "",
        )
    console.print(table)
    for number, stage in enumerate(plan.stages, 1):
        for name, held_bytes in (stage.row_budgets or {}).items():
            _print_budget(console, problem, number, stage, name, held_bytes)
    asked = problem.min_samples_per_s
    floor = f" (asked for: {format_count(asked)})" if asked > 0 else ""
    console.print(f"speed   {format_count(plan.samples_per_s)} samples/s{floor}", highlight=False)
    if plan.measured_samples_per_s is not None:
        console.print(f"run     {format_count(plan.measured_samples_per_s)} samples/s measured", highlight=False)
    console.print(f"time    {format_duration((plan.hours or 0.0) * 3600)}", highlight=False)
    per_hour = f"{format_usd(plan.cost_per_hour)} per hour"
    if plan.first_node_per_hour is not None:
        per_hour += f", {format_usd(plan.first_node_per_hour)} of it for the first node"
    if plan.egress_bytes is not None:
        usd = plan.egress_cost or 0.0
        console.print(f"units   {format_usd(plan.cost - usd)}, {per_hour}", highlight=False)
        console.print(f"egress  {format_usd(usd)} for {format_bytes(plan.egress_bytes)} between sites", highlight=False)
        console.print(f"cost    {format_usd(plan.cost)} in all", highlight=False)
    else:
        console.print(f"cost    {format_usd(plan.cost)} in all, {per_hour}", highlight=False)
    console.print(f"proof   {_proof(plan, demands)}", highlight=False)


def _print_budget(console: Console, problem: Problem, number: int, stage: Stage, name: str, held_bytes: float) -> None:
    """Print how much of a unit's memory the rows of an embedding are given, and what that finds."""
    layer = next(layer for layer in problem.layers if layer.name == name)
    cache = layer.on[stage.resource].cache
    found = "" if cache is None else f", where {cache.hit_ratio(held_bytes):.1%} of look-ups find theirs"
    all_bytes = layer.weight_bytes + layer.optimizer_bytes + layer.index_bytes
    console.print(
        f"rows    stage {number} keeps {format_bytes(held_bytes)} of `{name}` ({format_bytes(all_bytes)} in all) "
        f"on each {stage.resource}{found}",
        highlight=False,
        soft_wrap=True,
    )


def print_memory(problem: Problem, plan: Plan) -> None:
    """Print what one unit of each stage will hold, beside what it has room for."""
    headings = ("stage", "resource", "parameters", "gradients", "optimizer", "index", "activations", "in all", "has")
    table = make_table(headings, text=("resource",), title="memory of one unit", title_justify="left")
    for position, (stage, memory) in enumerate(zip(plan.stages, plan_memory(problem, plan.stages), strict=True)):
        room_bytes = problem.resource(stage.resource).memory_bytes
        table.add_row(
            str(position + 1),
            stage.resource,
            format_bytes(memory.parameter_bytes),
            format_bytes(memory.gradient_bytes),
            format_bytes(memory.optimizer_bytes),
            format_bytes(memory.index_bytes),
            format_bytes(memory.activation_bytes),
            format_bytes(memory.total_bytes),
            "not said" if room_bytes is None else format_bytes(room_bytes),
        )
    wide_console().print(table)


def print_pareto(plans: Sequence[Plan]) -> None:
    """Print the curve of cost against speed, one plan a row."""
    some_egress = any(plan.egress_cost is not None for plan in plans)
    table = make_table(
        (
            "samples/s",
            "time",
            "USD",
            *(["egress"] if some_egress else []),
            "USD/h",
            "units",
            "stages",
            "proof",
        ),
        text=("units", "proof"),
    )
    for plan in plans:
        table.add_row(
            format_count(plan.samples_per_s),
            format_duration((plan.hours or 0.0) * 3600),
            f"{plan.cost:,.2f}",
            *([f"{plan.egress_cost or 0.0:,.2f}"] if some_egress else []),
            f"{plan.cost_per_hour:,.2f}",
            units_used(plan),
            str(len(plan.stages)),
            "optimal" if plan.optimal else f"gap {_gap(plan):.1%}",
        )
    wide_console().print(table)


def make_table(
    headings: Sequence[str],
    *,
    text: Container[str] = (),
    title: str | None = None,
    title_justify: JustifyMethod = "center",
) -> Table:
    """Return a table with such columns, those of `text` to the left and figures to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify=title_justify)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in text else "right", no_wrap=True)
    return table


def wide_console() -> Console:
    """Return a console on stdout, wide enough for a table even where there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def units_used(plan: Plan) -> str:
    """Return the units of each type: `12 cpu + 2 v100`."""
    used: Counter[str] = Counter()
    for stage in plan.stages:
        used[stage.resource] += stage.units
    return " + ".join(f"{units:,} {name}" for name, units in used.items())


def _layers(stage: Stage) -> str:
    """Return a stage's layers: positions, and the names at both ends."""
    names = stage.layers or ()
    named = ", ".join(names) if len(names) <= 2 else f"{names[0]} .. {names[-1]}"
    positions = (
        f"{stage.first_layer}" if stage.first_layer == stage.last_layer else f"{stage.first_layer}-{stage.last_layer}"
    )
    return f"{positions}  {named}"


def _gap(plan: Plan) -> float:
    """Return how far above the bound the plan is, as a fraction."""
    return plan.cost / plan.lower_bound - 1 if plan.lower_bound > 0 else float("inf")


def _proof(plan: Plan, demands: Demands) -> str:
    """Say what is proven of a plan."""
    took = f"found in {format_duration(plan.seconds)}"
    if demands.max_cost_per_hour is not None:
        claim = "no plan within the money is faster" if plan.optimal else "the fastest found; not proven"
    elif plan.optimal:
        claim = "no plan costs less"
    elif plan.lower_bound > 0:
        claim = f"no plan costs less than {format_usd(plan.lower_bound)}; this one is within {_gap(plan):.2%} of that"
    else:
        claim = "nothing is proven"
    return f"{claim} ({took} by `{plan.method}`)"


def show_places(planned: PlannedRun) -> None:
    """Say what the plan asks for, what this machine has, what each stage runs on here, and how fast that should be."""
    machine, prediction = planned.machine, planned.prediction
    say(f"{machine.called} {machine.cores} core{'s' * (machine.cores != 1)} and {machine.gpus} GPUs; the plan:")
    table = make_table(
        ("stage", "layers", "type", "a unit is", "planned", "here", "predicted a batch"),
        text=("layers", "type", "a unit is"),
    )
    for number, (stage, seconds) in enumerate(zip(planned.stages, prediction.stage_seconds, strict=True)):
        less = f", here {stage.size}" if stage.size != stage.unit.size else ""
        table.add_row(
            str(number),
            f"{stage.planned.first_layer} to {stage.planned.last_layer}",
            stage.planned.resource,
            f"{stage.unit}{less}",
            str(stage.planned.units),
            str(stage.units),
            "-" if seconds is None else format_duration(seconds),
        )
    console = Console(file=sys.stderr, width=200)
    console.print(table)
    for line in [*_chosen(planned), *_predicted(planned), *_in_sync(planned)]:
        console.print(line, highlight=False)


def _chosen(planned: PlannedRun) -> list[str]:
    """Return in words where rows lie, who trains, and what plain layouts would be; of a plan that says so."""
    from dovetail.orchestrate.pipeline import compared
    from dovetail.runtime.planned.from_plan import layout_in_words

    plan = planned.plan
    if plan.place is None:
        return []
    taken = [] if plan.cores is None else [f"{plan.cores} cores in all"]
    taken += [] if plan.readers is None else [f"{plan.readers} of them reading"]
    return [f"{chosen_in_words(layout_in_words(planned), compared(plan))} ({', '.join(taken)})"]


def _predicted(planned: PlannedRun) -> list[str]:
    """Return in words how fast the plan should be."""
    prediction = planned.prediction
    whole = f"{format_plain(prediction.planned_samples_per_s)} samples/s"
    if all(stage.is_as_planned for stage in planned.stages):
        return [f"predicted: {whole}"]
    lines = [f"predicted with the planned units: {whole}"]
    if prediction.samples_per_s is None:
        why = "the plan does not say what its stages take" if planned.problem is None else "units here are smaller"
        return [*lines, f"predicted with those here: not known, {why}"]
    how = "" if prediction.is_modelled else ", if each unit does its part: no problem file lies beside the plan"
    return [*lines, f"predicted with those here: {format_plain(prediction.samples_per_s)} samples/s{how}"]


def _in_sync(planned: PlannedRun) -> list[str]:
    """Return in words what steps in `sync` make of that."""
    from dovetail.runtime.planned.from_plan import in_sync

    samples_per_s = in_sync(planned.prediction, planned.plan, planned.stages, planned.run)
    if samples_per_s is None:
        return []
    return [f"in sync, where each step fills the stages and drains them: {format_plain(samples_per_s)} samples/s"]


def part_rows(parts: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]] = ()) -> Table:
    """Return what was predicted of each part of a run beside what it took; `stages` say what is in each."""
    table = make_table(("part", "cores", "predicted a batch", "measured a batch", ""), text=("part",))
    for part in parts:
        seconds = [part[f"{kind}_seconds_per_batch"] for kind in ("predicted", "measured")]
        ratio = f"{seconds[1] / seconds[0]:.2f}x" if seconds[0] and seconds[1] is not None else ""
        cores = "" if part["cores"] is None else str(part["cores"])
        name = _stage_words(part["part"], stages)
        table.add_row(name, cores, *("-" if each is None else format_duration(each) for each in seconds), ratio)
    return table


def print_comparison(facts: Mapping[str, Any]) -> None:
    """Print what was predicted of a run beside what it took, part by part, and what other layouts would have been."""
    console = wide_console()
    console.print(part_rows(facts["parts"], facts["stages"]))
    predicted, measured = facts["predicted_samples_per_s"], facts["measured_samples_per_s"]
    from_start = facts["samples_per_s_from_the_start"]
    console.print(
        f"{chosen_in_words(facts['layout'], facts['compared'])}\n"
        f"predicted {predicted:,.0f} samples/s, measured {measured:,.0f} ({measured / predicted:.2f}x), "
        f"{from_start:,.0f} with its first steps; {facts['cost_per_hour']:.3f} USD/h\n"
        f"problem.json, plan.json, measured-problem.json and the run are in {facts['folder']}",
        highlight=False,
        soft_wrap=True,
    )


def chosen_in_words(layout: str, compared: Sequence[Mapping[str, Any]]) -> str:
    """Return which layout a plan chose, and what plain ones would be: `one process on gpu would be 0.93x ...`."""
    others = [
        f"{each['layout']} would be {each['speed']:.2f}x at {each['price']:.2g}x the price"
        for each in compared
        if each["speed"] is not None and each["price"] is not None and not _is_same(each)
    ]
    return f"chosen: {'; '.join([layout, *others])}"


def _is_same(other: Mapping[str, Any]) -> bool:
    """Say whether another layout is as fast and as dear: then it is the one that was chosen."""
    return bool(abs(other["speed"] - 1) < 1e-9 and abs(other["price"] - 1) < 1e-9)


def _stage_words(part: str, stages: Sequence[Mapping[str, Any]]) -> str:
    """Return a part's name; of a stage also its layers and units."""
    number = part.removeprefix("stage ")
    if number == part or not stages:
        return part
    stage = stages[int(number)]
    return f"{part}: layers {stage['first_layer']} to {stage['last_layer']} on {stage['units']} x {stage['resource']}"


def print_row_budgets(problem: Problem, plan: Plan) -> None:
    """Print for each embedding that may keep only some rows what more or less memory for them would do."""
    for number, stage in enumerate(plan.stages):
        for layer in problem.layers[stage.first_layer : stage.last_layer + 1]:
            if layer.on[stage.resource].cache is not None:
                wide_console().print(_row_budgets(problem, plan, number, layer.name))


def _row_budgets(problem: Problem, plan: Plan, number: int, name: str) -> Table:
    """Return a row a budget: the points of the curve, what the plan gives, and all rows."""
    stage = plan.stages[number]
    cache = next(layer.on[stage.resource].cache for layer in problem.layers if layer.name == name)
    chosen = (stage.row_budgets or {}).get(name)
    title = f"rows of `{name}` on each {stage.resource} of stage {number + 1}"
    table = make_table(
        ("memory for rows", "found there", "s/batch", "samples/s", "of the unit", ""),
        text=("",),
        title=title,
        title_justify="left",
    )
    points = {held for held, _ in cache.hits if held >= cache.least_bytes} if cache is not None else set()
    room = problem.resource(stage.resource).memory_bytes
    for held in [*sorted(points | ({chosen} if chosen is not None else set())), None]:
        stages = [*plan.stages[:number], _with_rows(stage, name, held), *plan.stages[number + 1 :]]
        seconds = stage_times(problem, stages, number).seconds
        taken = plan_memory(problem, stages)[number].total_bytes
        table.add_row(
            "all" if held is None else format_bytes(held),
            "" if held is None or cache is None else f"{cache.hit_ratio(held):.1%}",
            f"{seconds:.4g}",
            format_count(problem.training.batch / seconds) if seconds > 0 else "-",
            "not said" if room is None else f"{taken / room:.0%}",
            "<- the plan" if held == chosen else "too much" if room is not None and taken > room else "",
        )
    return table


def _with_rows(stage: Stage, name: str, held: float | None) -> Stage:
    """Return a stage whose embedding keeps so many bytes, or all of its rows."""
    others = {other: given for other, given in (stage.row_budgets or {}).items() if other != name}
    budgets = others if held is None else {**others, name: held}
    return msgspec.structs.replace(stage, row_budgets=budgets or None)


def print_summary(run: Run, result: TrainingResult) -> None:
    """Print figures, workers, servers, and the commands that go on from here."""
    console = wide_console()
    console.print(_worker_table(result))
    summary = RunSummary.read(result.folder)
    if summary.stages:
        console.print(_stage_table(summary.stages))
    console.print(_row_table(summary.tables) if summary.tables else _server_table(result))
    if summary.links:
        console.print(_link_table(summary.links))
    here = int(sum(figures["samples"] for figures in result.workers.values()))
    total = f"{here:,} samples in {format_duration(result.seconds)}"
    lines = [
        ("speed", f"{format_count(result.samples_per_s)} samples/s while it trained; {total} with starting and saving"),
        ("loss", _quality(result)),
        ("kept", f"{result.checkpoint}, after {result.samples:,} samples"),
    ]
    if looked_up := sum(worker.looked_up_rows for worker in summary.workers.values()):
        lines.append(("cache", _kept(summary.workers.values(), looked_up)))
    if run.sites:
        from dovetail.runtime.sites.figures import in_words

        lines.append(("sites", in_words(result.folder)))
    if result.is_complete:
        more = f"dovetail train --resume {result.folder} --epochs {run.training.epochs + 1}"
        lines += [("test it", f"dovetail evaluate {result.folder}"), ("go on", more)]
        lines += [("take it", f"dovetail export {result.folder} --out {result.folder}/export")]
    else:
        lines += [("go on", f"dovetail train --resume {result.folder}")]
    if result.privacy is not None:
        lines.insert(2, ("private", result.privacy.words))
    for name, words in lines:
        console.print(f"{name:<7} {words}", highlight=False, soft_wrap=True)


def _kept(workers: Iterable[WorkerSummary], looked_up: int) -> str:
    """Return what workers' caches of servers' rows brought, in words."""
    each = list(workers)
    kept, kept_bytes = sum(worker.kept_rows for worker in each), sum(worker.kept_bytes for worker in each)
    came, saved = format_count(looked_up - kept), format_bytes(kept_bytes)
    return f"{kept / looked_up:.1%} of the rows were with the workers; {came} travelled, and {saved} did not"


def _quality(result: TrainingResult) -> str:
    """Return loss and AUC in words."""
    if result.privacy is not None:
        return "not told of samples that are trained on; try the model on others: --set validation.every_epochs=1"
    if math.isnan(result.loss):
        return "not known: no step was taken"
    auc = "" if math.isnan(result.auc) else f", AUC {result.auc:.4f}"
    others = "".join(f", {name} {value:.4f}" for name, value in result.metrics.items() if not math.isnan(value))
    return f"{result.loss:.4f}{auc}{others}, of the last seconds' samples before they were trained on"


def _worker_table(result: TrainingResult) -> Table:
    table = make_table(("worker", "samples", "share", "samples/s", "busy", "idle"), text=("worker",))
    for name, figures in result.workers.items():
        table.add_row(
            name,
            f"{figures['samples']:,}",
            f"{figures['share']:.1%}",
            format_count(figures["samples"] / max(1e-9, figures["busy_s"])),
            format_duration(figures["busy_s"]),
            f"{figures['idle']:.1%}",
        )
    return table


def _stage_table(stages: Sequence[StageSummary]) -> Table:
    """Return what each stage did; the workers above are those of the first."""
    table = make_table(("stage", "layers", "workers", "samples", "computing"))
    for number, stage in enumerate(stages):
        layers = f"{stage.first_layer} to {stage.last_layer}"
        table.add_row(str(number), layers, str(stage.workers), f"{stage.samples:,}", format_duration(stage.busy_s))
    return table


def _link_table(links: Mapping[str, LinkSummary]) -> Table:
    """Return the links whose widths were chosen, with what that was measured to bring."""
    table = make_table(("link", "bits", "changes", "transfers"), text=("link",))
    for name, link in sorted(links.items()):
        table.add_row(name, str(link.bits), str(link.changes), f"{link.gain:.1f}x as fast")
    return table


def _row_table(tables: Sequence[TableSummary]) -> Table:
    """Return where the rows of tables on a device are."""
    table = make_table(("table", "on the device", "in memory", "on disk", "found there", "came up", "went down"))
    for number, rows in enumerate(tables):
        places = [f"{count:,}" for count in (rows.device_rows, rows.host_rows, rows.disk_rows)]
        table.add_row(str(number), *places, f"{rows.hit_ratio:.1%}", f"{rows.lifted:,}", f"{rows.lowered:,}")
    return table


def _server_table(result: TrainingResult) -> Table:
    table = make_table(("server", "rows", "updates", "busy", "log", "of the time"), text=("server",))
    for name, figures in result.servers.items():
        table.add_row(
            name,
            f"{figures['rows']:,}",
            format_count(figures["pushed_keys"]),
            format_duration(figures["busy_s"]),
            f"{figures['log_bytes'] / 1e6:,.1f} MB",
            f"{figures['log_s'] / max(1e-9, result.seconds):.1%}",
        )
    if len(result.servers) > 1:
        table.caption = f"the fullest has {result.imbalance:.2f} times the mean"
        table.caption_justify = "left"
    return table
