"""Runs that are kept encrypted: as any other, and nothing of them on disk for whoever has no key."""

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.encryption import EncryptionError, keep_encrypted, make_key_file
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.checkpoint import RunManifest, checksum_of
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.finished.export import export_run
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.start import start
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.sealed import CHECKSUM, PROOF, checksum_of_value
from dovetail.runtime.server.redo.records import Content
from dovetail.runtime.server.redo.ring import put_back
from dovetail.spec.run import RunModel, RunServers
from dovetail.spec.run_sections import RunSaving, RunTable
from tests.runtime.runs import assert_same_state, kill, last_state, log_of, make_run, state_in, train

MODEL = RunModel(name="ctr-dnn", options={"num_rows": 4000, "width": 8, "hidden": [16, 8]})
DATA = {"num_slots": 6, "num_multi_valued": 1, "num_dense": 3, "rows_per_slot": 600}


def make(key=None, *, servers=2, samples=12_000, place=None):
    """Return a run whose rows do not fit into its servers' memory."""
    saving = RunSaving(every_steps=4, every_s=None, key_file=None if key is None else str(key))
    run = make_run(model=MODEL, data=DATA, samples=samples, servers=servers, checkpoint=saving)
    return msgspec.structs.replace(
        run, servers=RunServers(count=servers, host_bytes=340_000 // servers), table=place or RunTable(place="servers")
    )


@dataclass
class Found:
    """What was on disk, and in the rings of the redo logs, when all of a run's processes were killed."""

    run: object
    folder: Path
    rings: Path

    def data(self, where="**/*"):
        files = [path for path in sorted(self.folder.glob(where)) if path.is_file()]
        return b"".join(path.read_bytes() for path in files)

    def everything(self):
        rings = b"".join(path.read_bytes() for path in sorted(self.rings.iterdir()))
        return self.data() + rings.replace(bytes(4096), b"")


def cold(folder):
    """Say whether a good part of the rows is on disk."""
    return sum(path.stat().st_size for path in (folder / "rows").rglob("*.segment")) > 80_000


def killed(run, folder, rings):
    """Train, and kill everyone at a moment when there are checkpoints, cold rows and redo logs."""
    prepare(run, folder)
    with LocalRun(folder) as local:
        until_s = time.monotonic() + 100
        while (report := local.look()) is None or report.checkpoint_step < 8 or report.step % 4 < 2 or not cold(folder):
            assert time.monotonic() < until_s
            assert report is None or report.state not in ("done", "failed"), report.error
            time.sleep(0.005)
        for name in local.children:
            kill(local, name)
        rings.mkdir()
        for path in Path(local.blueprint.lanes).rglob("*.ring"):
            shutil.copy(path, rings / path.name)
        shutil.copytree(folder, folder.with_suffix(".then"))
    return Found(run, folder.with_suffix(".then"), rings)


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory):
    """A run that is kept encrypted and a plain one, killed under way."""
    place = tmp_path_factory.mktemp("runs")
    make_key_file(place / "run.key")
    make_key_file(place / "other.key")
    return {
        name: killed(make(key), place / name, place / f"{name}-rings")
        for name, key in (("kept", place / "run.key"), ("plain", None))
    }


def gradients_in(found, key, work):
    """Return the arrays that the redo logs hold, their ends out of the rings."""
    shutil.copytree(found.folder / "redo", work)
    keep_encrypted(work, key)
    arrays = []
    for server in sorted(work.iterdir()):
        ring = found.rings / f"{server.name}.ring"
        put_back(server, [Path(shutil.copy(ring, server / "copy.ring"))] if ring.exists() else [])
        for path in sorted(server.glob("*.redo")):
            arrays += [array for record in Content(path).records() for array in record.arrays]
    keep_encrypted(work, None)
    return [np.asarray(array) for array in arrays if array.nbytes >= 64]


