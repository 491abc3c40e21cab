"""Pulls of a worker that keeps rows bring what those of another bring that keeps none, in fewer rows."""

import numpy as np
import pytest
import torch

from dovetail.codecs.payload import unpack
from dovetail.embedding.hashing import shard_of
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Pull, Pulled, Push, Refresh
from dovetail.runtime.server.answers import AnswerWire
from dovetail.runtime.server.gradients import TaskPart
from dovetail.runtime.worker.links.servers import ServerConnections
from dovetail.runtime.worker.rows.batch_rows import BatchRows
from dovetail.runtime.worker.rows.incoming import CachedIncoming
from dovetail.runtime.worker.rows.keys import look_up
from dovetail.runtime.worker.rows.row_cache import RowCache
from dovetail.transport import Envelope
from testbed.direct_caller import DirectCaller
from testbed.direct_servers import answer_as
from tests.runtime.runs import NUM_ROWS
from tests.runtime.worker.makers import assign

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))
PARKED_S = 1e6


class Side:
    """A worker's lines to shards of its own, which commit a step when somebody waits for it."""

    def __init__(self, bench, *, budget_bytes=0, device="cpu", early=True):
        self.shards, self.tables = bench.shards, bench.blueprint.tables
        self._widths = [table.width for table in self.tables]
        self._parked_s = PARKED_S if early else 0.0
        self._lines = ServerConnections(bench.blueprint, [DirectCaller(self._server(shard)) for shard in self.shards])
        self._cache = (
            RowCache(self.tables, budget_bytes, torch.device(device), staleness=None) if budget_bytes else None
        )
        self.num_travelled = self.num_kept = self.num_early = 0

    def _server(self, shard):
        wire, push = AnswerWire(shard), answer_as(shard)

        def answer(envelope):
            message = envelope.message
            if isinstance(message, Push):
                return push(envelope)
            is_early = isinstance(message, Pull) and message.early
            self.num_early += is_early and message.version > shard.version
            if message.version > shard.version and not is_early:
                shard.commit(scale=1.0, dense_scale=1.0, factor=1.0)
            said, arrays = wire.answer(envelope, self._parked_s, owner="here")
            arrays = [each.written() if hasattr(each, "written") else each for each in arrays]
            self.num_travelled += sum(len(each) for each in arrays if each.ndim == 2)
            return said, arrays

        return answer

    def pull(self, step, asked):
        """Return look-ups and their rows."""
        look_ups = [look_up(0, keys, len(self.shards)) for keys in asked]
        incoming = None
        if self._cache is not None:
            incoming = CachedIncoming(look_ups, self._widths, self._cache, assign(step=step))
        found = self._lines.pull(1, step, look_ups, dense=False, wanted=lambda: True, keep=True, incoming=incoming)
        self.num_kept += incoming.num_kept if incoming is not None else 0
        return found.look_ups, [torch.as_tensor(rows).cpu().numpy().copy() for rows in found.rows]

    def push(self, step, part, gradients, *, last):
        """Send gradients of look-ups that were pulled."""
        message = Push(
            generation=1, step=step, task=0, worker="here/1", part=part, tables=(0,) * len(gradients), dense=False,
            last=last, positions=1, samples=1, loss=0.0,
        )  # fmt: skip
        self._lines.push(message, gradients, None, lambda: True)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("budget_bytes", [800, 1 << 20])
def test_every_row_is_what_it_would_have_been_through_steps_of_this_worker_and_others(
    make_bench, device, early, budget_bytes
):
    plain = Side(make_bench(servers=2), early=early)
    keeps = Side(make_bench(servers=2), early=early, budget_bytes=budget_bytes, device=device)
    rng = np.random.default_rng(7)
    for step in range(12):
        for part in range(3):
            asked = [np.minimum(rng.zipf(1.2, 40), NUM_ROWS) - 1 for _ in range(2)]
            (look_ups, rows), (same, others) = plain.pull(step, asked), keeps.pull(step, asked)
            for one, other in zip(rows, others, strict=True):
                np.testing.assert_array_equal(one, other)
            # One look-up of each pull has no gradients: its rows change where others change them.
            plain.push(step, part, [(look_ups[0], 0.1 * rows[0] + 1)], last=part == 2)
            keeps.push(step, part, [(same[0], 0.1 * others[0] + 1)], last=part == 2)
        theirs = rng.choice(NUM_ROWS, 15, replace=False)
        for number, shards in enumerate(zip(plain.shards, keeps.shards, strict=True)):
            mine = theirs[shard_of(theirs, 2) == number]
            for shard in shards:
                gradients = [(0, mine, np.ones((len(mine), 4), dtype=np.float32))]
                shard.push(TaskPart(step, 1, "other", rows=gradients))

    assert (keeps.num_early > 0) == early
    assert keeps.num_kept > 100
    assert keeps.num_travelled < plain.num_travelled
    for number, shards in enumerate(zip(plain.shards, keeps.shards, strict=True)):
        mine = np.flatnonzero(shard_of(np.arange(NUM_ROWS), 2) == number)
        one, other = (shard.pull((0,), (mine,), dense=False)[0] for shard in shards)
        np.testing.assert_array_equal(one, other)


