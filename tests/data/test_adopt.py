"""What people keep samples in becomes a source: PyTorch's data sets and loaders, and tables of every make."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dovetail.data import DataError, Loader, as_source, load_data
from dovetail.data.errors import DataWarning
from dovetail.data.load import how_made
from dovetail.spec.run import parse_value


class Squares(Dataset):
    """Image `i` is full of `i`; its label is `i` modulo 10."""

    def __len__(self):
        return 50

    def __getitem__(self, number):
        return torch.full((1, 4, 4), float(number)), number % 10


class Counting(IterableDataset):
    """Numbers, one after the other, as dictionaries."""

    def __iter__(self):
        for number in range(2500):
            yield {"value": torch.tensor([float(number)]), "label": float(number % 2)}


def test_a_dataset_is_read_by_number_its_inputs_under_the_names_given():
    source = as_source(Squares(), names=["image"])

    batch = source.read(3, 6)

    assert source.num_samples == 50
    assert batch.sample_ids.tolist() == [3, 4, 5]
    assert batch.image.shape == (3, 1, 4, 4)
    assert batch.image[:, 0, 0, 0].tolist() == [3.0, 4.0, 5.0]
    assert batch.labels.tolist() == [3.0, 4.0, 5.0]
    assert [(field.name, field.shape, field.dtype) for field in source.schema.fields] == [
        ("image", (1, 4, 4), "float32")
    ]


def test_a_row_of_numbers_a_sample_is_dense_unless_it_has_another_name():
    inputs = torch.arange(12.0).reshape(4, 3)

    source = as_source(TensorDataset(inputs, torch.tensor([0.5, 1.5, 2.5, 3.5])))

    assert source.schema.num_dense == 3
    assert torch.equal(source.read(1, 3).dense, inputs[1:3])
    assert source.read(1, 3).labels.tolist() == [1.5, 2.5]


def test_tensors_lie_where_they_are_and_have_one_id_a_slot():
    ids, numbers, labels = torch.arange(12).reshape(4, 3), torch.rand(4, 2), torch.tensor([0.0, 1.0, 1.0, 0.0])

    source = as_source(TensorDataset(ids, numbers, labels), names=["ids", "dense"])
    batch = source.gather(np.array([2, 0]))

    assert source.read(1, 3).dense.data_ptr() == numbers[1:].data_ptr()
    assert (source.schema.num_slots, source.schema.num_dense) == (3, 2)
    assert batch.ids.tolist() == [6, 7, 8, 0, 1, 2]
    assert batch.offsets.tolist() == list(range(7))
    assert torch.equal(batch.dense, numbers[[2, 0]])
    assert batch.labels.tolist() == [1.0, 0.0]


def test_an_iterable_dataset_is_gone_through_once():
    source = as_source(Counting())

    assert source.num_samples == 2500
    assert source.read(1000, 1500).value[:, 0].tolist() == list(range(1000, 1500))


def test_a_loader_brings_its_collate_along_and_shorter_batches_get_zeros_behind():
    texts = [[1] * length for length in (1, 2, 3, 9, 2, 2)]

    def collate(samples):
        return {"tokens": pad_sequence([torch.tensor(text) for text in samples], batch_first=True)}

    source = as_source(DataLoader(texts, batch_size=2, collate_fn=collate))
    shuffled = Loader(source, batch_size=6, block_samples=2, prefetch=0)
    (batch,) = shuffled

    assert batch.tokens.shape == (6, 9)
    assert sorted(batch.tokens.sum(dim=1).tolist()) == [1, 2, 2, 2, 3, 9]
    for number, tokens in zip(batch.sample_ids.tolist(), batch.tokens, strict=True):
        assert int(tokens.sum()) == len(texts[number])


def test_inputs_without_names_are_refused():
    with pytest.raises(DataError, match="2 inputs and a label, and 1 names are known"):
        as_source([(torch.zeros(2), torch.zeros(3), 1.0)])


COLUMNS = {
    "age": [1.5, 2.5, 3.5],
    "colour": ["red", "blue", "red"],
    "tags": [["a", "b"], [], ["b"]],
    "tokens": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
    "label": [10.0, 20.0, 30.0],
}


def tables():
    """Yield the same table of every make that is installed."""
    yield pytest.param(lambda: pa.table(COLUMNS), id="arrow")
    yield pytest.param(lambda: pytest.importorskip("pandas").DataFrame(COLUMNS), id="pandas")
    yield pytest.param(lambda: pytest.importorskip("polars").DataFrame(COLUMNS), id="polars")
    yield pytest.param(lambda: pytest.importorskip("datasets").Dataset.from_dict(COLUMNS), id="hugging-face")


@pytest.mark.parametrize("make", list(tables()))
def test_a_table_of_every_make_becomes_the_same_samples(make, tmp_path):
    arrow_parquet.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    path = str(tmp_path / "t.parquet")
    options = {"dense": ["age"], "slots": ["colour", "tags"], "multi_valued": ["tags"], "fields": ["tokens"]}
    on_disk = load_data("parquet", path=path, cache=False, **options)

    source = as_source(make())
    batch, expected = source.read(0, 3), on_disk.read(0, 3)

    assert source.schema.dense == ("age",)
    assert [slot.name for slot in source.schema.slots] == ["colour", "tags"]
    assert batch.labels.tolist() == [10.0, 20.0, 30.0]
    assert batch.tokens.tolist() == COLUMNS["tokens"]
    for name in ("dense", "ids", "offsets", "labels", "tokens"):
        assert torch.equal(getattr(batch, name), getattr(expected, name)), name


def test_a_table_without_a_label_is_refused_with_the_way_out():
    with pytest.raises(DataError, match="none of the columns age, colour is called `label`") as caught:
        as_source(pa.table({"age": [1.0], "colour": ["red"]}))

    assert 'data_options={"label"' in caught.value.hint


def test_several_label_columns_make_one_label_and_broken_rows_are_left_out():
    table = pa.table({"x": [1.0, 2.0, 3.0], "left": [0.0, None, 2.0], "right": [5.0, 6.0, 7.0]})

    source = as_source(table, label=["left", "right"], dense=["x"], max_bad_rows=1)

    assert source.read(0, 3).labels.tolist() == [[0.0, 5.0], [2.0, 7.0]]
    assert source.read(0, 3).sample_ids.tolist() == [0, 2]
    assert source.read(1, 2).num_samples == 0
    assert source.schema.label_shape == (2,)


def test_images_in_files_get_their_shape_and_survive_the_cache(tmp_path):
    rows = np.arange(24, dtype=np.float32).reshape(2, 12)
    arrow_parquet.write_table(pa.table({"label": [7, 3], "pixels": rows.tolist()}), tmp_path / "t.parquet")
    options = {"path": str(tmp_path / "t.parquet"), "fields": ["pixels"], "shapes": {"pixels": [3, 2, 2]}}

    first, again = (load_data("parquet", cache=str(tmp_path / "cache"), **options) for _ in range(2))

    assert torch.equal(first.read(0, 2).pixels, torch.from_numpy(rows).reshape(2, 3, 2, 2))
    assert torch.equal(again.read(0, 2).pixels, first.read(0, 2).pixels)
    assert first.read(0, 2).labels.tolist() == [7.0, 3.0]


def test_a_field_in_csv_is_text_with_separators(tmp_path):
    (tmp_path / "t.csv").write_text("label,series\n0.5,1|2|3\n1.5,4|5\n")

    source = load_data("csv", path=str(tmp_path / "t.csv"), fields=["series"], cache=False)

    assert source.read(0, 2).series.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]]


def test_fields_of_text_that_are_whole_numbers_are_exact(tmp_path):
    (tmp_path / "t.csv").write_text(f"label,user,items\n0,{2**53 + 1},1|2\n1,7,3\n")
    options = {"path": str(tmp_path / "t.csv"), "fields": ["user", "items"], "cache": False}

    batch = load_data("csv", **options, whole=["user", "items"], shapes={"user": []}).read(0, 2)

    assert batch.user.tolist() == [2**53 + 1, 7]
    assert (batch.items.dtype, batch.items.tolist()) == (torch.int64, [[1, 2], [3, 0]])
    with pytest.raises(DataError, match="`age` is whole but no field"):
        load_data("csv", **options, whole=["age"])
    (tmp_path / "t.csv").write_text("label,user,items\n0,1.5,1|2\n")
    with pytest.raises(DataError, match="field `user` is not whole numbers"):
        load_data("csv", **options, whole=["user"]).read(0, 1)


def test_a_source_of_files_travels_to_other_processes_and_knows_how_it_was_made(tmp_path):
    (tmp_path / "t.csv").write_text("label,price\n0,1\n1,2\n")
    options = {"path": str(tmp_path / "t.csv"), "dense": ["price"], "cache": str(tmp_path / "cache")}
    source = load_data("csv", **options)

    there = pickle.loads(pickle.dumps(source))

    assert torch.equal(there.read(0, 2).dense, source.read(0, 2).dense)
    assert how_made(source) == ("csv", options)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0.5", 0.5),
        ("true", True),
        ("red", "red"),
        ("red,blue", ["red", "blue"]),
        ('["red", "blue"]', ["red", "blue"]),
        ("64,32", [64, 32]),
        ("red,", ["red"]),
        (",", ","),
        ("2024-01-02", "2024-01-02"),
        ("s3://bucket/a.parquet", "s3://bucket/a.parquet"),
    ],
)
def test_lists_are_written_one_way_everywhere(text, value):
    assert parse_value(text) == value


def test_a_separator_that_looks_wrong_is_told(tmp_path):
    (tmp_path / "t.csv").write_text("label;tags\n0;a,b\n1;c\n1;a,c,d\n")
    options = {"path": str(tmp_path / "t.csv"), "slots": ["tags"], "multi_valued": ["tags"], "delimiter": ";"}

    with pytest.warns(DataWarning, match="2 of 3 have `,`: is that it"):
        wrong = load_data("csv", cache=False, **options)
    right = load_data("csv", cache=False, separator=",", **options)

    assert wrong.read(0, 3).ids.shape == (3,)
    assert right.read(0, 3).ids.shape == (6,)


def test_samples_of_a_dataset_count_by_their_weights():
    samples = [{"dense": torch.tensor([float(i)]), "weights": float(i), "label": 0.0} for i in range(4)]

    batch = as_source(samples).read(1, 3)

    assert batch.weights.tolist() == [1.0, 2.0]
    assert not batch.extra


def test_categories_of_a_table_are_hashed_and_its_rows_weighed():
    table = pa.table({"label": [0.0, 1.0], "city": ["here", "there"], "much": [0.5, 2.0]})
    whole = as_source(table, slots=["city"]).read(0, 2)

    source = as_source(table, slots=["city"], hash_into=10, weight="much")

    assert source.read(0, 2).ids.tolist() == (whole.ids % 10).tolist()
    assert source.read(0, 2).weights.tolist() == [0.5, 2.0]
    assert [slot.hash_into for slot in source.schema.slots] == [10]
    assert source.columns.weight == "much"
