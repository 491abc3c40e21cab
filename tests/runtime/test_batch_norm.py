"""Batch norms over the whole batch of a step end where those of one process end, however the batch is spread."""

import copy
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime import restore_into
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunWorker, with_settings
from dovetail.spec.run_sections import RunOptimizer
from tests.runtime.any_model import NUM_DENSE, Labelled, by_pytorch, clicked, make_run, train_here
from tests.runtime.runs import kill, last_state, train
from tests.runtime.test_equality import assert_equals

UNEVEN = [RunWorker(name="a", share=0.55), RunWorker(name="b", share=0.02), RunWorker(name="c")]
SGD = RunOptimizer(name="sgd", learning_rate=0.1)


class Normed(nn.Module):
    """Norms over numbers, over several places of a sample, used twice, without weights, and one that is frozen."""

    takes = ("dense",)

    def __init__(self, pause_s=0.0, until=None):
        super().__init__()
        self.first = nn.BatchNorm1d(NUM_DENSE)
        self.conv = nn.Conv1d(1, 4, 2)
        self.places = nn.BatchNorm1d(4, momentum=0.3)
        self.hidden = nn.Linear(8, 6)
        self.twice = nn.BatchNorm1d(6)
        self.plain = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
        self.average = nn.BatchNorm1d(6, momentum=None)
        self.still = nn.BatchNorm1d(6)
        self.still.running_mean.fill_(0.2)
        self.out = nn.Linear(6, 1)
        self.pause_s, self.until = pause_s, until

    def train(self, mode=True):
        super().train(mode)
        self.still.eval()
        return self

    def forward(self, dense):
        if self.until is not None and not self.until.exists():  # time for a test to do things in
            time.sleep(self.pause_s)
        places = torch.relu(self.places(self.conv(self.first(dense * 5.0 + 3.0).unsqueeze(1))))
        hidden = self.twice(torch.tanh(self.twice(self.hidden(places.flatten(1)))))
        return self.out(torch.relu(self.still(self.average(self.plain(hidden)))))


def made(**options):
    torch.manual_seed(5)
    return Normed(**options)


def logistic(scores, batch):
    return functional.binary_cross_entropy_with_logits(scores.reshape(-1), batch.labels, reduction="sum")


def assert_statistics_equal(folder, model):
    """Check the running statistics of a run's last checkpoint."""
    filled = restore_into(Normed(), folder)
    for name, buffer in model.named_buffers():
        if "num_batches" not in name:
            torch.testing.assert_close(dict(filled.named_buffers())[name], buffer, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("dense", "workers"),
    [("ps", UNEVEN), ("ring", UNEVEN[::2]), pytest.param("ps", [RunWorker()], marks=pytest.mark.slow)],
)
def test_a_run_ends_where_one_process_with_the_whole_batch_ends(tmp_path, dense, workers):
    model, source = made(), Labelled(clicked, num_samples=650)  # the last batch is a half
    run = make_run(optimizer=SGD, dense=dense, micro_batch=16, epochs=2)
    run = type(run)(**{name: getattr(run, name) for name in run.__struct_fields__} | {"workers": workers})

    train(run, tmp_path / "run", model=copy.deepcopy(model), source=source)

    alone = by_pytorch(run, model.train(), source, logistic)
    assert_equals(tmp_path / "run", alone, rtol=2e-4, atol=2e-5)
    assert_statistics_equal(tmp_path / "run", model)
    found = evaluate_run(tmp_path / "run", model=made(), source=source, num_samples=650)
    batch = source.read(0, 650)
    with torch.no_grad():
        expected = logistic(model.eval()(batch.dense), batch).item() / 650
    assert found.loss == pytest.approx(expected, rel=1e-3)


class OneNorm(nn.Module):
    """A norm over single numbers."""

    takes = ("dense",)

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(NUM_DENSE)
        self.out = nn.Linear(NUM_DENSE, 1)

    def forward(self, dense):
        return self.out(self.norm(dense * 3.0 + 1.0))


