"""The loader: every sample once, on from any sample, in the background."""

import threading

import pytest
import torch

from dovetail.data import Batch, Clicks, DataError, Loader, Schema, Slot, concatenate
from tests.data.makers import make_batch, same


class Numbered:
    """A source whose samples are their numbers, those in `broken` left out, and that fails at `fails_at`."""

    schema = Schema(dense=("number",), slots=(Slot(name="slot"),))

    def __init__(self, num_samples: int, broken: tuple[int, ...] = (), fails_at: int | None = None) -> None:
        self.num_samples, self.broken, self.fails_at = num_samples, broken, fails_at

    def read(self, first: int, last: int) -> Batch:
        if self.fails_at is not None and first <= self.fails_at < last:
            raise DataError("the disk is on fire", hint="leave the building")
        last = min(last, self.num_samples)
        good = [i for i in range(first, last) if i not in self.broken]
        return make_batch([[[i]] for i in good]).with_sample_ids(torch.tensor(good, dtype=torch.int64))


@pytest.mark.parametrize(("prefetch", "readers"), [(0, 1), (3, 1), (5, 4)])
def test_an_epoch_holds_every_sample_once(prefetch, readers):
    loader = Loader(Numbered(103), batch_size=10, block_samples=25, prefetch=prefetch, readers=readers)

    batches = list(loader)

    assert sorted(i for batch in batches for i in batch.sample_ids.tolist()) == list(range(103))
    assert [batch.num_samples for batch in batches] == [10] * 10 + [3]
    assert loader.position == 103


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_reading_ahead_gives_what_reading_on_demand_gives(readers, shuffle):
    source = Clicks(num_samples=3000, rows_per_slot=10)
    ahead = Loader(source, batch_size=256, block_samples=700, seed=3, readers=readers, shuffle=shuffle)
    here = Loader(source, batch_size=256, block_samples=700, seed=3, prefetch=0, shuffle=shuffle)

    assert all(same(a, b) for a, b in zip(ahead, here, strict=True))


@pytest.mark.parametrize("stop_after", [1, 4, 9])
def test_a_loader_goes_on_at_the_exact_sample(stop_after):
    def make(start: int = 0, batch_size: int = 10) -> Loader:
        return Loader(Numbered(100), batch_size=batch_size, block_samples=30, seed=1, start=start)

    whole = concatenate(list(make()))
    first = make()
    seen = [batch for batch, _ in zip(first, range(stop_after), strict=False)]

    rest = list(make(start=stop_after * 10, batch_size=7))  # even with another batch size

    assert same(concatenate([*seen, *rest]), whole)


@pytest.mark.parametrize("num_samples", [1, 40, 103, 500])
def test_an_epoch_of_fewer_samples_holds_the_first_ones(num_samples):
    loader = Loader(Numbered(103), batch_size=10, block_samples=25, num_samples=num_samples, prefetch=0)

    seen = torch.cat([batch.sample_ids for batch in loader])

    assert sorted(seen.tolist()) == list(range(min(num_samples, 103)))


def test_the_last_block_of_data_without_an_end_is_cut_at_the_limit():
    source = Clicks(num_slots=2, num_multi_valued=0, num_dense=1, rows_per_slot=10)
    loader = Loader(source, batch_size=64, block_samples=50, num_samples=120, prefetch=0)

    seen = torch.cat([batch.sample_ids for batch in loader])

    assert sorted(seen.tolist()) == list(range(120))


def test_a_lease_can_be_loaded_alone():
    whole = concatenate(list(Loader(Numbered(100), batch_size=100, block_samples=30)))
    lease = concatenate(list(Loader(Numbered(100), batch_size=8, block_samples=30, start=20, stop=55)))

    assert same(lease, whole.slice(20, 55))


def test_broken_samples_leave_smaller_batches_and_the_same_positions():
    loader = Loader(Numbered(40, broken=(3, 4, 17)), batch_size=10, block_samples=20)

    ids = [batch.sample_ids.tolist() for batch in loader]

    assert sorted(i for batch in ids for i in batch) == [i for i in range(40) if i not in (3, 4, 17)]
    assert loader.position == 40


def test_without_shuffle_samples_come_in_their_own_order():
    ids = [i for batch in Loader(Numbered(35), batch_size=10, shuffle=False) for i in batch.sample_ids.tolist()]

    assert ids == list(range(35))


def test_sample_ids_differ_from_epoch_to_epoch():
    loader = Loader(Numbered(50), batch_size=10)
    second = loader.at_epoch(2)

    assert sorted(i for batch in second for i in batch.sample_ids.tolist()) == list(range(100, 150))


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_what_goes_wrong_in_the_background_is_raised_in_front(readers, shuffle):
    source = Numbered(100, fails_at=60)
    with pytest.raises(DataError, match="on fire"):
        list(Loader(source, batch_size=10, block_samples=20, shuffle=shuffle, readers=readers))


def test_leaving_early_stops_the_background_thread():
    before = set(threading.enumerate())
    for _ in Loader(Clicks(rows_per_slot=10), batch_size=64, block_samples=256, readers=2):
        break

    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("dovetail-loader")]


@pytest.mark.parametrize("wish", [{"batch_size": 0}, {"batch_size": 1, "start": -1}, {"batch_size": 1, "readers": 0}])
def test_impossible_loaders_are_refused(wish):
    with pytest.raises(DataError):
        Loader(Numbered(10), **wish)


class Lying(Numbered):
    """A source whose schema names a slot that its samples lack, or that returns no batch at all."""

    schema = Schema(dense=("number",), slots=(Slot(name="slot"), Slot(name="another")))

    def read(self, first: int, last: int) -> Batch:
        return None if first == 0 else super().read(first, last)  # type: ignore[return-value]


def test_samples_that_do_not_fit_their_schema_are_refused():
    with pytest.raises(DataError, match="samples have 1 slots and 1 numbers, their schema 2 and 1"):
        list(Loader(Lying(20), batch_size=10, shuffle=False, start=10))
    with pytest.raises(DataError, match="the data returned a NoneType"):
        list(Loader(Lying(20), batch_size=10, shuffle=False))
