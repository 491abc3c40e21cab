"""Workloads from elsewhere: what is read, what is made up, and what is said of a broken file."""

import json
import random

import numpy as np
import pytest

from dovetail.errors import SpecError
from dovetail.simulator.traces.make import CONTENTIONS, MEAN_GAP_S, PATTERNS, arrivals_s, make_workload
from dovetail.simulator.traces.read import parse_nodes, read_any
from dovetail.simulator.traces.table import TableJob
from dovetail.spec.workload import read_workload, write_workload
from testbed.schedules import elastic_workload

SPEEDS = {
    "v100": {"('LM (batch size 5)', 1)": 20.0, "('LM (batch size 5)', 2)": {"null": 35.0}},
    "k80": {"('LM (batch size 5)', 1)": 4.0},
}
LINE = "LM (batch size 5)\tpython3 main.py\tlm\t--steps\t1\t1200\t{workers}\t1\t-1.000000\t{arrival}"


@pytest.fixture
def gavel(tmp_path):
    speeds = tmp_path / "speeds.json"
    speeds.write_text(json.dumps(SPEEDS))
    trace = tmp_path / "jobs.trace"
    trace.write_text("\n".join([LINE.format(workers=1, arrival=0), LINE.format(workers=2, arrival=60)]))
    return trace, speeds


def test_a_gavel_trace_gives_jobs_of_fixed_size_on_the_types_they_were_measured_on(gavel):
    trace, speeds = gavel
    workload = read_any(trace, nodes="v100:4x2,k80:4x1", speeds=speeds)

    assert workload.capacity == {"v100": 8, "k80": 4}
    assert [job.speed for job in workload.jobs] == [{"v100": {"1": 20.0}, "k80": {"1": 4.0}}, {"v100": {"2": 35.0}}]
    assert [(job.submit_s, job.work) for job in workload.jobs] == [(0.0, 1200.0), (60.0, 1200.0)]


def test_an_elastic_gavel_trace_has_every_measured_size(gavel):
    trace, speeds = gavel
    workload = read_any(trace, nodes="v100:4x2", speeds=speeds, elastic=True)

    assert workload.jobs[0].speed == {"v100": {"1": 20.0, "2": 35.0}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("LM\tone", "line 1 has 2 columns"),
        (LINE.format(workers="two", arrival=0), "workers is `two`"),
        (LINE.format(workers=8, arrival=0), "no speed is known"),
        ("", "holds no jobs"),
    ],
)
def test_a_broken_gavel_trace_is_told_by_line(gavel, text, complaint):
    trace, speeds = gavel
    trace.write_text(text)
    with pytest.raises(SpecError, match=complaint):
        read_any(trace, nodes="v100:4x2", speeds=speeds)


def test_a_trace_needs_nodes_and_speeds(gavel):
    trace, speeds = gavel
    with pytest.raises(SpecError, match="nothing of the cluster"):
        read_any(trace, speeds=speeds)
    with pytest.raises(SpecError, match="nothing of speeds"):
        read_any(trace, nodes="v100:4x2")
    with pytest.raises(SpecError, match="no speeds for type `a100`"):
        read_any(trace, nodes="a100:4x2", speeds=speeds)


def test_a_table_may_name_its_columns_as_others_do(tmp_path):
    table = tmp_path / "jobs.csv"
    table.write_text("job_id,num_gpu,submit_time,duration\nx,2,10,60\ny,0,11,60\nz,1,12,5\n")
    workload = read_any(table, nodes="gpu:4x1")

    assert [(job.id, job.submit_s, job.work, job.speed) for job in workload.jobs] == [
        ("x", 10.0, 60.0, {"gpu": {"2": 1.0}}),
        ("z", 12.0, 5.0, {"gpu": {"1": 1.0}}),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("submit,gpus\n1,2\n", "no column `duration`"),
        ("submit,duration,gpus\n1,2\n", "line 2 has 2 columns"),
        ("submit,duration,gpus\n1,soon,2\n", "duration is `soon`"),
        ("submit,duration,gpus\n1,5,0\n", "holds no job"),
        ("", "is empty"),
    ],
)
def test_a_broken_table_is_told_by_line(tmp_path, text, complaint):
    table = tmp_path / "jobs.csv"
    table.write_text(text)
    with pytest.raises(SpecError, match=complaint):
        read_any(table, nodes="gpu:4x1")


def test_nodes_are_written_as_type_workers_and_count():
    first, second = parse_nodes("v100:4x2, k80:8x1")

    assert (first.type, first.workers, first.count) == ("v100", 4, 2)
    assert (second.type, second.workers, second.count) == ("k80", 8, 1)
    for wrong in ("v100", "v100:4", "v100:0x2", ""):
        with pytest.raises(SpecError, match="does not say which nodes"):
            parse_nodes(wrong)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_has_the_mean_gap_asked_for(pattern):
    times = arrivals_s(pattern, count=20_000, mean_gap_s=50.0, draw=random.Random(1))

    assert times[0] == 0.0
    assert np.all(np.diff(times) >= 0)
    assert times[-1] / (len(times) - 1) == pytest.approx(50.0, rel=0.05)


def test_bursts_vary_more_than_poisson():
    spread = {}
    for pattern in ("poisson", "bursty"):
        gaps = np.diff(arrivals_s(pattern, count=5_000, mean_gap_s=50.0, draw=random.Random(1)))
        spread[pattern] = gaps.std() / gaps.mean()

    assert spread["poisson"] == pytest.approx(1.0, abs=0.1)
    assert spread["bursty"] > 2


@pytest.mark.parametrize("contention", CONTENTIONS)
def test_a_made_workload_reads_back_as_it_was_written(tmp_path, contention):
    workload = make_workload(contention=contention, seed=4, num_jobs=6)
    write_workload(workload, tmp_path / "w.json")

    assert read_workload(tmp_path / "w.json") == workload
    assert make_workload(contention=contention, seed=4, num_jobs=6) == workload
    assert make_workload(contention=contention, seed=5, num_jobs=6) != workload


def test_contention_is_in_proportion_to_the_workers():
    small = make_workload(nodes=parse_nodes("v100:4x4"), num_jobs=2000, with_loss=False)

    assert small.jobs[-1].submit_s / 1999 == pytest.approx(4 * MEAN_GAP_S["extreme"], rel=0.1)


def test_a_made_loss_meets_its_target_when_the_work_is_done():
    for job in make_workload(num_jobs=20, seed=3).jobs:
        assert job.loss is not None
        assert job.loss.points[-1][0] == pytest.approx(job.work)
        assert job.loss.points[-1][1] == pytest.approx(job.loss.target, rel=0.05)


def test_an_elastic_table_job_takes_as_long_as_it_did_on_what_it_had():
    rows = [
        TableJob(id=str(n), submit_s=10.0 * n, duration_s=100.0, gpus=4, kind="vgg16", user=None) for n in range(400)
    ]
    workload = elastic_workload(rows, nodes=parse_nodes("v100:4x16"), load=0.5, seed=0)

    job = workload.jobs[0]
    assert job.work / job.speed["v100"]["4"] == pytest.approx(100.0, rel=0.01)
    asked = sum(job.work / job.speed["v100"]["1"] for job in workload.jobs) / 4000 / 64
    assert asked == pytest.approx(0.5, rel=0.15)
