"""What workers kept back, at a server: added to the next step once, and in checkpoints."""

import msgspec
import numpy as np
import pytest

from dovetail.codecs import codec_of, pack, unpack
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.dense.coding import ReaderCopies
from dovetail.runtime.messages import Push
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.gradients import TaskPart
from dovetail.runtime.server.key_set_cache import KeySetCache
from dovetail.runtime.server.requests import gradients_in
from dovetail.runtime.server.shard import Shard
from dovetail.spec.run_sections import RunCompression, RunOptimizer
from dovetail.transport import WireError
from tests.runtime.runs import make_run

RATE = 0.5


@pytest.fixture
def make_shard(tmp_path):
    made = []

    def make(folder=None, mode="sync"):
        run = make_run(optimizer=RunOptimizer(name="sgd", learning_rate=RATE), mode=mode)
        run = msgspec.structs.replace(run, compression=RunCompression(bits=4))
        blueprint = prepare(run, tmp_path / f"run-{len(made)}")
        shard = Shard(blueprint, 0, tmp_path / f"rows-{len(made)}")
        shard.load(folder or checkpoints.newest(tmp_path / f"run-{len(made)}"))
        made.append(shard)
        return shard

    yield make
    for shard in made:
        shard.close()


def kept_by(shard, seed):
    return np.random.default_rng(seed).standard_normal(len(shard.values)).astype(np.float32)


def commit(shard):
    shard.commit(scale=1.0, dense_scale=1.0, factor=1.0)


def test_what_a_worker_that_left_kept_back_is_in_the_next_step_and_only_there(make_shard):
    shard = make_shard()
    before, kept = shard.values.copy(), kept_by(shard, 1)

    shard.returned.add(kept, worker="a", checkpoint=-1)
    commit(shard)
    commit(shard)

    np.testing.assert_allclose(shard.values, before - RATE * kept, atol=1e-5)


def test_a_step_that_is_thrown_away_does_not_lose_it(make_shard):
    shard = make_shard()
    before, kept = shard.values.copy(), kept_by(shard, 1)

    shard.returned.add(kept, worker="a", checkpoint=-1)
    assert shard.norm_square() == pytest.approx(float(kept @ kept), rel=1e-4)
    shard.discard()
    commit(shard)

    np.testing.assert_allclose(shard.values, before - RATE * kept, atol=1e-5)


def test_in_async_it_is_in_the_next_task(make_shard):
    shard = make_shard(mode="async")
    before, kept, dense = shard.values.copy(), kept_by(shard, 1), kept_by(shard, 2)

    shard.returned.add(kept, worker="a", checkpoint=-1)
    for task in range(2):
        shard.apply(TaskPart(0, task, "b", dense=dense), scale=1.0, factor=1.0)

    np.testing.assert_allclose(shard.values, before - RATE * (kept + 2 * dense), atol=1e-4)


def test_a_checkpoint_has_what_all_workers_keep_back_and_changes_nothing_for_those_who_go_on(make_shard, tmp_path):
    shard = make_shard()
    before, one, other = shard.values.copy(), kept_by(shard, 1), kept_by(shard, 2)
    shard.returned.add(one, worker="a", checkpoint=7)
    shard.returned.add(one, worker="a", checkpoint=7)  # it was asked twice
    shard.returned.add(other, worker="b", checkpoint=7)
    folder = checkpoints.begin(tmp_path / "kept", 0)
    for future in shard.save(folder, 7):
        future.result()
    commit(shard)
    np.testing.assert_array_equal(shard.values, before)

    fingerprint = checkpoints.RunManifest.read(checkpoints.newest(tmp_path / "run-0")).fingerprint
    manifest = checkpoints.RunManifest(
        step=0, position=0, dense_steps=0, num_servers=1, samples=2000, fingerprint=fingerprint,
        files=checkpoints.checksums_in(folder, only="**/*"),
    )  # fmt: skip
    loaded = make_shard(checkpoints.publish(folder, manifest))
    commit(loaded)

    np.testing.assert_allclose(loaded.values, before - RATE * (one + other), atol=1e-5)


@pytest.mark.parametrize("bits", [16, 8, 4, 2, 1])
def test_readers_of_dense_parameters_come_ever_closer_to_what_is(bits):
    draw = np.random.default_rng(8)
    values, exact = draw.standard_normal(500).astype(np.float32), np.array([3, 499])
    copies, held, base = ReaderCopies(exact), np.empty(0, dtype=np.float32), -1

    for step in range(30):
        if step < 10:
            values += 0.1 * draw.standard_normal(500).astype(np.float32)
        array, base = copies.answer(b"reader", values, base=base, bits=bits)
        is_difference = array.dtype == np.uint8
        assert is_difference == (step > 0)
        held = held + unpack(array, (500,), exact=exact) if is_difference else array.copy()
        np.testing.assert_array_equal(held[exact], values[exact])

    assert np.linalg.norm(held - values) < 0.02 * np.linalg.norm(values)


@pytest.mark.parametrize("bits", [16, 8, 4, 2, 1])
def test_a_server_knows_to_the_bit_what_a_reader_holds(bits):
    draw = np.random.default_rng(8)
    values = draw.standard_normal(500).astype(np.float32)
    copies, held, base = ReaderCopies(np.array([3, 499])), np.empty(0, dtype=np.float32), -1
    for _ in range(50):
        array, base = copies.answer(b"reader", values, base=base, bits=bits)
        is_difference = array.dtype == np.uint8
        held = held + unpack(array, (500,), exact=np.array([3, 499])) if is_difference else array.copy()
        np.testing.assert_array_equal(held, copies._copies[b"reader"].values)
        values = values + 0.1 * draw.standard_normal(500).astype(np.float32)


def test_a_reader_gets_rid_of_what_is_no_number():
    values = np.ones(100, dtype=np.float32)
    copies = ReaderCopies(np.empty(0, dtype=np.int64))
    _, base = copies.answer(b"reader", values, base=-1, bits=8)
    values[7] = np.nan
    _, base = copies.answer(b"reader", values, base=base, bits=8)
    values[7] = 1.0

    array, _ = copies.answer(b"reader", values, base=base, bits=8)

    np.testing.assert_array_equal(array, values)


def test_a_reader_that_holds_something_else_gets_all_of_it():
    values = np.ones(100, dtype=np.float32)
    copies = ReaderCopies(np.empty(0, dtype=np.int64))
    _, base = copies.answer(b"reader", values, base=-1, bits=4)

    assert copies.answer(b"reader", values, base=base + 1, bits=4)[0].dtype == np.float32
    assert copies.answer(b"other", values, base=base, bits=4)[0].dtype == np.float32


def test_a_push_with_a_payload_that_is_damaged_is_refused():
    values = np.random.default_rng(9).standard_normal((3, 4)).astype(np.float32)
    payload = pack(values, codec_of(8))
    payload[-9] ^= 1
    push = Push(
        generation=1, step=0, task=0, worker="w", part=0, tables=(0,), dense=False, last=True, positions=1,
        samples=1, loss=0.0,
    )  # fmt: skip

    with pytest.raises(WireError, match="a push of w has a payload with a wrong checksum"):
        gradients_in(push, [np.arange(3), payload], KeySetCache())
