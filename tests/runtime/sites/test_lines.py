"""The lines between sites, over real sockets with keys: what is garbage is refused, what is lost is sent again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.sites.aggregator import AggregatorLine
from dovetail.runtime.sites.changes import RowDeltas
from dovetail.runtime.sites.exchange_log import Cuts, ExchangeLog
from dovetail.runtime.sites.messages import Beat, Offer, RoundHead, SiteMessage
from dovetail.runtime.sites.rounds import Arrays, decode, encode
from dovetail.runtime.sites.site_line import SiteLine
from dovetail.transport import Caller, EnvelopeCodec, KeyRing, Listener, Refused, WireError, make_keys
from tests.runtime.sites.meeting import NUM_DENSE, SHAPES, WIDTH
from tests.runtime.sites.two_sites import free_ports

NAMES = ("a", "b")
QUIET = Beat(exchanges=0, kept=0, has_own=1)


def a_round(site: int, number: int, *, last: bool = False, bits: int = 8) -> tuple[RoundHead, Arrays]:
    keys = np.array([1, 7, 150], dtype=np.int64)
    deltas = RowDeltas(keys, np.full((3, WIDTH), 1.5, dtype=np.float32))
    arrays = encode(np.ones(NUM_DENSE, dtype=np.float32), [deltas], SHAPES, bits=bits, seed=number)
    head = RoundHead(site=site, round=number, step=4 * number, samples=40, bits=bits, last=last)
    return head, arrays


class Two:
    """The first site's line and another's, with their keys."""

    def __init__(self, folder: Path) -> None:
        for name in NAMES:
            make_keys(folder / "keys", name)
        self.keys, self.codec = KeyRing(folder / "keys"), EnvelopeCodec(SiteMessage)
        self.address, self.folder = f"tcp://127.0.0.1:{free_ports(1)}", folder
        self.words: list[str] = []
        self.aggregation = self.make_hub()
        self.remote = SiteLine(self.connect, site=1, every=4, now_s=time.monotonic(), tell=self.words.append)

    def make_hub(self) -> AggregatorLine:
        listener = Listener([self.address], codec=self.codec, keys=self.keys, name="a")
        return AggregatorLine(
            NAMES, [8, 8], listener, ExchangeLog(self.folder / "log"), SHAPES, every=4, first_every=4, wait_s=60.0,
            end_wait_s=60.0, now_s=time.monotonic(), tell=self.words.append,
        )  # fmt: skip

    def connect(self, suffix: str) -> Caller:
        identity = f"b/0{suffix}".encode()
        return Caller(self.address, codec=self.codec, keys=self.keys, name="b", peer="a", identity=identity)

    def until(self, is_so: Callable[[], object], beat: Beat = QUIET) -> None:
        """Have both go on until something is so."""
        deadline_s = time.monotonic() + 60.0
        while not is_so():
            assert time.monotonic() < deadline_s
            self.aggregation.go_on(time.monotonic(), Beat(exchanges=0, kept=beat.kept, has_own=1))
            self.remote.go_on(time.monotonic(), beat)
            time.sleep(0.005)

    def close(self) -> None:
        self.aggregation.close()
        self.remote.close()


@pytest.fixture
def two(tmp_path: Path):  # type: ignore[no-untyped-def]
    found = Two(tmp_path)
    yield found
    found.close()


def test_both_sites_get_an_exchange_of_both_and_each_without_its_own_arrays(two: Two) -> None:
    two.aggregation.offer(*a_round(0, 1), 0.0)
    two.remote.offer(*a_round(1, 1), 0.0)
    two.until(lambda: two.aggregation.exchange(1) and two.remote.exchange(1))
    for line, own in ((two.aggregation, 0), (two.remote, 1)):
        found = line.exchange(1)
        assert found is not None
        assert [head.num_arrays == 0 for head in found[0].rounds] == [own == 0, own == 1]
        part = decode(found[0].rounds[1 - own], found[1], SHAPES, who="the other")
        assert part.tables[0].keys.tolist() == [1, 7, 150]


def test_a_site_that_went_back_gets_its_own_rounds_as_they_were_sent(two: Two) -> None:
    two.aggregation.offer(*a_round(0, 1), 0.0)
    two.remote.offer(*a_round(1, 1), 0.0)
    two.until(lambda: two.remote.exchange(1))
    two.remote.forget()
    back = Beat(exchanges=0, kept=0, has_own=2)
    two.until(lambda: two.remote.exchange(1), back)
    found = two.remote.exchange(1)
    assert found is not None
    assert all(head.num_arrays for head in found[0].rounds)


def test_a_first_site_that_came_back_knows_its_exchanges_and_gets_what_it_lacks(two: Two) -> None:
    two.aggregation.offer(*a_round(0, 1), 0.0)
    two.remote.offer(*a_round(1, 1), 0.0)
    two.until(lambda: two.remote.exchange(1))
    two.remote.offer(*a_round(1, 2, last=True), 0.0)
    for _ in range(20):
        two.remote.go_on(time.monotonic(), QUIET)  # it goes out, to nobody who keeps it
    two.aggregation.close()
    two.aggregation = two.make_hub()
    two.aggregation.offer(*a_round(0, 1), 0.0)
    two.aggregation.offer(*a_round(0, 2, last=True), 0.0)
    has_one = Beat(exchanges=1, kept=0, has_own=1)
    two.until(lambda: two.remote.exchange(2), has_one)
    two.until(lambda: two.remote.over() == 2, has_one)


def test_a_first_site_that_came_back_with_one_exchange_left_knows_what_counts(two: Two) -> None:
    for number in (1, 2):
        two.aggregation.offer(*a_round(0, number), 0.0)
    two.remote.offer(*a_round(1, 1), 0.0)
    two.until(lambda: two.remote.exchange(1))
    two.remote.offer(*a_round(1, 2), 0.0)
    two.until(lambda: two.remote.exchange(2), Beat(exchanges=1, kept=0, has_own=1))
    two.until(lambda: not (two.folder / "log" / "exchange-00000001").exists(), Beat(exchanges=2, kept=2, has_own=1))
    two.aggregation.close()
    two.aggregation = two.make_hub()
    two.aggregation.offer(*a_round(0, 3), 0.0)
    two.remote.offer(*a_round(1, 3), 0.0)
    two.until(lambda: two.remote.exchange(3), Beat(exchanges=2, kept=2, has_own=1))


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_last_round_comes_before_the_last_exchange_and_whole_with_it_where_it_is_lost(
    two: Two, is_lost: bool
) -> None:
    head, arrays = a_round(0, 1, last=True)
    two.aggregation.offer(head, arrays, 0.0)
    two.until(lambda: two.remote._early)
    if is_lost:
        two.remote._early.clear()
    two.remote.offer(*a_round(1, 1, last=True), 0.0)
    two.until(lambda: two.remote.exchange(1))
    found = two.remote.exchange(1)
    assert found is not None
    assert [each.num_arrays for each in found[0].rounds] == [len(arrays), 0]
    for array, expected in zip(found[1], arrays, strict=True):
        np.testing.assert_array_equal(array, expected)
    assert two.remote._lost == is_lost


def test_a_round_that_is_not_the_last_waits_for_its_exchange(two: Two) -> None:
    two.aggregation.offer(*a_round(0, 1), 0.0)
    two.until(lambda: two.aggregation._others[1].bulk)
    for _ in range(20):
        two.aggregation.go_on(time.monotonic(), QUIET)
    assert not two.aggregation._others[1].early


@pytest.mark.parametrize("harm", ["cut short", "a flipped byte", "too many arrays", "a foreign key", "another's name"])
def test_garbage_is_refused_and_makes_no_exchange(two: Two, harm: str) -> None:
    head, arrays = a_round(1, 1)
    changed = [array.copy() for array in arrays]
    if harm == "cut short":
        changed[3] = changed[3][:-8]
    elif harm == "a flipped byte":
        changed[3][-9] ^= 1
    elif harm == "too many arrays":
        changed.append(changed[0])
    elif harm == "a foreign key":
        changed[1] = np.full_like(changed[1], 250)
    else:
        head = RoundHead(site=0, round=1, step=4, samples=40, bits=8)
    line = two.connect("/bad")
    try:
        line.ask(Offer(head=head), changed)
        deadline_s, envelope = time.monotonic() + 60.0, None
        while envelope is None:
            assert time.monotonic() < deadline_s
            two.aggregation.go_on(time.monotonic(), QUIET)
            envelope = line.receive(0.01)
        assert isinstance(envelope.message, Refused)
    finally:
        line.close()
    two.aggregation.offer(*a_round(0, 1), 0.0)
    two.aggregation.go_on(time.monotonic(), QUIET)
    assert two.aggregation.exchange(1) is None


def test_a_round_of_wrong_shapes_is_refused() -> None:
    head, arrays = a_round(1, 1, bits=32)
    for place in (0, 1, 3):
        wrong = [array.copy() for array in arrays]
        wrong[place] = wrong[place][:-1]
        with pytest.raises(WireError):
            decode(head, wrong, SHAPES, who="b")
    endless = [array.copy() for array in arrays]
    endless[0][3] = np.inf
    with pytest.raises(WireError, match="finite"):
        decode(head, endless, SHAPES, who="b")


def test_a_journal_of_rounds_forgets_a_line_that_was_cut_short_and_refuses_one_that_makes_no_sense(
    tmp_path: Path,
) -> None:
    heads = [RoundHead(site=0, round=number, step=4 * number, samples=40, bits=8) for number in (1, 2)]
    journal = Cuts(tmp_path)
    for head in heads:
        journal.write(head)
    path = tmp_path / "cuts.jsonl"
    whole = path.read_bytes()

    path.write_bytes(whole[:-3])
    assert Cuts(tmp_path).heads == {1: heads[0]}
    Cuts(tmp_path).write(heads[1])
    assert path.read_bytes() == whole

    path.write_bytes(b"[0,1,4" + whole[6:].replace(b",", b";", 1))
    with pytest.raises(TrainingError, match="is damaged"):
        Cuts(tmp_path)
