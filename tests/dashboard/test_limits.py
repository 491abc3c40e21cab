"""What a task may take: its time, after which it is given up, and its place in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail.dashboard import task_runner
from dovetail.dashboard.asked import PageTask
from dovetail.dashboard.task_runner import TaskRunner
from dovetail.errors import DovetailError
from dovetail.simulator.traces.make import make_workload
from dovetail.spec.workload import write_workload
from tests.dashboard.served import PROBLEM

PLAN = PageTask(do="plan", file=str(PROBLEM), name="p")


@pytest.fixture
def runner() -> Iterator[TaskRunner]:
    found = TaskRunner(0.2)
    yield found
    found.close()


def test_a_task_past_its_time_is_given_up_and_the_next_one_is_done(runner: TaskRunner, tmp_path: Path) -> None:
    write_workload(make_workload(num_jobs=4000, with_loss=False), tmp_path / "long.json")
    long = (tmp_path / "long.json").read_text()
    runner.do(PLAN)  # the first one has time for what is compiled once
    with pytest.raises(DovetailError, match="longer than"):
        runner.do(PageTask(do="simulate", text=long, name="long.json"))

    assert b'"optimal":true' in runner.do(PLAN)


def test_more_tasks_than_may_wait_are_refused(runner: TaskRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_runner, "MOST_WAITING", 2)
    with ThreadPoolExecutor(6) as threads:  # the process takes a second to start: all six are there before it answers
        asked = [threads.submit(runner.do, PLAN) for _ in range(6)]
        refused = [each.exception() for each in asked]

    assert [str(each) for each in refused if each is not None] == ["2 requests wait already"] * 4
