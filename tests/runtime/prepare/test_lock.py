"""A run belongs to one launcher: whose it is, who is refused, and what a start that came to nothing leaves."""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import msgspec
import psutil
import pytest

from dovetail.errors import DovetailError
from dovetail.orchestrate.run_files import lock_free_folder
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.launch.fork_server import fork_server
from dovetail.runtime.launch.join import join
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.lock import Owner, RunLock, owner_of
from dovetail.runtime.prepare.run_folder import is_free, prepare
from dovetail.spec.run import RunModel
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run, state_in

ROOT = Path(__file__).parents[3]
RUN = make_run(samples=400)


def python(code: str, *arguments: object, **how: object) -> subprocess.Popen[str]:
    """Start another process; what it prints is read by whoever needs it."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how,
    )  # fmt: skip


def test_a_run_that_another_process_has_is_refused_with_its_process_and_host(tmp_path):
    other = python(
        """
        import sys, pathlib, time
        from dovetail.runtime.prepare.lock import RunLock
        with RunLock(pathlib.Path(sys.argv[1])):
            print("taken", flush=True)
            time.sleep(600)
        """,
        tmp_path / "run",
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        for attempt in (lambda: prepare(RUN, tmp_path / "run"), lambda: RunLock(tmp_path / "run")):
            with pytest.raises(TrainingError) as caught:
                attempt()
            assert f"in use by process {other.pid} on {socket.gethostname()}" in str(caught.value)
            assert caught.value.hint
        owner = owner_of(tmp_path / "run")
        assert owner is not None
        assert owner.process == other.pid
    finally:
        other.kill()
        other.communicate()
    RunLock(tmp_path / "run").release()  # killed, it let go


def stale(folder: Path, owner: Owner) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "lock").write_bytes(msgspec.json.encode(owner))


def test_a_lock_of_a_process_that_is_gone_is_stale_even_where_its_number_was_given_out_again(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    now = Owner.here()
    for owner in (
        Owner(process=gone.pid, started=now.started, host=now.host),
        Owner(process=now.process, started=now.started - 3600, host=now.host),
        Owner(process=1, started=0.0, host="another-host"),
    ):
        stale(tmp_path / "run", owner)
        assert owner_of(tmp_path / "run") is None
        RunLock(tmp_path / "run").release()
    assert not Owner.here().is_gone


def test_processes_that_a_launcher_left_hold_its_run_until_they_have_ended(tmp_path):
    # A server that is still writing has inherited the lock; whoever comes meanwhile waits for it.
    folder = tmp_path / "run"
    folder.mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale(folder, Owner(process=gone.pid, started=1.0, host=socket.gethostname()))
    file = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    ended = tmp_path / "ended"
    code = "import pathlib, sys, time; time.sleep(1.5); pathlib.Path(sys.argv[1]).touch()"
    left = subprocess.Popen([sys.executable, "-c", code, str(ended)], pass_fds=[file])
    os.close(file)

    lock = RunLock(folder)

    assert ended.exists()
    assert left.wait(60) == 0
    lock.release()


def test_of_two_starts_at_once_in_one_folder_one_is_refused(tmp_path):
    code = """
        import sys, pathlib
        from tests.runtime.runs import make_run
        from dovetail.errors import DovetailError
        from dovetail.runtime.prepare.run_folder import prepare
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            prepare(make_run(samples=400), pathlib.Path(sys.argv[1]))
            print("prepared")
        except DovetailError as error:
            print("refused:", error)
        """
    others = [python(code, tmp_path / "run", stdin=subprocess.PIPE) for _ in range(2)]
    for other in others:
        assert other.stdout is not None
        other.stdout.readline()
    with ThreadPool(2) as pool:
        said = sorted(out for out, _ in pool.map(lambda other: other.communicate("go\n", timeout=250), others))

    assert said[0] == "prepared\n"
    assert said[1].startswith("refused: ")
    assert "in use by process" in said[1] or "holds a run already" in said[1]
    Blueprint.read(tmp_path / "run")


def test_starts_at_once_without_a_folder_get_one_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPool(8) as pool:
        locks = pool.map(lambda _: lock_free_folder(RUN), range(8))

    assert sorted(lock.folder.name for lock in locks) == [f"ctr-dnn-{number}" for number in range(1, 9)]
    for lock in locks:
        lock.release()
    assert everything_in(tmp_path / "runs") == []


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_start_that_failed_leaves_nothing_behind(tmp_path):
    shared = {path.name for path in Path("/dev/shm").iterdir()}
    bad = make_run(samples=400, model=RunModel(name="ctr-dnn", options={"no_such_option": 1}))

    with pytest.raises(DovetailError):
        prepare(bad, tmp_path / "new" / "run")

    assert not (tmp_path / "new").exists()
    mine = [path.name for path in Path("/dev/shm").glob(f"dovetail-{os.getpid()}-*") if path.name not in shared]
    assert mine == []


def test_a_start_that_failed_leaves_what_was_in_the_folder_before(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.log").write_text("mine")
    bad = make_run(samples=400, model=RunModel(name="ctr-dnn", options={"no_such_option": 1}))

    with pytest.raises(DovetailError):
        prepare(bad, tmp_path)

    assert everything_in(tmp_path) == ["logs", "logs/mine.log", "notes.txt"]


def test_a_start_that_was_killed_leaves_a_folder_that_is_free(tmp_path, monkeypatch):
    # Killed before its last act, which makes the folder a run.
    code = """
        import os, signal, sys, pathlib
        from dovetail.runtime import blueprint
        from dovetail.runtime.prepare.run_folder import prepare
        from tests.runtime.runs import make_run
        blueprint.Blueprint.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        prepare(make_run(samples=400), pathlib.Path(sys.argv[1]))
        """
    monkeypatch.chdir(tmp_path)
    folder = Path("runs") / "ctr-dnn-1"
    for _ in range(2):
        killed = python(code, tmp_path / folder)
        assert killed.communicate(timeout=150) is not None
        assert killed.returncode == -signal.SIGKILL
        assert everything_in(tmp_path / folder)
    with pytest.raises(TrainingError, match="is no run"):
        Blueprint.read(folder)

    with lock_free_folder(RUN) as lock:
        assert lock.folder == folder
        prepare(RUN, folder, lock=lock)

    assert Blueprint.read(folder).samples == 400


def test_checkpoints_of_a_run_without_its_blueprint_are_never_swept(tmp_path):
    prepare(RUN, tmp_path / "run")
    first = tmp_path / "run" / "checkpoints" / "step-0000000000"
    first.rename(first.with_name("step-0000000007"))
    (tmp_path / "run" / "blueprint.json").unlink()

    with pytest.raises(TrainingError, match="holds a run already"):
        prepare(RUN, tmp_path / "run")

    assert (tmp_path / "run" / "checkpoints" / "step-0000000007" / "manifest.json").is_file()


def test_a_resume_that_was_killed_leaves_the_run_as_it_was(tmp_path):
    code = """
        import os, signal, sys, pathlib
        from dovetail.runtime.prepare.run_folder import prepare
        from tests.runtime.runs import make_run
        real = os.fsync
        def ends(file):
            if "/.blueprint.json." in os.readlink(f"/proc/self/fd/{file}"):
                os.kill(os.getpid(), signal.SIGKILL)
            real(file)
        os.fsync = ends
        prepare(make_run(samples=400), pathlib.Path(sys.argv[1]), resume=True)
        """
    before = prepare(RUN, tmp_path / "run")
    state = state_in(tmp_path / "run" / "checkpoints" / "step-0000000000").dense.tobytes()
    for _ in range(2):
        killed = python(code, tmp_path / "run")
        killed.communicate(timeout=150)
        assert killed.returncode == -signal.SIGKILL
        assert Blueprint.read(tmp_path / "run") == before

    prepare(RUN, tmp_path / "run", resume=True)

    assert state_in(tmp_path / "run" / "checkpoints" / "step-0000000000").dense.tobytes() == state


def test_rows_that_a_killed_launcher_left_are_swept_when_the_run_goes_on(tmp_path):
    prepare(RUN, tmp_path / "run")
    left = tmp_path / "run" / "rows" / "server-0" / "table-0" / "x.segment"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"cold")

    prepare(RUN, tmp_path / "run", resume=True)

    assert not left.exists()


def test_nobody_joins_a_run_that_is_not_under_way(tmp_path):
    prepare(RUN, tmp_path / "run")

    with pytest.raises(TrainingError, match="is not under way") as caught:
        join(tmp_path / "run", name="late")

    assert "dovetail train --resume" in caught.value.hint
    assert not list((tmp_path / "run" / "keys").glob("late*"))


def processes_of(folder: Path) -> list[int]:
    """Return who writes to a log of a run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process.pid}/fd/2").readlink().is_relative_to(folder):
                found.append(process.pid)
    return found


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3])
def test_a_launcher_that_is_killed_while_it_starts_leaves_no_process(tmp_path, after_s):
    # Whoever forks them ends them with their launcher; one that is gone by then is noticed, too.
    prepare(RUN, tmp_path / "run")
    killed = python(
        """
        import os, pathlib, signal, sys, time
        from dovetail.runtime.launch.local import LocalRun
        local = LocalRun(pathlib.Path(sys.argv[1]))
        start = local._starter.start_role
        def start_and_end(name):
            start(name)
            time.sleep(float(sys.argv[2]))
            os.kill(os.getpid(), signal.SIGKILL)
        local._starter.start_role = start_and_end
        local.__enter__()
        """,
        tmp_path / "run",
        after_s,
    )
    killed.communicate(timeout=150)
    assert killed.returncode == -signal.SIGKILL
    begun_s = time.monotonic()
    while processes_of(tmp_path / "run"):
        assert time.monotonic() - begun_s < 60, "a process outlives its launcher"
        time.sleep(0.1)

    lock = RunLock(tmp_path / "run")  # and nobody holds the run any more
    lock.release()


