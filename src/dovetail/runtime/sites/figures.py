"""What exchanges cost: a line for each in `sites/server-N/exchanges.jsonl` and in the log, some for who watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dovetail.runtime.sites.messages import Exchange, RoundHead
from dovetail.units import format_bytes

EXCHANGES = "exchanges.jsonl"
SHOW_EVERY_S = 10.0
SMOOTH = 0.1


class ExchangeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange, as one server has it."""

    t_s: float
    server: str
    exchange: int
    sites: tuple[str, ...]
    step: int
    """Of this site, up to which its round in it goes; -1 where it has none."""
    every: int
    """Steps that rounds are to have now."""
    bits: int
    sent_bytes: int
    received_bytes: int
    took_s: float
    """From the cut to the parameters; -1 where no round of this site is in it."""
    waited_s: float
    """Of that, workers waited so long; the rest was hidden."""


class ExchangeFigures:
    """Counts, and tells."""

    def __init__(self, folder: Path, log: Callable[[str], None], show: Callable[[str], None]) -> None:
        """Write into a folder; `log` hears of every exchange, `show` of some."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._log, self._show = folder / EXCHANGES, log, show
        self.step_s = 0.0
        """How long a step takes, waits for exchanges left out."""
        self._last_s: float | None = None
        self._cut: dict[int, int] = {}
        self._waited_s = 0.0
        self._shown_s = -SHOW_EVERY_S
        self.sent_bytes = self.received_bytes = 0
        self.waited_in_all_s = 0.0

    def step(self, now_s: float) -> None:
        """Note that a step is done."""
        if self._last_s is not None:
            took_s = now_s - self._last_s
            self.step_s = took_s if not self.step_s else self.step_s + SMOOTH * (took_s - self.step_s)
        self._last_s = now_s

    def cut(self, head: RoundHead, num_bytes: int) -> None:
        """Note a round that goes out."""
        self._cut[head.round] = num_bytes
        self.sent_bytes += num_bytes

    def waited(self, seconds: float) -> None:
        """Note that workers waited."""
        self._waited_s += seconds
        self.waited_in_all_s += seconds
        self._last_s = None  # a step that waited says nothing of how long steps take

    def applied(
        self,
        exchange: Exchange,
        own: RoundHead | None,
        sites: Sequence[str],
        num_bytes: int,
        took_s: float | None,
        every: int,
    ) -> None:
        """Note an exchange that is in the parameters; `took_s` is since the cut of this site's own round."""
        self.received_bytes += num_bytes
        facts = ExchangeFacts(
            t_s=time.time(),
            server=self._path.parent.name,
            exchange=exchange.number,
            sites=tuple(sites),
            step=-1 if own is None else own.step,
            every=every,
            bits=exchange.rounds[0].bits,
            sent_bytes=0 if own is None else self._cut.pop(own.round, 0),
            received_bytes=num_bytes,
            took_s=-1.0 if took_s is None else took_s,
            waited_s=self._waited_s,
        )
        self._waited_s = 0.0
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(facts) + b"\n")
        line = told(facts)
        self._log(line)
        if facts.t_s - self._shown_s >= SHOW_EVERY_S:
            self._shown_s = facts.t_s
            self._show(line)

    def in_all(self) -> str:
        """Return the sum of it in words."""
        return (
            f"{format_bytes(self.sent_bytes)} out, {format_bytes(self.received_bytes)} in, "
            f"workers waited {self.waited_in_all_s:.1f} s"
        )


def told(facts: ExchangeFacts) -> str:
    """Return one exchange in words."""
    hidden = "" if facts.took_s < 0 else f", {max(0.0, facts.took_s - facts.waited_s):.1f} s hidden"
    return (
        f"exchange {facts.exchange} of {', '.join(facts.sites)}: {format_bytes(facts.sent_bytes)} out, "
        f"{format_bytes(facts.received_bytes)} in, {facts.bits} bits, every {facts.every} steps"
        f"{hidden}, {facts.waited_s:.1f} s waited"
    )


def in_words(run_folder: Path) -> str:
    """Return what the exchanges of a run came to."""
    found = read_facts(run_folder)
    if not found:
        return "no exchange with other sites"
    sites = sorted({name for each in found for name in each.sites})
    sent, received = sum(each.sent_bytes for each in found), sum(each.received_bytes for each in found)
    waited_s = max(
        sum(each.waited_s for each in found if each.server == server) for server in {each.server for each in found}
    )
    return (
        f"{max(each.exchange for each in found)} exchanges of {', '.join(sites)}; {format_bytes(sent)} out, "
        f"{format_bytes(received)} in; workers waited {waited_s:.1f} s for them"
    )


def read_facts(run_folder: Path) -> list[ExchangeFacts]:
    """Return all exchanges of a run, over its servers; a last line that was cut short is left out."""
    found = []
    for path in sorted(run_folder.glob(f"sites/server-*/{EXCHANGES}")):
        for line in path.read_bytes().rpartition(b"\n")[0].splitlines():
            found.append(msgspec.json.decode(line, type=ExchangeFacts))
    return found
