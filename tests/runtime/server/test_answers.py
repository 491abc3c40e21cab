"""Pulls that wait for a step: their rows are read before it, into shared memory, and are those after it."""

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import Pull
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.answers import AnswerWire, Parked
from dovetail.runtime.server.gradients import TaskPart
from dovetail.runtime.server.shard import Shard
from dovetail.transport import Envelope
from dovetail.transport.shared_memory import make_shared_memory, open_shared_memory
from tests.runtime.runs import NUM_ROWS, make_run


@pytest.fixture
def shard(tmp_path):
    blueprint = prepare(make_run(), tmp_path / "run")
    shard = Shard(blueprint, 0, tmp_path / "run" / "rows")
    shard.load(checkpoints.newest(tmp_path / "run"))
    yield shard
    shard.close()


@pytest.fixture
def lane(tmp_path):
    (tmp_path / "lanes").mkdir()
    mine = make_shared_memory(tmp_path / "lanes", "worker-0", 1 << 20)
    return open_shared_memory(tmp_path / "lanes", mine.name)


def pull_of(keys, version, lane, *, number=7, dense=True):
    """Return the envelope of a worker that wants rows after so many steps."""
    pull = Pull(generation=1, version=version, tables=(0,), dense=dense, number=number)
    return Envelope(b"worker-0", 3, pull, (keys,), lane, "worker-0")


def step(shard, number, keys, draw, after_slice=None):
    """Have the shard apply a step that changes some rows and all dense parameters."""
    gradients = draw.normal(size=(len(keys), shard.tables[0].width)).astype(np.float32)
    dense = draw.normal(size=len(shard.values)).astype(np.float32)
    shard.push(TaskPart(number, 0, "worker-0", rows=[(0, keys, gradients)], dense=dense))
    shard.commit(scale=1.0, dense_scale=1.0, factor=1.0, after_slice=after_slice)


def answer_of(shard, waiting):
    """Return the arrays of an answer, in the lane, as the one who asked sees them."""
    envelope = waiting.envelope
    _, arrays = AnswerWire(shard).answer(envelope, 0.0, owner=envelope.owner, rows=waiting.rows)
    offsets = envelope.lane.place(arrays)
    memory = envelope.lane.memory()
    ends = [offset + array.nbytes for offset, array in zip(offsets, arrays, strict=True)]
    return [memory[begin:end].view(np.float32) for begin, end in zip(offsets, ends, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_were_read_before_the_step_are_those_after_it(shard, lane, seed):
    draw = np.random.default_rng(seed)
    parked = Parked(shard, reads_ahead=True)
    for number in range(5):
        wanted = draw.permutation(NUM_ROWS)[: draw.integers(1, NUM_ROWS)].astype(np.int64)
        parked.add(pull_of(wanted, number + 1, lane, number=number), 0.0)
        parked.read_one()
        assert parked.is_read == shard.is_settled  # rows that are due come first
        shard.settle()
        parked.read_one()
        assert parked.is_read
        pulled = shard.pulled_keys
        step(shard, number, draw.choice(NUM_ROWS, size=25, replace=False), draw)
        for _ in range(draw.integers(0, 3)):
            shard.settle_some(7)  # some of it is applied when the answer goes, or all of it

        (waiting,) = parked.take()
        rows, dense = answer_of(shard, waiting)

        assert waiting.rows is not None
        assert shard.pulled_keys == pulled  # nothing was looked up again
        np.testing.assert_array_equal(dense, shard.values)
        np.testing.assert_array_equal(rows.reshape(len(wanted), -1), shard.pull((0,), (wanted,), dense=False)[0])
        (kept,) = shard.kept.find("worker-0", number)
        np.testing.assert_array_equal(kept.keys, wanted)


def test_an_answer_that_cannot_go_where_it_was_read_to_is_read_again(shard, lane, tmp_path):
    draw, wanted = np.random.default_rng(0), np.arange(40)
    parked = Parked(shard, reads_ahead=True)
    parked.add(pull_of(wanted, 1, lane), 0.0)
    parked.read_one()
    step(shard, 0, np.arange(0, 40, 3), draw)

    (waiting,) = parked.take()
    elsewhere = waiting.rows[0].written()

    np.testing.assert_array_equal(elsewhere, shard.pull((0,), (wanted,), dense=False)[0])
    assert len(shard.kept.find("worker-0", 7)) == 1


def test_what_makes_no_sense_is_left_to_who_answers(shard, lane):
    parked = Parked(shard, reads_ahead=True)
    parked.add(pull_of(np.array([NUM_ROWS + 1]), 1, lane), 0.0)

    parked.read_one()

    assert parked.take()[0].rows is None


def test_without_shared_memory_nothing_is_read_ahead(shard):
    parked = Parked(shard, reads_ahead=True)

    parked.add(pull_of(np.arange(3), 1, None), 0.0)

    assert parked.is_read
    assert len(parked.take()) == 1


def test_rows_are_answered_before_the_dense_parameters_are_stepped_and_slices_as_they_are(tmp_path):
    blueprint = prepare(make_run(slice_bytes=400), tmp_path / "run")
    shard = Shard(blueprint, 0, tmp_path / "run" / "rows")
    shard.load(checkpoints.newest(tmp_path / "run"))
    wire, answers = AnswerWire(shard), []

    def answer(envelope, waiting):
        _, arrays = wire.answer(envelope, 0.0, owner="worker-0", rows=waiting.rows)
        answers.append((envelope.request, [np.array(getattr(each, "written", lambda e=each: e)()) for each in arrays]))

    parked, size, draw = Parked(shard, answer, reads_ahead=True), len(shard.values), np.random.default_rng(1)
    plain = Pull(generation=1, version=1, tables=(), dense=True)
    bounds = [(100, 200), (0, 100), (size - 10, size)]
    for number, (first, last) in enumerate(bounds):
        parked.add(Envelope(b"worker-0", number, replace(plain, first=first, last=last), owner="worker-0"), 0.0)
    parked.add(Envelope(b"worker-1", 8, plain, owner="worker-1"), 0.0)  # wants all in one piece
    parked.add(
        Envelope(b"worker-0", 9, replace(plain, dense=False, tables=(0,)), (np.arange(5),), owner="worker-0"), 0.0
    )

    step(shard, 0, np.arange(5), draw, parked.after_slice)

    assert [number for number, _ in answers] == [9, 1, 0, 2]
    for number, (first, last) in enumerate(bounds):
        (found,) = dict(answers)[number]
        np.testing.assert_array_equal(found, shard.values[first:last])
    np.testing.assert_array_equal(dict(answers)[9][0], shard.pull((0,), (np.arange(5),), dense=False)[0])
    assert [waiting.envelope.request for waiting in parked.take()] == [8]
    shard.close()
