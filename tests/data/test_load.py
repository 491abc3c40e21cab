"""Data by name, and users' own."""

import pytest

from dovetail.data import DataError, load_data

OWN = """
import torch
from dovetail.data import Batch, Schema

class Zeros:
    schema = Schema(dense=("x",))
    num_samples = 100

    def __init__(self, value):
        self.value = value

    def read(self, first, last):
        n = last - first
        return Batch(sample_ids=torch.arange(first, last), dense=torch.full((n, 1), self.value),
                     ids=torch.zeros(0, dtype=torch.int64), offsets=torch.zeros(1, dtype=torch.int64),
                     labels=torch.zeros(n))

def zeros(value=0.0):
    return Zeros(value)

def nothing():
    return None

def broken():
    return {}["no"]
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own_data.py"
    path.write_text(OWN)
    return path


def test_a_users_own_data_are_loaded_from_a_file(own):
    source = load_data(f"{own}:zeros", value=2.5)

    assert source.read(3, 5).dense.tolist() == [[2.5], [2.5]]


def test_a_users_own_data_are_loaded_from_a_module_in_the_working_folder(own, monkeypatch):
    monkeypatch.chdir(own.parent)

    assert load_data("own_data:zeros").num_samples == 100


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("click", {}, "there are no data `click`"),
        ("clicks", {"rows": 5}, "no option `rows`"),
        ("clicks", {"truth": "deap"}, "no truth `deap`"),
        ("criteo", {}, "needs the option `path`"),
        ("criteo", {"path": "x", "max_bad_rows": -1}, "max_bad_rows is -1"),
        ("csv", {"path": "x", "delimeter": ";"}, "`csv` has no option `delimeter`"),
        ("parquet", {"path": "x", "delimiter": ";"}, "`parquet` has no option `delimiter`"),
        ("no_such_module:make", {}, "there is no module `no_such_module`"),
        ("os.path:jion", {}, "no function `jion`"),
        (":x", {}, "not of the form"),
        ("nowhere.py:x", {}, "there is no file"),
        ("csv", {"path": "x", "slots": ["a"], "multi_valued": ["b"]}, "`b` is multi-valued but no slot"),
    ],
)
def test_what_is_not_there_is_refused_with_a_way_out(name, options, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        load_data(name, **options)

    assert caught.value.hint


def test_a_function_that_returns_no_source_is_refused(own):
    with pytest.raises(DataError, match="returned a NoneType"):
        load_data(f"{own}:nothing")


def test_a_function_that_fails_is_named_with_the_reason(own):
    with pytest.raises(DataError, match="could not be opened: KeyError: 'no'"):
        load_data(f"{own}:broken")
