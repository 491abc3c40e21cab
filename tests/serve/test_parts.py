"""The daemon's parts that start nothing: its state, what it believes of jobs, and what the end of a process means."""

import json
import signal
import sqlite3

import pytest

from dovetail.errors import DovetailError, SpecError
from dovetail.scheduler.default.policy import Dovetail
from dovetail.serve.ends import how_it_ended
from dovetail.serve.job_command import task_of, write_run_file
from dovetail.serve.launcher import FoundProcess, JobAttempt
from dovetail.serve.outlook import JobHistory, outlook
from dovetail.serve.progress import JobProgress
from dovetail.serve.settings import DaemonSettings, hosts_with, nodes_of, parse_quotas
from dovetail.serve.store import Database, JobStore, UnknownJobError
from dovetail.serve.submission import Submission
from dovetail.spec.hosts import Host, HostsFile
from dovetail.spec.workload import NodeGroup

RUN = {"model": {"name": "ctr-dnn"}}
NODES = (NodeGroup(type="cpu", workers=4), NodeGroup(type="gpu", workers=2))


@pytest.fixture
def store(tmp_path):
    found = JobStore(tmp_path / "state.sqlite")
    yield found
    found.close()


def submitted(store, **facts):
    return store.submit(Submission(**{"name": "a", "run": RUN, **facts}))[0]


def running(store, workers=2, type_="cpu", **facts):
    return store.begin(submitted(store, **facts).id, type_=type_, workers=workers)


# -- the state ---------------------------------------------------------------------------------------------------------


def test_what_was_written_is_there_for_the_next_daemon(tmp_path, store):
    job = running(store)
    store.tell_to_stop(job.id, "wait")
    store.set("drain", "on")

    again = JobStore(tmp_path / "state.sqlite")

    found = again.job(job.id)
    assert (found.state, found.attempt, found.workers, found.why) == ("running", 1, 2, "wait")
    assert again.setting("drain") == "on"
    assert again.rows("PRAGMA journal_mode") == [("wal",)]
    assert again.rows("PRAGMA synchronous") == [(2,)], "FULL"
    again.close()


def test_a_job_begins_once_however_often_it_is_tried(store):
    job = submitted(store)

    assert store.begin(job.id, type_="cpu", workers=1).attempt == 1
    assert store.begin(job.id, type_="cpu", workers=1) is None


def test_a_cancelled_job_never_begins_and_cancelling_is_not_taken_back(store):
    waits, runs = submitted(store), running(store)
    store.cancel(waits.id)
    store.cancel(runs.id)
    store.tell_to_stop(runs.id, "wait")

    assert store.job(waits.id).state == "cancelled"
    assert store.begin(waits.id, type_="cpu", workers=1) is None
    assert (store.job(runs.id).state, store.job(runs.id).why) == ("running", "cancel")


def test_the_same_key_is_the_same_job_and_ids_go_up(store):
    first, is_new = store.submit(Submission(name="a", run=RUN, key="12345678"))
    again, is_new_again = store.submit(Submission(name="b", run=RUN, key="12345678"))
    other = submitted(store)

    assert (first.id, is_new, again.id, is_new_again, other.id) == ("a-1", True, "a-1", False, "a-2")
    with pytest.raises(UnknownJobError, match="there is no job `a-3`"):
        store.job("a-3")


def test_a_file_that_is_no_state_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"not a database" * 100)

    with pytest.raises(DovetailError, match="not a database"):
        Database(tmp_path / "x")


