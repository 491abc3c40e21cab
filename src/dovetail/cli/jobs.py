"""`dovetail submit`, `jobs`, `logs`, `cancel`, `resize`, `drain` and `cluster`: what users ask a daemon."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.options import AsJson
from dovetail.cli.output import errors_shown, print_line, say, write_file
from dovetail.errors import DovetailError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dovetail.serve.client import Client
    from dovetail.spec.run import Run

Folder = Annotated[Path | None, typer.Option(help="The daemon's folder; absent: DOVETAIL_SERVER.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
LOOK_S = 0.5
OVER = ("done", "failed", "cancelled")


def submit(
    words: Annotated[
        list[str], typer.Argument(metavar="RUN", help="A run file (TOML or JSON); or, after --, any program's words.")
    ],
    folder: Folder = None,
    name: Annotated[str | None, typer.Option(help="What its id begins with; absent: the file's name.")] = None,
    priority: Annotated[float, typer.Option(help="How much its delay counts against others'.")] = 1.0,
    min_workers: Annotated[int, typer.Option(min=1, help="The fewest workers it runs on.")] = 1,
    max_workers: Annotated[int | None, typer.Option(min=1, help="The most.")] = None,
    only: Annotated[list[str] | None, typer.Option("--type", help="A type it may run on; absent: any.")] = None,
    prefer: Annotated[list[str] | None, typer.Option(help="A type that it prefers.")] = None,
    kind: Annotated[str | None, typer.Option(help="Jobs of one kind share what is learnt of their speed.")] = None,
    target_loss: Annotated[float | None, typer.Option(help="It is done once its loss is as low as this.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the run file, otherwise.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for its processes.")] = None,
    user: Annotated[str | None, typer.Option(help="Whose it is; absent: yours.")] = None,
    key: Annotated[str | None, typer.Option(help="The same key again is the same job.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hand in a job: a run file for `dovetail train`, or a program that keeps a checkpoint on SIGTERM.

    `{workers}` in a program's words is how many workers it has.
    """
    with errors_shown(as_json=as_json):
        from dovetail.serve.client import Client
        from dovetail.serve.submission import Submission

        is_run = len(words) == 1 and Path(words[0]).suffix in (".toml", ".json")
        if setting and not is_run:
            raise typer.BadParameter("--set is for a run file")
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(words[0]).stem).strip("-") or "job"
        variables = _environment(env or [])
        run = _run_table(Path(words[0]), setting or [], variables) if is_run else None
        if not is_run:
            _check_program(words, variables)
        submission = Submission(
            name=name or stem[:48],
            run=run,
            command=None if is_run else words,
            folder=os.getcwd(),  # noqa: PTH109 - what the user's shell says
            user=user or _user(),
            priority=priority,
            min_workers=min_workers,
            max_workers=max_workers,
            types=only or [],
            prefer=prefer or [],
            kind=kind,
            target_loss=target_loss,
            environment=variables,
            key=key,
        )
        job = Client(folder, wait_s=10.0 if key else 0.0).submit(submission)
        if as_json:
            print_line(json.dumps(job))
        else:
            say(f"submitted: {job['id']}")
            print_line(job["id"])


def jobs(
    folder: Folder = None,
    state: Annotated[list[str] | None, typer.Option(help="Only those: queued, running, done, ...")] = None,
    last: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 1000,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until none waits or runs any more.")] = False,
    timeout_s: Annotated[float, typer.Option(min=0.0, help="With --wait: give up after so long.")] = 86400.0,
    as_json: AsJson = False,
) -> None:
    """List jobs: who runs on how many workers, who waits, what came of the rest."""
    with errors_shown(as_json=as_json):
        from dovetail.serve.client import Client

        client = Client(folder)
        words = "".join(f"&state={each}" for each in state or [])
        if wait:
            _wait_for_all(client, timeout_s)
        found = client.ask("GET", f"/v1/jobs?last={last}{words}")
        if as_json:
            print_line(json.dumps(found))
        else:
            _print_jobs(found["jobs"])


