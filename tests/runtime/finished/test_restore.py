"""From a checkpoint to a plain model: what servers hold is what the model has."""

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.data import Clicks
from dovetail.embedding import SGD, Table, shard_of
from dovetail.models import SlotEmbedding, as_graph
from dovetail.runtime import TrainingError, restore_into, restore_model
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import table_seed
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.folder import MODEL
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunServers
from dovetail.spec.run_sections import RunOptimizer

DATA = Clicks(truth="logistic", num_slots=3, num_multi_valued=1, num_dense=2, rows_per_slot=10)
OPTIONS = {"truth": "logistic", "num_slots": 3, "num_multi_valued": 1, "num_dense": 2, "rows_per_slot": 10}


class Two(nn.Module):
    """A user's own module with one table of ours and one of PyTorch's."""

    def __init__(self):
        super().__init__()
        self.slots = SlotEmbedding(num_rows=30, width=4, num_slots=3)
        self.bag = nn.EmbeddingBag(30, 2, mode="sum", include_last_offset=True, sparse=True)
        self.out = nn.Linear(3 * 4 + 3 * 2 + 2, 1)

    def forward(self, ids, offsets, dense):
        return self.out(torch.cat([self.slots(ids, offsets), self.bag(ids, offsets).view(-1, 6), dense], dim=1))


def make_run(num_servers, name="ctr-dnn"):
    return Run(
        model=RunModel(name=name, options={} if "." in name else {"num_rows": 30, "width": 4, "hidden": [5]}),
        data=RunData(options=OPTIONS, samples=100),
        optimizer=RunOptimizer(name="sgd", learning_rate=0.5),
        servers=RunServers(count=num_servers),
    )


def train_a_step(folder, blueprint):
    """Write the checkpoint of servers that took one step by gradients of one."""
    first = checkpoints.newest(folder)
    values, _ = checkpoints.load_dense(first, RunManifest.read(first))
    partial = checkpoints.begin(folder, 1)
    keys = np.array([0, 7, 11, 29])
    for server in range(blueprint.num_servers):
        part = blueprint.dense_slice(server)
        checkpoints.save_dense(partial, server, part.start, values[part] - np.float32(0.5), {})
        mine = keys[shard_of(keys, blueprint.num_servers) == server]
        for position, spec in enumerate(blueprint.tables):
            table = Table(
                width=spec.width,
                optimizer=SGD(learning_rate=0.5),
                seed=table_seed(blueprint.run.training.seed, position),
                scale=spec.scale,
                host_bytes=1 << 20,
                folder=folder / "rows" / f"{server}-{position}",
                shard=server,
                num_shards=blueprint.num_servers,
            )
            table.update(mine, np.ones((len(mine), spec.width), dtype=np.float32))
            table.save(partial / checkpoints.table_folder(position, server))
            table.close()
    files = checkpoints.checksums_in(partial, only="**/*")
    manifest = RunManifest(
        step=1,
        position=4,
        dense_steps=1,
        num_servers=blueprint.num_servers,
        samples=100,
        files=files,
        fingerprint=Fingerprint.of(blueprint),
    )
    return keys, checkpoints.publish(partial, manifest)


@pytest.mark.parametrize("num_servers", [1, 3])
def test_touched_rows_and_dense_parameters_are_one_step_from_their_first_values(tmp_path, num_servers):
    blueprint = prepare(make_run(num_servers), tmp_path / "run")
    before = restore_model(tmp_path / "run")
    keys, _ = train_a_step(tmp_path / "run", blueprint)

    after = restore_model(tmp_path / "run")

    # Plain SGD with gradient 1 and rate 0.5: everything that was touched is 0.5 lower, all other rows are the same.
    table = "layers.embedding.weight"
    for name, value in before.state_dict().items():
        expected = value.clone()
        if name == table:
            expected[keys] -= 0.5
        else:
            expected -= 0.5
        assert torch.allclose(after.state_dict()[name], expected, atol=1e-7), name
    assert before.state_dict()[table].abs().max() <= 1 / 3 / 4**0.5


def test_a_users_own_module_is_filled_in_place_and_tables_of_pytorch_too(tmp_path):
    module = Two()
    blueprint = prepare(make_run(2, name="tests.Two"), tmp_path / "run", model=module, source=DATA)
    before = restore_model(tmp_path / "run", model=module)
    keys, _ = train_a_step(tmp_path / "run", blueprint)

    untouched = module.bag.weight.clone()
    after = restore_model(tmp_path / "run", model=module)
    assert torch.equal(module.bag.weight, untouched), "a restored copy leaves the module as it is"

    filled = restore_into(module, tmp_path / "run")

    assert filled is module
    batch = DATA.read(0, 20)
    assert torch.equal(module(batch.ids, batch.offsets, batch.dense), after.predict(batch))
    moved = (dict(before.named_parameters())["module.bag.weight"] - module.bag.weight)[keys]
    assert torch.allclose(moved, torch.full_like(moved, 0.5), atol=1e-6)


def test_a_damaged_checkpoint_is_passed_over_and_refused_where_it_is_asked_for(tmp_path):
    blueprint = prepare(make_run(1), tmp_path / "run")
    _, newest = train_a_step(tmp_path / "run", blueprint)
    path = newest / "dense-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")

    with pytest.raises(TrainingError, match="wrong checksum"):
        restore_model(tmp_path / "run", checkpoint=newest)
    restored = restore_model(tmp_path / "run")  # from the checkpoint before

    assert torch.isfinite(restored.state_dict()["layers.embedding.weight"]).all()


def test_another_model_than_the_runs_is_refused(tmp_path):
    prepare(make_run(1, name="tests.Two"), tmp_path / "run", model=Two(), source=DATA)
    other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))

    with pytest.raises(TrainingError, match=r"another model than this: `.*` was of shape .*, and is "):
        restore_into(as_graph(other, loss="logistic"), tmp_path / "run")


def test_a_model_that_only_a_program_can_make_is_not_looked_for_by_name(tmp_path):
    prepare(make_run(1, name="tests.Two"), tmp_path / "run", model=Two(), source=DATA)
    (tmp_path / "run" / MODEL).unlink()

    with pytest.raises(TrainingError, match="an object of a Python program") as caught:
        restore_model(tmp_path / "run")
    assert "--model tests:Two of evaluate, predict and export" in caught.value.hint


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="is no run"):
        restore_model(tmp_path)
