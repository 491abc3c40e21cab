"""How much samples count: kept with them through all that is done to a batch."""

import pytest
import torch

from dovetail.data import Batch, DataError, DecodedCache, concatenate, load_data
from dovetail.data.cache import KeptPart
from dovetail.data.packed import packed
from tests.data.makers import make_batch


def weighted(*weights: float, labels: torch.Tensor | None = None) -> Batch:
    """Return samples that count so much."""
    fields = make_batch([[[number]] for number in range(len(weights))]).present()
    return Batch(**fields | {"weights": torch.tensor(weights)} | ({} if labels is None else {"labels": labels}))


def test_weights_stay_with_their_samples():
    batch = weighted(1.0, 2.0, 3.0)

    assert batch.slice(1, 3).weights.tolist() == [2.0, 3.0]
    assert batch.take(torch.tensor([2, 0])).weights.tolist() == [3.0, 1.0]
    assert concatenate([batch.slice(0, 1), batch.slice(2, 3)]).weights.tolist() == [1.0, 3.0]
    assert batch.to("cpu").weights.tolist() == [1.0, 2.0, 3.0]


def test_labels_may_be_several_a_sample():
    batch = weighted(1.0, 1.0, labels=torch.tensor([[1.0, 0.5], [0.0, 7.0]]))

    assert batch.take(torch.tensor([1, 0])).labels.tolist() == [[0.0, 7.0], [1.0, 0.5]]
    assert concatenate([batch, batch.slice(1, 2)]).labels.shape == (3, 2)


def test_samples_with_and_without_weights_are_not_joined():
    with pytest.raises(DataError, match="with and without weights"):
        concatenate([weighted(1.0), make_batch([[[1]]])])


def test_weights_of_another_number_of_samples_are_refused():
    with pytest.raises(DataError, match="2 rows of `weights`"):
        Batch(**make_batch([[[1]]]).present() | {"weights": torch.ones(2)})


def test_the_cache_keeps_weights(tmp_path):
    cache = DecodedCache(tmp_path)
    for key, batch in (("a", weighted(4.0, 5.0)), ("b", make_batch([[[1]]]))):
        samples = packed(batch, num_rows=batch.num_samples, num_slots=1)
        cache.put(key, KeptPart(samples=samples, bad_by_reason={}, bad_examples=()))

    assert cache.get("a").samples.weights.tolist() == [4.0, 5.0]
    assert cache.get("b").samples.weights is None


def test_a_column_of_a_file_says_how_much_its_rows_count(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("label,price,how_often\n1,0.5,2\n0,0.1,0\n1,0.7,-1\n")

    source = load_data("csv", path=str(path), dense=["price"], weight="how_often", cache=False, max_bad_rows=1)

    assert source.read(0, 3).weights.tolist() == [2.0, 0.0]
    assert str(source.bad_rows.examples[0]).endswith("`how_often` is below 0")
