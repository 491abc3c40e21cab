"""A daemon whose workers are on three other machines: jobs get units of their own, and a lost host is survived."""

import json
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from testbed import available
from testbed.ssh import why_no_ssh
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.launch.hosts.ssh_hosts import NAMES, three_machines
from tests.runtime.runs import make_run
from tests.serve.daemons import Daemon, refused, table_of

WHY_NOT = why_no_ssh() or available().why_not.get("hosts", "")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no SSH hosts here: {WHY_NOT}"),
]


def hosts_of(job):
    """Return the hosts that a job was given, with how many units of each."""
    found = json.loads((Path(job["folder"]) / "hosts.json").read_bytes())
    return {host["name"]: host["units"] for host in found["host"]}


def set_cable(machines, name, state):
    """Pull a host's cable, or plug it in again."""
    cable = f"host{NAMES.index(name)}"
    subprocess.run(["ip", "-n", machines.hosts.hub, "link", "set", cable, state], check=True, timeout=30)


def test_two_jobs_at_once_train_on_units_of_their_own(tmp_path):
    with three_machines(tmp_path) as machines:
        words = ["--on", str(machines.write()), "--policy", "fixed-2"]
        with Daemon(machines.runs / "daemon", *words) as daemon:
            over = tmp_path / "over"  # which all machines see
            model = slow_counting(0.002, until=over)
            run = make_run(model=model, optimizer=PLAIN, reduction="sum", workers=1, samples=60_000)
            jobs = [daemon.submit(run=table_of(run))["id"] for _ in range(2)]
            for job in jobs:
                daemon.wait(job, lambda facts: facts["present"] == 2, 120.0)
            parts = [hosts_of(daemon.job(job)) for job in jobs]
            over.touch()
            done = [daemon.wait_over(job, 120.0) for job in jobs]
            error = refused(lambda: daemon.submit(command=["true"]))
            for job in done:
                assert_each_sample_counts_once(Path(job["folder"]) / "run")

    assert [job["state"] for job in done] == ["done", "done"]
    assert parts == [{"a": 2}, {"b": 2}]
    assert "this daemon's workers are on other hosts" in str(error)


@pytest.mark.slow
def test_a_host_that_is_away_for_a_minute_costs_no_sample(tmp_path):
    with three_machines(tmp_path) as machines:
        words = ["--on", str(machines.write()), "--policy", "fixed-4"]
        with Daemon(machines.runs / "daemon", *words) as daemon:
            run = make_run(model=slow_counting(0.05), optimizer=PLAIN, reduction="sum", workers=1, samples=6000)
            job = daemon.submit(run=table_of(run))["id"]
            daemon.wait(job, lambda facts: facts["present"] == 4, 120.0)
            set_cable(machines, "b", "down")
            time.sleep(60.0)
            set_cable(machines, "b", "up")
            done = daemon.wait_over(job, 200.0)
            assert_each_sample_counts_once(Path(done["folder"]) / "run")

    assert done["state"] == "done"
