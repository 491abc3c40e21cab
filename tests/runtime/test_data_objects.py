"""Training on what people keep samples in: a data set, a table, a source made by `load_data`."""

import msgspec
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