def test_a_process_that_starts_workers_and_dies_is_named_and_the_folder_is_free_again(tmp_path):
    code = """
        import os, pathlib, sys
        from dovetail.errors import DovetailError
        from dovetail.runtime import train
        from dovetail.runtime.launch import fork_server
        from tests.runtime.runs import make_run
        fork_server.PRELOAD = ["tests.runtime.launch.ends_at_import"]
        try:
            train(run=make_run(samples=400), folder=sys.argv[1])
        except DovetailError as error:
            print(error, "|", error.hint)
        """
    out, err = python(code, tmp_path / "run").communicate(timeout=250)

    assert "cannot be started: the process that starts workers ended" in out, err
    assert "memory" in out
    assert processes_of(tmp_path / "run") == []
    assert is_free(tmp_path / "run")
    assert {path.suffix for path in (tmp_path / "run").rglob("*") if path.is_file()} <= {".log"}


@pytest.mark.processes
def test_a_run_outlives_the_process_that_forked_its_own_and_every_sample_counts_once(tmp_path):
    over = tmp_path / "over"
    run = make_run(model=slow_counting(0.003, until=over), optimizer=PLAIN, reduction="sum", samples=6_000)
    prepare(run, tmp_path / "run")

    with LocalRun(tmp_path / "run") as local:
        before = {}
        while (report := local.look()) is None or report.step < 2:
            before = {name: child.process_id for name, child in local.children.items()}
        fork_server().process.kill()
        fork_server().process.wait()
        local.children["worker-0"].handle.kill()  # comes back as a fork of another one
        while local.children["worker-0"].starts < 2:
            local.look()
        over.touch()
        local.wait(timeout_s=120)
        after = {name: child.process_id for name, child in local.children.items()}

    assert {name for name in before if before[name] != after[name]} == {"worker-0"}
    assert_each_sample_counts_once(tmp_path / "run")


