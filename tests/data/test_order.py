"""The order of samples, and who gets which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import DataError, Order


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