def test_a_last_batch_of_one_sample_is_normalised_by_running_statistics_as_in_one_process(tmp_path):
    torch.manual_seed(6)
    model, source = OneNorm(), Labelled(clicked, num_samples=301)
    run = make_run(optimizer=SGD, workers=2)

    train(run, tmp_path / "run", model=copy.deepcopy(model), source=source)
    train_here(run, tmp_path / "alone", copy.deepcopy(model), source)

    state, alone = last_state(tmp_path / "run"), last_state(tmp_path / "alone")
    assert state.manifest.step == 4
    np.testing.assert_allclose(state.dense, alone.dense, rtol=2e-4, atol=2e-5)
    filled, expected = (restore_into(OneNorm(), tmp_path / name) for name in ("run", "alone"))
    torch.testing.assert_close(filled.norm.running_mean, expected.norm.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(filled.norm.running_var, expected.norm.running_var, rtol=1e-4, atol=1e-5)


def test_a_worker_that_dies_has_the_step_done_again_and_nothing_counts_twice(tmp_path):
    over = tmp_path / "over"
    model, source = made(pause_s=0.3, until=over), Labelled(clicked, num_samples=3000)
    run = with_settings(make_run(optimizer=SGD, workers=2), {"checkpoint.every_steps": 7}, place="test")
    left = ["worker-1", "worker-0"]

    def strike(local, report):
        if left and report.step >= 4 * (3 - len(left)):
            kill(local, left.pop(0))
        if not left:
            over.touch()

    train(run, tmp_path / "run", model=copy.deepcopy(model), source=source, meanwhile=strike)

    assert not left
    assert_equals(tmp_path / "run", by_pytorch(run, model.train(), source, logistic), rtol=2e-4, atol=2e-5)
    assert_statistics_equal(tmp_path / "run", model)


@pytest.mark.slow
def test_a_server_that_dies_takes_running_statistics_back_with_it(tmp_path):
    over = tmp_path / "over"
    model, source = made(pause_s=0.3, until=over), Labelled(clicked, num_samples=3000)
    run = with_settings(make_run(optimizer=SGD, workers=2), {"checkpoint.every_steps": 7}, place="test")

    def strike(local, report):
        if report.step >= 10 and not over.exists():
            kill(local, "server-0")
            over.touch()

    train(run, tmp_path / "run", model=copy.deepcopy(model), source=source, meanwhile=strike)

    assert over.exists()
    assert_equals(tmp_path / "run", by_pytorch(run, model.train(), source, logistic), rtol=2e-4, atol=2e-5)
    assert_statistics_equal(tmp_path / "run", model)


@pytest.mark.slow
def test_a_run_goes_on_with_its_running_statistics(tmp_path):
    model, source = made(), Labelled(clicked, num_samples=300)
    run = make_run(optimizer=SGD, workers=2)
    train(run, tmp_path / "run", model=copy.deepcopy(model), source=source)
    longer = with_settings(run, {"training.epochs": 2}, place="test")

    train(longer, tmp_path / "run", model=copy.deepcopy(model), source=source, resume=True)

    alone = by_pytorch(longer, model.train(), source, logistic)
    assert_equals(tmp_path / "run", alone, rtol=2e-4, atol=2e-5)
    assert_statistics_equal(tmp_path / "run", model)


class OnOneWorker(nn.Module):
    """Passes a norm or not by how many samples it has."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(NUM_DENSE)
        self.out = nn.Linear(NUM_DENSE, 1)

    def forward(self, dense):
        return self.out(self.norm(dense) if len(dense) > 60 else dense)


def test_workers_that_do_not_pass_the_same_norms_are_told_so(tmp_path):
    run = make_run(optimizer=SGD)
    workers = [RunWorker(name="a", share=0.7), RunWorker(name="b")]
    run = type(run)(**{name: getattr(run, name) for name in run.__struct_fields__} | {"workers": workers})

    with pytest.raises(TrainingError, match="the workers' samples do not all pass the same norms"):
        train(run, tmp_path / "run", model=OnOneWorker(), source=Labelled(clicked))


def test_each_worker_by_its_own_part_is_an_option(tmp_path):
    model, source = made(), Labelled(clicked)
    run = make_run(optimizer=SGD, workers=2, batch_norm="own")

    train(run, tmp_path / "run", model=copy.deepcopy(model), source=source)

    alone = by_pytorch(run, model.train(), source, logistic)
    assert not np.allclose(last_state(tmp_path / "run").dense, alone.dense, rtol=1e-3, atol=1e-4)
    assert checkpoints.STATISTICS in last_state(tmp_path / "run").manifest.files


@pytest.mark.parametrize(
    ("training", "complaint"),
    [
        ({"mode": "async"}, r'is "global", and mode is "async"'),
        ({"accumulate": 2}, "a step accumulates 2 batches"),
        ({"tail": 0.2}, "waits for all of a batch at once, and tail is 0.2"),
    ],
)
def test_whole_batches_are_refused_where_there_are_none(tmp_path, training, complaint):
    source = Labelled(clicked)
    with pytest.raises(TrainingError, match=complaint) as caught:
        prepare(make_run(batch_norm="global", **training), tmp_path / "run", model=made(), source=source)
    assert 'training.batch_norm = "own"' in caught.value.hint

    blueprint = prepare(make_run(**training), tmp_path / "run", model=made(), source=source)
    assert blueprint.run.training.batch_norm == "own"


def test_a_model_that_is_given_in_evaluation_mode_is_trained_all_the_same(tmp_path):
    model = made().eval()

    blueprint = prepare(make_run(), tmp_path / "run", model=model, source=Labelled(clicked))

    assert blueprint.run.training.batch_norm == "global"
    assert not model.first.training


def test_a_model_without_norms_is_left_alone(tmp_path):
    model = nn.Sequential(nn.Linear(NUM_DENSE, 1))

    blueprint = prepare(make_run(batch_norm="global"), tmp_path / "run", model=model, source=Labelled(clicked))

    assert blueprint.run.training.batch_norm is None


def test_one_process_takes_whole_batches_anyway(tmp_path):
    model, source = made(), Labelled(clicked)
    run = make_run(optimizer=SGD)

    train_here(run, tmp_path / "run", copy.deepcopy(model), source)

    assert_equals(tmp_path / "run", by_pytorch(run, model.train(), source, logistic))
    assert_statistics_equal(tmp_path / "run", model)