def test_a_second_launcher_is_refused_while_a_run_goes_on_and_not_after_it(tmp_path):
    prepare(RUN, tmp_path / "run")
    with LocalRun(tmp_path / "run") as local:
        with pytest.raises(TrainingError, match=f"in use by process {os.getpid()} on"):
            prepare(RUN, tmp_path / "run", resume=True)
        with pytest.raises(TrainingError, match="in use by process"), LocalRun(tmp_path / "run"):
            pass
        local.wait(timeout_s=200)
    assert owner_of(tmp_path / "run") is None
    assert not (tmp_path / "run" / "lock").exists()


def test_nobody_else_can_hold_a_runs_lock_or_look_into_its_folder(tmp_path):
    before = tmp_path / "before"
    before.mkdir(mode=0o755)
    (before / "lock").touch(mode=0o644)  # of a version before

    for folder in (tmp_path / "deep" / "run", before):
        with RunLock(folder):
            assert (folder / "lock").stat().st_mode & 0o777 == 0o600
    with RunLock(tmp_path / "new"):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert before.stat().st_mode & 0o777 == 0o755, "a folder that was there is its owner's to open"


@pytest.mark.skipif(os.geteuid() != 0, reason="being another user needs root")
def test_a_lock_that_may_not_be_opened_is_no_free_one(tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    with RunLock(tmp_path / "run"):
        (tmp_path / "run").chmod(0o755)
        other = python(
            """
            import os, sys, pathlib
            from dovetail.errors import DovetailError
            from dovetail.runtime.prepare.lock import owner_of
            os.setuid(65534)
            try:
                print("free" if owner_of(pathlib.Path(sys.argv[1])) is None else "taken")
            except DovetailError as error:
                print("refused", error.hint)
            """,
            tmp_path / "run",
        )
        out, err = other.communicate(timeout=60)
    assert out.startswith("refused"), out + err


def test_a_lock_that_cannot_be_opened_for_want_of_files_is_looked_at_again(tmp_path):
    with RunLock(tmp_path / "run"):
        other = python(
            """
            import os, resource, sys, pathlib, threading
            from dovetail.runtime.prepare.lock import owner_of
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            held = []
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            threading.Timer(0.5, lambda: [os.close(file) for file in held]).start()
            print("free" if owner_of(pathlib.Path(sys.argv[1])) is None else "taken")
            """,
            tmp_path / "run",
        )
        out, err = other.communicate(timeout=60)
    assert out == "taken\n", out + err
