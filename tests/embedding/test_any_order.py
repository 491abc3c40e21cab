"""Look-ups, updates, prefetches, evictions, expiry, checkpoints and reloads in any order equal a plain dict."""

import copy
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dovetail.embedding import Adam, RowWiseAdagrad, Table, shard_of
from tests.embedding.twins import DictTable, assert_same, saved_copy

KEYS = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([-1, 2**63 - 1, -(2**63)])), max_size=12)


class AnyOrder(RuleBasedStateMachine):
    """A table with room for a few rows beside a dict."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.table = None
        self.saved = None
        self.kept = []

    @initialize(host_rows=st.integers(1, 9), adam=st.booleans(), ageing=st.integers(5, 60))
    def make(self, host_rows, adam, ageing):
        optimizer = Adam() if adam else RowWiseAdagrad()
        self.size = {"folder": self.folder / "rows", "segment_bytes": 400, "ageing_lookups": ageing}
        self.model = DictTable(width=3, optimizer=optimizer, seed=5, ageing_lookups=ageing)
        self.table = Table(width=3, optimizer=optimizer, seed=5, host_rows=host_rows, **self.size)

    @rule(keys=KEYS, insert=st.booleans())
    def look_up(self, keys, insert):
        assert self.table.lookup(keys, insert=insert).tobytes() == self.model.lookup(keys, insert).tobytes()

    @rule(keys=KEYS, seed=st.integers(0, 9))
    def update(self, keys, seed):
        gradients = np.random.default_rng(seed).normal(size=(len(keys), 3)).astype(np.float32)
        self.table.update(keys, gradients)
        self.model.update(keys, gradients)

    @rule(keys=KEYS)
    def look_up_distinct(self, keys):
        keys = list(dict.fromkeys(keys))
        found, where = self.table.lookup_distinct(keys)
        assert found.tobytes() == self.model.lookup(keys).tobytes()
        self.kept.append((keys, where))

    @precondition(lambda self: self.kept)
    @rule(seed=st.integers(0, 9), number=st.integers(0, 99), scale=st.sampled_from([1.0, 0.5]))
    def update_distinct(self, seed, number, scale):
        keys, where = self.kept[number % len(self.kept)]  # of long ago, or of just now
        gradients = np.random.default_rng(seed).normal(size=(len(keys), 3)).astype(np.float32)
        self.model.update(keys, gradients * np.float32(scale))
        self.table.update_distinct(keys, gradients, scale=scale, where=where)

    @rule(keys=KEYS, ahead=st.integers(1, 3))
    def prefetch(self, keys, ahead):
        self.table.prefetch(keys, ahead=ahead)

    @rule(age=st.none() | st.integers(0, 6), count=st.none() | st.integers(0, 3))
    def expire(self, age, count):
        expired = self.table.expire(max_age_steps=age, min_count=count)
        assert sorted(expired.tolist()) == self.model.expire(age, count)

    @rule()
    def save_full(self):
        self.table.save(self.folder / "saved")
        self.saved = saved_copy(self.model)

    @precondition(lambda self: self.saved is not None and self.table._saver.base is not None)
    @rule(keys=KEYS)
    def save_delta_while_training(self, keys):
        future = self.table.save_beside(self.folder / "saved", kind="delta")
        self.saved = saved_copy(self.model, self.saved)
        self.update(keys, 1)
        self.expire(3, None)
        future.result(timeout=100)

    @precondition(lambda self: self.saved is not None)
    @rule(host_rows=st.integers(1, 9))
    def reload(self, host_rows):
        self.table.close()
        self.table = Table.load(self.folder / "saved", host_rows=host_rows, **self.size)
        self.kept = []
        self.model = copy.deepcopy(self.saved)

    @precondition(lambda self: self.saved is not None)
    @rule(num_shards=st.integers(1, 3))
    def load_into_shards(self, num_shards):
        found = {}
        for shard in range(num_shards):
            size = {**self.size, "shard": shard, "num_shards": num_shards}
            with Table.load(self.folder / "saved", host_rows=2, **size) as part:
                keys = part.keys()
                assert (shard_of(keys, num_shards) == shard).all()
                found |= dict(zip(keys.tolist(), part.rows(keys), strict=True))
        assert found.keys() == self.saved.rows.keys()
        assert all(found[key].tobytes() == row.tobytes() for key, row in self.saved.rows.items())

    @invariant()
    def is_the_dict(self):
        if self.table is not None:
            assert_same(self.table, self.model)
            stats = self.table.stats()
            assert stats.memory_bytes <= stats.budget_bytes

    def teardown(self):
        if self.table is not None:
            self.table.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestManyOrders(AnyOrder.TestCase):
    settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
