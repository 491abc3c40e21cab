"""What the benchmark of layouts makes of its figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dovetail.runtime.planned.from_plan import Machine
from dovetail.spec import Beside, Problem
from tests.makers import make_layer, make_problem, make_resource

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def promise(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import promise

    return promise


def make_known() -> Problem:
    rows = make_layer("rows", kind="embedding", output_bytes=1.0)
    problem = make_problem(
        layers=[rows, make_layer("rest")],
        resources=[make_resource("cpu", kind="cpu"), make_resource("gpu", 9.0, kind="gpu")],
        batch=100,
    )
    beside = Beside(read_core_s=0.1, server_core_s=0.2, client_s={"cpu": 0.4, "gpu": 0.2}, host_cores={"gpu": 1})
    return Problem(training=problem.training, resources=problem.resources, layers=problem.layers, beside=beside)


def row(layout: str, predicted: float, measured: float) -> dict[str, object]:
    return {"layout": layout, "predicted_samples_per_s": predicted, "measured_samples_per_s": measured}


def test_the_chosen_one_is_held_against_the_best_that_was_measured(promise):
    found = promise.summary([row("chosen", 100.0, 80.0), row("a", 90.0, 100.0), row("b", 10.0, 10.0)])

    assert found["regret"] == 0.8
    assert found["worst_error"] == pytest.approx(0.25)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["kendalls_tau"] == pytest.approx(1 / 3)  # two pairs of three are in the predicted order


def test_the_order_agrees_wholly_not_at_all_or_is_none(promise):
    assert promise.kendalls_tau([(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]) == 1.0
    assert promise.kendalls_tau([(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)]) == -1.0
    assert promise.kendalls_tau([(1.0, 1.0)]) is None


def test_eight_plain_layouts_at_most_all_of_them_different_are_priced(promise):
    problem = make_known()

    layouts = list(promise.plain_layouts(problem, Machine(cores=16, gpus=1)))
    plans = [promise.plan_of(problem, layout) for layout in layouts if layout.place != "sharded"]

    assert len(layouts) == 8
    assert len({promise.key_of(plan) for plan in plans}) == len(plans)
    assert all(plan.samples_per_s > 0 for plan in plans)
    assert len(list(promise.plain_layouts(problem, Machine(cores=2, gpus=0)))) == 8


def test_the_own_module_answers_with_a_score_for_each_sample(promise):
    schema = SimpleNamespace(num_slots=3, num_dense=2)
    ids, offsets = torch.tensor([1, 2, 3, 200, 5, 6]), torch.arange(7)

    scores = promise.own(schema, num_rows=10, width=4)(ids, offsets, torch.zeros(2, 2))

    assert scores.shape == (2,)
