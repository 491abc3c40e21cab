"""A model measured on one host of each type, and what was found put together: the problem of planning for the hosts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import say
from dovetail.cli.profile import usd_per_hour
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet
    from dovetail.runtime.launch.hosts.remote import RemoteHost
    from dovetail.spec import Link, Problem
    from dovetail.spec.run import Run

PROFILE_S = 3600.0
"""The longest that a host may take to measure a model."""


def profiled_on(fleet: Fleet, run: Run, prices: list[str], min_samples_per_s: float) -> Problem:
    """Return the problem of a model on the types of these hosts, each with as many units as they have together."""
    import msgspec

    from dovetail.cli.link import measure_between

    first: dict[str, RemoteHost] = {}
    for remote in fleet.remotes.values():
        first.setdefault(remote.line.host.type, remote)
    usd = usd_per_hour(prices, first, hint=f"the hosts are of type {', '.join(first)}")
    links = measure_between(fleet, repeats=3, timeout_s=10.0)
    network = min(link["bytes_per_s"] for link in links)
    found = {name: _profiled(remote, run, network, min_samples_per_s) for name, remote in first.items()}
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
    return msgspec.structs.replace(whole, resources=tuple(resources), layers=layers, links=between)


def _profiled(remote: RemoteHost, run: Run, network_bytes_per_s: float, min_samples_per_s: float) -> Problem:
    """Return what a host measures of a model, on all that it has."""
    import msgspec

    from dovetail.runtime.launch.hosts.commands import printed_by, started
    from dovetail.runtime.launch.hosts.protocol import Bring
    from dovetail.runtime.launch.hosts.shipped_files import code_of
    from dovetail.spec import Problem

    say(f"measuring {run.model.name} on {remote.name}, a host of type {remote.line.host.type} ...")
    remote.call(Bring(files=code_of(run)))
    words = ["profile", run.model.name, "--json", f"--batch={run.training.batch}", f"--seed={run.training.seed}"]
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
    from dovetail.spec import Link

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
