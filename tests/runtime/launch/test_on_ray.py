"""Runs on a Ray cluster of three nodes, each with a `ray start` of its own on a host of its own."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from dovetail.errors import DovetailError, SpecError
from dovetail.runtime.launch.hosts.fleet import fleet_of
from dovetail.runtime.launch.hosts.ray.connection import hosts_of, lines_of
from dovetail.runtime.launch.hosts.ray.messages import Hold, LetGo, Node
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunWorker
from testbed import Hosts, RayNodes, available, inside
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import assert_same_state, last_state, make_run, train
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent.parent
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: pip install 'dovetail[ray]'")
needs_cluster = pytest.mark.skipif(
    not HAS_RAY or not available().hosts, reason="no Ray (pip install 'dovetail[ray]'), or no network namespaces here"
)
TYPES = {"head": {"core": 1}, "near": {"core": 2}, "far": {"core": 2, "spare": 1}}


@pytest.fixture(scope="module")
def cluster():
    """Three nodes; what lies in the folder `own` is seen by the head alone, where runs are launched."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # sockets have short names
    (folder / "own").mkdir()
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        with Hosts(list(TYPES)) as hosts, RayNodes(hosts, TYPES, folder, hidden=[folder / "own"]) as nodes:
            os.environ.update(nodes.environment)
            nodes.hosts, nodes.own = hosts, folder / "own"
            yield nodes
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def train_on(nodes, run, folder, *, meanwhile=None, timeout_s=200.0):
    """Train a run on the cluster, launched on its head; return where its workers were at the end."""
    with inside(nodes.hosts.namespace("head")), fleet_of(nodes.address) as fleet:
        run = fleet.settled(run)
        prepare(run, folder, elsewhere=fleet.place(run, folder))
        with LocalRun(folder, fleet=fleet) as local:
            local.wait(meanwhile, timeout_s=timeout_s)
        return dict(fleet.places.host_of)


def dovetail(nodes, *words, **environment):
    """Start a command line on the head."""
    command = [sys.executable, "-c", "from dovetail.cli.main import main; main()", *map(str, words)]
    return subprocess.Popen(
        ["ip", "netns", "exec", nodes.hosts.namespace("head"), *command],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def ours_on(nodes, name):
    """Return the processes on a host that are Dovetail's."""
    found = []
    for process_id in nodes.processes(name):
        try:
            words = " ".join(psutil.Process(process_id).cmdline())
        except psutil.Error:
            continue
        if "dovetail." in words or "NodeKeeper" in words:
            found.append((process_id, words))
    return found


def kept_keys():
    """Return the folders with keys of runs that nodes of this machine hold; nobody else keeps them there."""
    return set(Path(tempfile.gettempdir()).glob("dovetail-run-*/keys"))


def test_types_and_units_are_what_nodes_were_started_with():
    nodes = (
        Node(name="one", address="10.0.0.1", free={"CPU": 8.0, "memory": 1e9, "node:10.0.0.1": 1.0}),
        Node(name="two", address="10.0.0.2", free={"CPU": 8.0, "slow core": 3.0, "fast": 2.5}),
        Node(name="gpu", address="10.0.0.3", free={"CPU": 4.0, "GPU": 2.0, "accelerator_type:L4": 1.0}, gpus=2.0),
        Node(name="typed", address="10.0.0.4", free={"GPU": 2.0, "a10": 2.0}, gpus=2.0),
        Node(name="taken", address="10.0.0.5", free={"fast": 0.0, "fast_group_0_ab": 1.0}),
    )

    found = [(host.name, host.address, host.type, host.units, host.on_gpu, unit) for host, unit in hosts_of(nodes)]

    assert found == [
        ("one", "10.0.0.1", "cpu", 8, False, {"CPU": 1.0}),
        ("two-slow-core", "10.0.0.2", "slow core", 3, False, {"slow core": 1.0}),
        ("two-fast", "10.0.0.2", "fast", 2, False, {"fast": 1.0}),
        ("gpu-cpu", "10.0.0.3", "cpu", 4, False, {"CPU": 1.0}),
        ("gpu-gpu", "10.0.0.3", "gpu", 2, True, {"GPU": 1.0}),
        ("typed", "10.0.0.4", "a10", 2, True, {"a10": 1.0, "GPU": 1.0}),
    ]


def test_without_ray_the_way_to_install_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(DovetailError, match="Ray is not installed here") as caught:
        lines_of(None)

    assert caught.value.hint == "pip install 'dovetail[ray]'"


@needs_ray
def test_an_address_without_a_cluster_is_refused_at_once():
    with pytest.raises(DovetailError, match=r"no Ray cluster at 127\.0\.0\.1:1: ") as caught:
        lines_of("127.0.0.1:1")

    assert "ray start --head" in caught.value.hint


@needs_cluster
def test_a_wrong_token_is_refused(cluster, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("0" * 64)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))

    with (
        inside(cluster.hosts.namespace("head")),
        pytest.raises(DovetailError, match="does not let us in: the token is missing or another one") as caught,
    ):
        lines_of(cluster.address)

    assert "RAY_AUTH_TOKEN_PATH" in caught.value.hint


