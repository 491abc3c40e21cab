"""Files of a run that are not what was written: each is found, and nothing wrong is ever loaded."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from dovetail.errors import DovetailError
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.checkpoint import RunManifest
from dovetail.runtime.coordinator.journal import CommitLine, Journal, JournalLine, StartLine
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.fingerprint import Fingerprint
from dovetail.runtime.finished.restore import table_rows
from dovetail.runtime.folder import RunSummary, WorkerSummary
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.sealed import checksum_of_value
from dovetail.runtime.server.shard import Shard
from dovetail.spec.files import read_struct
from dovetail.spec.run import Run
from dovetail.spec.run_sections import RunOptimizer
from dovetail.transport.keys import KeyRing
from testbed.direct_servers import DirectServers
from tests.runtime.runs import make_run

ADAM = RunOptimizer(name="adam", learning_rate=0.01)
SUMMARY = RunSummary(
    step=5, samples=1000, seconds=1.5, loss=0.25, auc=None, servers={}, imbalance=1.0, checkpoint="step-0000000010",
    workers={"worker-0": WorkerSummary(samples=1000, share=1.0, busy_s=1.0, idle_s=0.5, idle=0.3)},
)  # fmt: skip
LINES = [
    JournalLine(
        start=StartLine(generation=2, era=1, step=5, position=1000, tasks=((3, 0, 10), (4, 10, 20)), next_task=5)
    ),
    *(
        JournalLine(commit=CommitLine(step=step, position=200 * step + 200, scale=0.005, dense_scale=0.005, factor=0.1))
        for step in range(5, 9)
    ),
    JournalLine(task=(5, 20, 30)),
    JournalLine(done=3),
]
RUN_FILE = """
[model]
name = "ctr-dnn"
options = { num_rows = 240, hidden = [16, 8] }
[training]
batch = 200
seed = 3
[[worker]]
name = "fast"
"""


def root_of(folder: Path) -> str:
    return checksum_of_value(Blueprint.read(folder))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of a run on two servers with checkpoints of steps 0, 5 and 10, a journal, a summary, a run file."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    for epochs in (1, 2):
        prepare(make_run(samples=1000, servers=2, optimizer=ADAM, epochs=epochs), folder, resume=epochs > 1)
        alone = DirectServers(folder)
        alone.run()
        alone.close()
    journal = Journal(folder, root=root_of(folder))
    for line in LINES:
        assert journal.write(line)
    journal.close()
    SUMMARY.write(folder)
    (folder / "run.toml").write_text(RUN_FILE)
    return folder


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    """The same, for a test to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


REFUSED = object()


def loaded(read: Callable[[], Any]) -> Any:
    """Return what is read, or `REFUSED` where that was said with a way out; whatever else is raised fails the test."""
    try:
        return read()
    except DovetailError as error:
        return REFUSED if error.hint else error


def parameters_in(folder: Path, blueprint: Blueprint) -> list[bytes]:
    """Return all that a checkpoint holds, bit for bit."""
    manifest = RunManifest.read(folder)
    values, state = checkpoints.load_dense(folder, manifest)
    rows = [table_rows(blueprint, manifest, folder, position) for position in range(len(blueprint.tables))]
    where = msgspec.json.encode([manifest.step, manifest.position, manifest.dense_steps, manifest.samples])
    return [where, values.tobytes(), *(state[name].tobytes() for name in sorted(state)), *(r.tobytes() for r in rows)]


