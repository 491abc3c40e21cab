"""What goes wrong around jobs: full disks, nodes that vanish or stand still, users beyond their share."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run
from tests.serve.daemons import PATHS, ROOT, WAITS_FOR, Daemon, python, refused, table_of
from tests.waiting import wait_until

FILLS = """
import os, sys
path = os.path.join(sys.argv[1], "filler")
with open(path, "wb") as file:
    while True:
        file.write(b"x" * 65536)
"""
WAITS = "import time; time.sleep(float(__import__('sys').argv[1]))"


@contextmanager
def small_disk(folder, size="16m"):
    """Mount a small disk at a folder."""
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a disk needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(path):
    """Write until there is no room."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def counting_job(daemon, samples, *, seconds=0.003, every_steps=20, until=None, **facts):
    """Submit a run that counts its samples, and keeps a checkpoint often."""
    model = slow_counting(seconds, until=until)
    run = table_of(make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=samples))
    run["checkpoint"] = {**run.get("checkpoint", {}), "every_steps": every_steps}
    return daemon.submit(name="counting", run=run, **facts)["id"]


def processes_of(job):
    """Return all processes of a job, its keeper last."""
    records = sorted(Path(job["folder"]).glob("process-*.json"), key=lambda path: path.stat().st_mtime)
    facts = json.loads(records[-1].read_text())
    first = psutil.Process(facts["process"])
    return [first, *first.children(recursive=True), psutil.Process(facts["keeper"])]


# -- disks -------------------------------------------------------------------------------------------------------------


def test_a_job_that_fills_its_disk_fails_with_the_reason_and_others_go_on(tmp_path):
    with small_disk(tmp_path / "disk") as disk, Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1") as daemon:
        fills = daemon.submit(command=python(FILLS, str(disk)), max_workers=1)["id"]
        other = daemon.submit(command=python(WAITS, "1"), max_workers=1)["id"]

        assert daemon.wait_over(fills)["state"] == "failed"
        assert "No space left on device" in daemon.job(fills)["error"]
        assert daemon.wait_over(other)["state"] == "done"


def test_a_daemon_whose_disk_is_full_refuses_jobs_with_the_reason_and_goes_on_once_there_is_room(tmp_path):
    over = tmp_path / "over"
    with small_disk(tmp_path / "disk") as disk, Daemon(disk / "daemon", "--nodes", "cpu:2x1") as daemon:
        runs = daemon.submit(command=python(WAITS_FOR, str(over)), max_workers=1)["id"]
        daemon.wait(runs, lambda facts: facts["state"] == "running")
        fill(disk / "filler")
        error = refused(lambda: [daemon.submit(command=["true"], folder="/" + "x" * 2000) for _ in range(200)])
        assert "cannot be written" in str(error)
        assert error.hint == "see the disk"
        assert daemon.job(runs)["id"] == runs, "it still answers"
        over.touch()
        wait_until((Path(daemon.job(runs)["folder"]) / "exit-1.json").exists)
        time.sleep(1.0)  # the job has ended, and that cannot be written down
        (disk / "filler").unlink()

        assert daemon.wait_over(runs)["state"] == "done"
        assert daemon.wait_over(daemon.submit(command=["true"])["id"])["state"] == "done"


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_a_node_that_vanishes_with_all_processes_of_a_job_costs_what_was_done_since_the_last_checkpoint(tmp_path):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1", "--round-s", "1") as daemon:
        gone = tmp_path / "gone"
        job = counting_job(daemon, 20_000, until=gone, max_workers=2)
        daemon.wait(job, lambda facts: (facts["done"] or 0) > 300)
        for process in processes_of(daemon.job(job)):
            process.kill()
        gone.touch()

        done = daemon.wait_over(job)

        assert (done["state"], done["attempt"]) == ("done", 2)
        assert_each_sample_counts_once(Path(done["folder"]) / "run")


@pytest.mark.slow
def test_a_node_that_is_away_for_a_minute_goes_on_where_it_was(tmp_path):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1", "--round-s", "1") as daemon:
        job = counting_job(daemon, 3000, max_workers=1)
        before = daemon.wait(job, lambda facts: (facts["done"] or 0) > 100)
        stopped = processes_of(before)
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(60.0)
        for process in (*reversed(stopped), psutil.Process(daemon.process.pid)):
            process.send_signal(signal.SIGCONT)

        done = daemon.wait_over(job)

        assert (done["state"], done["attempt"]) == ("done", 1)
        assert_each_sample_counts_once(Path(done["folder"]) / "run")