@needs_cluster
def test_a_type_that_no_node_has_is_refused(cluster):
    run = make_run(workers=[RunWorker(name="w", host="tpu")])

    with (
        inside(cluster.hosts.namespace("head")),
        fleet_of(cluster.address) as fleet,
        pytest.raises(SpecError, match=r"worker `w` is to be on `tpu`, and the hosts are .*, of type `core`, `spare`"),
    ):
        fleet.place(fleet.settled(run), cluster.own / "none")


@needs_cluster
def test_units_that_one_launcher_holds_are_not_another_ones(cluster):
    address = cluster.hosts.address("near")

    def hold(cluster_of_one):
        cluster_of_one.call(lambda number: Hold(number, "worker", address, {"core": 2.0}, 3.0), 10.0)

    with inside(cluster.hosts.namespace("head")), ExitStack() as things:
        first, second = (lines_of(cluster.address)[0][0].cluster for _ in range(2))
        things.callback(first.close)
        things.callback(second.close)
        hold(first)
        with pytest.raises(DovetailError, match=f"node {address} has not 2 of `core` free: another job"):
            hold(second)
        third = lines_of(cluster.address)[0]
        things.callback(third[0].cluster.close)
        first.tell(LetGo("worker"))
        hold(second)

    assert address not in [line.host.address for line in third]


@needs_cluster
def test_in_sync_three_nodes_end_where_this_machine_ends(cluster):
    run = make_run(samples=1950, workers=[RunWorker(name="w", count=3)], balance=False)

    where = train_on(cluster, run, cluster.own / "there")
    train(run, cluster.own / "here")

    assert len(set(where.values())) == 3
    assert_same_state(last_state(cluster.own / "there"), last_state(cluster.own / "here"), rtol=2e-5, atol=2e-6)


@needs_cluster
def test_a_node_that_is_lost_costs_no_sample_and_its_worker_goes_on_elsewhere(cluster):
    over = cluster.own.parent / "over"  # which all nodes see
    run = make_run(
        model=slow_counting(0.003, until=over), optimizer=PLAIN, reduction="sum", samples=40_000, patience_s=5.0,
        workers=[RunWorker(name="w", count=3, host="core")],
    )  # fmt: skip
    seen, killed = [], []

    def meanwhile(report):
        seen.append({worker.name: worker.state for worker in report.workers})
        if report.step >= 3 and not killed:
            killed.append(report.step)
            cluster.kill("far")
        elif killed and any("away" in states.values() for states in seen) and set(seen[-1].values()) == {"working"}:
            over.touch()

    where = train_on(cluster, run, cluster.own / "lost", meanwhile=meanwhile)
    cluster.start("far")
    cluster.wait_for("far")

    assert set(where.values()) == {"10.213.0.2", "10.213.0.3"}  # with two on the node that had a unit to spare
    assert any("away" in states.values() for states in seen)
    assert set(seen[-1].values()) == {"working"}
    assert_each_sample_counts_once(cluster.own / "lost")


@needs_cluster
def test_nothing_is_left_on_the_nodes_when_the_launcher_is_killed(cluster):
    run = make_run(model=slow_counting(0.01), optimizer=PLAIN, reduction="sum", samples=100_000, workers=2)
    (cluster.own / "run.json").write_bytes(msgspec.json.encode(run))
    before = kept_keys()
    begun = dovetail(cluster, "train", cluster.own / "run.json", "--out", cluster.own / "killed", "--on", "ray")
    metrics = cluster.own / "killed" / "metrics.jsonl"
    wait_until(lambda: begun.poll() is not None or (metrics.exists() and metrics.stat().st_size))
    assert begun.poll() is None, begun.communicate()
    assert any("hosts.worker_entry" in words for _, words in ours_on(cluster, "near") + ours_on(cluster, "far"))

    begun.send_signal(signal.SIGKILL)
    begun.communicate(timeout=150)

    wait_until(lambda: not any(ours_on(cluster, name) for name in TYPES))
    wait_until(lambda: kept_keys() <= before)


@needs_cluster
@pytest.mark.slow
def test_links_are_measured_and_a_run_is_evaluated_on_nodes(cluster):
    train(make_run(samples=600), cluster.own / "small")

    for words in (("link", "measure", "--repeats", "1"), ("evaluate", cluster.own / "small")):
        done = dovetail(cluster, *words, "--on", cluster.address, "--json")
        out, said = done.communicate(timeout=110)
        assert done.returncode == 0, said
        assert json.loads(out)
