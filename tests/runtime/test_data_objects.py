"""Training on what people keep samples in: a data set, a table, a source made by `load_data`."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from dovetail.data import load_data
from dovetail.models.errors import ModelError
from dovetail.runtime import train
from dovetail.runtime.blueprint import Blueprint


class Shades(Dataset):
    """Images that are as bright as their label says."""

    def __len__(self):
        return 600

    def __getitem__(self, number):
        shade = (number * 37 % 100) / 100
        return torch.full((1, 4, 4), shade), 3.0 * shade - 1.0


class Brightness(nn.Module):
    """A straight line over the mean of an image."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(16, 1)

    def forward(self, image):
        return self.line(image.flatten(1))


class Captioned(Brightness):
    def forward(self, image, dense):
        return super().forward(image) + dense


class Line(nn.Module):
    """A straight line over numbers."""

    def __init__(self, width=1):
        super().__init__()
        self.line = nn.Linear(width, 1)

    def forward(self, dense):
        return self.line(dense)


SMALL = {"workers": 1, "servers": 1, "batch": 50, "loss": "squared", "optimizer": "adam", "learning_rate": 0.05}


def test_a_model_trains_on_the_images_of_a_dataset(tmp_path):
    result = train(Brightness(), Shades(), folder=tmp_path / "run", epochs=8, **SMALL)

    model = result.fill(Brightness())
    with torch.no_grad():
        answers = model(torch.full((3, 1, 4, 4), 1.0) * torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1))
    assert answers[:, 0].tolist() == pytest.approx([-1.0, 0.5, 2.0], abs=0.2)


def test_a_model_trains_on_a_table_in_memory(tmp_path):
    table = pa.table({"size": [i / 100 for i in range(400)], "price": [2.0 * i / 100 for i in range(400)]})

    result = train(
        Line(), table, data_options={"label": "price", "dense": ["size"]}, folder=tmp_path / "run", epochs=40, **SMALL
    )

    assert float(result.fill(Line()).line.weight.detach()) == pytest.approx(2.0, abs=0.3)


def test_a_source_made_by_load_data_is_known_by_its_name(tmp_path):
    (tmp_path / "rows.csv").write_text("label,x\n" + "".join(f"{i},{i}\n" for i in range(100)))
    source = load_data("csv", path=str(tmp_path / "rows.csv"), dense=["x"], cache=False)

    train(Line(), source, folder=tmp_path / "run", **SMALL)

    data = Blueprint.read(tmp_path / "run").run.data
    assert data.name == "csv"
    assert msgspec.to_builtins(data.options) == {
        "path": str(tmp_path / "rows.csv"), "dense": ["x"], "cache": False,
    }  # fmt: skip


def test_a_model_that_reads_what_the_data_lack_is_refused_before_anything_starts(tmp_path):
    table = pa.table({"label": [0.0, 1.0], "size": [1.0, 2.0]})

    with pytest.raises(ModelError, match="reads `image`, which no batch of these data has"):
        train(Captioned(), table, folder=tmp_path / "run", **SMALL)

    assert not (tmp_path / "run" / "blueprint.json").exists()


class Half(nn.Module):
    """Every other row."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, 1)

    def forward(self, dense):
        return self.out(dense)[::2].squeeze(1)


def test_an_answer_to_half_of_the_rows_is_refused(tmp_path):
    table = pa.table({"label": [0.0, 1.0] * 4, "size": [1.0, 2.0] * 4})

    with pytest.raises(ModelError, match=r"the model's answer has 4 rows for 8 samples: its shape is \[4\]"):
        train(Half(), table, folder=tmp_path / "run", **SMALL)


class Wanting(Half):
    """A keyword, with a default, for what may be a field."""

    def forward(self, dense, colour=None):
        return self.out(dense).squeeze(1)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "forward's `colour` keeps its default: no field of the data is called `colour`"),
        (
            {"colour": ["red", "blue"] * 4},
            "`colour` is a slot, whose ids are among `ids` and `offsets`; make it",
        ),
        ({"colour": [1.0, 2.0] * 4}, "`colour` is a number, `dense[:, 1]`; make it a field of its own"),
    ],
)
def test_a_keyword_of_forward_that_no_field_has_is_said(tmp_path, capsys, columns, said):
    table = pa.table({"label": [0.0, 1.0] * 4, "size": [1.0, 2.0] * 4, **columns})
    model = Wanting()
    model.out = nn.Linear(2 if "dense[:, 1]" in said else 1, 1)

    train(model, table, folder=tmp_path / "run", batch=4)

    assert said in capsys.readouterr().err


def test_a_column_that_is_no_field_of_its_own_is_found_for_whoever_asks(tmp_path):
    table = pa.table({"label": [0.0, 1.0], "image": ["a", "b"]})

    with pytest.raises(ModelError, match="`image`, which no batch of these data has: it is a slot") as caught:
        train(Captioned(), table, folder=tmp_path / "run", **SMALL)

    assert 'fields=["image"], with ignore=[]' in caught.value.hint


class Heads(nn.Module):
    """Two answers: one of three classes, and a click."""

    def __init__(self):
        super().__init__()
        self.kind, self.click = nn.Linear(1, 3), nn.Linear(1, 1)

    def forward(self, dense):
        return {"kind": self.kind(dense), "click": self.click(dense)}


def test_a_sequence_trains_on_images_and_runs_as_a_program(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1))

    result = train(model, Shades(), folder=tmp_path / "run", **SMALL)
    exported = result.export(tmp_path / "model")

    images = torch.stack([Shades()[number][0] for number in range(7)])
    scores = torch.export.load(tmp_path / "model" / "model.pt2").module()(images)[:, 0]
    assert exported.inputs == ("x",)
    assert scores.tolist() == pytest.approx(result.predict(Shades()).scores[:7].tolist(), rel=1e-5)


def test_each_of_several_answers_is_predicted_with_its_chances(tmp_path):
    numbers = range(60)
    table = pa.table(
        {"x": [i / 60 for i in numbers], "kind": [i % 3 for i in numbers], "click": [i % 2 for i in numbers]}
    )
    given = SMALL | {"loss": {"kind": "cross-entropy", "click": "logistic"}}
    result = train(
        Heads(), table, data_options={"label": ["kind", "click"], "dense": ["x"]}, folder=tmp_path / "run", **given
    )

    found = result.predict(pa.table({"x": [0.0, 0.5]}))

    with torch.no_grad():
        answer = result.fill(Heads())(torch.tensor([[0.0], [0.5]]))
    assert found.scores["kind"].shape == (2, 3)
    np.testing.assert_allclose(found.probabilities["kind"], torch.softmax(answer["kind"], dim=1), rtol=1e-5)
    np.testing.assert_allclose(found.probabilities["click"], torch.sigmoid(answer["click"])[:, 0], rtol=1e-5)


def test_weights_of_a_table_count(tmp_path):
    # Two samples at one place: the best answer there is the mean of their labels by weight, 0.75 * 1 + 0.25 * 5 = 2.
    table = pa.table({"label": [1.0, 5.0] * 100, "x": [1.0] * 200, "much": [3.0, 1.0] * 100})

    result = train(Line(), table, data_options={"weight": "much"}, folder=tmp_path / "run", epochs=80, **SMALL)

    assert result.predict(pa.table({"x": [1.0]})).scores.tolist() == pytest.approx([2.0], abs=0.1)
