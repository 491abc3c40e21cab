"""The order of samples, and who gets which."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import DataError, Order
from dovetail.data.shuffling import shuffle_into
from dovetail.data.streams import stream_number


@given(st.integers(1, 60), st.integers(1, 25), st.integers(0, 5), st.integers(0, 3), st.booleans(), st.data())
def test_an_order_holds_every_sample_once_and_any_part_of_it_agrees(num_samples, block, seed, epoch, shuffle, data):
    order = Order(num_samples=num_samples, seed=seed, epoch=epoch, shuffle=shuffle, block_samples=block)
    whole = order.sample_ids(0, num_samples).tolist()
    first = data.draw(st.integers(0, num_samples))
    last = data.draw(st.integers(first, num_samples + 5))

    assert sorted(whole) == list(range(num_samples))
    assert order.sample_ids(first, last).tolist() == whole[first:last]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [Order(num_samples=100, seed=s, epoch=e, block_samples=10) for s in (0, 1) for e in (0, 1)]

    assert len({tuple(order.sample_ids(0, 100).tolist()) for order in orders}) == 4


def test_data_without_an_end_are_shuffled_within_blocks_that_stay_in_order():
    ids = Order(num_samples=None, block_samples=10).sample_ids(0, 30).tolist()

    assert [sorted(ids[k : k + 10]) for k in (0, 10, 20)] == [list(range(k, k + 10)) for k in (0, 10, 20)]
    assert ids != sorted(ids)


def test_an_order_of_nothing_is_refused():
    with pytest.raises(DataError, match="an order of 0 samples"):
        Order(num_samples=0)


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_a_compiled_shuffle_is_that_of_numpy(size, stream):
    places = np.empty(size, dtype=np.int64)

    shuffle_into(np.uint64(stream), 5, places)

    assert (places == np.random.Generator(np.random.Philox(stream)).permutation(size) + 5).all()


def test_data_of_one_window_have_the_order_they_had_before_there_were_windows():
    blocks = np.random.Generator(np.random.Philox(stream_number(7, "blocks/2"))).permutation(10)
    expected = []
    for block in blocks.tolist():
        stream = stream_number(7, f"order/2/{block}")
        size = 100 if block < 9 else 50
        expected += (np.random.Generator(np.random.Philox(stream)).permutation(size) + block * 100).tolist()

    order = Order(num_samples=950, seed=7, epoch=2, block_samples=100, window_samples=950, parts=(0, 333, 700))

    assert order.sample_ids(0, 950).tolist() == expected


@given(st.data())
def test_a_window_holds_the_samples_of_its_parts_and_every_sample_comes_once(data):
    num_samples = data.draw(st.integers(1, 400))
    parts = sorted({0, *data.draw(st.lists(st.integers(0, num_samples - 1), max_size=20))})
    window, block = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 30))
    order = Order(num_samples=num_samples, seed=1, block_samples=block, window_samples=window, parts=parts)
    whole = order.sample_ids(0, num_samples)
    first = data.draw(st.integers(0, num_samples))

    assert sorted(whole.tolist()) == list(range(num_samples))
    assert order.sample_ids(first, num_samples).tolist() == whole[first:].tolist()
    for each in order.windows:
        own = [sample for begin, end in each.parts.tolist() for sample in range(begin, end)]
        assert sorted(whole[each.first : each.last].tolist()) == sorted(own)


def test_every_epoch_has_windows_of_other_parts():
    orders = [Order(num_samples=1000, epoch=e, window_samples=200, parts=range(0, 1000, 20)) for e in (0, 1)]

    assert len(orders[0].windows) == 5
    assert orders[0].windows[0].parts.tolist() != orders[1].windows[0].parts.tolist()
