"""A finished run: evaluated on columns in any order, exported into files that the user's own class loads."""

import csv
import json
import runpy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from dovetail.data import DataError
from dovetail.errors import DovetailError
from dovetail.models import SlotEmbedding, load_model
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.finished.export import export_model, export_run
from dovetail.runtime.finished.predict import predict_run, predictions
from dovetail.runtime.finished.restore import restore_into, restore_model
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import Run, RunData, RunModel, RunTraining
from dovetail.spec.run_sections import RunOptimizer, RunValidation
from testbed.direct_servers import DirectServers

COLUMNS = {"dense": ["a", "b"], "slots": ["user", "tags"], "multi_valued": ["tags"], "cache": False}
ME = "tests.runtime.finished.test_evaluate_and_export"


class Net(nn.Module):
    """A bag over all ids, a frozen scale, and dropout by the mode it is in."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 3, sparse=True, include_last_offset=True, mode="sum")
        self.scale = nn.Parameter(torch.rand(2), requires_grad=False)
        self.register_buffer("shift", torch.rand(2))
        self.out = nn.Linear(2 * 3 + 2, 1)

    def forward(self, ids, offsets, dense):
        joined = torch.cat([self.bag(ids, offsets).view(-1, 6), dense * self.scale + self.shift], dim=1)
        return self.out(functional.dropout(joined, 0.3, training=self.training))


class Numbers(nn.Module):
    """No table, and one weight under two names."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(2, 2)
        self.two = nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.out = nn.Linear(2, 1)

    def forward(self, dense):
        return self.out(torch.relu(self.two(torch.relu(self.one(dense)))))


def rows(count):
    """Return lines of a file whose label follows its columns."""
    lines = ["label,a,b,user,tags"]
    for number in range(count):
        lines.append(f"{number % 3 == 0:d},{number % 7 - 3},{number % 3},u{number % 11},t{number % 5}|t{number % 4}")
    return "\n".join(lines) + "\n"


