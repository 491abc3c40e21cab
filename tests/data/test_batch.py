"""Batches: cut, picked from, joined."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.data import Batch, DataError, concatenate
from tests.data.makers import bags_of, make_batch, same

BAGS = st.integers(1, 3).flatmap(
    lambda slots: st.lists(
        st.lists(st.lists(st.integers(0, 99), max_size=3), min_size=slots, max_size=slots), min_size=1, max_size=8
    )
)


@given(BAGS, st.data())
def test_a_slice_holds_the_samples_a_list_slice_would(bags, data):
    first = data.draw(st.integers(0, len(bags)))
    last = data.draw(st.integers(first, len(bags)))

    part = make_batch(bags).slice(first, last)

    assert bags_of(part) == bags[first:last]
    assert part.sample_ids.tolist() == list(range(first, last))


@settings(deadline=None)
@given(BAGS, st.data())
def test_taking_positions_gives_those_samples_in_that_order(bags, data):
    positions = data.draw(st.lists(st.integers(0, len(bags) - 1), max_size=10))

    taken = make_batch(bags).take(torch.tensor(positions, dtype=torch.int64))

    assert bags_of(taken) == [bags[p] for p in positions]
    assert taken.dense[:, 0].tolist() == positions
    assert taken.labels.tolist() == [p % 2 for p in positions]


@given(BAGS, st.data())
def test_pieces_put_together_are_the_whole(bags, data):
    whole = make_batch(bags)
    cut = data.draw(st.integers(0, len(bags)))

    assert same(concatenate([whole.slice(0, cut), whole.slice(cut, len(bags))]), whole)


def test_samples_of_unlike_slots_are_not_joined():
    with pytest.raises(DataError, match="batches of 1 and 2 slots"):
        concatenate([make_batch([[[1]]]), make_batch([[[1], [2]]])])


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("labels", torch.zeros(2), "2 rows of `labels`"),
        ("dense", torch.zeros(3), "`dense` of float32 in 1 dimensions"),
        ("ids", torch.zeros(3), "`ids` of float32"),
        ("offsets", torch.arange(5), "5 offsets, not a whole number of slots"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(field, value, complaint):
    good = make_batch([[[1]], [[2]], [[3]]])
    fields = {name: getattr(good, name) for name in ("sample_ids", "dense", "ids", "offsets", "labels")}

    with pytest.raises(DataError, match=complaint):
        Batch(**(fields | {field: value}))


def test_bytes_are_those_of_the_tensors():
    batch = make_batch([[[1, 2], [3]], [[4], []]])

    # 2 sample ids, 4 ids and 5 offsets of 8 bytes; 2 numbers and 2 labels of 4.
    assert batch.num_bytes == 2 * 8 + 4 * 8 + 5 * 8 + 2 * 4 + 2 * 4


def test_positions_outside_the_batch_are_refused():
    with pytest.raises(DataError, match="none at 0 or 3"):
        make_batch([[[1]], [[2]], [[3]]]).take(torch.tensor([0, 3]))
