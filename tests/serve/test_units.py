"""Which units a job holds, and the GPUs that its processes see."""

import json
import sqlite3

import numpy as np
import pytest

from dovetail.runtime.folder import ask_for
from dovetail.runtime.launch.elastic_workers import GPUS, ElasticWorkers
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.scheduler.registry import make_policy
from dovetail.scheduler.view import allocation
from dovetail.serve.controller import Controller
from dovetail.serve.job_command import gpus_of, task_of
from dovetail.serve.launcher import FoundProcess
from dovetail.serve.settings import DaemonSettings
from dovetail.serve.store import JobStore
from dovetail.serve.submission import Submission
from dovetail.serve.wishes import PolicyAsker
from dovetail.spec.workload import NodeGroup
from tests.runtime.runs import make_run

NODES = (NodeGroup(type="gpu", workers=4), NodeGroup(type="cpu", workers=2))


class Remembers:
    """A launcher that starts nothing; what it was to start is there to be looked at."""

    def __init__(self):
        self.tasks = []

    def start(self, task):
        self.tasks.append(task)

    def find(self, task):
        return FoundProcess(state="running")

    def ask_to_stop(self, task):
        return "told"

    def end(self, task):
        pass


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    store, launcher = JobStore(tmp_path / "state.sqlite"), Remembers()
    settings = DaemonSettings(nodes=NODES, policy="fixed-2")
    yield (
        store,
        launcher,
        Controller(tmp_path, store, launcher, PolicyAsker(make_policy("fixed-2"), settings), settings),
    )
    store.close()


def variables(task):
    return dict(task.environment)


def test_two_jobs_of_one_type_hold_different_units_and_see_their_own_gpus(daemon):
    store, launcher, controller = daemon
    for _ in range(2):
        store.submit(Submission(name="a", command=["true"], types=["gpu"]))

    controller.turn()

    seen = [variables(task)["CUDA_VISIBLE_DEVICES"] for task in launcher.tasks]
    assert seen == ["0,1", "2,3"]
    assert [job.units for job in store.jobs()] == [[0, 1], [2, 3]]


def test_a_job_on_cores_is_told_its_units_and_no_gpu(daemon):
    store, launcher, controller = daemon
    store.submit(Submission(name="a", command=["true"], types=["cpu"]))

    controller.turn()

    assert variables(launcher.tasks[0])["DOVETAIL_UNITS"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in variables(launcher.tasks[0])


def test_units_are_given_out_again_once_the_worker_has_left_and_not_before(daemon):
    store, _, controller = daemon
    shrinks = store.submit(Submission(name="a", run={"model": {"name": "ctr-dnn"}}, types=["gpu"]))[0]
    store.begin(shrinks.id, type_="gpu", workers=3, units=[0, 1, 2])
    store.resize(store.job(shrinks.id), 1)

    assert controller._units("gpu", 2, of=store.submit(Submission(name="b", command=["true"]))[0]) == [3]
    store.keep_units(store.job(shrinks.id))
    assert store.job(shrinks.id).units == [0]
    assert controller._units("gpu", 2, of=store.job(shrinks.id)) == [0, 1]


def test_a_daemon_that_sees_some_gpus_shares_those(daemon, monkeypatch, tmp_path):
    store, _, _ = daemon
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
    job = store.submit(Submission(name="a", command=["true"]))[0]
    begun = store.begin(job.id, type_="gpu", workers=1, units=[1])

    assert gpus_of(begun) == ("7",)
    assert variables(task_of(begun, tmp_path))["DOVETAIL_GPUS"] == "7"


def test_an_older_daemons_state_is_read(tmp_path):
    store = JobStore(tmp_path / "state.sqlite")
    store.submit(Submission(name="a", command=["true"]))
    store.close()
    with sqlite3.connect(tmp_path / "state.sqlite") as db:
        db.execute("ALTER TABLE jobs DROP COLUMN units")
    db.close()

    again = JobStore(tmp_path / "state.sqlite")

    assert again.job("a-1").units == []
    again.close()


def test_every_worker_of_a_run_sees_the_gpu_of_its_place_whoever_comes_and_goes(tmp_path, monkeypatch):
    monkeypatch.setenv(GPUS, "2,5")
    blueprint = prepare(make_run(workers=2), tmp_path)
    team, names = (
        ElasticWorkers(tmp_path, blueprint, {}, lambda _: None),
        [name for name, _ in blueprint.run.each_worker()],
    )
    assert [team.environment_of(name)["CUDA_VISIBLE_DEVICES"] for name in names] == ["2", "5"]

    ask_for(tmp_path, 3, ("2", "5", "0"))
    team._read_size()

    assert team.environment_of("extra-1") == {"CUDA_VISIBLE_DEVICES": "0"}
    assert team.environment_of(names[0]) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert team.environment_of("extra-2") == {}


class FailsOn:
    """A policy that cannot decide where a job of a certain weight is, and gives every other waiting job one worker."""

    def decide(self, view, now_s):
        if (view.weight[view.rows] == 13.0).any():
            raise ZeroDivisionError("thirteen")
        rows = view.waiting
        return allocation(rows, np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64))


def test_a_job_that_the_policy_fails_on_is_said_and_keeps_no_other_from_its_workers(daemon):
    store, launcher, controller = daemon
    controller._ask_policy = PolicyAsker(FailsOn(), controller._settings)
    for priority in (1.0, 13.0, 2.0):
        store.submit(Submission(name="a", command=["true"], priority=priority))

    controller.turn()

    assert [task.job for task in launcher.tasks] == ["a-1", "a-3"]
    assert controller.problems == 1
    controller.close()
    said = [json.loads(line) for line in (controller.folder_of("x").parents[1] / "log.jsonl").read_text().splitlines()]
    assert [(line["job"], line["error"]) for line in said if line["event"] == "problem"] == [
        ("a-2", "ZeroDivisionError: thirteen")
    ]


def test_a_job_that_cannot_be_looked_at_keeps_its_workers_and_no_other_from_being_looked_at(daemon):
    store, launcher, controller = daemon
    jobs = [store.submit(Submission(name="a", command=["true"], types=["gpu"]))[0].id for _ in range(3)]
    controller.turn()
    found = {jobs[0]: ZeroDivisionError("odd"), jobs[1]: FoundProcess(state="ended", code=0)}

    def find(task):
        if isinstance(found.get(task.job), Exception):
            raise found[task.job]
        return found.get(task.job, FoundProcess(state="running"))

    launcher.find = find
    controller.turn()

    assert [store.job(job).state for job in jobs] == ["running", "done", "running"]
    assert store.job(jobs[0]).units == [0, 1], "it holds what it held"
    assert store.job(jobs[2]).units == [2, 3], "and who is done has made room"