class Known:
    """What every file of a run says while it is whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.blueprint, self.root = folder, Blueprint.read(folder), root_of(folder)
        self.parameters = {path.name: parameters_in(path, self.blueprint) for path in checkpoints.all_in(folder)}
        self.past = self._past()
        assert self.past is not None

    def _past(self):
        journal = Journal(self.folder, root=self.root)
        journal.close()
        return journal.past()

    def check(self) -> None:
        """Read everything; whatever loads must be what was written."""
        self._says(lambda: Blueprint.read(self.folder), self.blueprint)
        self._says(lambda: RunSummary.read(self.folder), SUMMARY)
        assert self._past() in (None, self.past)
        newest = loaded(lambda: checkpoints.newest(self.folder, fits=Fingerprint.of(self.blueprint)))
        if newest is not REFUSED:
            self._says(lambda: parameters_in(newest, self.blueprint), self.parameters[newest.name])

    @staticmethod
    def _says(read: Callable[[], object], expected: object) -> None:
        found = loaded(read)
        assert found is REFUSED or found == expected


def set_key(path: Path, words: list[str], value: object) -> None:
    """Change one value in a JSON file and nothing else, as a flipped bit would."""
    table = msgspec.json.decode(path.read_bytes())
    inner = table
    for word in words[:-1]:
        inner = inner[word]
    assert inner[words[-1]] != value
    inner[words[-1]] = value
    path.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1))


@pytest.mark.parametrize(
    ("key", "value"), [("position", 1992), ("num_servers", 3), ("step", 11), ("dense_steps", 9), ("samples", 1001)]
)
def test_a_changed_number_in_the_manifest_is_found_and_the_checkpoint_before_is_taken(copied, key, value):
    *_, before, newest = checkpoints.all_in(copied)

    set_key(newest / checkpoints.MANIFEST, [key], value)

    with pytest.raises(TrainingError, match="checksum is wrong"):
        RunManifest.read(newest)
    said: list[str] = []
    assert checkpoints.newest(copied, tell=said.append) == before
    assert newest.name in said[0]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["run", "training", "seed"], 2),
        (["run", "data", "shuffle"], False),
        (["run", "data", "block_samples"], 65),
        (["optimizer", "learning_rate"], 0.02),
        (["samples"], 1001),
        (["batch"], 201),
    ],
)
def test_a_changed_setting_in_the_blueprint_is_found(copied, words, value):
    set_key(copied / "blueprint.json", words, value)

    with pytest.raises(TrainingError, match=r"blueprint.json cannot be read.*checksum is wrong") as caught:
        Blueprint.read(copied)

    assert "dovetail train RUN.toml --resume" in caught.value.hint


def test_a_run_whose_blueprint_is_lost_goes_on_by_its_run_file(copied):
    run = Blueprint.read(copied).run
    (copied / "blueprint.json").write_bytes(b"")

    blueprint = prepare(run, copied, resume=True)

    assert Blueprint.read(copied) == blueprint


def test_a_file_that_was_only_laid_out_anew_is_the_same_file(copied):
    path = copied / "blueprint.json"
    before = Blueprint.read(copied)

    path.write_bytes(msgspec.json.encode(dict(reversed(msgspec.json.decode(path.read_bytes()).items()))))

    assert Blueprint.read(copied) == before


@pytest.mark.parametrize("name", ["000002-full", "000002-delta", "999999-full"])
def test_a_stray_newer_part_in_a_tables_folder_is_not_loaded(copied, name, tmp_path):
    older, newest = checkpoints.all_in(copied)[-2:]
    known, blueprint = Known(copied), Blueprint.read(copied)

    shutil.copytree(older / "table-0/server-0/000001-full", newest / f"table-0/server-0/{name}")

    assert checkpoints.newest(copied) == newest
    assert parameters_in(newest, blueprint) == known.parameters[newest.name]
    shard = Shard(blueprint, 0, tmp_path / "rows")
    shard.load(newest)
    keys = np.sort(shard.tables[0].keys())
    held = shard.tables[0].rows(keys)[:, : blueprint.tables[0].width]
    shard.close()
    assert held.tobytes() == table_rows(blueprint, RunManifest.read(newest), newest, 0)[keys].tobytes()


def test_a_stray_slice_of_dense_parameters_is_not_loaded(copied):
    newest, known = checkpoints.newest(copied), Known(copied)

    shutil.copy(newest / "dense-0.safetensors", newest / "dense-9.safetensors")

    assert parameters_in(newest, known.blueprint) == known.parameters[newest.name]


def test_a_checkpoint_that_lists_no_files_is_not_whole(copied):
    *_, before, newest = checkpoints.all_in(copied)
    manifest = RunManifest.read(newest)
    rows = {name: checksum for name, checksum in manifest.files.items() if not name.startswith("table-0/server-1")}

    for files in ({}, rows):
        msgspec.structs.replace(manifest, files=files).write(newest)
        assert checkpoints.newest(copied) == before


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(copied):
    *_, newest = checkpoints.all_in(copied)

    newest.rename(newest.with_name("step-0000000011"))

    assert RunManifest.read(checkpoints.newest(copied)).step == 5


def test_a_flipped_bit_in_any_byte_of_the_journal_means_to_go_back_to_the_checkpoint(copied):
    known, path = Known(copied), copied / "journal.jsonl"
    good, random = path.read_bytes(), Random(5)
    for bit in (8 * byte + random.randrange(8) for byte in range(len(good))):
        path.write_bytes(good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :])
        # A lower count of lines in the first line is no less true; all else is nothing to go by.
        assert known._past() is None or bit // 8 < good.index(b"\n")


def test_a_journal_that_was_cut_anywhere_means_to_go_back_to_the_checkpoint(copied):
    known, path = Known(copied), copied / "journal.jsonl"
    good = path.read_bytes()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        assert known._past() is None, good[:size]


def test_a_journal_with_lines_left_out_twice_or_elsewhere_is_nothing_to_go_by(copied):
    known, path = Known(copied), copied / "journal.jsonl"
    header, *lines = path.read_bytes().splitlines(keepends=True)
    for number in range(1, len(lines) - 1):
        spoilt = [
            [*lines[:number], *lines[number + 1 :]],
            [*lines[:number], lines[number], *lines[number:]],
            [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]],
        ]
        for each in spoilt:
            path.write_bytes(b"".join([header, *each]))
            assert known._past() is None


def test_the_journal_of_another_start_is_nothing_to_go_by(copied):
    journal = Journal(copied, root=checksum_of_value("another blueprint"))

    assert journal.past() is None
    journal.close()


def test_a_journal_goes_on_where_it_was_closed(copied):
    known = Known(copied)
    journal = Journal(copied, root=known.root)
    journal.write(JournalLine(done=4))
    journal.close()

    again = Journal(copied, root=known.root)
    again.close()

    past = again.past()
    assert past is not None
    assert sorted(past.tasks) == [5]
    assert past.commit == LINES[4].commit


def harms(random: Random, path: Path, others: list[Path]) -> Callable[[], None]:
    """Return something that can happen to a file."""
    good = path.read_bytes()

    def flip() -> None:
        spoilt = bytearray(good)
        for _ in range(random.choice((1, 1, 1, 2, 16))):
            if spoilt:
                spoilt[random.randrange(len(spoilt))] ^= 1 << random.randrange(8)
        path.write_bytes(spoilt)

    def cut() -> None:
        path.write_bytes(good[: random.randrange(len(good) + 1)])

    def swap() -> None:
        path.write_bytes(random.choice(others).read_bytes())

    def grow() -> None:
        path.write_bytes(good + random.choice((b"\0", b"\n", b"}", good)))

    def zeros() -> None:
        begin = random.randrange(len(good) + 1)
        path.write_bytes(good[:begin] + bytes(len(good) - begin))

    def stray() -> None:
        name = random.choice(("manifest.json", "x", "part-00001.safetensors", "dense-7.safetensors"))
        path.with_name(name).write_bytes(random.choice(others).read_bytes())

    return random.choice((flip, flip, flip, cut, swap, grow, zeros, path.unlink, stray))


def storm(folder: Path, seed: int, cases: int) -> None:
    """Harm one file after another, and look what is loaded."""
    random, known = Random(seed), Known(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "keys" not in path.parts)
    whole = {path: path.read_bytes() for path in files}
    for _ in range(cases):
        path = random.choice(files)
        # Bits of one file each: two faults at once may meet in a file and the list that names it.
        harms(random, path, files)()
        known.check()
        for name in folder.rglob("*"):
            if name.is_file() and name not in whole and "keys" not in name.parts:
                name.unlink()
        for each, good in whole.items():
            if not each.exists() or each.stat().st_size != len(good) or each.read_bytes() != good:
                each.write_bytes(good)
    known.check()
    assert checkpoints.newest(folder).name == max(known.parameters)


def test_harms_of_any_kind_load_what_was_written_or_are_refused(copied):
    storm(copied, seed=1, cases=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_thousands_of_harms_load_what_was_written_or_are_refused(copied, seed):
    storm(copied, seed, cases=5000)


def test_a_run_file_with_flipped_bits_is_a_run_file_or_refused(tmp_path):
    random, path = Random(3), tmp_path / "run.toml"
    good = RUN_FILE.encode()
    for _ in range(400):
        spoilt = bytearray(good)
        for _ in range(random.choice((1, 2, 8))):
            spoilt[random.randrange(len(good))] ^= 1 << random.randrange(8)
        path.write_bytes(spoilt[: random.choice((len(good), random.randrange(len(good))))])
        found = loaded(lambda: read_struct(path, Run))
        assert found is REFUSED or isinstance(found, Run)


def test_keys_with_flipped_bits_are_keys_or_refused(copied):
    random, ring = Random(4), KeyRing(copied / "keys")
    path = copied / "keys" / "coordinator.secret"
    good = path.read_bytes()
    for _ in range(200):
        spoilt = bytearray(good)
        spoilt[random.randrange(len(good))] ^= 1 << random.randrange(8)
        path.write_bytes(spoilt[: random.choice((len(good), random.randrange(len(good))))])
        found = loaded(lambda: ring.own("coordinator"))
        assert found is REFUSED or len(found[1]) == 40