def test_no_row_parameter_or_gradient_is_in_any_file_of_its_folder(killed_runs, tmp_path):
    place = killed_runs["kept"].folder.parent
    counts = {}
    for name, found in killed_runs.items():
        key = place / "run.key" if name == "kept" else None
        keep_encrypted(found.folder, key)
        state = state_in(checkpoints.newest(found.folder))
        gradients = gradients_in(found, key, tmp_path / name)
        assert len(gradients) > 4
        everything, cold = found.everything(), found.data("rows/**/*")
        rows = [row[:8].tobytes() for table in state.rows for row in table[::20]]
        slices = [state.dense[at : at + 16].tobytes() for at in range(0, len(state.dense) - 16, 128)]
        counts[name] = {
            "rows": sum(row in everything for row in rows) / len(rows),
            "cold rows": sum(row in cold for row in rows) / len(rows),
            "dense": sum(each in everything for each in slices) / len(slices),
            "gradients": sum(array.tobytes()[:64] in everything for array in gradients) / len(gradients),
        }
        assert len(rows) > 80
        keep_encrypted(found.folder, None)

    # The same search finds them where the run is plain.
    assert counts["plain"]["rows"] == 1.0
    assert counts["plain"]["cold rows"] > 0.1
    assert counts["plain"]["dense"] > 0.95
    assert counts["plain"]["gradients"] == 1.0
    assert counts["kept"] == {"rows": 0, "cold rows": 0, "dense": 0, "gradients": 0}


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_where_a_plain_one_does(killed_runs, tmp_path):
    place = killed_runs["kept"].folder.parent
    for name in ("kept", "plain"):
        train(killed_runs[name].run, place / name, resume=True)

    kept, plain = (last_state(place / name) for name in ("kept", "plain"))
    assert kept.manifest.position == 12_000
    assert_same_state(kept, plain, rtol=1e-3, atol=1e-4)
    assert not list((place / "kept").glob("redo/*/*"))


