"""`dovetail simulate` with a policy of one's own, and deadlines in its table."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app

ROOT = Path(__file__).parents[2]
OWN = f"{ROOT}/examples/own_policy.py:LeastLeft"
WORKLOAD = {
    "restart_s": 10.0,
    "nodes": [{"type": "v100", "workers": 1, "count": 1}],
    "jobs": [
        {"id": name, "submit_s": 0.0, "work": work, "min_workers": 1, "max_workers": 1, "speed": {"v100": {"1": 1.0}}}
        | ({"deadline_s": deadline_s} if deadline_s else {})
        for name, work, deadline_s in (("long", 100.0, 150.0), ("short", 50.0, 50.0), ("free", 20.0, None))
    ],
}


def simulate(path, *words):
    return CliRunner().invoke(app, ["simulate", str(path), *words])


@pytest.fixture
def workload(tmp_path):
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(WORKLOAD))
    return path


def test_a_policy_of_ones_own_decides(workload):
    # One worker; least left first: free 10 + 20 = 30, short 30 + 60 = 90, long 90 + 110 = 200.
    found = json.loads(simulate(workload, "--policy", OWN, "--json").stdout)

    assert {job["id"]: job["finish_s"] for job in found["jobs"]} == {"free": 30.0, "short": 90.0, "long": 200.0}
    assert found["missed_deadlines"] == 2  # 200 > 150 and 90 > 50


def test_a_policy_of_ones_own_is_asked_about_the_workload_alone(workload, tmp_path):
    (tmp_path / "greedy.py").write_text(
        "import numpy as np\n"
        "from dovetail.scheduler.view import allocation\n"
        "class Greedy:\n"
        "    def decide(self, view, now_s):\n"
        "        return allocation(view.rows, np.zeros_like(view.rows), np.full(len(view.rows), 33))\n"
    )

    said = simulate(workload, "--policy", f"{tmp_path}/greedy.py:Greedy")

    assert said.exit_code == 1
    assert "the policy gave out 99 of the 1 workers of `v100`" in said.stderr


def test_missed_deadlines_are_a_column_where_there_are_deadlines(workload, tmp_path):
    without = tmp_path / "without.json"
    plain = {**WORKLOAD, "jobs": [{k: v for k, v in job.items() if k != "deadline_s"} for job in WORKLOAD["jobs"]]}
    without.write_text(json.dumps(plain))

    assert "missed" in simulate(workload, "--policy", OWN).stdout
    assert "missed" not in simulate(without, "--policy", OWN).stdout


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ("nowhere_at_all:Policy", "there is no module `nowhere_at_all`"),
        (f"{ROOT}/examples/own_policy.py:Least", "has no function `Least`"),
        ("json:JSONDecoder", "makes a JSONDecoder, which is no policy"),
        ("dovetial", "`dovetial` is not a policy"),
    ],
)
def test_what_is_no_policy_is_refused(workload, policy, complaint):
    said = simulate(workload, "--policy", policy)

    assert said.exit_code == 1
    assert complaint in said.stderr
    assert "hint:" in said.stderr
