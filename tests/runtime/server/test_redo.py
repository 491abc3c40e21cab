"""A redo log brings a shard back to the very bits that it held."""

from types import SimpleNamespace

import numpy as np
import pytest

from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.messages import AddUp
from dovetail.runtime.server.gradients import TaskPart
from tests.runtime.server.kept import BATCH, ERA, GENERATION


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_committed_steps_come_back_to_the_bit(kept, optimizer):
    server = kept(optimizer=optimizer)
    for _ in range(5):
        server.push()
        server.commit()
    before = server.state()

    back = server.die_and_come_back()

    assert server.state() == before
    assert (back.era, back.generation) == (ERA, 0)
    assert "5 steps after the checkpoint of step 0" in back.word
    server.push()  # and it goes on where it was
    server.commit()
    after = server.state()
    assert server.die_and_come_back().era == ERA
    assert server.state() == after


def test_a_step_that_was_whole_can_be_committed_after_the_servers_death(kept):
    server, other = kept(), kept()
    for each in (server, other):
        each.push()
        each.commit()
        each.push()

    back = server.die_and_come_back()

    assert (server.shard.version, back.generation) == (1, GENERATION)
    for each in (server, other):
        each.commit()
    assert server.state() == other.state()
    assert server.die_and_come_back().generation == 0
    assert server.state() == other.state()


def test_a_step_that_was_not_whole_is_not_there(kept):
    server = kept()
    server.push()
    server.commit()
    rows, dense = server.gradients()
    server.shard.push(TaskPart(1, 0, "w", rows=rows, dense=dense))
    server.log.step_grew(generation=GENERATION, positions=BATCH - 1)

    assert server.die_and_come_back().generation == 0
    assert server.shard.version == 1


@pytest.mark.parametrize("mode", ["ssp", "async"])
def test_every_task_comes_back_to_the_bit_and_is_not_applied_again(kept, mode):
    server = kept(mode=mode)
    for task in (0, 2, 1, 4):
        server.apply(task)
    before = server.state()

    assert server.die_and_come_back().era == ERA

    assert server.state() == before
    assert [server.shard.counts(0, task) for task in range(6)] == [True, True, True, False, True, False]
    server.apply(4)
    assert server.state() == before


@pytest.mark.parametrize("publish", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_log_goes_on_over_checkpoints_that_are_kept_or_not(kept, publish, is_told):
    server = kept()
    for step in range(6):
        server.push()
        if step in (2, 4):  # the sums of this step are in the log already
            server.save(publish=publish)
            if is_told and publish:
                server.log.kept(step)
        server.commit()
    before, num_files = server.state(), len(server.files)

    back = server.die_and_come_back()

    assert server.state() == before
    assert f"checkpoint of step {4 if publish else 0}" in back.word
    assert num_files == (1 if is_told and publish else 3)


def test_tasks_before_a_checkpoint_count_after_the_servers_death(kept):
    server = kept(mode="async")
    for task in range(3):
        server.apply(task)
    server.save(next_task=3)
    server.log.kept(3)
    server.apply(4)
    before = server.state()

    server.die_and_come_back()

    assert server.state() == before
    assert [server.shard.counts(0, task) for task in range(6)] == [True, True, True, False, True, False]


def test_a_checkpoint_that_is_damaged_is_passed_over_where_the_log_goes_back_further(kept):
    server = kept()
    for step in range(4):
        if step == 2:
            server.save()  # nobody says that it is kept
        server.push()
        server.commit()
    before = server.state()
    dense = checkpoints.folder_of(server.folder, 2) / "dense-0.safetensors"
    dense.write_bytes(dense.read_bytes()[:-1] + b"\x7f")

    assert "checkpoint of step 0" in server.die_and_come_back().word
    assert server.state() == before


def test_an_early_checkpoint_is_asked_for_and_a_full_log_given_up(kept):
    server = kept()
    server.log._most_bytes = 20_000
    while not server.log.wants_checkpoint:
        server.push()
        server.commit()
    assert server.files
    assert server.log.note("server-0").wants_checkpoint

    while server.files:
        server.push()
        server.commit()

    assert "full, 20,000 bytes" in server.log.note("server-0").word
    server.save()
    server.push()
    server.commit()
    before = server.state()
    assert server.die_and_come_back().era == ERA
    assert server.state() == before


def test_a_log_takes_no_more_than_half_of_the_free_disk(kept, monkeypatch):
    disk = SimpleNamespace(free=40_000)
    monkeypatch.setattr("dovetail.runtime.server.redo.log.shutil.disk_usage", lambda _: disk)
    server = kept()
    written = 0
    while server.files:
        written = sum(file.size for file in server.log.files)
        server.push()
        server.commit()

    assert 10_000 < written < 25_000
    assert "its log is full" in server.log.note("server-0").word


def test_a_disk_without_room_costs_the_log_and_nothing_else(kept, monkeypatch):
    server = kept()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dovetail.runtime.server.redo.ring.os.posix_fallocate", full)
        server.push()
        server.commit()

    assert server.step == 1
    assert "No space left" in server.log.note("server-0").word
    assert server.die_and_come_back().era == -1


def test_running_statistics_of_norms_come_back_with_the_step_that_changed_them(kept):
    server = kept(has_norms=True)
    norms = server.shard.norms
    norms.running = np.arange(6, dtype=np.float32)
    about = {"generation": GENERATION, "step": 0, "task": 0, "worker": "w", "positions": BATCH, "batch": BATCH}
    message = AddUp(**about, place=0, back=False, offset=0, momentum=0.1)
    norms.add(message, np.arange(7, dtype=np.float64) + BATCH, "worker")
    expected = norms.after_commit()
    assert expected.tolist() != norms.running.tolist()
    server.push()

    assert server.die_and_come_back().generation == GENERATION

    assert server.shard.norms.after_commit().tobytes() == expected.tobytes()
    server.commit()
    server.die_and_come_back()
    assert server.shard.norms.running.tobytes() == server.shard.norms.to_save.tobytes() == expected.tobytes()


def kept_by(server, seed):
    return np.random.default_rng(seed).normal(size=len(server.shard.values)).astype(np.float32)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_a_worker_that_left_kept_back_comes_back_too(kept, mode):
    server, without = kept(mode=mode, bits=4), kept(mode=mode, bits=4)
    for each in (server, without):
        for step in range(4):
            if mode == "sync":
                each.push()
            if step in (1, 3) and each is server:
                server.log.take_back(kept_by(server, step), worker="w", checkpoint=-1)
            if mode == "async":
                each.apply(step)
            elif step < 3:
                each.commit()
    before = server.state()
    assert before != without.state()

    server.die_and_come_back()

    assert server.state() == before
    if mode == "sync":  # what waits is in the step that counts next
        assert server.shard.returned.is_any
        server.commit()
        assert not server.shard.returned.is_any


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_living_workers_keep_back_is_in_the_checkpoint_and_not_taken_from_there_by_a_server_alone(kept, mode):
    server = kept(mode=mode, bits=4)
    server.log.take_back(kept_by(server, 1), worker="gone", checkpoint=-1)
    server.log.take_back(kept_by(server, 2), worker="w", checkpoint=7)
    first = 0
    if mode == "async":
        server.apply(0)
        first = 1
    server.save(next_task=first, number=7)
    server.log.kept(server.shard.version)
    for step in range(first, first + 3):
        if mode == "async":
            server.apply(step)
        else:
            server.push()
            server.commit()
    before = server.state()

    server.die_and_come_back()

    assert server.state() == before
