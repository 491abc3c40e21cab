"""The daemon among errors that prove nothing: files it may not open, clocks that jump, full disks, children left."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from testbed.faults import Faults, why_no_faults
from tests.serve.daemons import ONCE, WAITS_FOR, Daemon, python, refused
from tests.serve.test_hardening import fill, small_disk
from tests.waiting import wait_until

needs_faults = pytest.mark.skipif(bool(why_no_faults()), reason=f"nothing can be preloaded: {why_no_faults()}")
SAVES = """
import os, signal, sys, time
def saves(*_):
    time.sleep(float(sys.argv[1]))
    open(os.environ["DOVETAIL_JOB_FOLDER"] + "/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, saves)
open(os.environ["DOVETAIL_JOB_FOLDER"] + "/ready", "w").close()
time.sleep(600)
"""
"""A program that takes a while to keep its state when it is told to stop."""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
LEAVES = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True, close_fds=sys.argv[1] == "closed", pass_fds=())
open(os.environ["DOVETAIL_JOB_FOLDER"] + "/child", "w").write(str(child.pid))
"""


def folder_of(daemon, job):
    return Path(daemon.job(job)["folder"])


def ran_of(over, job):
    """Return how often a program ran to its end."""
    return len(over.with_name(f"{over.name}-{job}").read_text())


# -- errors that prove nothing -----------------------------------------------------------------------------------------


@needs_faults
def test_a_lock_that_cannot_be_opened_is_not_one_that_nobody_holds(tmp_path):
    faults, over = Faults(tmp_path), tmp_path / "over"
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1", environment=faults.environment) as daemon:
        jobs = [daemon.submit(command=python(WAITS_FOR, str(over)), max_workers=1)["id"] for _ in range(2)]
        for job in jobs:
            daemon.wait(job, lambda facts: facts["state"] == "running")
            daemon.wait(job, lambda facts: (Path(facts["folder"]) / "process-1.json").exists())
        for error in (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE):
            for word in ("/lock", "/process-", "/exit-"):
                faults.fail("open", error, word)
                time.sleep(0.7)
                assert [daemon.job(job)["state"] for job in jobs] == ["running"] * 2, (error, word)
        faults.fail("open", errno.EIO, "/exit-")
        over.touch()
        time.sleep(1.0)
        faults.none()

        for job in jobs:
            done = daemon.wait_over(job)
            assert (done["state"], done["attempt"], ran_of(over, job)) == ("done", 1, 1)
        said = [line for line in daemon.log() if line["event"] == "not known"]
        assert said, "it is said"
        assert len(said) < 60, "and not again and again"


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_connections_of_strangers_neither_end_jobs_nor_keep_out_who_has_the_token(tmp_path):
    over = tmp_path / "over"
    limited = ("prlimit", "--nofile=256:256")
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1", before=limited) as daemon:
        jobs = [daemon.submit(command=python(WAITS_FOR, str(over)), max_workers=1)["id"] for _ in range(2)]
        for job in jobs:
            daemon.wait(job, lambda facts: facts["state"] == "running")
        port = int(json.loads((daemon.folder / "server.json").read_bytes())["url"].rpartition(":")[2])
        strangers = []
        try:
            for _ in range(400):
                line = socket.socket()
                line.settimeout(60.0)
                line.connect(("127.0.0.1", port))
                strangers.append(line)
            time.sleep(2.0)
            for _ in range(5):
                assert [daemon.job(job)["state"] for job in jobs] == ["running"] * 2
            files = len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))
            assert files < 200, f"{files} files are open"
        finally:
            for line in strangers:
                line.close()
        over.touch()
        for job in jobs:
            done = daemon.wait_over(job)
            assert (done["state"], done["attempt"], ran_of(over, job)) == ("done", 1, 1)


# -- full disks --------------------------------------------------------------------------------------------------------


def test_jobs_that_cannot_be_started_for_want_of_room_wait_and_run_once_there_is_some(tmp_path):
    over = tmp_path / "over"
    with small_disk(tmp_path / "disk") as disk, Daemon(disk / "daemon", "--nodes", "cpu:1x1") as daemon:
        first = daemon.submit(command=python(WAITS_FOR, str(over)), max_workers=1)["id"]
        daemon.wait(first, lambda facts: (Path(facts["folder"]) / "process-1.json").exists())
        for number in range(100):  # the state's log has been written round once, and needs no more room
            large = daemon.submit(command=["true"], folder="/" + "x" * 9000, key=f"large-{number:08}")["id"]
            daemon.client.ask("POST", f"/v1/jobs/{large}/cancel", {})
        jobs = [daemon.submit(command=python(WAITS_FOR, str(over)), max_workers=1)["id"] for _ in range(3)]
        fill(disk / "filler")
        over.touch()
        time.sleep(6.0)
        assert {daemon.job(job)["state"] for job in (first, *jobs)} <= {"queued", "running", "done"}
        (disk / "filler").unlink()

        for job in jobs:
            done = daemon.wait_over(job)
            assert (done["state"], ran_of(over, job)) == ("done", 1)


