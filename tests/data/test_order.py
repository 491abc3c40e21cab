"""The order of samples, and who gets which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import DataError, LeaseBook, Order


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


@given(
    st.integers(1, 50), st.lists(st.tuples(st.integers(1, 9), st.sampled_from("dgxr"), st.integers(0, 9)), max_size=40)
)
def test_every_position_is_done_exactly_once_whoever_dies(num_positions, happenings):
    book = LeaseBook(num_positions=num_positions)
    done: list[int] = []
    held = []
    for count, what, part in happenings:
        if lease := book.take(count, holder="anna" if part % 2 else "bert"):
            held.append(lease)
        if held and what == "d":
            lease = held.pop(0)
            if book.complete(lease):
                done += range(lease.first, lease.last)
        elif held and what == "g":
            lease = held.pop()
            ready = min(part, lease.last - lease.first)
            book.give_back(lease, done=ready)
            done += range(lease.first, lease.first + ready)
        elif what == "x":
            book.drop_holder("anna")
            held = [lease for lease in held if lease.holder != "anna"]
        elif what == "r":
            book = LeaseBook.restored(book.state())
            held = []
    for lease in held:
        assert book.complete(lease)
        done += range(lease.first, lease.last)
    while lease := book.take(7):
        done += range(lease.first, lease.last)
        assert book.complete(lease)

    assert sorted(done) == list(range(num_positions))
    assert book.is_finished


def test_a_lease_that_was_taken_away_does_not_count():
    book = LeaseBook(num_positions=10)
    lease = book.take(10, holder="slow")
    assert lease is not None
    book.drop_holder("slow")

    assert not book.complete(lease)
    assert not book.is_finished
