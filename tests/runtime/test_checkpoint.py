"""Checkpoints of runs: loaded by any number of servers, skipped where damaged, given up where the disk is full."""

import contextlib
import subprocess
import time

import msgspec
import numpy as np
import pytest

from dovetail.models.load import load_model
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.server.shard import Shard
from dovetail.spec.run_sections import RunSaving
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.one_process import OneProcess
from tests.runtime.runs import ADAM, assert_same_state, clicks, last_state, make_run, state_in, train, train_until
from tests.runtime.test_equality import assert_equals


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory):
    """The folder of a run on 2 servers and 3 workers that was killed in the middle, with several checkpoints."""
    folder = tmp_path_factory.mktemp("cut") / "run"
    run = make_run(
        samples=3000, servers=2, workers=3, optimizer=ADAM, batch=30, checkpoint=RunSaving(every_steps=3, keep=5)
    )
    train_until(run, folder, 7)
    return folder


@pytest.fixture
def copied(cut_short, tmp_path):
    """The same, for a test to spoil."""
    subprocess.run(["cp", "-r", str(cut_short), str(tmp_path / "run")], check=True)
    return tmp_path / "run"


def test_rows_and_optimizer_state_of_two_servers_are_those_of_three(cut_short, tmp_path):
    place = checkpoints.newest(cut_short)
    before = state_in(place)
    run = make_run(samples=3000, servers=3, workers=1, optimizer=ADAM, batch=30)
    blueprint = prepare(run, tmp_path / "other")

    shards = [Shard(blueprint, number, tmp_path / f"rows-{number}") for number in range(3)]
    for shard in shards:
        shard.load(place)
    keys = [shard.tables[0].keys() for shard in shards]
    rows = np.concatenate([shard.tables[0].rows(mine) for shard, mine in zip(shards, keys, strict=True)])
    folder = tmp_path / "saved"
    folder.mkdir()
    for shard in shards:
        for future in shard.save(folder):
            future.result()
        shard.close()

    assert min(map(len, keys)) > 0
    order = np.argsort(np.concatenate(keys))
    assert np.concatenate(keys)[order].tolist() == before.keys[0].tolist()
    assert rows[order].tobytes() == before.rows[0].tobytes()
    files = checkpoints.checksums_in(folder, only="**/*")
    msgspec.structs.replace(before.manifest, num_servers=3, files=files).write(folder)
    assert_same_state(state_in(folder), before)


@pytest.mark.parametrize(
    ("dense", "servers", "workers"), [("ps", 3, 1), pytest.param("ring", 1, 2, marks=pytest.mark.slow)]
)
def test_a_run_that_was_cut_and_resumed_elsewhere_ends_where_one_process_ends(
    copied, dense, servers, workers, tmp_path
):
    # Resumed under another number of servers and workers, and with dense parameters in another place.
    begun = checkpoints.RunManifest.read(checkpoints.newest(copied)).step
    run = make_run(samples=3000, servers=servers, workers=workers, optimizer=ADAM, batch=30, dense=dense)

    train(run, copied, resume=True)

    source = clicks(num_samples=3000)
    alone = OneProcess(run, load_model("ctr-dnn", seed=3, schema=source.schema, **run.model.options), source)
    alone.train()
    assert 0 < begun < alone.step == 100
    assert_equals(copied, alone, rtol=2e-4, atol=2e-5)


def files_of(folder):
    """Return the files of a checkpoint, the manifest left out."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != checkpoints.MANIFEST]


def test_a_damaged_file_is_named_and_its_checkpoint_skipped(copied):
    *_, before, newest = checkpoints.all_in(copied)
    for path in files_of(newest):
        good = path.read_bytes()
        flipped = good[: len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1 :]
        for bad in (good[:-1], flipped, b""):
            path.write_bytes(bad)
            with pytest.raises(TrainingError, match=path.name):
                checkpoints.RunManifest.read(newest).check_files(newest)
            assert checkpoints.newest(copied) == before
        path.write_bytes(good)
        assert checkpoints.newest(copied) == newest
        path.unlink()
        with pytest.raises(TrainingError, match=f"{path.name} is missing"):
            checkpoints.RunManifest.read(newest).check_files(newest)
        path.write_bytes(good)
    (newest / checkpoints.MANIFEST).write_bytes(b"{")
    assert checkpoints.newest(copied) == before


def test_a_folder_without_a_whole_checkpoint_is_refused(copied):
    for folder in checkpoints.all_in(copied):
        files_of(folder)[0].write_bytes(b"")

    with pytest.raises(TrainingError, match=r"no whole checkpoint, only [0-9]+ damaged"):
        prepare(Blueprint.read(copied).run, copied, resume=True)


def test_a_run_resumes_from_the_last_checkpoint_that_is_whole(copied):
    newest = checkpoints.all_in(copied)[-1]
    files_of(newest)[0].write_bytes(b"")
    run = make_run(samples=3000, servers=2, workers=1, optimizer=ADAM, batch=30, checkpoint=RunSaving(keep=1))

    train(run, copied, resume=True)

    assert last_state(copied).manifest.step == 100


@contextlib.contextmanager
def small_disk(folder, num_bytes):
    """A file system of its own in a folder."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "async"])
def test_a_full_disk_is_reported_and_the_run_goes_on(tmp_path, mode):
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        freed = tmp_path / "freed"
        run = make_run(
            model=slow_counting(0.002, until=freed), optimizer=PLAIN, reduction="sum", samples=40_000, batch=100,
            mode=mode, checkpoint=RunSaving(every_s=0.4),
        )  # fmt: skip
        filler, times = disk / "filler", {}

        def meanwhile(local, report):
            if report.samples and "filled" not in times:
                times["filled"] = time.monotonic()
                with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                    while file.write(bytes(1 << 12)):
                        pass
            failed = any("could not be written" in event for event in local.events)
            if filler.exists() and failed and time.monotonic() - times["filled"] > 1.5:
                filler.unlink()
                times["freed"] = report.samples
                freed.touch()

        local = train(run, disk / "run", meanwhile=meanwhile)

        assert any("could not be written" in event and "No space left" in event for event in local.events)
        assert 0 < times["freed"] < 40_000
        assert_each_sample_counts_once(disk / "run")


@pytest.mark.slow
def test_the_run_fails_where_its_last_checkpoint_cannot_be_written(tmp_path):
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        run = make_run(model=slow_counting(0.001), optimizer=PLAIN, reduction="sum", samples=2000)

        def meanwhile(local, report):
            if report.samples and not (disk / "filler").exists():
                with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
                    while file.write(bytes(1 << 12)):
                        pass

        with pytest.raises(TrainingError, match=r"the last checkpoint could not be written: .*No space left"):
            train(run, disk / "run", meanwhile=meanwhile)
