"""Private runs: the same wherever rows lie, however many compute and die; plain where there is no noise to speak of."""

import shutil

import msgspec
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dovetail.privacy.keys import NOISE_KEY
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import KEYS
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trainer.trainer import Trainer
from dovetail.spec.privacy import RunPrivacy
from dovetail.spec.run import RunModel
from tests.runtime.private import (
    SGD,
    assert_close,
    by_pytorch,
    finish,
    in_one_process,
    over_servers,
    prepare_like,
    private_run,
    values_of,
)
from tests.runtime.runs import kill

SAVING = {"checkpoint": {"every_steps": 4, "keep": 20}}
LOCAL = {"table": {"place": "local"}, **SAVING}
LOCAL_RUN, LONG_RUN = (
    private_run(samples=samples, table={"place": "local"}, checkpoint={"every_steps": 1000}) for samples in (3000, 9000)
)
QUIET = {"noise": 1e-13, "clip": 1e6}
"""What steps owe that change nothing."""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Return the folder of a run in one process."""
    folder = tmp_path_factory.mktemp("local") / "run"
    prepare_like(private_run(**LOCAL), folder)
    finish(folder)
    return folder


@pytest.mark.parametrize("schedule", ["constant", "warmup"])
def test_without_noise_and_with_a_large_clip_a_private_run_is_plain_sgd_on_its_batches(tmp_path, schedule):
    optimizer = SGD | {"schedule": {"name": schedule} | ({"warmup_steps": 5} if schedule == "warmup" else {})}
    run = private_run(optimizer=optimizer, epochs=2, **LOCAL)
    prepare_like(run, tmp_path / "run", **QUIET)
    finish(tmp_path / "run")

    assert_close(values_of(tmp_path / "run"), by_pytorch(tmp_path / "run"), atol=1e-6)


@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_dense_optimizers_of_any_kind_take_gradients_with_noise(tmp_path, name):
    optimizer = SGD | {"name": name, "learning_rate": 0.01}
    for place in ("one", "other"):
        like = tmp_path / "one" if place == "other" else None
        prepare_like(private_run(optimizer=optimizer, samples=400, **LOCAL), tmp_path / place, like)
        finish(tmp_path / place)

    assert_close(values_of(tmp_path / "one"), values_of(tmp_path / "other"), atol=0.0)


@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (2, 3)])
def test_a_private_run_is_the_same_over_servers_with_any_number_of_workers(tmp_path, servers, workers):
    folder = tmp_path / "run"
    prepare_like(private_run(**over_servers(servers, workers, **SAVING)), folder)
    with LocalRun(folder) as run:
        run.wait(timeout_s=200)

    assert_close(values_of(folder), in_one_process(LOCAL_RUN, tmp_path / "local", folder), atol=1e-6)


def test_a_run_that_stops_and_goes_on_has_the_noise_of_one_that_did_not(tmp_path, local):
    folder = tmp_path / "run"
    prepare_like(private_run(**LOCAL), folder, local)
    newest = checkpoints.CHECKPOINTS
    shutil.copytree(local / newest, folder / newest, dirs_exist_ok=True)
    for kept in sorted((folder / newest).glob("step-*")):
        if int(kept.name.removeprefix("step-")) > 4:
            shutil.rmtree(kept)  # as if it had been killed after its fourth step
    finish(folder)

    assert_close(values_of(folder), values_of(local), atol=0.0)


def test_kills_of_workers_and_servers_change_no_noise(tmp_path):
    folder = tmp_path / "run"
    prepare_like(private_run(**over_servers(2, 2, **SAVING)), folder)
    killed = []

    def meanwhile(report):
        for step, name in ((4, "worker-0"), (12, "server-1")):
            if report.step >= step and name not in killed:
                killed.append(name)
                kill(run, name)

    with LocalRun(folder) as run:
        run.wait(meanwhile, timeout_s=240)

    assert len(killed) == 2
    assert_close(values_of(folder), in_one_process(LOCAL_RUN, tmp_path / "local", folder), atol=1e-6)


@pytest.mark.slow
def test_a_run_killed_as_a_whole_goes_on_over_servers_as_it_would_have(tmp_path):
    folder, run = tmp_path / "run", private_run(samples=9000, **over_servers(2, 2, **SAVING))
    before = prepare_like(run, folder)
    with LocalRun(folder) as first:
        while (report := first.look()) is None or report.checkpoint_step < 4:
            assert report is None or report.state != "failed", report.error
        for child in first.children.values():
            child.handle.kill()
    after = prepare(run, folder, resume=True)
    with LocalRun(folder) as again:
        again.wait(timeout_s=240)

    assert after.private == before.private
    assert_close(values_of(folder), in_one_process(LONG_RUN, tmp_path / "local", folder), atol=1e-6)


def test_every_number_of_a_run_without_gradients_has_the_noise_of_all_steps(tmp_path):
    run = private_run(
        samples=300, batch=20, model={"name": "ctr-dnn", "options": {"num_rows": 240, "width": 4}}, **LOCAL
    )
    folder = tmp_path / "run"
    blueprint = prepare_like(run, folder, clip=1e-9, noise=1e9)  # gradients are nothing beside the noise
    before = values_of(folder)
    finish(folder)
    after = values_of(folder)

    steps, batch = blueprint.private.until_step, blueprint.private.batch
    for name, each in after.items():
        rate = SGD["rows_learning_rate"] if name == "layers.embedding.weight" else SGD["learning_rate"]
        moved = ((each - before[name]) * batch / rate / steps**0.5).ravel().astype(np.float64)
        if len(moved) > 900:
            assert stats.kstest(moved, "norm").pvalue > 1e-3, name
            assert moved.std() == pytest.approx(1.0, rel=0.15)


def test_rows_that_were_never_looked_up_are_shown_with_their_noise(local):
    newest = checkpoints.newest(local)
    first = min((local / checkpoints.CHECKPOINTS).glob("step-*"))
    moved = values_of(local, newest)["layers.embedding.weight"] - values_of(local, first)["layers.embedding.weight"]

    assert (np.abs(moved).max(axis=1) > 0).all()


def test_a_run_that_goes_on_with_other_settings_has_the_rows_that_it_showed(tmp_path, local):
    folder = tmp_path / "run"
    shutil.copytree(local, folder)
    before = values_of(folder)
    run = private_run(epochs=2, optimizer=SGD | {"rows_learning_rate": 1.0}, **LOCAL)
    blueprint = prepare(run, folder, resume=True)
    with Trainer(folder) as trainer:
        shown = trainer._strategy.tables[0].lookup(np.arange(240), insert=False)
    finish(folder)

    assert blueprint.private.stream != Blueprint.read(local).private.stream
    assert shown.tobytes() == before["layers.embedding.weight"].tobytes()
    assert not np.array_equal(values_of(folder)["layers.embedding.weight"], before["layers.embedding.weight"])


def test_without_the_key_of_noise_nothing_is_shown(tmp_path, local):
    shutil.copytree(local, tmp_path / "run")
    (tmp_path / "run" / KEYS / NOISE_KEY).unlink()

    with pytest.raises(Exception, match=NOISE_KEY):
        values_of(tmp_path / "run")


@pytest.mark.parametrize("rows", ["adam", "adagrad", "ftrl"])
def test_rows_whose_optimizer_would_have_seen_the_noise_are_refused(tmp_path, rows):
    with pytest.raises(TrainingError, match=f"stepped by {rows}"):
        prepare(private_run(optimizer=SGD | {"rows": rows}), tmp_path / "run")


def test_rows_on_a_device_are_refused(tmp_path):
    run = private_run(**over_servers(1, 1))
    run = msgspec.structs.replace(run, workers=[msgspec.structs.replace(run.workers[0], device="cuda")])
    with pytest.raises(TrainingError, match="cuda"):
        prepare(run, tmp_path / "run")


def test_no_run_chooses_rows_that_owe_noise_without_being_private(tmp_path):
    run = private_run(optimizer=SGD | {"rows": "private-sgd"}, privacy={})
    with pytest.raises(TrainingError, match="private-sgd"):
        prepare(run, tmp_path / "run")


class Words(nn.Module):
    """A model of a user's own, with values of its own: rows, a dense table, and a layer that no rule is known for."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(240, 4, mode="sum", sparse=True)
        self.dense_rows, self.mix = nn.Embedding(7, 4), nn.Bilinear(4, 4, 5)
        self.norm = nn.LayerNorm(5, eps=1.0)  # a small variance to divide by would magnify last bits
        self.out = nn.Linear(5 + 3, 1)

    def forward(self, ids, offsets, dense):
        """Return one score a sample."""
        bags = offsets[:-1].view(len(dense), -1)[:, 0]
        pooled = self.rows(ids, torch.cat([bags, offsets[-1:]])[:-1])
        hidden = self.norm(self.mix(torch.tanh(pooled), self.dense_rows(ids[bags] % 7)))
        return self.out(torch.cat([hidden, dense], 1)).squeeze(1)


def test_a_model_of_a_users_own_begins_with_its_own_values_and_trains_as_by_plain_sgd(tmp_path):
    torch.manual_seed(5)
    model, folder = Words(), tmp_path / "run"
    run = private_run(samples=600, batch=60, **LOCAL)
    run = msgspec.structs.replace(run, model=RunModel(name="tests.Words", loss="logistic"))
    prepare_like(run, folder, model=model, **QUIET)
    finish(folder, model=model)

    expected = by_pytorch(folder, model=model)
    first = dict(model.named_parameters())
    found = values_of(folder, model=model)
    assert_close(found, expected, atol=1e-6)
    assert all(np.abs(found[name] - each.detach().numpy()).max() > 1e-3 for name, each in first.items())


def test_a_run_begins_with_the_rows_that_a_private_run_shows(tmp_path, local):
    run = private_run(**LOCAL)
    run = msgspec.structs.replace(run, privacy=RunPrivacy(), data=msgspec.structs.replace(run.data, samples=300))
    prepare(run, tmp_path / "run", start_from=local)

    assert_close(values_of(tmp_path / "run"), values_of(local), atol=0.0)
