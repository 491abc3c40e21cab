"""`dovetail link measure --on`: how fast the hosts of a run, and this machine, talk to each other."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import print_line, say
from dovetail.units import format_count, format_duration

if TYPE_CHECKING:
    from dovetail.runtime.launch.hosts.fleet import Fleet
    from dovetail.runtime.launch.hosts.remote import RemoteHost

HERE = "here"
START_S = 30.0


def measure_between(fleet: Fleet, *, repeats: int, timeout_s: float) -> list[dict[str, Any]]:
    """Return both directions of every pair of hosts, and of each with this machine."""
    deadline_s = max(90.0, 3 * timeout_s)
    links = []
    for target in fleet.remotes.values():
        links += _pair(None, target, repeats=repeats, timeout_s=timeout_s, deadline_s=deadline_s)
    for source, target in combinations(fleet.remotes.values(), 2):
        links += _pair(source, target, repeats=repeats, timeout_s=timeout_s, deadline_s=deadline_s)
    return links


def print_links(links: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the links, a line for each direction."""
    if as_json:
        print_line(json.dumps({"links": links}))
        return
    width = max(len(str(link[end])) for link in links for end in ("from", "to"))
    for link in links:
        print_line(
            f"{link['from']:<{width}} -> {link['to']:<{width}}  {format_count(link['bytes_per_s'])}B/s "
            f"(spread {link['spread']:.0%}), latency {format_duration(link['latency_s'])}"
        )


def _pair(
    source: RemoteHost | None, target: RemoteHost, *, repeats: int, timeout_s: float, deadline_s: float
) -> list[dict[str, Any]]:
    """Return what was measured from one host, or this machine, to another and back."""
    from dataclasses import asdict

    from dovetail.profiler.links import measure_link
    from dovetail.runtime.launch.hosts.commands import printed_by, started, wait_for_word
    from dovetail.runtime.launch.hosts.requests import AskPorts, Ports

    name, address = HERE if source is None else source.name, target.line.host.reached_at
    say(f"measuring {name} and {target.name} ...")
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
