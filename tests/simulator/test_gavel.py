"""Gavel's own simulator on its own traces: the same rules give the same figures within five percent."""

import os
from pathlib import Path

import pytest

from dovetail.scheduler.baselines.max_min import MaxMin
from dovetail.simulator import simulate
from dovetail.simulator.traces.read import parse_nodes, read_gavel
from testbed.schedules import OnlyInRounds

DATA = os.environ.get("DOVETAIL_DATA")
ROUND_S = 360.0


@pytest.mark.skipif(DATA is None, reason="DOVETAIL_DATA is not set")
@pytest.mark.parametrize(
    ("knows_types", "mean_h", "makespan_h"), [(False, 5.20, 19.70), (True, 3.82, 17.11)], ids=["las", "max-min"]
)
def test_fair_shares_in_rounds_take_as_long_as_in_gavel(knows_types, mean_h, makespan_h):
    folder = Path(DATA) / "gavel"
    workload = read_gavel(
        folder / "traces/max_min_fairness.trace",
        speeds=folder / "steps_per_s.json",
        nodes=parse_nodes("v100:4x2,p100:4x4,k80:4x6"),
        restart_s=0.0,
        round_s=ROUND_S,
    )
    policy = OnlyInRounds(MaxMin(knows_types=knows_types), round_s=ROUND_S)

    outcome = simulate(workload, policy, name="x").outcome

    assert outcome.mean_jct_s / 3600 == pytest.approx(mean_h, rel=0.05)
    assert outcome.makespan_s / 3600 == pytest.approx(makespan_h, rel=0.05)
