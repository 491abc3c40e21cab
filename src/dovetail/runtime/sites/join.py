"""A server joins the other sites: its line, its journal, and what it holds itself to, from the blueprint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.codecs.payload import Places
from dovetail.runtime.blueprint import portions_of
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import SITES
from dovetail.runtime.process import Process
from dovetail.runtime.sites.combine import Rule
from dovetail.runtime.sites.exchanger import Exchanger
from dovetail.runtime.sites.figures import Figures
from dovetail.runtime.sites.giver import Giver
from dovetail.runtime.sites.hub_line import HubLine
from dovetail.runtime.sites.kept import Cuts, ExchangeLog
from dovetail.runtime.sites.messages import SiteMessage
from dovetail.runtime.sites.nearby import Nearby
from dovetail.runtime.sites.remote_line import RemoteLine
from dovetail.runtime.sites.rounds import Shapes
from dovetail.runtime.sites.terms import Store, Terms
from dovetail.runtime.sites.warm_up import warm_up
from dovetail.spec.run_sites import RunSite
from dovetail.transport import Caller, Codec, KeyRing, Listener

FIRST_EVERY = 16
"""Steps of a round before anything is measured."""
LINEAR = ("sgd",)


@dataclass(frozen=True, slots=True)
class Joined:
    """A server's side of the exchanges."""

    exchanger: Exchanger
    shapes: Shapes
    line: HubLine | RemoteLine
    names: tuple[str, ...]
    site: int
    num_servers: int
    last_step: int

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint must agree on."""
        return {"sites": self.names, "site": self.site, "num_servers": self.num_servers}

    def forget(self) -> None:
        """Have what was on its way sent again: the run went back."""
        if isinstance(self.line, RemoteLine):
            self.line.forget()

    def close(self) -> None:
        """Hang up."""
        self.line.close()


def join(process: Process, number: int, store: Store, exact: Places, tell: Callable[[str], None]) -> Joined:
    """Join the other sites as server `number` of this one."""
    blueprint = process.blueprint
    run, portion, exchange = blueprint.run, blueprint.portion, blueprint.run.exchange
    if portion is None or exchange.here is None:
        raise TrainingError("the run does not say which site it is", hint="a bug: report it")
    names = tuple(site.name for site in run.sites)
    site, epochs = names.index(exchange.here), run.training.epochs
    last_steps = [each.steps * epochs for each in portions_of(run.sites, portion.samples, portion.batch)]
    shapes = Shapes(len(store.values), exact, [(spec.num_rows, spec.width) for spec in blueprint.tables])
    folder = process.folder / SITES / process.name
    every = None if exchange.every == "auto" else int(exchange.every)
    terms = Terms(
        site=site, names=names, bits=exchange.bits, rate=exchange.outer_rate, momentum=exchange.outer_momentum,
        ahead=exchange.ahead, wait_s=exchange.wait_s, end_wait_s=exchange.end_wait_s, last_step=last_steps[site],
        samples_at=portion.samples_after,
        rule=Rule(
            linear_rows=blueprint.row_optimizer["name"] in LINEAR, sums=run.training.reduction == "sum"
        ),
    )  # fmt: skip
    line: HubLine | RemoteLine
    codec, keys, now_s = Codec(SiteMessage), KeyRing(Path(exchange.keys)), time.monotonic()
    address = _address(run.sites[0], number)
    if site == 0:
        listener = Listener([address], codec=codec, keys=keys, name=names[0], log=process.log)
        line = HubLine(
            names, last_steps, listener, ExchangeLog(folder), shapes, every=every, first_every=FIRST_EVERY,
            wait_s=exchange.wait_s, end_wait_s=exchange.end_wait_s, now_s=now_s, tell=tell,
        )  # fmt: skip
    else:

        def connect(suffix: str) -> Caller:
            identity = f"{names[site]}/{number}{suffix}".encode()
            return Caller(address, codec=codec, keys=keys, name=names[site], peer=names[0], identity=identity)

        def to(other: RunSite) -> Callable[[], Caller]:
            identity = f"{names[site]}/{number}/wants".encode()
            return lambda: Caller(
                _address(other, number), codec=codec, keys=keys, name=names[site], peer=other.name, identity=identity
            )

        giver = None
        if run.sites[site].address is not None:
            own = Listener(
                [_address(run.sites[site], number)], codec=codec, keys=keys, name=names[site], log=process.log
            )
            giver = Giver(names, site, own, ExchangeLog(folder))
        others = [each for each in run.sites[1:] if each.name != names[site] and each.address is not None]

        def say(word: str) -> None:
            process.log(word)
            tell(word)

        nearby = Nearby({each.name: to(each) for each in others}, say)
        line = RemoteLine(
            connect, site=site, every=every or FIRST_EVERY, now_s=now_s, tell=tell, giver=giver, nearby=nearby
        )  # fmt: skip
    warm_up(exchange.bits)
    figures = Figures(folder, process.log, tell)
    exchanger = Exchanger(terms, shapes, store, Cuts(folder), line, figures, tell)
    return Joined(exchanger, shapes, line, names, site, blueprint.num_servers, last_steps[site])


def _address(site: RunSite, server: int) -> str:
    """Return where a server of a site listens for the other sites."""
    host, _, port = str(site.address).rpartition(":")
    return f"tcp://{host}:{int(port) + server}"