@needs_faults
@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        pytest.param("pipe", errno.EMFILE, "-", marks=pytest.mark.slow),
        ("open", errno.ENOSPC, "/out-"),
        pytest.param("open", errno.EIO, "/job-1/lock", marks=pytest.mark.slow),
    ],
)
def test_a_start_that_fails_for_now_counts_against_nobody(tmp_path, call, error, word):
    faults, over = Faults(tmp_path), tmp_path / "over"
    over.touch()
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1", environment=faults.environment) as daemon:
        daemon.client.ask("GET", "/v1/cluster")
        faults.fail(call, error, word)
        job = daemon.submit(command=python(WAITS_FOR, str(over)), max_workers=1)["id"]
        daemon.wait(job, lambda facts: facts["attempt"] >= 1)
        time.sleep(3.0)
        held_back = daemon.job(job)
        faults.none()

        assert held_back["state"] in ("queued", "running"), held_back
        done = daemon.wait_over(job)
        assert (done["state"], ran_of(over, job)) == ("done", 1)


# -- being told to stop ------------------------------------------------------------------------------------------------


def test_a_job_that_is_cancelled_the_moment_it_starts_is_told_so(tmp_path):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:1x1", "--grace-s", "120") as daemon:
        for _ in range(5):
            job = daemon.submit(command=python(SAVES, "0"), max_workers=1)["id"]
            while daemon.job(job)["state"] == "queued":
                pass
            daemon.client.ask("POST", f"/v1/jobs/{job}/cancel", {})
            assert daemon.wait_over(job)["state"] == "cancelled"

        events = [line["event"] for line in daemon.log()]
        assert events.count("told to stop") == 5
        assert "ended by force" not in events


# -- children that are left --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", ["closed", "open"])
def test_children_that_a_job_leaves_are_ended_and_the_job_is_what_it_was(tmp_path, files):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:1x1", "--grace-s", "2") as daemon:
        job = daemon.submit(command=python(LEAVES, files), max_workers=1)["id"]
        daemon.wait(job, lambda facts: (Path(facts["folder"]) / "child").exists())
        child = int((folder_of(daemon, job) / "child").read_text())
        try:
            done = daemon.wait_over(job)
            assert done["state"] == "done", "its own process ended well"
            assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
            about = [line for line in daemon.log() if line.get("job") == job]
            assert len(about) < 10, about
        finally:
            if psutil.pid_exists(child):
                psutil.Process(child).kill()


def test_a_job_that_has_only_children_left_can_be_cancelled_and_does_not_wait_out_its_grace(tmp_path):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:1x1", "--grace-s", "100000") as daemon:
        job = daemon.submit(command=python(LEAVES, "closed"), max_workers=1)["id"]
        wait_until((folder_of(daemon, job) / "exit-1.json").exists)
        child = int((folder_of(daemon, job) / "child").read_text())
        try:
            assert daemon.job(job)["state"] == "running", "they are its own"
            daemon.client.ask("POST", f"/v1/jobs/{job}/cancel", {})
            daemon.wait_over(job)
            assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        finally:
            if psutil.pid_exists(child):
                psutil.Process(child).kill()


def test_children_of_a_job_whose_every_keeper_was_killed_are_ended_before_it_runs_again(tmp_path):
    program = LEAVES + "import time; time.sleep(600)"
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:1x1", "--grace-s", "1") as daemon:
        job = daemon.submit(command=python(program, "closed"), max_workers=1)["id"]
        daemon.wait(job, lambda facts: (Path(facts["folder"]) / "child").exists())
        child = int((folder_of(daemon, job) / "child").read_text())
        record = json.loads((folder_of(daemon, job) / "process-1.json").read_text())
        try:
            for process in (record["keeper"], record["process"]):
                psutil.Process(process).kill()
            daemon.wait(job, lambda facts: facts["attempt"] == 2 and facts["state"] == "running")
            assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        finally:
            if psutil.pid_exists(child):
                psutil.Process(child).kill()


# -- clocks ------------------------------------------------------------------------------------------------------------


@needs_faults
def test_a_clock_that_jumps_ahead_takes_no_jobs_grace(tmp_path):
    faults = Faults(tmp_path)
    words = ("--nodes", "cpu:1x1", "--grace-s", "120")
    with Daemon(tmp_path / "daemon", *words, environment=faults.environment) as daemon:
        job = daemon.submit(command=python(SAVES, "3"), max_workers=1)["id"]
        daemon.wait(job, lambda facts: (Path(facts["folder"]) / "ready").exists())
        daemon.client.ask("POST", f"/v1/jobs/{job}/cancel", {})
        wait_until(lambda: "told to stop" in [line["event"] for line in daemon.log()])
        faults.set_clock(7200)

        assert daemon.wait_over(job)["state"] == "cancelled"
        assert (folder_of(daemon, job) / "saved").exists(), "it had the time that it was promised"
        shown = daemon.job(job)
        assert shown["finished_s"] - shown["submitted_s"] < 3600