def test_a_change_that_fails_half_way_is_none(store):
    def fail_half_way():
        with store.change() as db:
            db.execute("INSERT INTO settings VALUES ('a', 'b')")
            db.execute("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(DovetailError, match="no such table: nowhere"):
        fail_half_way()
    assert store.setting("a") is None
    assert isinstance(sqlite3.sqlite_version, str)


# -- what the end of a process means -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "found", "complete", "state"),
    [
        (None, FoundProcess(state="ended", code=0), True, "done"),
        ("cancel", FoundProcess(state="ended", code=0), True, "done"),  # it was faster
        ("cancel", FoundProcess(state="ended", code=0), False, "cancelled"),
        ("cancel", FoundProcess(state="ended", code=-9), None, "cancelled"),
        ("wait", FoundProcess(state="ended", code=0), False, "queued"),
        ("wait", FoundProcess(state="ended", code=-9), None, "queued"),  # it did not stop, and was ended
        ("wait", FoundProcess(state="ended", code=1), None, "queued"),  # what broke as it was stopped is nobody's fault
        ("wait", FoundProcess(state="ended", code=-signal.SIGABRT), None, "queued"),
        ("target", FoundProcess(state="ended", code=0), False, "done"),
        (None, FoundProcess(state="ended", code=0), False, "queued"),  # somebody else sent SIGTERM
        (None, FoundProcess(state="ended", code=1), None, "failed"),
        (None, FoundProcess(state="ended", code=-signal.SIGSEGV), None, "failed"),
        (None, FoundProcess(state="ended", code=-signal.SIGKILL), None, "queued"),
        (None, FoundProcess(state="lost"), None, "queued"),
        (None, FoundProcess(state="never"), None, "queued"),
    ],
)
def test_a_run_that_has_no_process_any_more_is_over_or_goes_on(tmp_path, store, why, found, complete, state):
    job = running(store)
    if why is not None:
        store.tell_to_stop(job.id, why)
    if complete is not None:
        (tmp_path / "out-1").write_text(f"something\n{json.dumps({'is_complete': complete, 'loss': 0.5})}\n")
    task = JobAttempt(job=job.id, attempt=1, folder=tmp_path)

    assert how_it_ended(store.job(job.id), task, found, got_on=False).state == state


@pytest.mark.parametrize(("is_told", "state"), [(False, "done"), (True, "queued")])
def test_a_program_that_ends_well_before_it_is_told_to_stop_is_done(tmp_path, store, is_told, state):
    job = running(store, run=None, command=["true"])
    store.tell_to_stop(job.id, "wait")
    if is_told:
        store.told(job.id)
    ended, task = FoundProcess(state="ended", code=0), JobAttempt(job=job.id, attempt=1, folder=tmp_path)

    assert how_it_ended(store.job(job.id), task, ended, got_on=False).state == state


def test_a_job_that_is_lost_again_and_again_without_getting_on_fails(tmp_path, store):
    job = running(store)
    job.failures = 3
    lost, task = FoundProcess(state="lost"), JobAttempt(job=job.id, attempt=1, folder=tmp_path)
    never = FoundProcess(state="never")

    assert how_it_ended(job, task, lost, got_on=False).state == "failed"
    assert how_it_ended(job, task, lost, got_on=True) == ("queued", None, 0)
    assert how_it_ended(job, task, never, got_on=False) == ("queued", None, 3), "what never began counts for nobody"


# -- what is believed --------------------------------------------------------------------------------------------------


def looked(jobs, progress=None, seen=None, taken=None):
    settings = DaemonSettings(nodes=NODES)
    known = outlook(settings, jobs, progress or {}, seen or JobHistory(), jobs[-1].submitted_s + 1.0, taken=taken or {})
    return known, known.cluster.view(known.watching)


def test_constraints_preferences_and_sizes_are_what_the_policy_sees(store):
    jobs = [
        submitted(store, types=["gpu"]),
        submitted(store, prefer=["gpu"]),
        submitted(store, min_workers=2, max_workers=3),
        store.pin(submitted(store).id, 4),
    ]

    _, view = looked(jobs)

    sizes = [[view.speed[row, kind].nonzero()[0].tolist() for kind in range(2)] for row in range(4)]
    assert sizes == [[[], [1, 2]], [[1, 2, 3, 4], [1, 2]], [[2, 3], [2]], [[4], []]]
    assert view.speed[1, 1, 1] == pytest.approx(2.0 * view.speed[1, 0, 1])


def test_a_running_job_is_seen_with_what_it_holds_and_a_stopping_ones_workers_are_not_to_be_had(store):
    jobs = [running(store, workers=2), submitted(store)]

    known, view = looked(jobs, taken={"cpu": 1})
    wanted = Dovetail().decide(view, 1.0)

    assert view.workers.tolist() == [2, 0]
    assert view.capacity.tolist() == [3, 2]
    known.cluster.changes(wanted)
    assert sum(wanted.workers[wanted.types == 0]) <= 3


def test_measured_speeds_and_the_work_a_run_says_it_has_are_believed(tmp_path, store):
    job = running(store, kind="k")
    progress = JobProgress(tmp_path, done=2_000.0, total=10_000.0)

    _, view = looked(
        [job], {job.id: progress}, JobHistory(speeds=[("k", "cpu", 2, 400.0)], starts_s=[3.0], resizes_s=[0.5])
    )

    assert view.left[0] == 8_000.0
    assert view.speed[0, 0, 2] == pytest.approx(400.0, rel=0.1)
    assert (view.restart_s[0], view.resize_s[0]) == (3.0, 0.5), "what starts and resizes took"


