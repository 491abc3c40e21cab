"""Models learn what is there to be learned, and no more."""

import pytest
import torch

from dovetail.data import Clicks, Loader, Matches, load_data
from dovetail.models import Auc, LayerGraph, RecallAt, evaluate, load_model, make_optimizer, make_schedule, train_step
from dovetail.models.zoo.matchnet import item_scores
from dovetail.models.zoo.nce import next_scores

torch.set_num_threads(1)
HELD_OUT = 10_000_000  # samples from here on are never trained on


def train(
    graph: LayerGraph, source: Clicks | Matches, *, num_samples: int, batch_size: int, learning_rate: float
) -> None:
    """Train on the first `num_samples` samples."""
    optimizer = make_optimizer(graph, "adam", learning_rate)
    schedule = make_schedule("linear", total_steps=num_samples // batch_size)
    for step, batch in enumerate(Loader(source, batch_size=batch_size, stop=num_samples, shuffle=False)):
        train_step(graph, batch, optimizer, factor=schedule(step))


TRUTHS = {"ctr-dnn": "deep", "2emb": "two-tables", "dlrm": "dot"}
"""The truth of each click model's own family."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUTHS)
def test_a_click_model_of_public_size_comes_within_a_hundredth_of_the_best_auc(name):
    source = Clicks(truth=TRUTHS[name], seed=1, num_slots=6, num_multi_valued=1, num_dense=3, rows_per_slot=5)
    graph = load_model(name, schema=source.schema)

    train(graph, source, num_samples=500_000, batch_size=1000, learning_rate=5e-3 if name == "dlrm" else 2e-3)

    held_out = source.read(HELD_OUT, HELD_OUT + 100_000)
    reached, best = evaluate(graph, [held_out], Auc()), source.best_auc(100_000, first=HELD_OUT)
    print(f"{name}: AUC {reached:.4f}, best reachable {best:.4f}")
    assert best - 0.01 < reached < best + 0.005


@pytest.mark.parametrize(
    ("name", "truth", "options"),
    [
        ("ctr-dnn", "deep", {"hidden": (100, 100, 100)}),
        ("2emb", "two-tables", {"hidden": (100, 100, 50)}),
        ("dlrm", "dot", {"bottom": (64, 32), "top": (100, 50)}),
    ],
)
def test_a_click_model_comes_within_a_hundredth_of_the_best_auc(name, truth, options):
    source = Clicks(truth=truth, seed=1, num_slots=6, num_multi_valued=1, num_dense=3, rows_per_slot=5)
    graph = load_model(name, schema=source.schema, num_rows=source.schema.num_keys, **options)

    train(graph, source, num_samples=400_000, batch_size=1000, learning_rate=5e-3)

    held_out = source.read(HELD_OUT, HELD_OUT + 100_000)
    reached, best = evaluate(graph, [held_out], Auc()), source.best_auc(100_000, first=HELD_OUT)
    print(f"{name}: AUC {reached:.4f}, best reachable {best:.4f}")
    assert best - 0.01 < reached < best + 0.005  # the held-out clicks themselves are worth 0.0016


def test_matchnet_finds_clicked_items_far_more_often_than_chance():
    source = Matches(num_items=400, rows_per_user_slot=40)
    graph = load_model(
        "matchnet", schema=source.schema, items=source.items(), num_rows=source.schema.num_keys, hidden=(100, 100, 50)
    )

    train(graph, source, num_samples=40_000, batch_size=250, learning_rate=5e-3)

    held_out, clicked = source.read(HELD_OUT, HELD_OUT + 2000), source.clicked_items(HELD_OUT, HELD_OUT + 2000)
    reached = evaluate(graph, [held_out], RecallAt(10), score=item_scores, target=lambda _: clicked)
    best = source.best_recall(10)
    print(f"matchnet: recall@10 {reached:.3f}, best reachable {best:.3f}, chance {10 / 400:.3f}")
    assert 0.31 < reached < best + 0.03  # chance is 0.025, the ten most popular items 0.28


def test_nce_finds_what_came_next_far_more_often_than_chance():
    source = load_data("clicks", truth="next-item", num_items=400, rows_per_user_slot=400)
    assert isinstance(source, Matches)
    graph = load_model("nce", schema=source.schema, num_rows=source.schema.num_keys, width=32)

    train(graph, source, num_samples=500_000, batch_size=1000, learning_rate=3e-2)

    held_out, came_next = source.read(HELD_OUT, HELD_OUT + 2000), source.clicked_items(HELD_OUT, HELD_OUT + 2000)
    reached = evaluate(graph, [held_out], RecallAt(10), score=next_scores, target=lambda _: came_next)
    best = source.best_recall(10)
    print(f"nce: recall@10 {reached:.3f}, best reachable {best:.3f}, chance {10 / 400:.3f}")
    assert 0.38 < reached < best + 0.03  # chance is 0.025, the ten most popular items 0.28


def test_dropout_does_not_keep_a_model_from_learning():
    source = Clicks(seed=1, num_slots=4, num_multi_valued=0, num_dense=3, rows_per_slot=5, truth="logistic")
    graph = load_model("ctr-dnn", schema=source.schema, num_rows=20, hidden=(50,), dropout=0.1)

    train(graph, source, num_samples=60_000, batch_size=500, learning_rate=1e-2)

    held_out = source.read(HELD_OUT, HELD_OUT + 50_000)
    assert evaluate(graph, [held_out], Auc()) > source.best_auc(50_000, first=HELD_OUT) - 0.01
