"""A server joins the other sites: its line, its journal, its terms, and what is compiled before training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.codecs.payload import Places
from dovetail.runtime.blueprint import portions_of
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import SITES
from dovetail.runtime.process import Process
from dovetail.runtime.sites.aggregator import AggregatorLine
from dovetail.runtime.sites.catch_up import CatchUpPeer, Nearby
from dovetail.runtime.sites.changes import DenseProgress, Floats, Keys, RowProgress, Rule, combined_dense, combined_rows
from dovetail.runtime.sites.exchange_log import Cuts, ExchangeLog
from dovetail.runtime.sites.figures import ExchangeFigures
from dovetail.runtime.sites.messages import RoundHead, SiteMessage
from dovetail.runtime.sites.outer_step import OuterStep, SiteParameters, Terms
from dovetail.runtime.sites.rounds import Shapes, decode, encode
from dovetail.runtime.sites.site_line import SiteLine
from dovetail.spec.run_sections import RunSite
from dovetail.transport import Caller, EnvelopeCodec, KeyRing, Listener

ROWS, WIDTH = 64, 4


class SomeRows:
    """Rows in an array."""

    def __init__(self) -> None:
        self._values = np.zeros((ROWS, WIDTH), dtype=np.float32)

    def read(self, keys: Keys) -> Floats:
        """Return the values of distinct keys."""
        return self._values[keys].copy()

    def write(self, keys: Keys, values: Floats) -> None:
        """Give the rows of distinct keys these values."""
        self._values[keys] = values


def warm_up(bits: int) -> None:
    """Have a round of a few rows go through all that rounds go through, in so many bits."""
    rows, progress, dense = SomeRows(), RowProgress(WIDTH), DenseProgress(np.zeros(ROWS, dtype=np.float32))
    keys = np.arange(ROWS)
    progress.touch(keys, rows)
    rows.write(keys, np.ones((ROWS, WIDTH), dtype=np.float32))
    shapes = Shapes(ROWS, keys[:0], [(ROWS, WIDTH)])
    arrays = encode(dense.rest(np.ones(ROWS, dtype=np.float32)), [progress.rest(rows)], shapes, bits=bits, seed=0)
    part = decode(RoundHead(site=0, round=1, step=1, samples=1, bits=bits), arrays, shapes, who="this site")
    progress.cut(part.tables[0])
    rule = Rule(linear_rows=False, sums=False)
    combined_dense([part, part], rule)
    progress.agree(combined_rows([part, part], 0, rule), part.tables[0], rows)


FIRST_EVERY = 16
"""Steps of a round before anything is measured."""
LINEAR = ("sgd",)


@dataclass(frozen=True, slots=True)
class Joined:
    """A server's side of the exchanges."""

    outer_step: OuterStep
    shapes: Shapes
    line: AggregatorLine | SiteLine
    names: tuple[str, ...]
    site: int
    num_servers: int
    last_step: int

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint must agree on."""
        return {"sites": self.names, "site": self.site, "num_servers": self.num_servers}

    def forget(self) -> None:
        """Have what was on its way sent again: the run went back."""
        if isinstance(self.line, SiteLine):
            self.line.forget()

    def close(self) -> None:
        """Hang up."""
        self.line.close()


def join(process: Process, number: int, store: SiteParameters, exact: Places, tell: Callable[[str], None]) -> Joined:
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
        site=site,
        names=names,
        bits=exchange.bits,
        rate=exchange.outer_rate,
        momentum=exchange.outer_momentum,
        ahead=exchange.ahead,
        wait_s=exchange.wait_s,
        end_wait_s=exchange.end_wait_s,
        last_step=last_steps[site],
        samples_at=portion.samples_after,
        rule=Rule(linear_rows=blueprint.row_optimizer["name"] in LINEAR, sums=run.training.reduction == "sum"),
    )
    line: AggregatorLine | SiteLine
    codec, keys, now_s = EnvelopeCodec(SiteMessage), KeyRing(Path(exchange.keys)), time.monotonic()
    address = _address(run.sites[0], number)
    if site == 0:
        listener = Listener([address], codec=codec, keys=keys, name=names[0], log=process.log)
        line = AggregatorLine(
            names,
            last_steps,
            listener,
            ExchangeLog(folder),
            shapes,
            every=every,
            first_every=FIRST_EVERY,
            wait_s=exchange.wait_s,
            end_wait_s=exchange.end_wait_s,
            now_s=now_s,
            tell=tell,
        )
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
            giver = CatchUpPeer(names, site, own, ExchangeLog(folder))
        others = [each for each in run.sites[1:] if each.name != names[site] and each.address is not None]

        def say(word: str) -> None:
            process.log(word)
            tell(word)

        nearby = Nearby({each.name: to(each) for each in others}, say)
        line = SiteLine(
            connect, site=site, every=every or FIRST_EVERY, now_s=now_s, tell=tell, giver=giver, nearby=nearby
        )
    warm_up(exchange.bits)
    figures = ExchangeFigures(folder, process.log, tell)
    outer_step = OuterStep(terms, shapes, store, Cuts(folder), line, figures, tell)
    return Joined(outer_step, shapes, line, names, site, blueprint.num_servers, last_steps[site])


def _address(site: RunSite, server: int) -> str:
    """Return where a server of a site listens for the other sites."""
    host, _, port = str(site.address).rpartition(":")
    return f"tcp://{host}:{int(port) + server}"