def logs(
    job: JobId,
    folder: Folder = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a job's processes say."""
    with errors_shown(as_json=as_json):
        from dovetail.serve.client import Client

        client, offset, text = Client(folder, wait_s=10.0 if follow else 0.0), 0, ""
        while True:
            piece = client.ask("GET", f"/v1/jobs/{_quoted(job)}/log?offset={offset}")
            offset = piece["next"]
            if as_json:
                text += piece["text"]
            else:
                sys.stdout.write(piece["text"])
                sys.stdout.flush()
            if not piece["text"]:
                if not follow or piece["state"] in OVER:
                    break
                time.sleep(LOOK_S)
        if as_json:
            print_line(json.dumps({"id": job, "state": piece["state"], "text": text}))


def cancel(job: JobId, folder: Folder = None, as_json: AsJson = False) -> None:
    """Cancel a job: one that runs keeps a checkpoint, as far as it can, and ends."""
    _tell(folder, f"/v1/jobs/{_quoted(job)}/cancel", {}, as_json=as_json)


def resize(
    job: JobId,
    workers: Annotated[int | None, typer.Argument(min=1, help="So many workers, whatever the policy says.")] = None,
    folder: Folder = None,
    auto: Annotated[bool, typer.Option("--auto", help="As many as the policy gives it, again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a job other workers: those of a running `dovetail train` come and go while the rest work on."""
    if (workers is None) != auto:
        raise typer.BadParameter("give a number of workers, or --auto")
    _tell(folder, f"/v1/jobs/{_quoted(job)}/resize", {"workers": workers}, as_json=as_json)


def drain(
    folder: Folder = None,
    now: Annotated[bool, typer.Option("--now", help="What runs keeps a checkpoint and waits.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Start jobs again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start nothing more: what runs goes on to its end, or with --now waits."""
    with errors_shown(as_json=as_json):
        from dovetail.serve.client import Client

        state = "off" if off else "now" if now else "on"
        _print_cluster(Client(folder).ask("POST", "/v1/drain", {"state": state}), as_json=as_json)


def cluster(
    folder: Folder = None,
    chrome: Annotated[
        Path | None, typer.Option(help="Write who held how many workers when, for Perfetto and Chrome.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what there is to share, and how much of it jobs hold."""
    with errors_shown(as_json=as_json):
        from dovetail.serve.client import Client

        client = Client(folder)
        found = client.ask("GET", "/v1/cluster")
        if chrome is not None:
            from dovetail.charts.chrome import cluster_trace

            happened = list(_all_events(client))
            write_file(chrome, cluster_trace(happened, name="dovetail", now_s=time.time()))
            say(f"written: {chrome}; open it at https://ui.perfetto.dev or chrome://tracing")
        _print_cluster(found, as_json=as_json)


def _all_events(client: Client) -> Iterator[dict[str, Any]]:
    """Return everything that happened, a piece at a time."""
    after = 0
    while events := client.ask("GET", f"/v1/events?after={after}")["events"]:
        yield from events
        after = events[-1]["number"]


def _tell(folder: Path | None, path: str, body: dict[str, Any], *, as_json: bool) -> None:
    with errors_shown(as_json=as_json):
        from dovetail.serve.client import Client

        job = Client(folder).ask("POST", path, body)
        if as_json:
            print_line(json.dumps(job))
        else:
            _print_jobs([job])


def _run_table(path: Path, settings: list[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a run file's content, checked, with some keys set otherwise."""
    import msgspec

    from dovetail.cli.run_file import FLAGS
    from dovetail.spec.files import read_struct
    from dovetail.spec.run import Run, parse_setting, with_settings

    run = read_struct(path, Run)
    if settings:
        run = with_settings(run, dict(map(parse_setting, settings)), place=FLAGS)
    _check_run(run, variables)
    table: dict[str, Any] = json.loads(msgspec.json.encode(run))
    if run.training.plan is not None:  # it is looked for from the run file's folder, which the daemon's copy is not in
        table["training"]["plan"] = str((path.parent / run.training.plan).absolute())
    return table


def _check_run(run: Run, variables: Mapping[str, str]) -> None:
    """Refuse a run that would fail as soon as it has its workers: a model or data that are not there."""
    from dovetail.data.files.opening import find_files
    from dovetail.models.recipe import RECIPES
    from dovetail.runtime.launch.hosts.shipped_files import data_of, references_in

    if ":" not in run.model.name and run.model.name not in RECIPES:
        raise DovetailError(f"`{run.model.name}` is no model", hint=did_you_mean(run.model.name, RECIPES))
    places = [os.getcwd(), *variables.get("PYTHONPATH", "").split(os.pathsep), *sys.path]  # noqa: PTH109
    for reference in references_in(run):
        module = reference.rpartition(":")[0]
        if module.endswith(".py"):
            if not Path(module).is_file():
                raise DovetailError(f"there is no file `{module}`", hint="give its path from this folder")
        elif PathFinder.find_spec(module.partition(".")[0], places) is None:
            raise DovetailError(
                f"there is no module `{module}`",
                hint="submit from the folder that holds it, or say where: --env PYTHONPATH=FOLDER",
            )
    for path in data_of(run):
        find_files([path])


def _check_program(words: list[str], variables: Mapping[str, str]) -> None:
    """Refuse words that no program is called by."""
    found = shutil.which(words[0], path=variables.get("PATH"))
    if found is None:
        hint = "name a program, or a run file that ends in .toml or .json"
        if Path(words[0]).suffix in (".toml", ".json"):
            hint = "a run file stands alone: --set KEY=VALUE sets its keys otherwise"
        elif ":" in words[0] or "." not in words[0]:
            hint += f"; one for a model: dovetail train {words[0]} --write-run run.toml"
        raise DovetailError(f"there is no program `{words[0]}`", hint=hint)


def _environment(words: list[str]) -> dict[str, str]:
    """Return what is set, and where this shell looks for modules."""
    found = {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise DovetailError(f"`{word}` sets nothing", hint="write NAME=VALUE")
        found[name] = value
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _quoted(job: str) -> str:
    from urllib.parse import quote

    return quote(job, safe="")


def _wait_for_all(client: Client, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while True:
        counts = client.ask("GET", "/v1/cluster")["jobs"]
        left = counts["queued"] + counts["running"]
        if not left:
            return
        if time.monotonic() > until_s:
            raise DovetailError(f"{left} jobs were not over after {timeout_s:g} s", hint="give it a longer --timeout-s")
        time.sleep(LOOK_S)


def _print_jobs(found: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from dovetail.cli.tables import wide_console
    from dovetail.units import format_count, format_duration

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("job", "state", "user", "workers", "done", "samples/s", "loss", "since", ""):
        is_text = heading in ("job", "state", "user", "")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=bool(heading))
    for job in found:
        total, end_s = job["total"], job["finished_s"] or time.time()
        table.add_row(
            job["id"],
            job["state"] + (" (stopping)" if job["stopping"] else ""),
            job["user"],
            "" if not job["workers"] else f"{job['workers']} {job['type']}",
            "" if not total else f"{job['done'] / total:.0%}",
            "" if job["samples_per_s"] is None else format_count(job["samples_per_s"]),
            "" if job["loss"] is None else f"{job['loss']:.4f}",
            format_duration(max(0.0, end_s - job["submitted_s"])),
            (job["error"] or "")[:200],
        )
    wide_console().print(table)


def _print_cluster(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_line(json.dumps(found))
        return
    for each in found["types"]:
        print_line(f"{each['type']}: {each['held']} of {each['workers']} workers are held")
    states = ", ".join(f"{count} {state}" for state, count in found["jobs"].items() if count)
    print_line(f"jobs: {states or 'none'}")
    print_line(f"policy: {found['policy']}" + ("" if found["drain"] == "off" else f"; draining ({found['drain']})"))
