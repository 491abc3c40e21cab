"""`dovetail simulate` and `dovetail trace` as users and other programs call them."""

import copy
import json

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app

RUNNER = CliRunner()
WORKLOAD = {
    "restart_s": 10.0,
    "nodes": [{"type": "v100", "workers": 4, "count": 16}],
    "jobs": [
        {
            "id": "a",
            "submit_s": 0.0,
            "work": 1000.0,
            "min_workers": 1,
            "max_workers": 8,
            "speed": {"v100": {"1": 1.0, "2": 1.9, "4": 3.4, "8": 5.9}},
        }
    ],
}


@pytest.fixture
def workload_file(tmp_path):
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(WORKLOAD))
    return path


def call(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


def test_json_is_one_object_on_the_last_line_with_the_promised_keys(workload_file):
    result = call("simulate", workload_file, "--policy", "doubling", "--json")

    assert result.exit_code == 0
    found = json.loads(result.stdout.splitlines()[-1])
    assert list(found) == [
        "policy", "mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "restarts", "utilization", "jobs",
    ]  # fmt: skip
    assert found["policy"] == "doubling"
    assert found["jobs"] == [{"id": "a", "start_s": 0.0, "finish_s": found["makespan_s"], "restarts": 0}]
    assert found["mean_jct_s"] == pytest.approx(10 + 1000 / 5.9)


def test_events_are_one_line_a_change(workload_file, tmp_path):
    events = tmp_path / "events.jsonl"
    call("simulate", workload_file, "--policy", "fixed-4", "--events", events)

    assert [json.loads(line) for line in events.read_text().splitlines()] == [
        {"t_s": 0.0, "job": "a", "type": "v100", "workers": 4},
        {"t_s": pytest.approx(10 + 1000 / 3.4), "job": "a", "type": "v100", "workers": 0},
    ]


def test_compare_prints_every_policy(workload_file):
    result = call("simulate", workload_file, "--compare")

    assert result.exit_code == 0
    for name in ("dovetail", "doubling", "fixed-8", "max-min", "goodput", "exact", "exploratory", "decision ms"):
        assert name in result.stdout


def test_compare_as_json_has_each_policys_figures(workload_file):
    found = json.loads(call("simulate", workload_file, "--compare", "--json").stdout.splitlines()[-1])

    assert {entry["policy"] for entry in found["policies"]} >= {"dovetail", "las", "srtf", "optimus"}
    assert all("decision_ms" in entry for entry in found["policies"])


@pytest.mark.parametrize("arguments", [(), ("--compare",)])
def test_a_picture_is_drawn(workload_file, tmp_path, arguments):
    for ending in ("png", "svg", "html"):
        picture = tmp_path / f"picture.{ending}"
        assert call("simulate", workload_file, "--plot", picture, *arguments).exit_code == 0
        assert picture.stat().st_size > 1000


def test_a_made_trace_is_simulated_with_both_kinds_of_knowledge(tmp_path):
    made = tmp_path / "made.json"
    assert call("trace", "make", made, "--jobs", "12", "--pattern", "bursty", "--seed", "3").exit_code == 0
    for knowledge in ("oracle", "estimated"):
        result = call("simulate", made, "--knowledge", knowledge, "--json")
        assert len(json.loads(result.stdout)["jobs"]) == 12


def test_a_table_is_converted_and_simulated(tmp_path):
    table, made = tmp_path / "jobs.csv", tmp_path / "made.json"
    table.write_text("submit,duration,gpus\n0,60,2\n5,30,1\n")

    assert call("trace", "convert", table, made, "--nodes", "gpu:4x1").exit_code == 0
    direct = call("simulate", table, "--nodes", "gpu:4x1", "--policy", "fifo", "--json").stdout
    assert call("simulate", made, "--policy", "fifo", "--json").stdout == direct


def without(key):
    def change(workload):
        del workload["jobs"][0][key]

    return change


def with_job(**given):
    return lambda workload: workload["jobs"][0].update(given)


def with_top(**given):
    return lambda workload: workload.update(given)


def with_node(**given):
    return lambda workload: workload["nodes"][0].update(given)


MISTAKES = {
    "misspelt key": (with_job(max_worker=8), "jobs[0].max_worker is not a known key", "did you mean `max_workers`?"),
    "misspelt top key": (with_top(restarts=3), "restarts is not a known key", "did you mean `restart_s`?"),
    "no work": (without("work"), "jobs[0].work is missing", "add it"),
    "work below zero": (with_job(work=-1.0), "jobs[0].work is -1, expected a number above zero", "`work` is"),
    "work as text": (with_job(work="long"), 'jobs[0].work is "long", expected a number', "`work` is"),
    "no id": (with_job(id=""), 'jobs[0].id is "", expected a name', "`id` is"),
    "an id twice": (
        lambda workload: workload["jobs"].append(workload["jobs"][0]),
        'jobs[1].id is "a", the id of jobs[0] too',
        "its own id",
    ),
    "an unknown type": (
        with_job(speed={"v10": {"1": 1.0}}),
        "jobs[0].speed.v10 names a type that no node has",
        "did you mean `v100`?",
    ),
    "a speed of zero": (
        with_job(speed={"v100": {"1": 0}}),
        "jobs[0].speed.v100.1 is 0, expected a number above zero",
        "leave out",
    ),
    "a size in words": (
        with_job(speed={"v100": {"one": 1.0}}),
        "jobs[0].speed.v100.one is not a number of workers",
        "whole workers",
    ),
    "a flat speed": (with_job(speed={"v100": 3.0}), "jobs[0].speed.v100 is 3.0, expected a table", "e.g."),
    "no speed": (with_job(speed={}), "jobs[0].speed is empty", "at least one type"),
    "max below min": (
        with_job(min_workers=4, max_workers=2),
        "jobs[0].max_workers is 2, below min_workers = 4",
        "raise max_workers",
    ),
    "half a worker": (
        with_job(min_workers=1.5),
        "jobs[0].min_workers is 1.5, expected a whole number",
        "`min_workers`",
    ),
    "nothing in min..max": (
        with_job(min_workers=9, max_workers=12),
        "jobs[0].speed has no worker count within",
        "at least one worker count",
    ),
    "too large for the cluster": (
        with_job(min_workers=70, max_workers=80, speed={"v100": {"64": 1.0, "80": 1.1}}),
        "jobs[0].speed lets job `a` run nowhere: it needs 70 of 64 `v100`",
        "add nodes",
    ),
    "no nodes": (with_top(nodes=[]), "nodes is empty", "add nodes"),
    "no jobs": (with_top(jobs=[]), "jobs is empty", "add a job"),
    "a node without workers": (with_node(workers=0), "nodes[0].workers is 0", "how many workers"),
    "a round of zero": (with_top(round_s=0), "round_s is 0, expected a number above zero", "`round_s` is"),
    "submitted before time began": (with_job(submit_s=-5), "jobs[0].submit_s is -5", "`submit_s` is"),
    "an endless restart": (
        with_top(restart_s=float("inf")),
        "restart_s is inf, expected a finite number",
        "`restart_s`",
    ),
    "a loss that runs backwards": (
        with_job(loss={"points": [[5, 1.0], [1, 2.0]], "target": 0.1}),
        "jobs[0].loss.points do not rise in work",
        "work rises",
    ),
    "an efficiency above one": (
        with_job(efficiency={"256": {"efficiency": 1.2, "speed": {"v100": {"1": 1.0}}}}),
        "jobs[0].efficiency.256.efficiency is 1.2",
        "1 means",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_key_a_hint_and_exit_status_one(tmp_path, mistake):
    change, complaint, hint = MISTAKES[mistake]
    workload = copy.deepcopy(WORKLOAD)
    change(workload)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(workload))

    result = call("simulate", path, "--json")

    assert result.exit_code == 1
    assert f"error: {path}: {complaint}" in result.stderr
    assert "\nhint: " in result.stderr
    assert hint in result.stderr
    said = json.loads(result.stdout.splitlines()[-1])
    assert complaint in said["error"]
    assert hint in said["hint"]
    assert "Traceback" not in result.stderr


def test_a_misspelt_policy_is_told_the_nearest(workload_file):
    result = call("simulate", workload_file, "--policy", "dubling")

    assert result.exit_code == 1
    assert "error: `dubling` is not a policy" in result.stderr
    assert "did you mean `doubling`?" in result.stderr


def test_a_picture_of_an_unknown_kind_is_told_before_anything_runs(workload_file, tmp_path):
    result = call("simulate", workload_file, "--plot", tmp_path / "picture.gif")

    assert result.exit_code == 1
    assert ".png" in result.stderr


def test_events_of_all_policies_are_a_wrong_usage(workload_file, tmp_path):
    assert call("simulate", workload_file, "--compare", "--events", tmp_path / "e").exit_code == 2
