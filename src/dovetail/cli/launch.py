"""`dovetail launch`: a plan as KubeRay, SkyPilot, Slurm or Docker Compose start it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.output import errors_shown, print_line, say, write_file
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.manifests.nodes import PlannedNodes


def launch(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, as `dovetail plan --out` writes it.")],
    to: Annotated[str, typer.Option(help="kuberay, skypilot, slurm or compose.")],
    run: Annotated[
        Path | None, typer.Option(help="The run file to train; absent: run.toml beside the plan, where it is.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for manifest, plan and run file; absent: the manifest is printed.")
    ] = None,
    problem: Annotated[
        Path | None, typer.Option(help="The problem that the plan was made for; absent: problem.json beside it.")
    ] = None,
    per_node: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=UNITS", help="Units of a type that one machine has; absent: one."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the job is called; absent: the plan file's name.")] = None,
    image: Annotated[str, typer.Option(help="An image with Dovetail and Ray, for kuberay and compose.")] = "dovetail",
    claim: Annotated[
        str | None, typer.Option(help="For kuberay: a PersistentVolumeClaim that keeps the run's folder.")
    ] = None,
    data_claim: Annotated[
        str | None,
        typer.Option(help="For kuberay: a PersistentVolumeClaim with the data, at /dovetail-data."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write what another system needs to start a plan: machines of each type, and the training on them.

    Nothing is started. The machines form a Ray cluster, and `dovetail train --on` runs on it.
    """
    with errors_shown(as_json=as_json):
        from dovetail.manifests.nodes import PLAN, RUN, notes
        from dovetail.manifests.target import target_of

        target = target_of(to)
        if run is None and (plan.parent / RUN).is_file():
            run = plan.parent / RUN
        planned = _planned(
            plan, run, problem, per_node or [], name=name, image=image, claim=claim, data_claim=data_claim
        )
        text = target.write(planned)
        if out is None and not as_json:
            print_line(text.rstrip("\n"))
            return
        written: list[Path] = []
        if out is not None:
            _make_folder(out)
            files = {target.file: text.encode(), PLAN: planned.plan.encode()}
            files |= {} if planned.run is None else {RUN: planned.run.encode()}
            for place, content in (files | dict(planned.code)).items():
                _make_folder((out / place).parent)
                write_file(out / place, content)
                written.append(out / place)
        if as_json:
            print_line(json.dumps(_facts(planned, target.start, text, written)))
            return
        for path in written:
            say(f"written: {path}")
        if run is None:
            say(f"put the run file there too: {out}/{RUN}")
        for line in notes(planned, here=target.here):
            say(line)
        say(f"start it: cd {out} && {target.start}")
        command = target.start.split()[0]
        if shutil.which(command) is None:
            say(f"`{command}` is not here: this file was not tried on this machine")


def _planned(
    plan_file: Path,
    run_file: Path | None,
    problem_file: Path | None,
    per_node: list[str],
    *,
    name: str | None,
    image: str,
    claim: str | None,
    data_claim: str | None,
) -> PlannedNodes:
    """Return the machines that the files ask for."""
    import msgspec

    from dovetail.catalogue import users_catalogue
    from dovetail.manifests.nodes import parse_per_node, planned_nodes
    from dovetail.runtime.launch.hosts.shipped_files import code_of
    from dovetail.runtime.planned.from_plan import problem_of
    from dovetail.spec import Plan
    from dovetail.spec.files import read_struct
    from dovetail.spec.run import Run

    made = read_struct(plan_file, Plan)
    run = None if run_file is None else read_struct(run_file, Run)
    if run_file is not None and run_file.suffix != ".toml":
        raise DovetailError(f"{run_file} is no TOML file", hint="write the run file as TOML: it is started as run.toml")
    return planned_nodes(
        made,
        plan_text=msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n",
        run=run,
        run_text=None if run_file is None else run_file.read_text(encoding="utf-8"),
        problem=problem_of(made, plan_file, problem_file, tell=say),
        catalogue=users_catalogue(),
        per_node=parse_per_node(per_node),
        name=name or plan_file.stem,
        image=image,
        code={} if run is None else code_of(run),
        claim=claim,
        data_claim=data_claim,
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DovetailError(f"{folder}: {error.strerror}", hint="give an --out that can be a folder") from None


def _facts(planned: PlannedNodes, start: str, text: str, written: list[Path]) -> dict[str, Any]:
    groups = [
        {"type": each.type, "nodes": each.nodes, "units": each.units, "cores": each.cores, "gpus": each.gpus}
        for each in planned.groups
    ]
    return {
        "name": planned.name,
        "nodes": planned.num_nodes,
        "types": groups,
        "usd_per_hour": planned.prices.total,
        "head_usd_per_hour": planned.prices.head,
        "start": start,
        "files": list(map(str, written)),
        "manifest": text,
    }