@needs_faults
def test_a_clock_that_jumps_back_lets_nobody_stay_for_ever(tmp_path):
    faults = Faults(tmp_path)
    words = ("--nodes", "cpu:1x1", "--grace-s", "2", "--round-s", "1")
    with Daemon(tmp_path / "daemon", *words, environment=faults.environment) as daemon:
        job = daemon.submit(command=python(STUBBORN), max_workers=1)["id"]
        daemon.wait(job, lambda facts: (Path(facts["folder"]) / "out-1").exists())
        wait_until((folder_of(daemon, job) / "out-1").read_text)
        daemon.client.ask("POST", f"/v1/jobs/{job}/cancel", {})
        faults.set_clock(-3600)
        daemon.kill()
        daemon.start()

        assert daemon.wait_over(job)["state"] == "cancelled"
        after = daemon.submit(command=["true"])["id"]
        assert daemon.wait_over(after)["state"] == "done"


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_one_jobs_numbers_stop_no_other_job(tmp_path):
    reports = "import os, time; open(os.environ['DOVETAIL_PROGRESS'], 'w').write(%r); time.sleep(600)"
    lines = [
        {"unix_s": 1e308, "samples": -1e308, "total_samples": 1e308, "loss": 1e308},
        {"unix_s": -1e308, "samples": 1e308, "total_samples": -1e308, "loss": -1e308},
    ]
    program = reports % "".join(json.dumps(line) + "\n" for line in lines)
    huge = {"model": {"name": "ctr-dnn"}, "data": {"samples": 10**300}, "training": {"epochs": 10**300}}
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1", "--round-s", "1") as daemon:
        for numbers in ({"priority": 1e300}, {"target_loss": -1e300}):
            assert "300" in str(refused(lambda numbers=numbers: daemon.submit(command=["true"], **numbers)))
        odd = daemon.submit(command=python(program), max_workers=1, target_loss=-1e18)["id"]
        daemon.wait(odd, lambda facts: (Path(facts["folder"]) / "progress.jsonl").exists())
        time.sleep(1.0)
        path = tmp_path / "huge.json"
        path.write_text(json.dumps(huge))
        error = daemon.say("submit", str(path), fails=True)
        other = daemon.submit(command=python(ONCE, "0"), max_workers=1)["id"]

        assert daemon.wait_over(other)["state"] == "done"
        assert "samples" in error
        assert "hint" in error
        assert "problem" not in [line["event"] for line in daemon.log()]


# -- whoever listens on a dead daemon's port ---------------------------------------------------------------------------


def test_the_token_is_not_told_to_whoever_listens_on_a_dead_daemons_port(tmp_path, monkeypatch):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:1x1") as daemon:
        daemon.client.ask("GET", "/v1/cluster")
        url = json.loads((daemon.folder / "server.json").read_bytes())["url"]
        token = (daemon.folder / "token").read_text().strip()
        over_tcp = [sys.executable, "-c", "from dovetail.cli.main import main; main()", "cluster"]
        environment = {**os.environ, "DOVETAIL_SERVER": url, "DOVETAIL_TOKEN": token}
        done = subprocess.run(over_tcp, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        daemon.kill()
        heard = tmp_path / "heard"
        listens = (
            "import socket, sys, threading\n"
            "server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
            "server.bind(('127.0.0.1', int(sys.argv[1]))); server.listen(); print('here', flush=True)\n"
            "while True:\n"
            "    line, _ = server.accept()\n"
            "    open(sys.argv[2], 'ab').write(line.recv(65536))\n"
            "    line.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}')\n"
            "    open(sys.argv[2], 'ab').write(line.recv(65536)); line.close()\n"
        )
        stranger = subprocess.Popen(
            [sys.executable, "-c", listens, url.rpartition(":")[2], str(heard)], stdout=subprocess.PIPE
        )
        try:
            assert stranger.stdout.readline() == b"here\n"
            by_folder = {**os.environ, "DOVETAIL_SERVER": str(daemon.folder)}
            for env in (environment, by_folder):
                done = subprocess.run(over_tcp, env=env, capture_output=True, text=True, timeout=60, check=False)
                assert done.returncode == 1
                assert "error: " in done.stderr
                assert "hint: " in done.stderr
        finally:
            stranger.kill()
            stranger.communicate()
        assert token.encode() not in (heard.read_bytes() if heard.exists() else b"")