def test_a_target_loss_says_what_is_left_once_the_curve_shows(tmp_path, store):
    job = running(store, kind="k", target_loss=0.2)
    # loss = 1 / (0.01 k + 1) meets 0.2 at k = 400.
    points = [(float(k), 1.0 / (0.01 * k + 1.0)) for k in range(10, 210, 10)]
    progress = JobProgress(tmp_path, done=200.0, total=1e6, points=points)

    _, view = looked([job], {job.id: progress}, JobHistory(speeds=[("k", "cpu", 2, 10.0)]))

    assert view.left[0] == pytest.approx(200.0, rel=0.1)


def test_progress_is_read_as_it_grows_and_a_step_back_is_seen(tmp_path):
    path = tmp_path / "progress.jsonl"
    progress = JobProgress(tmp_path)
    assert not progress.look(100.0)
    path.write_text("".join(f'{{"unix_s": {100 + t}, "samples": {50 * t}, "loss": {1 / (t + 1)}}}\n' for t in range(5)))
    with path.open("a") as file:
        file.write('broken\n{"unix_s": 105, "sam')

    assert progress.look(104.0)
    assert (progress.done, progress.speed, progress.loss) == (200.0, 50.0, 0.2)
    with path.open("a") as file:
        file.write('ples": 100.0, "loss": 0.3}\n')
    assert progress.look(105.0)
    assert progress.done == 100.0
    assert [work for work, _ in progress.points] == [50.0, 100.0]


# -- what is submitted and started -------------------------------------------------------------------------------------


def test_a_run_file_says_what_is_started_anew_or_from_its_checkpoint(tmp_path, store):
    job = running(store, workers=3, type_="gpu", run={**RUN, "worker": [{"name": "w", "count": 2}]})
    write_run_file(job, tmp_path)

    first = task_of(job, tmp_path).words[3:]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "blueprint.json").touch()
    again = task_of(job, tmp_path)

    assert first == ("train", f"{tmp_path}/run.json", "--out", f"{tmp_path}/run", "--workers", "3", "--json")
    assert again.words[5:7] == ("--resume", f"{tmp_path}/run")
    assert dict(again.environment)["DOVETAIL_JOB"] == job.id
    assert json.loads((tmp_path / "run.json").read_text())["worker"] == [{"name": "w", "count": 2, "device": "cuda"}]


def test_a_command_is_told_how_many_workers_it_has(tmp_path, store):
    job = running(store, workers=3, run=None, command=["torchrun", "--nproc-per-node={workers}", "x.py"])

    assert task_of(job, tmp_path).words == ("torchrun", "--nproc-per-node=3", "x.py")


def test_runs_with_stages_have_the_size_that_their_file_says():
    stages = [{"first_layer": 0, "last_layer": 0}, {"first_layer": 1, "last_layer": 5}]
    workers = [{"name": "a", "count": 2}, {"name": "b", "stage": 1}]
    submission = Submission(name="a", run={**RUN, "stage": stages, "worker": workers})

    assert submission.fixed_workers == 3
    with pytest.raises(SpecError, match="is 3, and there are 2 cpu"):
        submission.check_fits({"cpu": 2})


def test_hosts_are_nodes_and_a_job_gets_those_that_its_units_are_on():
    hosts = HostsFile(
        hosts=[
            Host(name="a", address="a", units=2),
            Host(name="g", address="g", type="v100", units=4),
            Host(name="b", address="b", units=3),
        ]
    )

    assert DaemonSettings(nodes=nodes_of(hosts), hosts=hosts).capacity == {"cpu": 5, "v100": 4}
    part = hosts_with(hosts, "cpu", [1, 2, 4])
    assert [(host.name, host.units) for host in part.hosts] == [("a", 1), ("b", 2)]
    assert [(host.name, host.units) for host in hosts_with(hosts, "v100", [0]).hosts] == [("g", 1)]


def test_quotas_are_users_and_numbers():
    assert parse_quotas(["ann=4", "bob=0"]) == {"ann": 4, "bob": 0}
    with pytest.raises(SpecError, match="`ann` is no quota"):
        parse_quotas(["ann"])
