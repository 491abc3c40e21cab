"""A worker's links: what goes over them, and what is kept back, whatever becomes of it."""

import itertools

import numpy as np
import pytest

from dovetail.codecs import unpack
from dovetail.codecs.chooser import WINDOW
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.worker.links.compression import LinkCompression
from dovetail.spec.run import RunModel
from dovetail.spec.run_sections import RunCompression
from tests.runtime.runs import make_run

MODEL = RunModel(name="ctr-dnn", options={"num_rows": 240, "width": 8, "hidden": [64, 32]})


@pytest.fixture
def make_wire(tmp_path):
    def make(run=None, tell=None, **settings):
        run = make_run(model=MODEL, compression=RunCompression(**settings), **(run or {}))
        blueprint = prepare(run, tmp_path / "run")
        wire = LinkCompression(blueprint, name="w", is_slow=True, tell=tell)
        wire.rest.clock = itertools.count().__next__  # steps of a second each, whatever else the machine does
        return wire, blueprint

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


def test_a_step_that_counted_is_not_taken_back_where_nobody_said_so_in_time(make_wire):
    wire, blueprint = make_wire(bits=1)
    first, second = gradient(blueprint.dense_size, 0), gradient(blueprint.dense_size, 1)
    arrived = send(wire, first, 0)
    wire.begin(1)
    payload = wire.dense_up(0, second)
    wire.abandoned()  # before the server answers: a worker elsewhere was lost

    wire.go_on_at(2)

    arrived = arrived + unpack(payload, second.shape, exact=wire._links[0].exact)
    np.testing.assert_allclose(arrived + wire.feedback.now, first + second, atol=1e-4)


@pytest.mark.parametrize("told", [1, -1])
def test_a_step_that_is_done_again_is_taken_back(make_wire, told):
    wire, blueprint = make_wire(bits=1)
    first = gradient(blueprint.dense_size, 0)
    arrived = send(wire, first, 0)
    wire.begin(1)
    wire.dense_up(0, gradient(blueprint.dense_size, 1))
    wire.abandoned()

    wire.go_on_at(told)

    np.testing.assert_allclose(arrived + wire.feedback.now, first, atol=1e-4)


def test_in_async_only_what_no_server_acknowledged_is_taken_back(make_wire):
    wire, blueprint = make_wire(run={"mode": "async", "servers": 2}, bits=1)
    dense = gradient(blueprint.dense_size, 0)
    wire.begin(0)
    for number in range(2):
        wire.dense_up(number, dense)
    kept = wire.feedback.now.copy()
    wire.acknowledged(0, 0.1, counts=True, dense=True)

    wire.abandoned()

    first, second = (blueprint.dense_slice(number) for number in range(2))
    np.testing.assert_array_equal(wire.feedback.now[first], kept[first])
    assert kept[second].any()
    assert not wire.feedback.now[second].any()


def test_what_was_sent_on_the_way_back_to_32_bits_is_sent_again_with_its_step(make_wire):
    wire, blueprint = make_wire(bits="auto")
    first, second = gradient(blueprint.dense_size, 0), gradient(blueprint.dense_size, 1)
    wire._links[0].up.bits = 1
    arrived = send(wire, first, 0)
    wire._links[0].up.bits = 32
    send(wire, second, 1)
    wire.go_on_at(1)

    arrived = arrived + send(wire, second, 1)

    np.testing.assert_allclose(arrived, first + second, atol=1e-4)


def test_where_bandwidth_is_not_the_limit_nothing_is_coded_kept_or_decided(make_wire):
    told = []
    wire, blueprint = make_wire(bits="auto", tell=lambda link, decision: told.append(decision))
    dense, rows = gradient(blueprint.dense_size, 0), gradient((5, 8), 1)
    for step in range(50 * WINDOW):
        wire.begin(step)
        assert wire.rows_up(0, rows) is rows
        assert np.shares_memory(wire.dense_up(0, dense), dense)
        wire.acknowledged(0, 0.004, counts=True, dense=True)
        assert wire.wants(0) == {}
        wire.answered(0, 0.004)
        wire.task_done(0.05)

    assert told == []
    assert not wire.feedback.is_any
    assert wire.feedback.now.nbytes == 0


def test_a_width_that_is_too_noisy_is_given_up_for_the_next(make_wire):
    told = []
    wire, blueprint = make_wire(
        bits="auto", tell=lambda link, decision: told.append((link, decision.before, decision.bits))
    )
    draw = np.random.default_rng(5)
    spread = np.exp(draw.standard_normal(blueprint.dense_size)).astype(np.float32)  # neighbours differ in size
    for step in range(5 * WINDOW):
        send(wire, spread * gradient(blueprint.dense_size, step), step)
        wire._links[0].up.seconds = wire._links[0].up.sent_bytes / 1e5
        wire.task_done(0.01)

    assert [each for each in told if each[1] != each[2]] == [("to server-0", 32, 4), ("to server-0", 4, 8)]


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
    told = []
    wire, blueprint = make_wire(
        bits="auto", tell=lambda link, decision: told.append((link, decision.before, decision.bits))
    )
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