def train_run(folder, path, *, model, **data):
    run = Run(
        model=model,
        data=RunData(name="csv", options=COLUMNS | {"path": str(path)} | data),
        training=RunTraining(batch=100, epochs=2, seed=1),
        optimizer=RunOptimizer(name="adam", learning_rate=0.05),
    )
    prepare(run, folder)
    alone = DirectServers(folder)
    alone.run()
    alone.close()
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file of samples and two runs on it."""
    place = tmp_path_factory.mktemp("finished")
    (place / "day.csv").write_text(rows(400))
    train_run(place / "net", place / "day.csv", model=RunModel(name=f"{ME}:Net"), hash_into=50)
    train_run(place / "numbers", place / "day.csv", model=RunModel(name=f"{ME}:Numbers"))
    return place


def test_an_evaluation_is_the_same_twice_and_inherits_the_options_of_the_data(place):
    first = evaluate_run(place / "net", metrics=["auc", "log-loss", "accuracy", "calibration"])
    again = evaluate_run(place / "net", data_options={"path": str(place / "day.csv")})

    assert first.metrics.keys() == {"auc", "log-loss", "accuracy", "calibration"}
    assert first.metrics["log-loss"] == pytest.approx(first.loss, rel=1e-6)
    assert again.metrics == {"auc": first.metrics["auc"]}
    assert again.loss == first.loss


def test_a_run_with_validation_data_is_evaluated_on_those_and_broken_rows_are_told_of(place, tmp_path):
    (tmp_path / "held.csv").write_text(rows(60) + "1,none,2,u1,t1\n")
    held = {"path": str(tmp_path / "held.csv"), "max_bad_rows": 5}
    run = Run(
        model=RunModel(name=f"{ME}:Net"),
        data=RunData(name="csv", options=COLUMNS | {"path": str(place / "day.csv"), "hash_into": 50}),
        training=RunTraining(batch=100),
        validation=RunValidation(options=held),
    )
    prepare(run, tmp_path / "run")
    told = []

    found = evaluate_run(tmp_path / "run", tell=told.append)
    again = evaluate_run(tmp_path / "run", data_options=held)
    scored = list(predictions(tmp_path / "run", data_options=held, tell=told.append))

    assert found.on == f"the run's validation data, `{tmp_path / 'held.csv'}`"
    assert (found.held_out, found.samples) == (True, 60)
    assert found.loss == again.loss
    assert sum(len(part.rows) for part in scored) == 60
    assert told == ["1 broken row skipped: 1 x `a` is not a number"] * 2


def test_columns_in_another_order_give_the_same_evaluation(place):
    first = evaluate_run(place / "net")

    turned = evaluate_run(
        place / "net",
        data="csv",
        data_options={"dense": ["b", "a"], "slots": ["tags", "user"], "multi_valued": ["tags"]},
    )

    assert turned.loss == pytest.approx(first.loss, rel=1e-6)


def test_predictions_find_their_columns_by_name(place, tmp_path):
    lines = [line.split(",") for line in rows(50).splitlines()]
    (tmp_path / "turned.csv").write_text("\n".join(",".join(reversed(line[1:])) for line in lines) + "\n")
    turned = {"path": str(tmp_path / "turned.csv"), "dense": ["b", "a"], "slots": ["tags", "user"]}

    here = predict_run(place / "net", num_samples=50)
    there = predict_run(place / "net", data_options=turned)

    assert there.scores.tolist() == here.scores.tolist()
    with pytest.raises(DataError, match="the data have no number `b`, which the model reads"):
        predict_run(place / "net", data_options=turned | {"dense": ["a"]})


def test_the_reader_of_raw_rows_hashes_into_the_size_of_the_table(place, tmp_path):
    export_run(place / "net", tmp_path)
    raw = list(csv.DictReader(rows(50).splitlines()))

    tensors = runpy.run_path(str(tmp_path / "read_rows.py"))["tensors"](raw)

    scores = torch.export.load(tmp_path / "model.pt2").module()(*tensors)[:, 0]
    assert scores.tolist() == pytest.approx(predict_run(place / "net", num_samples=50).scores.tolist(), rel=1e-5)


def test_columns_that_the_model_was_not_trained_on_are_refused(place):
    with pytest.raises(DovetailError, match="no number `b`, which the model reads"):
        evaluate_run(place / "net", data_options={"dense": ["a"]})
    with pytest.raises(DovetailError, match="`user` is hashed into 7, the model was trained with 50"):
        evaluate_run(place / "net", data_options={"hash_into": 7})


def test_the_checkpoint_of_another_run_is_refused(place, tmp_path):
    (other,) = (place / "numbers" / "checkpoints").glob("step-*8")

    with pytest.raises(TrainingError, match="is of another run: the embedding table 0 was not there") as caught:
        evaluate_run(place / "net", checkpoint=other)
    assert "or leave it out" in caught.value.hint
    moved = tmp_path / "moved"
    other.rename(moved)
    try:
        with pytest.raises(TrainingError, match="moved is of another run"):
            evaluate_run(place / "net", checkpoint=moved)
    finally:
        moved.rename(other)


@pytest.mark.parametrize(("name", "kind"), [("net", Net), ("numbers", Numbers)])
def test_what_is_exported_loads_into_the_users_own_class_and_runs_as_a_program(place, tmp_path, name, kind):
    made = export_run(place / name, tmp_path)

    assert made.why_no_program == ""
    model = kind()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    restored = restore_model(place / name).eval()
    batch = evaluate_source(place, name).read(0, 20)
    inputs = [getattr(batch, field) for field in made.inputs]
    assert torch.equal(model.eval()(*inputs), restored.predict(batch))
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(program(*inputs), restored.predict(batch))
    filled = restore_into(kind(), place / name).eval()
    assert torch.equal(filled(*inputs), restored.predict(batch))


def evaluate_source(place, name):
    from dovetail.data import load_data
    from dovetail.runtime.blueprint import Blueprint

    data = Blueprint.read(place / name).run.data
    return load_data(data.name, **data.options)


def test_how_ids_were_hashed_is_written_down(place, tmp_path):
    export_run(place / "net", tmp_path)

    facts = json.loads((tmp_path / "model.json").read_text())
    assert [slot["hash_into"] for slot in facts["schema"]["slots"]] == [50, 50]
    assert "modulo the slot's hash_into" in facts["hash"]
    assert facts["loss"] == "logistic"


def test_a_graph_loads_its_exported_parameters_under_their_own_names(place, tmp_path):
    source = evaluate_source(place, "net")
    graph = load_model("ctr-dnn", schema=source.schema, num_rows=20, width=2, hidden=[4], seed=5)

    export_model(graph, source, tmp_path)

    other = load_model("ctr-dnn", schema=source.schema, num_rows=20, width=2, hidden=[4], seed=6)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other.predict(source.read(0, 5)), graph.predict(source.read(0, 5)))


def frozen_slots(schema):
    model = nn.Sequential(SlotEmbedding(num_rows=5, width=2, num_slots=schema.num_slots), nn.Linear(4, 1))
    model[0].reads = ("ids", "offsets")
    return model.requires_grad_(False)


def test_rows_that_only_servers_make_are_not_frozen(place, tmp_path):
    with pytest.raises(TrainingError, match="layer `0` is frozen, and its rows are made by servers"):
        train_run(tmp_path / "run", place / "day.csv", model=RunModel(name=f"{ME}:frozen_slots"))
