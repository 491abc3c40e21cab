"""Pulls that a server remembers: a push that names one does what a push with its keys does."""

import numpy as np
import pytest

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Push, Refresh
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.key_set_cache import MOST_PULLS, KeySetCache, PullName
from dovetail.runtime.server.requests import gradients_in, keys_of
from dovetail.runtime.server.shard import Shard, threads_of
from dovetail.spec.run import RunServers, RunWorker
from tests.runtime.runs import NUM_ROWS, make_run


@pytest.fixture(params=["sync", "async"])
def shards(request, tmp_path):
    """Two shards of the same run."""
    folder = tmp_path / "run"
    blueprint = prepare(make_run(mode=request.param), folder)
    made = [Shard(blueprint, 0, folder / f"rows-{number}") for number in range(2)]
    for shard in made:
        shard.load(checkpoints.newest(folder))
    yield made
    for shard in made:
        shard.close()


def push_of(**how):
    return Push(
        **{"generation": 1, "step": 0, "task": 0, "worker": "w/1", "part": 0, "tables": (0,), "dense": False,
           "last": True, "positions": 1, "samples": 1, "loss": 0.0, **how}
    )  # fmt: skip


def take_in(shard, push, arrays, *, sync):
    part = gradients_in(push, arrays, shard.kept)
    assert shard.push(part) if sync else shard.apply(part, scale=0.5, factor=1.0)


def test_a_push_that_names_its_pull_does_what_one_with_keys_does(shards):
    named, plain = shards
    sync = named._blueprint.run.training.mode == "sync"
    draw, task = np.random.default_rng(0), 0
    for step in range(5):
        pushes = []
        for worker in ("a", "b"):
            keys = draw.permutation(NUM_ROWS)[: draw.integers(1, NUM_ROWS)]
            values = draw.normal(size=(len(keys), named.tables[0].width)).astype(np.float32)
            found = [
                shard.answer((0,), (keys,), dense=False, keep=PullName(worker, 10 * step, step))[0].written()
                for shard in shards
            ]
            assert found[0].tobytes() == found[1].tobytes()
            pushes.append((worker, keys, values))
        for worker, keys, values in pushes:
            how = {"step": step, "task": task, "worker": f"{worker}/7"}
            take_in(named, push_of(**how, pulls=(10 * step,), places=(0,)), [values], sync=sync)
            take_in(plain, push_of(**how), [keys, values], sync=sync)
            task += 1
        if sync:
            for shard in shards:
                shard.commit(scale=0.5, dense_scale=0.5, factor=1.0)
    for shard in shards:
        shard.settle()

    everything = np.arange(NUM_ROWS)
    assert named.tables[0].rows(everything).tobytes() == plain.tables[0].rows(everything).tobytes()
    assert named.pushed_keys == plain.pushed_keys > 0


def test_a_pull_is_one_workers_own_and_forgotten_with_its_step():
    kept = KeySetCache()
    kept.begin(PullName("a", 1, 0))
    kept.begin(PullName("a", 2, 1))

    assert kept.find("a", 1) == kept.find("a", 2) == []
    assert kept.find("b", 1) is None
    kept.forget_before(1)
    assert kept.find("a", 1) is None
    assert kept.find("a", 2) == []
    kept.forget("a", (2, 3))
    assert kept.find("a", 2) is None


def test_of_many_pulls_of_one_worker_the_last_are_remembered():
    kept = KeySetCache()
    for number in range(MOST_PULLS + 3):
        kept.begin(PullName("a", number, 0))

    assert [kept.find("a", number) is None for number in (0, 2, 3, MOST_PULLS + 2)] == [True, True, False, False]


def test_a_name_that_is_not_known_asks_for_keys_and_one_that_makes_no_sense_is_refused(shards):
    shard = shards[0]
    keys, values = np.arange(3), np.ones((3, shard.tables[0].width), dtype=np.float32)
    shard.answer((0,), (keys,), dense=False, keep=PullName("w", 5, 0))[0].written()

    assert gradients_in(push_of(pulls=(6,), places=(0,)), [values], shard.kept) is None
    refresh = Refresh(generation=1, version=1, since=0, tables=(0,), dense=False, number=6)
    assert keys_of(refresh, (), "w", shard.kept) is None
    for places in ((1,), (-1,), (0, 0)):
        with pytest.raises(TrainingError, match="a bug"):
            gradients_in(push_of(pulls=(5,), places=places), [values], shard.kept)
    with pytest.raises(TrainingError, match="for"):
        shard.check(gradients_in(push_of(pulls=(5,), places=(0,)), [values[:2]], shard.kept))
    with pytest.raises(TrainingError, match="pushed 2 arrays"):
        gradients_in(push_of(pulls=(5,), places=(0,)), [keys, values], shard.kept)
    shard.discard()
    assert gradients_in(push_of(pulls=(5,), places=(0,)), [values], shard.kept) is None


@pytest.mark.parametrize(
    ("servers", "workers", "cores", "expected"),
    [
        (RunServers(threads=3), [RunWorker()], 2, 3),
        (RunServers(), [RunWorker(count=2)], 2, 1),
        (RunServers(), [RunWorker(device="cuda")], 16, 8),
        (RunServers(count=4), [RunWorker(threads=4)], 16, 3),
        (RunServers(cores=2.5), [RunWorker()], 16, 2),
    ],
)
def test_a_server_has_the_threads_that_workers_leave_it(monkeypatch, servers, workers, cores, expected):
    class Like:
        run = type("Run", (), {"servers": servers, "workers": workers})

    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert threads_of(Like) == expected
