"""Generated matches: users and items, contexts and what came next."""

import numpy as np
import pytest
import torch

from dovetail.data import DataError, Matches, concatenate, items_of, load_data
from dovetail.data.clicks.matches import row_chances
from tests.data.makers import bags_of, same


def make_matches(**changes: object) -> Matches:
    return Matches(**({"num_items": 40, "rows_per_user_slot": 20, "num_topics": 4, "num_user_slots": 3} | changes))


def test_a_sample_is_the_same_whatever_range_it_is_made_in():
    source = make_matches(user_values=3.0)

    assert same(concatenate([source.read(50, 51), source.read(51, 80)]), source.read(50, 80))


def test_the_items_of_samples_have_the_features_of_the_pool():
    source = make_matches()
    batch, pool = source.read(0, 200), source.items()
    items = source.clicked_items(0, 200)

    slots = torch.tensor([[slot[0] for slot in sample[3:]] for sample in bags_of(batch)])
    assert torch.equal(slots, pool.ids[items])
    assert torch.equal(batch.dense, pool.dense[items])


def test_items_come_as_often_as_the_truth_says():
    source = make_matches()
    counts = np.bincount(source.clicked_items(0, 200_000).numpy(), minlength=40)

    expected = row_chances(40, 4, source.focus).mean(axis=0)  # all topics are equally likely
    assert expected.sum() == pytest.approx(1.0)
    assert abs(counts / 200_000 - expected).max() < 0.006


def test_the_best_recall_is_what_ranking_by_the_truth_reaches():
    source = make_matches(num_user_slots=1, user_values=4.0, num_item_slots=1, num_dense=0)
    batch = source.read(0, 4000)
    items = source.clicked_items(0, 4000).numpy()
    of_user, of_item = row_chances(20, 4, source.focus), row_chances(40, 4, source.focus)
    found = 0
    for sample, item in zip(bags_of(batch), items, strict=True):
        chance = np.ones(4)
        for row in sample[0]:
            chance *= of_user[:, row]
        scores = (chance / chance.sum()) @ of_item
        found += int(item in np.argsort(-scores)[:5])

    # The standard error over 4000 samples is 0.008.
    assert found / 4000 == pytest.approx(source.best_recall(5, num_samples=4000), abs=0.03)


def test_topics_must_divide_the_tables():
    with pytest.raises(DataError, match="num_items is 41") as caught:
        make_matches(num_items=41)

    assert "40" in caught.value.hint


def test_the_truth_next_item_has_a_context_and_a_target():
    source = load_data("clicks", truth="next-item", num_items=40, rows_per_user_slot=40)

    assert [(slot.name, slot.multi_valued) for slot in source.schema.slots] == [("user1", True), ("item1", False)]


def test_the_items_among_samples_are_each_taken_once_in_the_order_of_their_first_click():
    source = make_matches()
    batch, clicked = source.read(0, 300), source.clicked_items(0, 300).tolist()

    pool = items_of(batch, first_slot=3)

    expected = list(dict.fromkeys(clicked))
    assert torch.equal(pool.ids, source.items().ids[expected])
    assert torch.equal(pool.dense, source.items().dense[expected])
    with pytest.raises(DataError, match="no item slots from slot 17 on"):
        items_of(batch, first_slot=17)
