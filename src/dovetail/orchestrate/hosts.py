"""What the hosts of a run are asked to measure: a model on one of each type, the ways between them, a run's quality."""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import DovetailError, did_you_mean
from dovetail.machine import cores
from dovetail.orchestrate.beside import MOST_S, said_to_go_on
from dovetail.orchestrate.profiling import checked_prices
from dovetail.profiler.links import measure_link
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.finished.evaluate import Evaluation
from dovetail.runtime.launch.hosts.commands import RUN, bring_run, printed_by, started, wait_for_word
from dovetail.runtime.launch.hosts.fleet import Fleet
from dovetail.runtime.launch.hosts.protocol import AskPorts, Bring, Ports
from dovetail.runtime.launch.hosts.remote import RemoteHost
from dovetail.runtime.launch.hosts.shipped_files import code_of
from dovetail.runtime.planned.from_plan import Tell, quietly
from dovetail.runtime.trust import check_trusted
from dovetail.spec import Beside, Link, Problem, ResourceType
from dovetail.spec.run import Run

PROFILE_S = 3600.0
"""The longest that a host may take to measure a model."""
EVALUATE_S = 24 * 3600.0
"""The longest that a host may take to try a run's model."""
HERE = "here"
START_S = 30.0
LEAST_SHORT_RUNS_S = 10.0
"""For the short runs of each type of host, however many types there are."""
FREE_USD_PER_HOUR = 1e-9
"""Of a core that is there anyway: a price has to be above zero."""


def profiled_on(
    fleet: Fleet,
    run: Run,
    *,
    usd_per_hour: Mapping[str, float] | None = None,
    min_samples_per_s: float = 0.0,
    short_runs_s: float = MOST_S,
    tell: Tell = quietly,
) -> Problem:
    """Return the problem of a model on the types of these hosts, each with as many units as they have together.

    What runs beside the layers is measured on each type too, by short runs that share `short_runs_s`.
    """
    first: dict[str, RemoteHost] = {}
    for remote in fleet.remotes.values():
        first.setdefault(remote.line.host.type, remote)
    usd = checked_prices(usd_per_hour, first, hint=f"the hosts are of type {', '.join(first)}")
    links = measure_between(fleet, repeats=3, tell=tell)
    network = min(link["bytes_per_s"] for link in links)
    share_s = short_runs_s and max(LEAST_SHORT_RUNS_S, short_runs_s / len(first))
    found = {}
    for name, remote in first.items():
        words = f"measuring {run.model.name} on {remote.name}, a host of type {name}"
        tell(f"{words} ...")
        with said_to_go_on(words, tell):
            found[name] = _profiled(remote, run, network, min_samples_per_s, share_s)
    resources, whole = [], next(iter(found.values()))
    times: list[dict[str, Any]] = [{} for _ in whole.layers]
    for name, problem in found.items():
        hosts = [host for host in fleet.hosts if host.type == name]
        kind = "gpu" if hosts[0].on_gpu else "cpu"
        if kind not in {resource.name for resource in problem.resources}:
            raise DovetailError(
                f"host `{first[name].name}` has units of `{name}`, and its Python finds no GPU",
                hint="see `type` and `gpus` in the hosts file, and `dovetail doctor` there",
            )
        measured = msgspec.structs.replace(problem.resource(kind), name=name, kind=kind)
        limit, price = sum(host.units for host in hosts), usd.get(name, measured.price_per_hour)
        resources.append(msgspec.structs.replace(measured, limit=limit, price_per_hour=price))
        for position, layer in enumerate(problem.layers):
            if kind in layer.on:
                times[position][name] = layer.on[kind]
    layers = tuple(msgspec.structs.replace(layer, on=on) for layer, on in zip(whole.layers, times, strict=True))
    between = _links(fleet, list(first), links)
    latency_s = max(link["latency_s"] for link in links)
    beside = beside_on_hosts(found, {host.type: host.on_gpu for host in fleet.hosts}, latency_s=latency_s)
    if beside is not None:
        resources.append(launching_core(cores().num_usable, {each.name for each in resources}))
    return msgspec.structs.replace(
        whole, resources=tuple(resources), layers=layers, links=between, beside=beside, machines=()
    )


def beside_on_hosts(found: Mapping[str, Problem], on_gpu: Mapping[str, bool], *, latency_s: float) -> Beside | None:
    """Return what runs beside the layers where workers are on hosts, from what a host of each type measured of it.

    Servers are on the machine that launches: they take what the slowest host took. A worker reads in its own cores, so
    that what it spends on rows has reading in it, and it takes no less than their bytes take over the network. A step
    waits for a message there and back. None where a host measured nothing of the kind.
    """
    client_s: dict[str, float] = {}
    shared: dict[str, float] = {}
    server_s, step_s, micro_batch = 0.0, 0.0, None
    for name, problem in found.items():
        beside, kind = problem.beside, "gpu" if on_gpu[name] else "cpu"
        if beside is None or beside.server_core_s is None or kind not in beside.client_s:
            return None
        bytes_s = sum(
            layer.on[kind].comm_s for layer in problem.layers if layer.kind == "embedding" and kind in layer.on
        )
        client_s[name] = max(beside.client_s[kind] + beside.read_core_s, bytes_s)
        if kind in beside.client_parallel:
            part = beside.client_parallel[kind] * beside.client_s[kind] + beside.read_core_s
            shared[name] = part / (beside.client_s[kind] + beside.read_core_s)
        server_s, step_s = max(server_s, beside.server_core_s), max(step_s, beside.step_s)
        micro_batch = beside.micro_batch
    return Beside(
        read_core_s=0.0,
        micro_batch=micro_batch,
        step_s=step_s + 2 * latency_s,
        server_core_s=server_s,
        client_s=client_s,
        client_parallel=shared,
        places=("servers",),
    )