def test_rows_in_fewer_bits_come_with_those_that_are_kept(make_bench):
    bench = make_bench()
    shard, keys = bench.shards[0], np.arange(40)
    whole = shard.pull((0,), (keys,), dense=False)[0]
    ages = np.where(keys % 4 == 0, 0, 255).astype(np.uint8)
    pull = Pull(generation=1, version=0, tables=(0,), dense=False, cached=True, row_bits=16)

    said, (bits, payload) = AnswerWire(shard).answer(Envelope(b"w", 1, pull, (keys, ages)), 0.0, owner="w")

    assert isinstance(said, Pulled)
    assert np.unpackbits(bits, count=40).tolist() == [int(key % 4 == 0) for key in keys]
    np.testing.assert_allclose(unpack(payload, (10, 4)), whole[::4], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("ages", [[], [np.zeros(3, np.uint8)], [np.zeros(4, np.int64)]])
def test_ages_that_are_not_those_of_the_keys_are_refused(make_bench, ages):
    shard = make_bench().shards[0]
    pull = Pull(generation=1, version=0, tables=(0,), dense=False, cached=True)

    with pytest.raises(TrainingError, match="ages"):
        AnswerWire(shard).answer(Envelope(b"w", 1, pull, (np.arange(4), *ages)), 0.0, owner="w")


def test_a_server_that_leaves_out_what_is_not_kept_is_told_apart_from_one_that_is_right(make_bench):
    bench = make_bench()
    width, calls = bench.blueprint.tables[0].width, []

    def answer(envelope):
        calls.append(envelope.message)
        if not envelope.message.cached:
            return Pulled(version=0), (np.zeros((3, width), np.float32),)
        return Pulled(version=0), (np.packbits([0, 0, 0, 0]), np.zeros((0, width), np.float32))

    lines = ServerConnections(bench.blueprint, [DirectCaller(answer)])
    cache = RowCache(bench.blueprint.tables, 1 << 20, torch.device("cpu"), staleness=None)

    def pull(keys):
        look_ups = [look_up(0, keys, 1)]
        incoming = CachedIncoming(look_ups, [width], cache, assign())
        return lines.pull(1, 0, look_ups, dense=False, wanted=lambda: True, incoming=incoming)

    pull(np.arange(3))
    with pytest.raises(TrainingError, match="left out rows"):
        pull(np.arange(4))
    assert [message.cached for message in calls] == [False, True]
    assert not any(isinstance(message, Refresh) for message in calls)


def test_rows_that_are_kept_stay_as_servers_have_them_where_a_table_limits_norms(make_bench):
    # The limit is on what a model sees: a kept row that was scaled down would be scaled down again, or be pushed so.
    bench = make_bench()
    width = bench.blueprint.tables[0].width
    keeps, wanted = Side(bench, budget_bytes=1 << 20), look_up(0, np.arange(20), 1)
    rows = BatchRows(1, torch.device("cpu"))
    rows.limit(0, 0.01, 2.0)
    seen = []
    for _ in range(2):
        (_, (found,)) = keeps.pull(0, [wanted.asked])
        rows.begin([(wanted, torch.from_numpy(found))], lambda _: np.empty(0))
        seen.append((found.copy(), rows.leaf(0, torch.from_numpy(wanted.asked)).tensor.detach().numpy()))

    (first, shown), (again, shown_again) = seen
    assert keeps.num_kept == 20
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(shown, shown_again)
    assert np.linalg.norm(first, axis=1).min() > 0.011
    np.testing.assert_allclose(np.linalg.norm(shown, axis=1), np.full(20, 0.01), rtol=1e-3)
    assert first.shape == (20, width)
