"""Limits and other hosts come into a run by one hook of its launcher."""

import os
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import SpecError
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.sandbox import Quotas, check_ring
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunNetwork, RunServers, RunWorker
from testbed import available
from tests.runtime.counting import COUNTING, PLAIN
from tests.runtime.runs import assert_nothing_left, make_run
from tests.runtime.sandboxes import OtherHosts


def ring_of(*names, **network):
    """Return a run whose workers form a ring."""
    run = make_run(dense="ring", workers=[RunWorker(name=name) for name in names])
    return msgspec.structs.replace(run, network=RunNetwork(**network))


def test_a_ring_across_hosts_needs_somebody_to_vouch_for_the_network():
    away = OtherHosts({"far": "elsewhere"})

    with pytest.raises(SpecError, match="worker `far` is on another host: a ring neither encrypts nor auth") as caught:
        check_ring(ring_of("near", "far"), away)

    assert caught.value.key == "training.dense"
    assert "network.trusted_network = true" in caught.value.hint
    check_ring(ring_of("near", "far", trusted_network=True), away)
    check_ring(ring_of("near", "next"), away)
    check_ring(make_run(workers=[RunWorker(name="far")]), away)


def test_a_ring_that_is_refused_starts_nothing_and_leaves_nothing(tmp_path):
    blueprint = prepare(ring_of("near", "far"), tmp_path / "run")
    local = LocalRun(tmp_path / "run", sandbox=OtherHosts({"far": "elsewhere"}))
    assert Path(blueprint.lanes).exists()

    with pytest.raises(SpecError, match="neither encrypts nor authenticates"), local:
        pass

    assert local.children == {}
    assert_nothing_left(local)


def test_every_process_is_told_to_the_bed(tmp_path):
    sandbox = OtherHosts({})
    prepare(make_run(model=COUNTING, optimizer=PLAIN, reduction="sum", samples=400, workers=1), tmp_path / "run")
    with LocalRun(tmp_path / "run", sandbox=sandbox) as local:
        local.wait(timeout_s=200)

    assert sandbox.starts == [(name, child.process_id) for name, child in local.children.items()]
    assert [name for name, _ in sandbox.starts] == ["coordinator", "server-0", "worker"]


@pytest.mark.skipif(not available().cpu_quota, reason="no CPU quotas here")
def test_cores_of_the_run_file_become_quotas_of_workers_and_servers(tmp_path):
    run = make_run(workers=[RunWorker(name="slow", cores=0.25), RunWorker(name="free")])
    run = msgspec.structs.replace(run, servers=RunServers(count=2, cores=0.5))
    sandbox = Quotas(prepare(run, tmp_path / "run"))

    with sandbox:
        assert sorted(sandbox.quotas) == ["server-0", "server-1", "slow"]
        group = sandbox.quotas["slow"].path
        sandbox.started("slow", os.getpid())
        sandbox.started("free", os.getpid())  # which has none: it stays where it is
        assert str(os.getpid()) in (group / "cgroup.procs").read_text().split()

    assert not group.exists()
