"""What every tier promises, on each of them."""

import resource

import numpy as np
import pytest
import torch

from dovetail.embedding.places import (
    MOST_RECORDS,
    MOST_SLOTS,
    NOWHERE,
    at_device_slot,
    at_record,
    at_slot,
    device_slot_at,
    in_host,
    on_device,
    on_disk,
    record_at,
    slot_at,
)
from dovetail.embedding.tiers import host as host_tier
from dovetail.embedding.tiers.device.tier import DeviceTier
from dovetail.embedding.tiers.disk.record import RecordLayout
from dovetail.embedding.tiers.disk.tier import DiskTier
from dovetail.embedding.tiers.host import HostTier
from dovetail.embedding.tiers.tier import Tier
from tests.embedding.tiers import read, write

ROW_WIDTH = 5


@pytest.fixture(params=["host", "disk", "device"])
def tier(request, tmp_path):
    made: Tier
    if request.param == "host":
        made = HostTier(100, ROW_WIDTH)
    elif request.param == "disk":
        made = DiskTier(tmp_path, RecordLayout(width=3, state_width=2), 1000)
    else:
        place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        made = DeviceTier(place, ROW_WIDTH, device_bytes=1 << 20, device_rows=100)
    yield made
    made.close()


def some_rows(num_rows: int, seed: int = 0):
    return np.random.default_rng(seed).normal(size=(num_rows, ROW_WIDTH)).astype(np.float32)


def test_rows_come_back_whole_in_any_order(tier):
    keys, rows = np.array([5, -9, 2**62, 0]), some_rows(4)

    numbers = write(tier, keys, rows)

    order = np.array([2, 0, 3, 1])
    assert read(tier, keys[order], numbers[order], row_width=ROW_WIDTH).tobytes() == rows[order].tobytes()
    assert tier.num_rows == 4
    assert tier.used_bytes >= 4 * ROW_WIDTH * 4


def test_rows_are_taken_from_and_put_to_the_places_named_and_no_others(tier):
    keys, rows = np.array([1, 2]), some_rows(6)
    numbers = tier.write_from(keys, rows, np.array([4, 1], dtype=np.int32))
    out = np.zeros((5, ROW_WIDTH), dtype=np.float32)

    tier.read_into(keys, numbers, out, np.array([0, 3], dtype=np.int32))

    assert out[[0, 3]].tobytes() == rows[[4, 1]].tobytes()
    assert not out[[1, 2, 4]].any()


def test_rows_that_were_given_back_no_longer_count_and_the_others_stay(tier):
    keys, rows = np.arange(10), some_rows(10)
    numbers = write(tier, keys, rows)

    tier.release(numbers[:4])
    write(tier, np.arange(20, 24), some_rows(4, seed=1))

    assert tier.num_rows == 10
    assert read(tier, keys[4:], numbers[4:], row_width=ROW_WIDTH).tobytes() == rows[4:].tobytes()


def test_a_place_is_nowhere_or_in_one_tier_and_gives_its_number_back():
    slots = np.array([0, 1, 7, MOST_SLOTS - 1], dtype=np.int32)
    numbers = np.array([0, 1, 7, MOST_RECORDS - 1], dtype=np.int32)

    assert slot_at(at_slot(slots)).tolist() == slots.tolist()
    assert record_at(at_record(numbers)).tolist() == numbers.tolist()
    assert device_slot_at(at_device_slot(numbers)).tolist() == numbers.tolist()
    for place, here in ((at_slot(slots), in_host), (at_record(numbers), on_disk), (at_device_slot(numbers), on_device)):
        assert place.dtype == np.int32
        assert [each(place).all() for each in (in_host, on_disk, on_device)] == [
            each is here for each in (in_host, on_disk, on_device)
        ]
        assert not any(each(place).any() for each in (in_host, on_disk, on_device) if each is not here)
    assert not any(each(NOWHERE) for each in (in_host, on_disk, on_device))


def faults_of(write):
    """Return how many pages the system had to find while this thread wrote."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    write()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_memory_committed_ahead_is_there_when_rows_come_and_changes_none():
    tier = HostTier(100_000, 16)
    if not host_tier._commit(tier._ranges[0], 0, 1):
        pytest.skip("this system commits pages as they are written")
    tier.rows[tier.take(1000)] = 7
    tier.commit_ahead(50_000)  # 3.2 MB of rows
    ready, fresh = tier.rows[1000:50_000], tier.rows[51_100:99_000]

    assert (tier.rows[:1000] == 7).all()
    assert not ready.any()
    assert faults_of(lambda: ready.fill(1)) < 50 < faults_of(lambda: fresh.fill(1))


def test_memory_committed_ahead_goes_back_when_the_budget_falls():
    tier = HostTier(10_000, 16)
    slots = tier.take(100)
    tier.rows[slots] = 7
    tier.commit_ahead(9_000)
    tier.rows[8_000] = 1  # nobody's slot: to see whether its page goes
    tier.shrink(200, np.empty(0, np.int64), np.empty(0, np.int32))
    tier.commit_ahead(9_000)

    assert (tier.rows[slots] == 7).all()
    assert not tier.rows[8_000].any()
    assert tier._committed == tier.capacity == 200
