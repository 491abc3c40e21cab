"""Workers on hosts of their own, reached over TCP with CURVE; one of them over a slow link."""

import msgspec
import pytest

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunNetwork, RunWorker
from testbed import Hosts, available
from testbed.hosts import inside
from tests.runtime.counting import COUNTING, PLAIN, assert_each_sample_counts_once
from tests.runtime.runs import assert_nothing_left, make_run
from tests.runtime.sandboxes import OtherHosts

pytestmark = pytest.mark.skipif(not available().hosts, reason="no network namespaces here")


def apart(hosts):
    """Return a sandbox with both workers on hosts of their own."""
    return OtherHosts({name: hosts.namespace(name) for name in ("near", "far")})


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_workers_on_other_hosts_count_every_sample_once(tmp_path, mode):
    with Hosts(["near", "far"], rates=[None, 200_000.0]) as hosts:
        run = make_run(
            model=COUNTING, optimizer=PLAIN, reduction="sum", samples=6000, mode=mode,
            workers=[RunWorker(name="near"), RunWorker(name="far")],
        )  # fmt: skip
        run = msgspec.structs.replace(run, network=RunNetwork(address=hosts.bridge_address))
        with inside(hosts.hub):
            prepare(run, tmp_path / "run")
            with LocalRun(tmp_path / "run", sandbox=apart(hosts)) as local:
                report = local.wait(timeout_s=200)

    assert {worker.name for worker in report.workers if worker.samples} == {"near", "far"}
    assert_each_sample_counts_once(tmp_path / "run")
    assert_nothing_left(local)


def test_a_ring_crosses_hosts_with_a_word_of_trust(tmp_path):
    with Hosts(["near", "far"]) as hosts:
        run = make_run(
            model=COUNTING, optimizer=PLAIN, reduction="sum", samples=3000,
            workers=[RunWorker(name="near"), RunWorker(name="far")],
        )  # fmt: skip
        training = msgspec.structs.replace(run.training, dense="ring")
        network = RunNetwork(address=hosts.bridge_address, trusted_network=True)
        run = msgspec.structs.replace(run, network=network, training=training)
        with inside(hosts.hub):
            prepare(run, tmp_path / "run")
            with LocalRun(tmp_path / "run", sandbox=apart(hosts)) as local:
                local.wait(timeout_s=200)

    assert_each_sample_counts_once(tmp_path / "run")