# -- users -------------------------------------------------------------------------------------------------------------


def test_quotas_priorities_and_types_hold_from_the_command_line_on(tmp_path):
    words = ["--nodes", "cpu:1x1,big:1x1", "--quota", "ann=1", "--round-s", "1"]
    waits = ["--max-workers", "1", "--", *python(WAITS, "1.2")]
    with Daemon(tmp_path / "daemon", *words) as daemon:

        def submit(*options):
            return daemon.say("submit", "--name", "job", *options, *waits).strip()

        daemon.client.ask("POST", "/v1/drain", {"state": "on"})  # waits until it serves
        low = submit("--type", "big", "--user", "bob")
        high = submit("--type", "big", "--user", "bob", "--priority", "20")
        anns = [submit("--user", "ann"), submit("--user", "ann")]
        likes = submit("--user", "bob", "--prefer", "cpu")
        assert "no type here" in daemon.say("submit", "--type", "bigg", *waits, fails=True)
        daemon.say("drain", "--off")
        most, ran = 0, {}
        while any(job["state"] in ("queued", "running") for job in daemon.jobs()):
            most = max(most, sum(job["workers"] for job in daemon.jobs() if job["user"] == "ann"))
            time.sleep(0.1)
        listed = {job["id"]: job for job in json.loads(daemon.say("jobs", "--json"))["jobs"]}
        for line in daemon.log():
            if line["event"] == "started":
                ran.setdefault(line["job"], set()).add(line["type"])

        assert {job["state"] for job in listed.values()} == {"done"}
        assert most <= 1, "a quota of one worker"
        assert ran[low] == ran[high] == {"big"}, "a type is a constraint"
        assert ran[likes] == {"cpu"}, "or a preference"
        assert listed[high]["started_s"] < listed[low]["started_s"], "what counts more goes first"
        assert all(listed[ann]["user"] == "ann" for ann in anns)


# -- programs ----------------------------------------------------------------------------------------------------------

EXAMPLE = ROOT / "examples" / "torchrun_job.py"
PAUSES = """
import runpy, sys, time
from dovetail import job
stop_asked_of_any, steps = job.stop_asked_of_any, 0
def waits_at_60():
    global steps
    if distributed.get_world_size() == 1 and steps == 60:
        while not job.stop_asked():
            time.sleep(0.01)
    steps += 1
    return stop_asked_of_any()
job.stop_asked_of_any = waits_at_60
from torch import distributed
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""The example, which goes no further on one worker than to step 60, however late it is told to stop."""
THREADS = """
import os, runpy, sys
from torch import distributed
def threads():
    return sorted(open(f"/proc/self/task/{each}/comm").read().strip() for each in os.listdir("/proc/self/task"))
leave = distributed.destroy_process_group
def leaves():
    print(*threads())
    leave()
distributed.destroy_process_group = leaves
runpy.run_path(sys.argv[1], run_name="__main__")
print(*threads())
"""


def test_a_torchrun_script_is_resized_from_one_worker_to_two_and_does_every_step_once(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{workers}"]
    script = tmp_path / "pauses.py"
    script.write_text(PAUSES)
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1", "--grace-s", "120") as daemon:
        job = daemon.submit(
            name="ddp",
            command=[*torchrun, str(script), str(EXAMPLE)],
            max_workers=1,
            environment={"PYTHONPATH": PATHS, "STEPS": "150", "OMP_NUM_THREADS": "1"},
        )["id"]
        daemon.wait(job, lambda facts: (facts["done"] or 0) >= 40)
        daemon.client.ask("POST", f"/v1/jobs/{job}/resize", {"workers": 2})

        done = daemon.wait_over(job)

        assert (done["state"], done["attempt"], done["done"]) == ("done", 2, 150), daemon.say("logs", job)
        begun = [(Path(done["folder"]) / f"out-{attempt}").read_text().splitlines()[0] for attempt in (1, 2)]
        assert begun == ["from step 0 on 1 workers", "from step 60 on 2 workers"], "it went on where it was"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed by Linux")
def test_no_thread_of_its_group_outlasts_a_torchrun_script(tmp_path):
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "STEPS": "3"}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(EXAMPLE)],
        env={**os.environ, **alone, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    _, within, after = done.stdout.splitlines()
    assert "gloo" in within
    assert "gloo" not in after, "it may ask for an interpreter that has ended, and abort the process"
