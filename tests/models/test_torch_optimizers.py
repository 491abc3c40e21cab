"""PyTorch's optimizers and schedulers as settings of a run: the same rates and steps, or refused by reason."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from dovetail.errors import DovetailError, SpecError
from dovetail.models.errors import ModelError
from dovetail.models.schedules import make_schedule
from dovetail.models.torch_optimizers import optimizer_settings, schedule_settings
from dovetail.runtime.api import in_our_words


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.EmbeddingBag(50, 4, sparse=True)
        self.tower = nn.Linear(4, 1)


def test_one_optimizer_for_all_is_read_with_its_settings():
    model = Model()
    found = optimizer_settings(torch.optim.AdamW(model.parameters(), lr=0.02, betas=(0.8, 0.9), eps=1e-6), model)

    settings = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6}
    assert found == {
        "name": "adamw", "learning_rate": 0.02, "settings": settings | {"weight_decay": 0.01},
        "rows": "adam", "rows_learning_rate": 0.02, "rows_settings": settings,
    }  # fmt: skip


def test_one_for_rows_and_one_for_the_rest_are_read_each():
    model = Model()
    pair = [
        torch.optim.Adagrad(model.tower.parameters(), lr=0.1, initial_accumulator_value=0.5),
        torch.optim.SparseAdam(model.rows.parameters(), lr=0.01),
    ]
    found = optimizer_settings(pair, model)

    assert (found["name"], found["settings"]) == ("adagrad", {"epsilon": 1e-10, "first_sum": 0.5})
    assert (found["rows"], found["rows_learning_rate"]) == ("adam", 0.01)
    assert found["rows_settings"] == {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


def test_groups_keep_their_rates_by_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.5}]
    found = optimizer_settings(torch.optim.SGD(groups, lr=0.1), model)

    assert (found["name"], found["learning_rate"]) == ("sgd", 0.1)
    assert [(group["pattern"], group["learning_rate"]) for group in found["groups"]] == [
        ("1.weight", 0.5),
        ("1.bias", 0.5),
    ]


def stepped(model):
    optimizer = torch.optim.SGD(model.tower.parameters(), lr=0.1, momentum=0.5)
    model.tower(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda m: torch.optim.RMSprop(m.parameters()), "nothing like RMSprop"),
        (lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1), "weight_decay = 0.1"),
        (lambda m: torch.optim.Adam(m.parameters(), amsgrad=True), "amsgrad = True"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True), "nesterov = True"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), "a momentum, and rows here have none"),
        (lambda m: torch.optim.Adam(m.tower.parameters()), "leaves out `rows.weight`"),
        (lambda m: torch.optim.Adam(Model().parameters()), "not the model's"),
        (lambda m: torch.optim.SparseAdam(list(m.parameters())), "given to SparseAdam"),
        (stepped, "has taken steps already"),
        (lambda m: 0.1, "optimizer is 0.1"),
    ],
)
def test_what_does_something_else_is_refused_by_reason(make, says):
    model = Model()
    with pytest.raises(ModelError, match=says) as caught:
        optimizer_settings(make(model), model)
    assert caught.value.hint


def warmed(optimizer, after):
    rising = lr_scheduler.LinearLR(optimizer, start_factor=1 / 10, total_iters=9)
    return lr_scheduler.SequentialLR(optimizer, [rising, after], milestones=[10])


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=40, eta_min=0.02),
        lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=30),
        lambda o: lr_scheduler.LinearLR(o, start_factor=1 / 10, total_iters=9),
        lambda o: lr_scheduler.ConstantLR(o, factor=1.0),
        lambda o: warmed(o, lr_scheduler.CosineAnnealingLR(o, T_max=30, eta_min=0.0)),
        lambda o: warmed(o, lr_scheduler.LinearLR(o, 1.0, 0.5, total_iters=30)),
    ],
    ids=["cosine", "linear", "warmup", "constant", "warmup, cosine", "warmup, linear"],
)
def test_a_scheduler_gives_the_rates_of_pytorch_step_by_step(make):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.2)
    scheduler = make(optimizer)
    settings = schedule_settings(scheduler)
    factor_of = make_schedule(settings.pop("name"), **settings)
    theirs = []
    for _ in range(40):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()

    np.testing.assert_allclose([0.2 * factor_of(step) for step in range(40)], theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 10),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
        lambda o: lr_scheduler.LinearLR(o, start_factor=0.3, total_iters=9),
    ],
)
def test_a_scheduler_that_has_no_like_is_refused_with_a_hint(make):
    with pytest.raises(ModelError) as caught:
        schedule_settings(make(torch.optim.SGD([torch.zeros(1)], lr=0.2)))
    assert caught.value.hint


def test_the_words_of_pytorch_are_understood():
    assert in_our_words({"lr": 0.1, "batch_size": 64, "epochs": 2}) == {"learning_rate": 0.1, "batch": 64, "epochs": 2}
    assert in_our_words({"device": torch.device("cuda:1")}) == {"table": {"device": "cuda:1"}}


@pytest.mark.parametrize(
    ("settings", "workers", "says"),
    [
        ({"num_workers": 4}, False, "`workers` is how many processes train"),
        ({"max_epochs": 4}, False, "it is called `epochs`"),
        ({"lr": 0.1, "learning_rate": 0.1}, False, "give one of them"),
        ({"device": "cuda"}, True, "RunWorker"),
    ],
)
def test_words_that_mean_nothing_here_are_answered(settings, workers, says):
    with pytest.raises(SpecError) as caught:
        in_our_words(settings, has_workers=workers)
    assert says in caught.value.hint
    assert isinstance(caught.value, DovetailError)
