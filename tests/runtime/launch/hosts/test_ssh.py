"""Runs on three machines over SSH: as one machine trains, with hosts that are lost, and with hosts that cannot be."""

import json
import threading

import msgspec
import pytest
from typer.testing import CliRunner

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from dovetail.cli.main import app
from dovetail.errors import DovetailError, SpecError
from dovetail.runtime.launch.hosts.protocol import HostFacts
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.launch.start import start
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.spec.run import RunData, RunNetwork, RunWorker
from testbed import available
from testbed.ssh import why_no_ssh
from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.launch.hosts.ssh_hosts import Machines, make_python, three_machines
from tests.runtime.runs import assert_same_state, cut, last_state, make_run

WHY_NOT = why_no_ssh() or available().why_not.get("hosts", "")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no SSH hosts here: {WHY_NOT}"),
]
RUNNER = CliRunner()
RUN = """
[model]
name = "ctr-dnn"
options = { num_rows = 240, width = 4, hidden = [16, 8] }
[data]
options = { num_slots = 4, num_multi_valued = 1, num_dense = 3, rows_per_slot = 60, num_samples = 3000 }
samples = 2600
[training]
batch = 200
[[worker]]
count = 3
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with three_machines(tmp_path_factory.mktemp("machines")) as machines:
        yield machines


def run_on(machines, fleet, run, name, meanwhile=lambda report: None):
    """Train to the end on a fleet; `meanwhile` hears every report."""
    folder = machines.runs / name
    run = fleet.settled(run)
    prepare(run, folder, elsewhere=fleet.place(run, folder))
    with LocalRun(folder, fleet=fleet) as local:
        local.wait(meanwhile, timeout_s=240)
    return folder


def test_three_hosts_train_as_one_machine_does(machines):
    file, out = machines.folder / "run.toml", machines.runs / "apart"
    file.write_text(RUN)
    on = str(machines.write())

    done = RUNNER.invoke(app, ["train", str(file), "--on", on, "--out", str(out), "--json"])
    RUNNER.invoke(app, ["train", str(file), "--out", str(machines.runs / "here"), "--json"])
    there = RUNNER.invoke(app, ["evaluate", str(out), "--on", on, "--host", "b", "--json"])
    here = RUNNER.invoke(app, ["evaluate", str(out), "--json"])

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(worker["samples"] > 0 for worker in found["workers"].values())
    assert len(found["workers"]) == 3
    assert_same_state(last_state(out), last_state(machines.runs / "here"), rtol=1e-4, atol=1e-5)
    evaluated = [json.loads(each.stdout.splitlines()[-1]) for each in (there, here)]
    assert evaluated[0]["loss"] == pytest.approx(evaluated[1]["loss"], rel=1e-5)
    assert machines.left() == []


def test_a_host_that_dies_is_a_worker_that_is_lost(machines):
    killed = []

    def meanwhile(report) -> None:
        if report.step >= 3 and not killed:
            killed.extend(name for name, host in fleet.places.host_of.items() if host == "b")
            machines.servers.kill("b")
        elif killed and not {"b", None} & {fleet.places.host_of.get(name) for name in killed}:
            over.touch()

    over = machines.folder / "over"
    model = slow_counting(0.002, until=over)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", samples=40_000, workers=3, patience_s=2.0)
    try:
        with machines.fleet(lost_s=4.0) as fleet:
            folder = run_on(machines, fleet, run, "lost", meanwhile)
            now_on = [fleet.places.host_of[name] for name in killed]
    finally:
        machines.servers.start("b")
    assert now_on
    assert "b" not in now_on  # they went to a host with units to spare
    assert_each_sample_counts_once(folder)


@pytest.mark.slow
def test_stages_across_hosts_and_a_line_that_breaks(machines):
    broken = []

    def meanwhile(report) -> None:
        if report.step >= 2 and not broken:
            remote = fleet.remotes["c"]
            broken.append(remote.facts)
            remote.line._loop.run(remote.line._close())  # the login ends, the keeper does not

    run = cut(
        make_run(model=slow_counting(0.002), optimizer=PLAIN, reduction="sum", samples=2000), 0, 1, workers=(2, 1)
    )
    workers = [msgspec.structs.replace(run.workers[0], host="a"), msgspec.structs.replace(run.workers[1], host="c")]
    run = msgspec.structs.replace(run, workers=workers)
    with machines.fleet() as fleet:
        folder = run_on(machines, fleet, run, "stages", meanwhile)
        facts = fleet.remotes["c"].facts

    assert isinstance(facts, HostFacts)
    assert [facts.keeper] == [before.keeper for before in broken]  # the same, reached again
    assert_each_sample_counts_once(folder)


@pytest.mark.parametrize(
    ("changed", "error", "hint"),
    [
        ({"address": "10.213.0.77"}, "host `b` (10.213.0.77:2222) is not reached", "see that it is up"),
        ({"port": 2}, "is not reached", "see that it is up"),
        ({"user": "nobody-such"}, "does not let `nobody-such` in", "authorized_keys"),
        ({"python": "/no/such/python"}, "has no Python at `/no/such/python`", "set `python`"),
        ({"key": "/no/such/key"}, "the private key /no/such/key cannot be used", "give the file"),
    ],
)
def test_a_host_that_cannot_be_used_says_why(machines, changed, error, hint):
    with pytest.raises(DovetailError) as told, machines.fleet(**changed):
        pass

    assert error in str(told.value)
    assert "`b`" in str(told.value)
    assert hint in told.value.hint


def test_a_host_with_another_key_is_refused(machines):
    listed = machines.servers.known_hosts.read_text()
    a, b, c = listed.splitlines()
    swapped = [a, f"{b.rpartition(' ')[0]} {c.rpartition(' ')[2]}", c]
    machines.servers.known_hosts.write_text("\n".join(swapped) + "\n")
    try:
        with pytest.raises(DovetailError) as told, machines.fleet():
            pass
        machines.servers.known_hosts.unlink()  # nobody is believed where nobody is listed
        with pytest.raises(DovetailError) as none_listed, machines.fleet():
            pass
    finally:
        machines.servers.known_hosts.write_text(listed)

    assert "host `b`" in str(told.value)
    assert "is not who" in str(told.value)
    assert "ssh-keyscan" in told.value.hint
    assert "is not listed there" in str(none_listed.value)


def test_a_host_with_another_version_is_refused(machines):
    other = machines.folder / "other" / "dovetail"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "0.0.1"\n')
    python = make_python(machines.folder / "other-python", other.parent)

    with pytest.raises(DovetailError) as told, machines.fleet(python=str(python)):
        pass

    assert "has Dovetail 0.0.1, and here it is" in str(told.value)
    assert "bring = true" in told.value.hint


def test_a_host_without_dovetail_is_brought_it(machines):
    bare = machines.folder / "bare-python"
    text = make_python(bare).read_text()
    # As one with the dependencies alone: an editable install would find the package all the same.
    bare.write_text(text.replace("PYTHONPATH=", "DOVETAIL_WAS="))

    with machines.fleet(python=str(bare), bring=True) as fleet:
        facts = fleet.remotes["b"].facts

    code = machines.folder / "ssh" / "cache-b" / "dovetail" / "code"
    assert facts is not None
    assert (next(code.iterdir()) / "dovetail" / "runtime" / "launch" / "hosts" / "keeper.py").is_file()


def test_what_hosts_cannot_have_is_refused_before_anything_starts(machines):
    run = make_run(workers=3)
    ring = msgspec.structs.replace(run.training, dense="ring")
    trusted = RunNetwork(trusted_network=True)
    hidden = machines.runs / "day.tsv"
    hidden.write_text("")
    cases = [
        (run, {"workers": [RunWorker(count=7)]}, "takes 1 unit, and no host has so many free"),
        (run, {"workers": [RunWorker(host="gpu-box")]}, "is to be on `gpu-box`"),
        (run, {"workers": [RunWorker(device="cuda")]}, "no host has GPUs for units"),
        (run, {"workers": [RunWorker(cores=0.5)]}, "is a quota of the launching machine"),
        (run, {"training": ring}, "neither encrypts nor authenticates"),
        (run, {"training": ring, "network": trusted}, "does not see"),
        (run, {"data": RunData(name="criteo", options={"path": str(hidden)})}, f"has no {hidden}"),
    ]
    with machines.fleet() as fleet:
        assert fleet.settled(run).network.address == machines.hosts.bridge_address
        for number, (base, changed, words) in enumerate(cases):
            with pytest.raises((DovetailError, SpecError), match=words.replace("`", ".")):
                start(msgspec.structs.replace(base, **changed), machines.runs / f"refused-{number}", fleet=fleet)
            assert not (machines.runs / f"refused-{number}" / "blueprint.json").exists()


@pytest.mark.slow
def test_links_between_hosts_are_measured(machines):
    done = RUNNER.invoke(app, ["link", "measure", "--on", str(machines.write()), "--repeats", "1", "--json"])

    assert done.exit_code == 0, done.output
    links = json.loads(done.stdout.splitlines()[-1])["links"]
    assert {(link["from"], link["to"]) for link in links} == {
        (one, other) for one in ("here", "a", "b", "c") for other in ("here", "a", "b", "c") if one != other
    }
    assert all(link["bytes_per_s"] > 0 for link in links)


@pytest.mark.slow
def test_a_worker_on_each_host_joins_a_run_that_goes_on(machines):
    run = make_run(model=slow_counting(0.004), optimizer=PLAIN, reduction="sum", samples=9000, workers=1)
    run = msgspec.structs.replace(run, network=RunNetwork(address=machines.hosts.bridge_address))
    folder, joined, told = machines.runs / "joined", [], []
    prepare(run, folder)

    def join() -> None:
        told.append(RUNNER.invoke(app, ["join", str(folder), "--on", str(machines.write()), "--name", "more"]))

    with LocalRun(folder) as local:
        thread = threading.Thread(target=join)
        thread.start()
        local.wait(lambda report: joined.extend(w.name for w in report.workers if w.samples), timeout_s=240)
    thread.join(30)

    assert told[0].exit_code == 0, told[0].output
    assert {"more-a", "more-b", "more-c"} <= set(joined)
    assert_each_sample_counts_once(folder)


@pytest.mark.slow
def test_a_model_is_measured_planned_and_trained_on_hosts_of_two_types(machines):
    a, b, c = machines.file.hosts
    others = [msgspec.structs.replace(host, type="cpu-2") for host in (b, c)]
    types = msgspec.structs.replace(machines.file, hosts=[a, *others])
    file = Machines(machines.hosts, machines.servers, machines.folder, machines.runs, types).write()
    words = ["run", "ctr-dnn", "--on", str(file), "--out", str(machines.runs / "planned"), "--json"]
    words += ["--short-runs-s=100", "--samples=8000", "--batch=400", "--price=cpu=0.05"]
    words += ["-o", "num_rows=4000", "-o", "hidden=[32,16]"]

    done = RUNNER.invoke(app, [*words, "--data-option=rows_per_slot=20"])

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert {stage["resource"] for stage in found["stages"]} <= {"cpu", "cpu-2"}
    assert found["samples"] == 8000
    assert found["place"] == "servers"  # one process is on no several hosts
    assert found["servers"] >= 1
    parts = {part["part"]: part["predicted_seconds_per_batch"] for part in found["parts"]}
    assert parts["servers"] > 0
    assert parts["rows"] > 0
