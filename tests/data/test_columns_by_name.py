"""Columns are found by their names, and ids lie below the sizes of tables where they are hashed into them."""

import pytest
import torch

from dovetail.data import DataError, Schema, Slot, hashed, load_data
from dovetail.data.load import options_known
from dovetail.data.transforms import by_name
from tests.data.makers import bags_of, make_batch

TEXT = "label,a,b,c,user,tags\n1,1,2,0,ann,x|y\n0,3,4,0,bob,z\n1,5,6,0,cid,\n"
COLUMNS = {"dense": ["a", "b"], "slots": ["user", "tags"], "multi_valued": ["tags"]}


@pytest.fixture
def day(tmp_path):
    path = tmp_path / "day.csv"
    path.write_text(TEXT)
    return str(path)


def read(day, **options):
    return load_data("csv", path=day, cache=False, **(COLUMNS | options))


def test_columns_in_another_order_are_read_as_if_in_the_first(day):
    first = read(day)
    turned = by_name(read(day, dense=["b", "a"], slots=["tags", "user"]), first.schema)

    one, other = first.read(0, 3), turned.read(0, 3)

    assert torch.equal(one.dense, other.dense)
    assert bags_of(one) == bags_of(other)
    assert turned.schema == first.schema
    assert turned.num_samples == 3


def test_data_in_the_same_order_are_taken_as_they_are(day):
    source = read(day)

    assert by_name(source, read(day).schema) is source


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dense": ["a"]}, "no number `b`"),
        ({"dense": ["a", "b", "c"]}, "a number `c`, which the model was not trained on"),
        ({"slots": ["tags"]}, "no slot `user`"),
        ({"hash_into": 10}, "slot `user` is hashed into 10"),
    ],
)
def test_columns_that_do_not_match_are_refused(day, options, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        by_name(read(day, **options), read(day).schema)

    assert caught.value.hint


def test_ids_are_hashed_into_the_size_of_a_table_and_the_schema_says_so(day):
    plain, small = read(day), read(day, hash_into=5)

    assert small.read(0, 3).ids.tolist() == (plain.read(0, 3).ids % 5).tolist()
    assert small.schema.slots[0] == Slot(name="user", num_keys=5, hash_into=5)
    assert bags_of(small.read(2, 3))[0][1] == []


def test_each_column_may_have_a_size_of_its_own(day):
    plain, small = bags_of(read(day).read(0, 3)), bags_of(read(day, hash_into={"tags": 3}).read(0, 3))

    assert [user for user, _ in small] == [user for user, _ in plain]
    assert [tags for _, tags in small] == [[tag % 3 for tag in tags] for _, tags in plain]


@pytest.mark.parametrize(
    ("hash_into", "complaint"),
    [({"usr": 3}, "`usr`, which is no slot"), (0, "into 0"), ({"user": "many"}, "into 'many'")],
)
def test_sizes_that_make_no_sense_are_refused(day, hash_into, complaint):
    with pytest.raises(DataError, match=complaint):
        read(day, hash_into=hash_into)


def test_an_own_source_is_hashed_too():
    class Two:
        schema = Schema(slots=(Slot(name="x"), Slot(name="y")), dense=("n",))
        num_samples = 2

        def read(self, first, last):
            return make_batch([[[12], [7]], [[23], []]]).slice(first, last)

    assert bags_of(hashed(Two(), 10).read(0, 2)) == [[[2], [7]], [[3], []]]


def test_options_of_one_kind_of_file_hold_for_another_as_far_as_it_has_them():
    options = {"path": "a.csv", "label": "y", "dense": ["a"], "hash_into": 7}

    assert options_known("parquet", options) == {"label": "y", "dense": ["a"], "hash_into": 7}
    assert options_known("criteo", options) == {"hash_into": 7}
    assert options_known("my.module:source", options) == {}