def launching_core(num_cores: float, taken: Container[str]) -> ResourceType:
    """Return a core of this machine as a type, on which no layer runs: servers take it, and it is paid for already."""
    words = itertools.chain([HERE], (f"{HERE}-{number}" for number in itertools.count(2)))
    name = next(word for word in words if word not in taken)
    return ResourceType(name=name, kind="cpu", price_per_hour=FREE_USD_PER_HOUR, limit=max(1, int(num_cores)))


def _profiled(
    remote: RemoteHost, run: Run, network_bytes_per_s: float, min_samples_per_s: float, short_runs_s: float
) -> Problem:
    """Return what a host measures of a model, on all that it has."""
    remote.call(Bring(files=code_of(run)))
    words = [
        "profile",
        run.model.name,
        "--json",
        f"--short-runs-s={short_runs_s}",
        "--place=servers",
        f"--batch={run.training.batch}",
        f"--seed={run.training.seed}",
    ]
    words += [f"--data={run.data.name}", f"--samples={run.data.samples}"]
    words += [f"--min-samples-per-s={min_samples_per_s}", f"--network-gb-per-s={network_bytes_per_s / 1e9}"]
    words += [f"--option={key}={_said(value)}" for key, value in run.model.options.items()]
    words += [f"--data-option={key}={_said(value)}" for key, value in run.data.options.items()]
    with started(remote, words) as command:
        printed = printed_by(remote, command, timeout_s=PROFILE_S)
    return msgspec.json.decode(printed, type=Problem)


def _said(value: Any) -> str:
    """Return an option's value as a command line has it."""
    return value if isinstance(value, str) else json.dumps(value)


def _links(fleet: Fleet, types: list[str], measured: list[dict[str, Any]]) -> tuple[Link, ...]:
    """Return the ways between types: the slowest between any two hosts of them."""
    type_of = {host.name: host.type for host in fleet.hosts}
    slowest: dict[tuple[str, str], dict[str, Any]] = {}
    for link in measured:
        ends = (type_of.get(link["from"], ""), type_of.get(link["to"], ""))
        if ends[0] in types and ends[1] in types and ends[0] != ends[1]:
            before = slowest.get(ends)
            if before is None or link["bytes_per_s"] < before["bytes_per_s"]:
                slowest[ends] = link
    return tuple(
        Link(source=source, target=target, bytes_per_s=link["bytes_per_s"], latency_s=link["latency_s"])
        for (source, target), link in slowest.items()
    )


def measure_between(
    fleet: Fleet, *, repeats: int = 5, timeout_s: float = 10.0, tell: Tell = quietly
) -> list[dict[str, Any]]:
    """Return both directions of every pair of hosts, and of each with this machine."""
    deadline_s = max(90.0, 3 * timeout_s)
    links = []
    for target in fleet.remotes.values():
        links += _pair(None, target, repeats=repeats, timeout_s=timeout_s, deadline_s=deadline_s, tell=tell)
    for source, target in combinations(fleet.remotes.values(), 2):
        links += _pair(source, target, repeats=repeats, timeout_s=timeout_s, deadline_s=deadline_s, tell=tell)
    return links


def _pair(
    source: RemoteHost | None,
    target: RemoteHost,
    *,
    repeats: int,
    timeout_s: float,
    deadline_s: float,
    tell: Tell,
) -> list[dict[str, Any]]:
    """Return what was measured from one host, or this machine, to another and back."""
    name, address = HERE if source is None else source.name, target.line.host.reached_at
    tell(f"measuring {name} and {target.name} ...")
    found = target.call(AskPorts(address=address, count=1))
    port = str(found.ports[0]) if isinstance(found, Ports) else "0"
    served = ("link", "serve", "--once", "--host", address, "--port", port, "--for", f"{deadline_s + START_S:.0f}s")
    with started(target, served) as server:
        wait_for_word(target, server, "listening on", timeout_s=START_S)
        if source is None:
            there = measure_link(address, int(port), num_repeats=repeats, timeout_s=timeout_s, deadline_s=deadline_s)
            speeds: dict[str, Any] = asdict(there)
        else:
            words = ("link", "measure", f"{address}:{port}", "--json", "--repeats", str(repeats))
            with started(source, (*words, "--timeout", f"{timeout_s}s")) as measuring:
                speeds = json.loads(printed_by(source, measuring, timeout_s=deadline_s + START_S))
    ends = {"there": (name, target.name), "back": (target.name, name)}
    return [{"from": ends[way][0], "to": ends[way][1], **speeds[way]} for way in ("there", "back")]


def evaluated_on(
    fleet: Fleet,
    host: str | None,
    run: Path,
    checkpoint: Path | None,
    words: Sequence[str],
    *,
    trust: bool,
    tell: Tell = quietly,
) -> Evaluation:
    """Bring a run to a host and return what `dovetail evaluate` with such words finds there."""
    name = host or fleet.hosts[0].name
    if name not in fleet.remotes:
        raise DovetailError(f"there is no host `{name}`", hint=did_you_mean(name, fleet.remotes))
    blueprint = Blueprint.read(run)
    check_trusted(run, blueprint.run, trust=trust)
    remote = fleet.remotes[name]
    tell(f"bringing the run to {name} ...")
    place = bring_run(remote, run, blueprint.run, checkpoint)
    with started(remote, ["evaluate", RUN, "--json", f"--checkpoint={place}", *words]) as command:
        return msgspec.json.decode(printed_by(remote, command, timeout_s=EVALUATE_S), type=Evaluation)
