"""A job that is nearly done under a daemon where others come of which nothing is known yet."""

from pathlib import Path

import pytest

from tests.serve.daemons import Daemon, python
from tests.serve.test_daemon import raw
from tests.waiting import wait_until

pytestmark = pytest.mark.processes
NEARLY_DONE = """
import json, os, sys, time
def report(samples):
    with open(os.environ["DOVETAIL_PROGRESS"], "a") as file:
        file.write(json.dumps({"unix_s": time.time(), "samples": samples, "total_samples": 100000}) + "\\n")
report(72000)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
report(100000)
"""
"""A program that is at 72% as soon as it has begun, too soon for its speed to be measured, and goes on when it may."""
FAILS = "import sys; sys.exit('error: no such column')"


def decisions_of(daemon):
    lines = raw(daemon, "GET", "/metrics")[1].decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("dovetail_decisions_total "))


def test_a_job_that_is_nearly_done_is_not_stopped_for_newcomers_that_have_not_made_a_step(tmp_path):
    over = tmp_path / "over"
    with Daemon(tmp_path / "daemon", "--nodes", "cpu:1x1", "--round-s", "0.5") as daemon:
        nearly = daemon.submit(name="nearly", command=python(NEARLY_DONE, str(over)))["id"]
        daemon.wait(nearly, lambda facts: facts["done"] == 72_000)
        others = [daemon.submit(name="new", command=python(program))["id"] for program in (FAILS, FAILS, "")]
        before = decisions_of(daemon)
        wait_until(lambda: decisions_of(daemon) >= before + 4)

        assert [daemon.job(job)["state"] for job in others] == ["queued"] * 3
        over.touch()
        done = daemon.wait_over(nearly)
        assert (done["state"], done["attempt"], done["done"]) == ("done", 1, 100_000)
        assert [daemon.wait_over(job)["state"] for job in others] == ["failed", "failed", "done"]
        assert "stops for others" not in [line["event"] for line in daemon.log()]
        assert not Path(done["folder"], "out-2").exists()
