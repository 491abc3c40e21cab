"""Beginning with parameters that are there already, and going on with more data."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dovetail.embedding import Table
from dovetail.models import SlotEmbedding
from dovetail.runtime import TrainingError, restore_model, resume, train
from dovetail.runtime.prepare.run_folder import prepare
from tests.runtime.runs import clicks, last_state, make_run
from tests.runtime.runs import train as run_to_end
from tests.runtime.test_validation import SMALL, Line, slope


class Small(nn.Module):
    """A table and a tower."""

    def __init__(self):
        super().__init__()
        self.slots = SlotEmbedding(num_rows=240, width=4, num_slots=4)
        self.tower = nn.Sequential(nn.Linear(16 + 3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids, offsets, dense):
        return self.tower(torch.cat([self.slots(ids, offsets), dense], dim=1))


def test_a_run_begins_with_the_parameters_of_another(tmp_path):
    run = make_run(samples=1000)
    run_to_end(run, tmp_path / "first")

    prepare(run, tmp_path / "second", start_from=tmp_path / "first")

    before, after = last_state(tmp_path / "first"), last_state(tmp_path / "second")
    np.testing.assert_array_equal(after.dense, before.dense)
    np.testing.assert_array_equal(after.keys[0], before.keys[0])
    np.testing.assert_array_equal(after.rows[0][:, :4], before.rows[0][:, :4])
    assert not after.rows[0][:, 4:].any()  # the optimizer begins anew
    assert (after.manifest.step, after.manifest.position) == (0, 0)
    run_to_end(run, tmp_path / "third", resume=False)  # and it trains from there
    first_loss = restore_model(tmp_path / "second")
    again = restore_model(tmp_path / "first")
    batch = clicks(num_samples=1000).read(0, 10)
    assert torch.equal(first_loss.predict(batch), again.predict(batch))


def test_a_run_begins_with_a_state_dict_under_the_names_of_the_module(tmp_path):
    torch.manual_seed(1)
    trained = Small()
    source = clicks(num_samples=200)

    result = train(
        Small(), source, folder=tmp_path / "run", start_from=trained.state_dict(), workers=1, batch=100,
        optimizer="sgd", learning_rate=1e-9,
    )  # fmt: skip

    batch = source.read(0, 50)
    with torch.no_grad():
        expected = trained(batch.ids, batch.offsets, batch.dense)
    assert torch.allclose(result.load_model().predict(batch), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("start", "complaint"),
    [
        ({"line.weight": torch.zeros(3, 1)}, "`line.weight` is 3 x 1 in what the run starts from, 1 x 1 in the model"),
        ({"other": torch.zeros(1)}, "nothing in what the run starts from has a name that the model knows"),
        ("nowhere", "neither a run, nor a checkpoint"),
    ],
)
def test_parameters_of_another_model_are_refused(tmp_path, start, complaint):
    with pytest.raises(TrainingError, match=complaint):
        train(Line(), slope(1.0), folder=tmp_path / "run", start_from=start, **SMALL)


def test_more_data_may_follow_at_the_end_of_an_epoch(tmp_path):
    train(Line(), slope(1.0, 200), folder=tmp_path / "run", epochs=2, **SMALL)

    with pytest.raises(TrainingError, match="is done with 2 epochs, and epochs is 1"):
        resume(tmp_path / "run", model=Line(), data=slope(1.0, 200), epochs=1)
    result = resume(tmp_path / "run", model=Line(), data=slope(1.0, 400), epochs=3)

    assert result.is_complete
    assert result.step == 2 * 5 + 10


def test_rows_of_a_table_can_be_filled():
    with Table(width=2) as table:
        table.fill([7, 3], [[1.0, 2.0], [3.0, 4.0]])

        assert table.lookup([3, 7]).tolist() == [[3.0, 4.0], [1.0, 2.0]]
        assert len(table) == 2


def test_gradients_of_several_batches_add_up_to_one_step(tmp_path):
    data = TensorDataset(torch.arange(8.0)[:, None], torch.arange(8.0))
    results = [
        train(
            Line(), data, folder=tmp_path / name, workers=1, loss="squared", optimizer="sgd", learning_rate=0.01, **how
        )
        for name, how in (("whole", {"batch": 8}), ("parts", {"batch": 2, "accumulate": 4}))
    ]

    assert [result.step for result in results] == [1, 1]
    weights = [float(result.fill(Line()).line.weight.detach()) for result in results]
    assert weights[0] == pytest.approx(weights[1], rel=1e-6)
    assert weights[0] == pytest.approx(0.01 * 2 * sum(x * x for x in range(8)) / 8)  # one step from 0
