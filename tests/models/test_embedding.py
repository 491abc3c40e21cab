"""Tables against plain sums over rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.models import ModelError, SlotEmbedding
from tests.data.makers import make_batch

BAGS = st.integers(1, 4).flatmap(
    lambda slots: st.lists(
        st.lists(st.lists(st.integers(0, 10**6), max_size=3), min_size=slots, max_size=slots), min_size=1, max_size=6
    )
)


@settings(deadline=None)
@given(BAGS, st.data(), st.sampled_from(["sum", "mean"]))
def test_each_slot_of_each_sample_is_pooled_over_its_own_rows(bags, data, mode):
    slots = len(bags[0])
    first = data.draw(st.integers(0, slots - 1))
    last = data.draw(st.integers(first + 1, slots))
    table = SlotEmbedding(num_rows=13, width=2, num_slots=slots, first_slot=first, last_slot=last, mode=mode)
    batch = make_batch(bags)

    found = table(batch.ids, batch.offsets)

    for sample, row in zip(bags, found, strict=True):
        for position, bag in enumerate(sample[first:last]):
            expected = torch.zeros(2)
            for key in bag:
                expected = expected + table.weight[key % 13] / (len(bag) if mode == "mean" else 1)
            assert torch.allclose(row[2 * position : 2 * position + 2], expected, atol=1e-6)


def test_only_touched_rows_have_gradients():
    table = SlotEmbedding(num_rows=1000, width=4, num_slots=1)
    batch = make_batch([[[5]], [[7, 5]]])
    table(batch.ids, batch.offsets).sum().backward()

    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    assert sorted(set(table.weight.grad.coalesce().indices()[0].tolist())) == [5, 7]


def test_a_batch_of_other_slots_is_refused():
    table = SlotEmbedding(num_rows=10, width=2, num_slots=3)
    batch = make_batch([[[1], [2]]])

    with pytest.raises(ModelError, match="2 bags of ids does not have 3 slots"):
        table(batch.ids, batch.offsets)


@pytest.mark.parametrize("wish", [{"num_rows": 0}, {"width": 0}, {"last_slot": 4}, {"first_slot": 3}, {"mode": "max"}])
def test_impossible_tables_are_refused(wish):
    with pytest.raises(ModelError):
        SlotEmbedding(**({"num_rows": 10, "width": 2, "num_slots": 3} | wish))
