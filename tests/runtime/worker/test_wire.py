"""A worker's links: what goes over them, and what is kept back, whatever becomes of it."""

import msgspec
import numpy as np
import pytest

from dovetail.codecs import unpack
from dovetail.codecs.chooser import WINDOW
from dovetail.runtime.launch.prepare import prepare
from dovetail.runtime.worker.wire import Wire
from dovetail.spec.run import RunModel
from dovetail.spec.run_compression import RunCompression
from tests.runtime.runs import make_run

MODEL = RunModel(name="ctr-dnn", options={"num_rows": 240, "width": 8, "hidden": [64, 32]})


@pytest.fixture
def make_wire(tmp_path):
    def make(**settings):
        run = msgspec.structs.replace(make_run(model=MODEL), compression=RunCompression(**settings))
        blueprint = prepare(run, tmp_path / "run")
        return Wire(blueprint, name="w", is_slow=True), blueprint

    return make


def gradient(size, seed):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def send(wire, dense, step, *, counts=True):
    """Return what a server makes of a dense gradient."""
    wire.begin(step)
    array = wire.dense_up(0, dense)
    exact = wire._links[0].exact if array.dtype == np.uint8 else np.empty(0, dtype=np.int64)
    arrived = unpack(array, dense.shape, exact=exact)
    wire.acknowledged(0, 0.1, counts=counts, dense=True)
    return arrived


@pytest.mark.parametrize("settings", [{"bits": 4}, {"bits": 1}, {"topk": 0.1}])
def test_what_counted_adds_up_to_all_that_was_computed_less_what_is_kept(make_wire, settings):
    wire, blueprint = make_wire(**settings)
    arrived = expected = np.zeros(blueprint.dense_size)
    for step in range(6):
        dense, counts = gradient(blueprint.dense_size, step), step != 3
        got = send(wire, dense, step, counts=counts)
        if counts:
            arrived, expected = arrived + got, expected + dense

    np.testing.assert_allclose(arrived + wire.feedback.now, expected, atol=1e-4)


def test_biases_go_as_they_are(make_wire):
    wire, blueprint = make_wire(bits=1)
    dense = gradient(blueprint.dense_size, 0)

    arrived = send(wire, dense, 0)

    for entry in blueprint.dense:
        part = slice(entry.offset, entry.offset + entry.size)
        assert (arrived[part] == dense[part]).all() == (len(entry.shape) == 1 or entry.size < 1024)


def test_rows_are_never_coarser_than_their_noise_allows(make_wire):
    wire, _ = make_wire(bits=1)
    rows = gradient((200, 8), 0)

    assert rows.nbytes / wire.rows_up(0, rows).nbytes < 8
    assert wire.wants(0) == {"row_bits": 8, "dense_bits": 1, "base": -1}


def test_without_compression_nothing_is_touched_and_nothing_asked_for(make_wire):
    wire, blueprint = make_wire()
    dense, rows = gradient(blueprint.dense_size, 0), gradient((5, 8), 1)

    assert wire.feedback is None
    assert wire.rows_up(0, rows) is rows
    assert np.shares_memory(wire.dense_up(0, dense), dense)
    assert wire.wants(0) == {}


def test_a_slow_link_gets_a_codec_says_so_and_gives_back_what_it_kept_when_it_is_fast(make_wire):
    wire, blueprint = make_wire(bits="auto")
    told = []
    wire.tell = lambda link, decision: told.append((link, decision.before, decision.bits))
    arrived = expected = np.zeros(blueprint.dense_size)

    def train(tasks, seconds_of):
        nonlocal arrived, expected
        for step in range(tasks):
            dense = gradient(blueprint.dense_size, step)
            arrived, expected = arrived + send(wire, dense, step), expected + dense
            wire._links[0].up.seconds = seconds_of(wire._links[0].up.sent_bytes)
            wire.task_done(0.01)

    train(4 * WINDOW, lambda sent: sent / 1e5)
    assert ("to server-0", 32, 4) in told
    assert wire.feedback.now.any()
    train(6 * WINDOW, lambda sent: 0.0001)

    assert wire._links[0].up.bits == 32
    assert not wire.feedback.now.any()
    np.testing.assert_allclose(arrived, expected, atol=1e-3)
