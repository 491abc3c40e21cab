"""Frozen parameters, buffers and running statistics: read as they were written and where listed, or refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from dovetail.runtime import TrainingError, restore_into
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import STATISTICS, RunManifest
from dovetail.runtime.coordinator.checkpoints import FolderCheckpointStore
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import FIXED
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.trust import check_trusted
from dovetail.spec.run import RunModel
from testbed.direct_servers import DirectServers
from tests.runtime.any_model import Labelled, clicked, make_run, train_here


class Half(nn.Module):
    """A frozen layer, a normalising one and one that is trained."""

    takes = ("dense",)

    def __init__(self):
        super().__init__()
        self.frozen = nn.LazyLinear(4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)
        self.frozen(SOURCE.read(0, 1).dense)
        self.frozen.requires_grad_(False)

    def forward(self, dense):
        return self.out(self.norm(self.frozen(dense)))


SOURCE = Labelled(clicked)


@pytest.fixture
def trained(tmp_path):
    """A run in one process, and the model it began with."""
    model = Half()
    train_here(make_run(), tmp_path / "run", model, SOURCE)
    return tmp_path / "run", model


def go_on(folder, model):
    """Train for one more epoch."""
    prepare(make_run(epochs=2), folder, model=model, source=SOURCE, resume=True)
    alone = DirectServers(folder, model=model, source=SOURCE)
    try:
        alone.run()
    finally:
        alone.close()


def test_a_run_goes_on_with_the_frozen_values_that_it_began_with(trained):
    folder, begun = trained

    go_on(folder, Half())  # first values of its own

    assert torch.equal(restore_into(Half(), folder).frozen.weight, begun.frozen.weight)


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_frozen_values_that_are_not_as_they_were_written_are_refused(trained, how):
    folder, _ = trained
    path = folder / FIXED
    if how == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    for use in (
        lambda: restore_into(Half(), folder),
        lambda: prepare(make_run(), folder, model=Half(), source=SOURCE, resume=True),
    ):
        with pytest.raises(TrainingError, match=r"fixed\.safetensors (is missing|has a wrong checksum)"):
            use()


def test_statistics_are_those_of_their_checkpoint(trained):
    folder, _ = trained
    first = checkpoints.newest(folder)
    before = restore_into(Half(), folder).norm.running_mean

    go_on(folder, Half())

    assert STATISTICS in RunManifest.read(first).files
    assert not torch.equal(restore_into(Half(), folder).norm.running_mean, before)
    assert torch.equal(restore_into(Half(), folder, checkpoint=first).norm.running_mean, before)


def test_damaged_statistics_are_refused_and_unlisted_ones_not_read(trained):
    folder, _ = trained
    newest = checkpoints.newest(folder)
    checkpoints.write_statistics(np.ones(8, dtype=np.float32), newest)

    with pytest.raises(TrainingError, match=r"statistics\.safetensors has a wrong checksum"):
        restore_into(Half(), folder, checkpoint=newest)
    manifest = RunManifest.read(newest)
    files = {name: checksum for name, checksum in manifest.files.items() if name != STATISTICS}
    msgspec.structs.replace(manifest, files=files).write(newest)
    assert torch.equal(restore_into(Half(), folder).norm.running_mean, torch.zeros(4))


def test_a_checkpoint_before_anyone_told_statistics_keeps_those_before(trained):
    folder, _ = trained
    shelf = FolderCheckpointStore(folder, keep=3, fingerprint=Fingerprint.of(Blueprint.read(folder)), tell=print)
    kept = shelf.newest()
    partial = shelf.begin(kept.manifest.step + 1, 1)

    made = shelf.publish(partial, msgspec.structs.replace(kept.manifest, step=kept.manifest.step + 1, files={}))

    assert made.manifest.files == {STATISTICS: kept.manifest.files[STATISTICS]}


def test_other_metrics_do_not_keep_a_run_from_going_on(trained):
    folder, _ = trained
    run = make_run(epochs=2)
    run = msgspec.structs.replace(run, model=msgspec.structs.replace(run.model, metric="accuracy"))
    said: list[str] = []

    blueprint = prepare(run, folder, model=Half(), source=SOURCE, resume=True, tell=said.append)

    assert blueprint.metrics == ("accuracy",)
    assert not said


@pytest.mark.parametrize("names", [{"metric": ("auc", "a.b:c")}, {"loss": {"one": "a.b:c", "other": "logistic"}}])
def test_a_metric_and_the_loss_of_a_part_are_code_too(tmp_path, names):
    run = msgspec.structs.replace(make_run(), model=RunModel(name="tests.Own", **names))
    tmp_path.chmod(0o777)

    with pytest.raises(TrainingError, match=r"names code to run, `a\.b:c`"):
        check_trusted(tmp_path, run, trust=False)
    check_trusted(tmp_path, run, trust=True)


@pytest.mark.parametrize("start", ["run", "checkpoint", "state"])
def test_a_run_begins_with_the_frozen_values_and_statistics_of_another(trained, tmp_path, start):
    folder, _ = trained
    before = restore_into(Half(), folder)
    state = {"run": folder, "checkpoint": checkpoints.newest(folder), "state": before.state_dict()}[start]

    prepare(make_run(), tmp_path / "next", model=Half(), source=SOURCE, start_from=state)

    after = restore_into(Half(), tmp_path / "next")
    assert before.norm.running_mean.any()
    for name in ("frozen.weight", "norm.running_mean", "norm.running_var", "norm.weight", "out.weight"):
        assert torch.equal(after.state_dict()[name], before.state_dict()[name]), name
