"""Shared memory of processes that died is given back while the run goes on."""

from pathlib import Path

import psutil

from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import kill, make_run, train


def test_the_lanes_of_a_killed_worker_are_removed(tmp_path):
    killed, seen, over = [], [], tmp_path / "over"

    def meanwhile(local, report):
        lanes = Path(local.blueprint.lanes)
        owners = {int(path.name.split("-")[-2]) for path in lanes.glob("*.lane")}
        if report.step >= 2 and not killed:
            killed.append(local.children["worker-0"].process_id)
            kill(local, "worker-0")
        elif killed and not psutil.pid_exists(killed[0]):
            seen.append(owners)
            if killed[0] not in owners:
                over.touch()

    train(
        make_run(model=slow_counting(0.003, until=over), optimizer=PLAIN, reduction="sum", samples=20_000),
        tmp_path / "run",
        meanwhile=meanwhile,
    )

    assert seen
    assert killed[0] not in seen[-1]
    assert_each_sample_counts_once(tmp_path / "run")
