"""From a model to a comparison in one call."""

from __future__ import annotations

import json

import pytest

from dovetail import orchestrate
from dovetail.errors import DovetailError, NoPlanError
from dovetail.spec import read_plan, read_problem

SMALL = {"hidden": [8, 4], "width": 4}


@pytest.mark.processes
def test_a_program_measures_plans_and_trains_a_model_in_one_call(tmp_path):
    told: list[str] = []
    shown = []

    found = orchestrate.run(
        "ctr-dnn",
        folder=tmp_path / "run",
        model_options=SMALL,
        samples=2000,
        batch=500,
        usd_per_hour={"cpu": 1.0},
        short_runs_s=15.0,
        tell=told.append,
        show=shown.append,
    )

    facts = found.facts()
    assert found.result.is_complete
    assert found.result.samples == 2000
    assert facts["predicted_samples_per_s"] > 0
    batch = found.problem.training.batch
    assert facts["measured_seconds_per_batch"] == batch / facts["measured_samples_per_s"]
    assert facts["predicted_seconds_per_batch"] == batch / facts["predicted_samples_per_s"]
    assert facts["stages"][0]["measured_seconds_per_batch"] > 0
    assert facts["cost_per_hour"] == facts["cores"]  # a dollar for each
    assert facts["place"] in ("local", "servers", "sharded")
    assert facts["parts"][-1]["part"] == "whole"
    assert facts["parts"][-1]["measured_seconds_per_batch"] > 0
    assert json.loads((tmp_path / "run" / "parts.json").read_bytes())["parts"] == facts["parts"]
    assert facts["layout"]
    assert any(each["layout"] == "one process on cpu" for each in facts["compared"])
    assert shown == [found.planned]
    assert any(line.startswith("measuring") for line in told)
    assert any(line.startswith("reading: ") for line in told)
    assert "planning, 10 s at most ..." in told
    assert found.problem.machines
    assert read_problem(tmp_path / "run" / "problem.json") == found.problem
    assert read_plan(tmp_path / "run" / "plan.json").stages == found.planned.plan.stages


def test_a_speed_that_nothing_here_reaches_and_a_price_of_nothing_here_are_said(tmp_path):
    with pytest.raises(NoPlanError):
        orchestrate.run(
            "ctr-dnn", folder=tmp_path, model_options=SMALL, batch=64, min_samples_per_s=1e12, short_runs_s=0
        )
    with pytest.raises(DovetailError, match="names `tpu`"):
        orchestrate.run(
            "ctr-dnn", folder=tmp_path, model_options=SMALL, batch=64, usd_per_hour={"tpu": 1.0}, short_runs_s=0
        )
