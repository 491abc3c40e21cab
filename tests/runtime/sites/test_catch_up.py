"""Catching up from the nearest site that has what was missed: over real sockets with keys, time as an argument."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dovetail.runtime.sites.catch_up import PATIENCE_S, CatchUpPeer, Nearby
from dovetail.runtime.sites.exchange_log import ExchangeLog, whole
from dovetail.runtime.sites.messages import Beat, Exchange, Has, Offer, SiteMessage, Want
from dovetail.runtime.sites.site_line import SiteLine
from dovetail.transport import Caller, EnvelopeCodec, KeyRing, Listener, Refused, make_keys
from tests.runtime.sites.test_lines import Two, a_round
from tests.runtime.sites.two_sites import free_ports

NAMES = ("a", "b", "c")
COUNT = 7
FAR, NEAR = 1e9, 0.0
"""Seconds in which the first site answers."""


def exchange(number: int) -> tuple[Exchange, tuple]:
    rounds = [a_round(site, number) for site in range(3)]
    made = Exchange(number=number, rounds=tuple(head for head, _ in rounds), so_far=((number, 4 * number),) * 3)
    return whole(made, [arrays for _, arrays in rounds])


class Place:
    """A site `b` that gives, and a site `c` that may want."""

    def __init__(self, folder: Path) -> None:
        for name in NAMES:
            make_keys(folder / "keys", name)
        self.keys, self.codec, self.folder = KeyRing(folder / "keys"), EnvelopeCodec(SiteMessage), folder
        self.address = f"tcp://127.0.0.1:{free_ports(1)}"
        self.words: list[str] = []
        self.giver = self.make_giver()
        self.nearby = Nearby({"b": lambda: self.caller("c")}, self.words.append)
        self.now_s = 0.0

    def make_giver(self) -> CatchUpPeer:
        listener = Listener([self.address], codec=self.codec, keys=self.keys, name="b")
        return CatchUpPeer(NAMES, 1, listener, ExchangeLog(self.folder / "log"))

    def caller(self, name: str) -> Caller:
        identity = f"{name}/0/wants".encode()
        return Caller(self.address, codec=self.codec, keys=self.keys, name=name, peer="b", identity=identity)

    def look(self, have: int = 0, *, first_has: int | None = COUNT, first_s: float = FAR, has_own: int = 1) -> None:
        self.giver.go_on()
        self.now_s += 0.01
        self.nearby.go_on(self.now_s, have, has_own=has_own, first_has=first_has, first_s=first_s)
        time.sleep(0.002)

    def until(self, is_so: Callable[[], object], have: int = 0, **how: object) -> None:
        deadline_s = time.monotonic() + 60.0
        while not is_so():
            assert time.monotonic() < deadline_s
            self.look(have, **how)  # type: ignore[arg-type]

    def close(self) -> None:
        self.giver.close()
        self.nearby.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    for number in range(1, COUNT + 1):
        found.giver.keep(*exchange(number))
    yield found
    found.close()


def test_what_was_missed_comes_from_a_site_that_is_nearer_than_the_first(place: Place) -> None:
    for have in range(COUNT):
        place.until(lambda have=have: have + 1 in place.nearby.found, have)
        assert place.nearby.pledged == COUNT
        assert len(place.nearby.found) <= 2
    found, arrays = place.nearby.found[COUNT]
    assert [head.num_arrays > 0 for head in found.rounds] == [True, True, False]  # its own are there
    assert len(arrays) == len(exchange(COUNT)[1]) * 2 // 3

    place.look(COUNT)

    assert place.nearby.pledged == 0
    assert place.words == [f"catches up from b: exchanges 1 to {COUNT}"]


def test_a_site_that_went_back_gets_its_own_rounds_too(place: Place) -> None:
    place.until(lambda: 1 in place.nearby.found, has_own=2)
    assert all(head.num_arrays for head in place.nearby.found[1][0].rounds)


def test_the_first_site_is_left_to_send_where_it_is_nearer(place: Place) -> None:
    place.until(lambda: place.nearby._peers[0].has, first_s=NEAR)
    for _ in range(20):
        place.look(first_s=NEAR)
    assert (place.nearby.pledged, place.nearby.found) == (0, {})


def test_who_lacks_only_what_is_on_its_way_calls_nobody(place: Place) -> None:
    for _ in range(20):
        place.look(COUNT - 2)
    assert place.nearby._peers[0].line is None


def test_where_the_first_site_is_silent_the_last_exchange_comes_from_another(place: Place) -> None:
    place.until(lambda: COUNT in place.nearby.found, COUNT - 1, first_has=None)


def test_a_site_that_stops_giving_is_given_up_and_the_first_one_has_to_send(place: Place) -> None:
    place.until(lambda: 1 in place.nearby.found)
    assert place.nearby.pledged == COUNT
    place.giver.close()

    for _ in range(int(2 * PATIENCE_S / 0.1)):
        place.now_s += 0.1
        place.nearby.go_on(place.now_s, 2, has_own=1, first_has=COUNT, first_s=FAR)

    assert place.nearby.pledged == 0
    assert "b gives no exchanges any more" in place.words


def test_a_site_that_has_not_what_comes_next_is_not_asked_for_it(place: Place) -> None:
    place.giver.drop_before(5)
    place.until(lambda: place.nearby._peers[0].has == Has(first=5, count=COUNT))
    for _ in range(10):
        place.look()
    assert place.nearby.pledged == 0


def test_strangers_and_what_is_no_wish_are_refused(place: Place) -> None:
    head, arrays = a_round(2, 1)
    with closing(place.caller("c")) as caller:
        caller.ask(Offer(head=head), arrays)
        deadline_s, envelope = time.monotonic() + 60.0, None
        while envelope is None and time.monotonic() < deadline_s:
            place.giver.go_on()
            envelope = caller.receive(0.01)
        assert envelope is not None
        assert isinstance(envelope.message, Refused)
        assert "for the first site" in envelope.message.reason
    with pytest.raises(ValueError, match="number"):
        Want(number=-5, has_own=0)


def test_what_is_damaged_on_disk_counts_as_not_there(place: Place) -> None:
    (place.folder / "log" / "exchange-00000003").write_bytes(b"\x05\0\0\0\0\0\0\0abc")

    assert place.giver.find(3) is None
    assert place.giver.newest_after(2) == 2
    place.giver.keep(*exchange(COUNT + 1))
    assert place.giver.newest_after(COUNT) == COUNT + 1


def test_after_a_gap_keeping_begins_anew(place: Place) -> None:
    place.giver.keep(*exchange(COUNT + 3))
    assert place.giver.find(COUNT) is None
    assert place.giver.find(COUNT + 3) is not None
    place.giver.close()
    place.giver = place.make_giver()
    assert place.giver.newest_after(COUNT + 2) == COUNT + 3


def test_a_site_that_comes_back_finds_what_it_had_on_its_own_disk(tmp_path: Path) -> None:
    two = Two(tmp_path)
    listener = Listener([f"tcp://127.0.0.1:{free_ports(1)}"], codec=two.codec, keys=two.keys, name="b")
    log = ExchangeLog(tmp_path / "own")
    two.remote.close()
    two.remote = SiteLine(
        two.connect,
        site=1,
        every=4,
        now_s=time.monotonic(),
        tell=two.words.append,
        giver=CatchUpPeer(("a", "b"), 1, listener, log),
    )
    try:
        for number in (1, 2):
            two.aggregation.offer(*a_round(0, number), 0.0)
            two.remote.offer(*a_round(1, number), 0.0)
            has = Beat(exchanges=number - 1, kept=0, has_own=1)
            two.until(lambda number=number: two.remote.exchange(number), has)
            found, arrays = two.remote.exchange(number)
            two.remote.applied(found, [arrays, a_round(1, number)[1]])

        two.remote.forget()  # back to the beginning, and the first site is told that nothing is missing
        back = Beat(exchanges=0, kept=0, has_own=3)
        assert all(head.num_arrays for head in two.remote.exchange(1)[0].rounds)
        sent = two.aggregation._others[1].sent
        two.until(lambda: two.aggregation._others[1].beat.has_own == 3, back)
        assert two.aggregation._others[1].beat.exchanges == 2
        assert two.aggregation._others[1].sent == sent == 2
    finally:
        two.close()


def test_the_first_site_sends_what_another_promised_and_did_not_give(tmp_path: Path) -> None:
    two = Two(tmp_path)
    try:
        for number in (1, 2):
            two.aggregation.offer(*a_round(0, number), 0.0)
            two.remote.offer(*a_round(1, number), 0.0)
        two.until(lambda: two.remote.exchange(2))
        two.until(lambda: two.aggregation._others[1].beat.exchanges == 2, Beat(exchanges=2, kept=0, has_own=1))
        two.remote.forget()
        for number in (1, 2):  # whoever asks for the second does not want the first any more
            two.until(lambda number=number: two.remote.exchange(number))
    finally:
        two.close()
