"""The daemon killed at any moment: no job is lost, none runs twice at once, and those that run go on."""

import random
import threading
import time
from pathlib import Path

import pytest

from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run
from tests.serve.daemons import ONCE, OVER, WAITS_FOR, Daemon, python, table_of
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("kills", "num_jobs"), [(5, 20), pytest.param(50, 150, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_killed_under_load_it_loses_no_job_and_runs_none_twice(tmp_path, kills, num_jobs):
    draw = random.Random(7)
    # By a policy that stops nobody for others: who is stopped between its last deed and its end does it twice.
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:4x1", "--round-s", "1", "--policy", "fifo") as daemon:
        words = python(ONCE, "0.3")
        found, problems = [], []

        def submit_all():
            try:
                for number in range(num_jobs):
                    found.append(daemon.submit(command=words, max_workers=1, key=f"load-{number:08}")["id"])
                    time.sleep(0.02)
            except Exception as problem:
                problems.append(problem)

        load = threading.Thread(target=submit_all)
        load.start()
        for _ in range(kills):
            time.sleep(draw.uniform(0.1, 2.0))
            daemon.kill()
            daemon.start()
        load.join(150)
        until_s = time.monotonic() + 150 + 2 * num_jobs
        while any(job["state"] not in OVER for job in daemon.jobs()) and time.monotonic() < until_s:
            time.sleep(0.2)

        jobs = {job["id"]: job for job in daemon.jobs()}
        assert not problems
        assert len(set(found)) == num_jobs
        assert jobs.keys() == set(found), "every job that was taken is there, once"
        assert {job["state"] for job in jobs.values()} == {"done"}, [j for j in jobs.values() if j["state"] != "done"]
        ran = {job: len((Path(facts["folder"]) / "ran").read_text()) for job, facts in jobs.items()}
        assert set(ran.values()) == {1}, "each ran to its end once"


def test_a_run_goes_on_without_the_daemon_and_the_next_one_takes_it_over(tmp_path):
    over = tmp_path / "over"
    run = make_run(model=slow_counting(0.003, until=over), optimizer=PLAIN, reduction="sum", workers=1, samples=40_000)
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1") as daemon:
        job = daemon.submit(run=table_of(run), max_workers=1)["id"]
        before = daemon.wait(job, lambda facts: (facts["done"] or 0) > 0)
        daemon.kill()
        time.sleep(1.0)
        daemon.start()
        after = daemon.wait(job, lambda facts: (facts["done"] or 0) > before["done"])
        daemon.client.ask("POST", f"/v1/jobs/{job}/resize", {"workers": 2})
        daemon.wait(job, lambda facts: facts["present"] == 2)
        over.touch()

        done = daemon.wait_over(job)

        assert after["state"] == "running"
        assert (done["state"], done["attempt"]) == ("done", 1)
        assert_each_sample_counts_once(Path(done["folder"]) / "run")


def test_a_job_that_ends_while_nobody_looks_is_found_to_be_done_or_failed(tmp_path):
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1") as daemon:
        over = tmp_path / "over"
        good = daemon.submit(command=python(WAITS_FOR, str(over)), max_workers=1)["id"]
        bad = daemon.submit(command=python(WAITS_FOR + "sys.exit(3)", str(over)), max_workers=1)["id"]
        for job in (good, bad):
            daemon.wait(job, lambda facts: facts["state"] == "running")
        ends = [Path(daemon.job(job)["folder"]) / "exit-1.json" for job in (good, bad)]
        daemon.kill()
        over.touch()
        wait_until(lambda: all(end.exists() for end in ends))
        daemon.start()

        assert daemon.wait_over(good)["state"] == "done"
        assert (daemon.wait_over(bad)["state"], daemon.job(bad)["error"]) == ("failed", "exit status 3")


def test_a_job_that_somebody_kills_goes_on_and_one_that_always_dies_fails(tmp_path):
    dies_once = "import os, sys; p = os.environ['DOVETAIL_JOB_FOLDER'] + '/once'; " + (
        "os.path.exists(p) or (open(p, 'w'), os.kill(os.getpid(), 9))"
    )
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:2x1") as daemon:
        once = daemon.submit(command=python(dies_once))["id"]
        always = daemon.submit(command=python("import os; os.kill(os.getpid(), 9)"))["id"]

        assert (daemon.wait_over(once)["state"], daemon.job(once)["attempt"]) == ("done", 2)
        assert daemon.wait_over(always)["state"] == "failed"
        assert "lost 4 times" in daemon.job(always)["error"]
