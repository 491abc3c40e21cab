"""A run sees the same samples in the same order, and ends with the same bits, wherever the samples lie."""

import msgspec
import pyarrow.parquet as arrow_parquet
import pytest

from dovetail.data import as_source
from dovetail.data.load import load_data
from dovetail.spec.run import RunData, RunModel
from tests.data.test_same_samples import table_of
from tests.runtime.runs import assert_same_state, last_state, make_run, train
from tests.runtime.trainer.sharded.runs import train_sharded
from tests.runtime.trainer.test_on_host import as_local, finish, finish_with_servers
from tests.runtime.trainer.zoo import SGD

ROWS = 990
"""Every 11th row is broken."""
COLUMNS = {"label": "label", "dense": ["price"], "slots": ["age", "colour", "tags"], "multi_valued": ["tags"]}
MODEL = RunModel(name="ctr-dnn", options={"num_rows": 120, "width": 4, "hidden": [16, 8]})


@pytest.fixture
def path(tmp_path):
    """Write a file of row groups that windows of the order are made of."""
    path = tmp_path / "t.parquet"
    arrow_parquet.write_table(table_of(ROWS), path, row_group_size=30)
    return path


def run_of(path, *, cache=False, epochs=2, **how):
    """Return a run over a file, of several windows an epoch; absent rows cost a batch its size."""
    options = {"path": str(path), "cache": cache if cache is False else str(cache), "max_bad_rows": ROWS, **COLUMNS}
    run = make_run(model=MODEL, batch=45, epochs=epochs, optimizer=SGD, **how)
    data = RunData(name="parquet", options=options, block_samples=8, window_samples=200)
    return msgspec.structs.replace(run, data=data)


def test_in_memory_streaming_cached_and_with_a_server_runs_end_with_the_same_bits_where_rows_are_broken(tmp_path, path):
    finish(as_local(run_of(path)), tmp_path / "streaming")
    for name in ("cold", "cached"):
        finish(as_local(run_of(path, cache=tmp_path / "cache")), tmp_path / name)
    memory = as_source(arrow_parquet.read_table(path), max_bad_rows=ROWS, **COLUMNS)
    memory.parts = load_data("parquet", path=str(path), cache=False, max_bad_rows=ROWS, **COLUMNS).parts
    in_memory = as_local(run_of(path))
    data = msgspec.structs.replace(in_memory.data, name="own", options={})
    finish(msgspec.structs.replace(in_memory, data=data), tmp_path / "memory", source=memory)
    finish_with_servers(run_of(path, workers=1), tmp_path / "servers")

    streaming = last_state(tmp_path / "streaming")
    assert streaming.manifest.step == 2 * ROWS // 45
    for name in ("cold", "cached", "memory", "servers"):
        assert_same_state(last_state(tmp_path / name), streaming)


@pytest.mark.parametrize("last_step", [1, 13, 22, 30])
def test_a_run_that_was_stopped_in_the_middle_goes_on_at_the_very_sample(tmp_path, path, last_step):
    finish(as_local(run_of(path)), tmp_path / "whole")

    finish(as_local(run_of(path)), tmp_path / "stopped", last_step=last_step)
    assert last_step <= last_state(tmp_path / "stopped").manifest.step < 2 * ROWS // 45
    finish(as_local(run_of(path, cache=tmp_path / "cache")), tmp_path / "stopped", resume=True)

    assert_same_state(last_state(tmp_path / "stopped"), last_state(tmp_path / "whole"))


@pytest.mark.processes
@pytest.mark.parametrize("place", ["sharded", "servers"])
def test_four_workers_see_the_samples_of_one(tmp_path, path, place):
    finish(as_local(run_of(path)), tmp_path / "one")

    run = run_of(path, workers=4, cache=tmp_path / "cache")
    (train_sharded if place == "sharded" else train)(run, tmp_path / "four")

    assert_same_state(last_state(tmp_path / "four"), last_state(tmp_path / "one"), rtol=1e-5, atol=1e-6)