@pytest.mark.slow
def test_a_server_that_dies_comes_back_by_its_encrypted_log(tmp_path):
    make_key_file(tmp_path / "run.key")
    run, killed_at = make(tmp_path / "run.key", samples=8000), []
    run = msgspec.structs.replace(run, checkpoint=msgspec.structs.replace(run.checkpoint, every_steps=10))

    def meanwhile(local, report):
        if report.step >= 14 and not killed_at:
            killed_at.append(report.step)
            kill(local, "server-0")

    train(run, tmp_path / "kept", meanwhile=meanwhile)
    train(make(samples=8000), tmp_path / "plain")

    assert killed_at
    assert "were done again" in log_of(tmp_path / "kept", "coordinator") + log_of(tmp_path / "kept", "server-0")
    assert_same_state(last_state(tmp_path / "kept"), last_state(tmp_path / "plain"), rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """A finished run of one process that is kept encrypted, and a plain one; where their keys are."""
    place = tmp_path_factory.mktemp("one")
    make_key_file(place / "run.key")
    make_key_file(place / "other.key")
    for name, key in (("kept", place / "run.key"), ("plain", None)):
        run = make(key, servers=1, samples=2000, place=RunTable(place="local"))
        start(msgspec.structs.replace(run, workers=run.workers[:1]), place / name)
        keep_encrypted(place / name, None)
    return place


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_evaluate_and_export_answer_as_of_a_plain_run(one_process):
    figures = [evaluate_run(one_process / name, num_samples=500).metrics for name in ("kept", "plain")]
    out = {name: one_process / f"{name}-export" for name in ("kept", "plain")}
    for name, place in out.items():
        export_run(one_process / name, place)
    for file in ("model.safetensors", "model.pt2"):
        program = [sys.executable, out["kept"] / "read_encrypted.py", one_process / "run.key", out["kept"] / file]
        subprocess.run([*program, one_process / file], check=True, timeout=60)

    assert figures[0] == figures[1]
    weights = (out["plain"] / "model.safetensors").read_bytes()
    assert (one_process / "model.safetensors").read_bytes() == weights
    assert (one_process / "model.pt2").read_bytes()[:2] == b"PK"
    held = (out["kept"] / "model.safetensors").read_bytes() + (out["kept"] / "model.pt2").read_bytes()
    assert not any(weights[at : at + 32] in held for at in range(len(weights) // 2, len(weights) - 32, 64))
    assert "read_encrypted.py" in (out["kept"] / "README.txt").read_text()
    assert not (out["plain"] / "read_encrypted.py").exists()


@pytest.mark.parametrize("words", [("evaluate",), ("predict",), ("export", "--out", "OUT"), ("train", "--resume")])
def test_a_wrong_and_a_missing_key_are_clear_errors(one_process, tmp_path, words):
    run, key = one_process / "kept", one_process / "run.key"
    words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    more = ["--epochs", "2"] if words[0] == "train" else []
    before = {path: path.read_bytes() for path in (run / "checkpoints").rglob("*.*")}
    try:
        wrong = command(*words, run, *more, "--key-file", one_process / "other.key")
        keep_encrypted(run, None)
        key.rename(one_process / "away.key")
        missing = command(*words, run, *more)
        keep_encrypted(run, None)
        there = command(*words, run, *more, "--key-file", one_process / "away.key") if words[0] != "train" else (0, "")
    finally:
        (one_process / "away.key").rename(key)
        keep_encrypted(run, None)

    assert wrong[0] == missing[0] == 1
    assert "was written with the key" in wrong[1]
    assert "hint: give the key" in wrong[1]
    assert f"no key in {key}" in missing[1]
    assert "Traceback" not in wrong[1] + missing[1]
    assert there[0] == 0, there[1]
    assert {path: path.read_bytes() for path in (run / "checkpoints").rglob("*.*")} == before


def test_the_table_command_takes_the_key_of_the_run_or_one_given(one_process, tmp_path):
    table = checkpoints.newest(one_process / "plain").relative_to(one_process / "plain") / "table-0" / "server-0"
    here = one_process / "kept" / table
    elsewhere = tmp_path / "copy"
    shutil.copytree(here, elsewhere)

    inside, alone = command("table", here), command("table", elsewhere)
    given = command("table", elsewhere, "--key-file", one_process / "run.key")
    keep_encrypted(elsewhere, None)

    assert inside[0] == given[0] == 0
    assert "every checksum right" in inside[1]
    assert alone[0] == 1
    assert "none is given" in alone[1]


def rewritten(manifest, folder, **files):
    """Write a manifest as somebody does who has no key."""
    table = msgspec.json.decode((folder / "manifest.json").read_bytes())
    table["files"] |= files
    proof = table.pop(PROOF, None)
    table.pop(CHECKSUM)
    whole = table | {CHECKSUM: checksum_of_value(table)} | ({PROOF: proof} if proof else {})
    (folder / "manifest.json").write_bytes(msgspec.json.encode(whole))


def test_files_of_other_steps_and_plain_ones_are_refused_however_their_checksums_are_mended(one_process, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(one_process / "kept", run)
    older, newest = checkpoints.all_in(run)[-2:]
    name = "dense-0.safetensors"
    keep_encrypted(run, one_process / "run.key")
    manifest = RunManifest.read(newest)

    shutil.copy(older / name, newest / name)
    rewritten(manifest, newest, **{name: checksum_of(newest / name)})
    with pytest.raises(TrainingError, match="not what was written with the key"):
        RunManifest.read(newest)
    assert checkpoints.newest(run) == older

    shutil.copytree(checkpoints.newest(one_process / "plain"), newest, dirs_exist_ok=True)
    with pytest.raises(EncryptionError, match="written without a key"):
        RunManifest.read(newest)
    keep_encrypted(run, None)


def test_a_run_stays_what_it_began_as_and_a_plain_one_begins_an_encrypted_one(one_process, tmp_path):
    plain = make(servers=1, samples=2000, place=RunTable(place="local"))
    plain = msgspec.structs.replace(plain, workers=plain.workers[:1])
    key = str(one_process / "run.key")
    kept = msgspec.structs.replace(plain, checkpoint=msgspec.structs.replace(plain.checkpoint, key_file=key))
    more = msgspec.structs.replace(plain, training=msgspec.structs.replace(plain.training, epochs=2))

    shutil.copytree(one_process / "plain", tmp_path / "was-plain")
    wrong = msgspec.structs.replace(more, checkpoint=kept.checkpoint)
    with pytest.raises(EncryptionError, match="written without a key"):
        start(wrong, tmp_path / "was-plain", resumed=True)
    shutil.copytree(one_process / "kept", tmp_path / "was-kept")
    start(more, tmp_path / "was-kept", resumed=True)  # the run file names no key: it goes on with its own
    start(kept, tmp_path / "new", start_from=one_process / "plain")
    no_key = msgspec.structs.replace(kept.checkpoint, key_file=str(tmp_path / "none.key"))
    with pytest.raises(EncryptionError, match="no key in"):
        start(msgspec.structs.replace(kept, checkpoint=no_key), tmp_path / "none")

    for folder in ("was-kept", "new"):
        held = (checkpoints.newest(tmp_path / folder) / "dense-0.safetensors").read_bytes()
        assert held.startswith(b"DOVETAIL-AES-1")
        keep_encrypted(tmp_path / folder, None)
    assert last_state_position(tmp_path / "was-kept", key) == 4000
    assert not (tmp_path / "none").exists() or not list((tmp_path / "none").rglob("*.safetensors"))


def last_state_position(folder, key):
    keep_encrypted(folder, key)
    try:
        return last_state(folder).manifest.position
    finally:
        keep_encrypted(folder, None)


@pytest.mark.slow
def test_a_plain_run_never_loads_what_encrypts(tmp_path):
    program = (
        "import sys, dovetail\n"
        "if __name__ == '__main__':\n"
        f"    dovetail.train('ctr-dnn', folder={str(tmp_path / 'run')!r}, samples=400, batch=200,\n"
        "        model_options={'num_rows': 240, 'width': 4, 'hidden': [8]})\n"
        "    print(any(name.split('.')[0] == 'cryptography' for name in sys.modules))\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.stdout.splitlines()[-1] == "False", done.stderr
