"""`dovetail link`: measure how fast two hosts talk to each other."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.options import AsJson, OnHosts, opened
from dovetail.cli.output import errors_shown, print_line, say
from dovetail.errors import SpecError
from dovetail.units import format_count, format_duration, parse_duration_s

if TYPE_CHECKING:
    from dovetail.profiler.links import LinkSpeeds


link = typer.Typer(help="Measure how fast two hosts talk to each other.", no_args_is_help=True)


@link.command()
def serve(
    port: Annotated[int, typer.Option(help="Listen here; 0 takes any free port.")] = 7711,
    host: Annotated[str, typer.Option(help="Listen on this address of this host only.")] = "0.0.0.0",  # noqa: S104
    duration: Annotated[str, typer.Option("--for", help="Then stop, e.g. 10m.")] = "1h",
    once: Annotated[bool, typer.Option("--once", help="Stop after one measurement.")] = False,
) -> None:
    """Answer `dovetail link measure` from another host, until it is time or Ctrl-C."""
    from dovetail.profiler.links import serve_link

    with errors_shown(), contextlib.suppress(KeyboardInterrupt):
        serve_link(host, port, for_s=parse_duration_s(duration), num_visits=1 if once else None, tell=say)


@link.command()
def measure(
    place: Annotated[
        str | None, typer.Argument(metavar="[HOST:PORT]", help="Where `dovetail link serve` runs.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Measure so often, and take the median.")] = 5,
    timeout: Annotated[str, typer.Option(help="The longest wait for one answer, e.g. 30s.")] = "10s",
    on: OnHosts = None,
    as_json: AsJson = False,
) -> None:
    """Measure bandwidth and latency from here to another host, and back; with --on, between all of them."""
    if (place is None) == (on is None):
        raise typer.BadParameter("give HOST:PORT, or --on HOSTS")
    with errors_shown(as_json=as_json), opened(on) as fleet:
        from dovetail.orchestrate.hosts import measure_between
        from dovetail.profiler.links import measure_link

        if fleet is not None:
            found = measure_between(fleet, repeats=repeats, timeout_s=parse_duration_s(timeout), tell=say)
            print_links(found, as_json=as_json)
            return
        host, port = _parse(place or "")
        timeout_s = parse_duration_s(timeout)
        speeds = measure_link(host, port, num_repeats=repeats, timeout_s=timeout_s, deadline_s=max(90.0, 3 * timeout_s))
    if as_json:
        print_line(json.dumps({"host": host, "port": port, **asdict(speeds)}))
    else:
        _print(speeds)


def _parse(place: str) -> tuple[str, int]:
    """Return host and port of `host`, `host:port`, `[::1]` or `[::1]:port`."""
    from dovetail.profiler.links import DEFAULT_PORT

    host, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not port.isdecimal() or (":" in bare and not host.startswith("[")):
        raise SpecError(f"`{place}` is not HOST:PORT", hint="write it like 10.0.0.7:7711, or [fd00::7]:7711")
    return bare, int(port)


def _print(speeds: LinkSpeeds) -> None:
    for name, speed in (("there", speeds.there), ("back", speeds.back)):
        print_line(
            f"{name:<5}  {format_count(speed.bytes_per_s)}B/s (spread {speed.spread:.0%}), "
            f"latency {format_duration(speed.latency_s)}"
        )


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
