"""Curves, spans, lines and what-ifs: each against another way to know."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.dashboard.asked import WhatIf, thing_in
from dovetail.dashboard.curves import chosen_rows
from dovetail.dashboard.line_files import LineFile
from dovetail.dashboard.planning import changed, curve_under, plan_under, problem_facts
from dovetail.dashboard.simulating import thinned
from dovetail.dashboard.spans import Spans, covered
from dovetail.dashboard.things import open_things
from dovetail.errors import DovetailError, NoPlanError, SpecError
from dovetail.simulator.metrics import Change
from dovetail.spec import read_problem
from tests.dashboard.served import PROBLEM, WORKLOAD
from tests.makers import make_problem


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=400), st.integers(4, 60))
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(values: list[float | None], points: int) -> None:
    rows = chosen_rows({"loss": values}, ["loss"], points=points)

    known = [value for value in values if value is not None]
    kept = [values[row] for row in rows if values[row] is not None]
    assert rows == sorted(set(rows))
    assert {0, len(values) - 1} <= set(rows)
    assert len(rows) <= max(points, 4) + 2
    assert not known or (min(known) == min(kept) and max(known) == max(kept))  # type: ignore[type-var]


@pytest.mark.parametrize("seed", range(4))
def test_the_part_of_a_bin_is_what_adding_up_overlaps_says(seed: int) -> None:
    draw = random.Random(seed)
    edges, spans, at = np.linspace(0.0, 10.0, 33), [], 0.0
    while at < 11.0:  # one worker's spans of one kind do not overlap
        at += draw.expovariate(3.0)
        length = draw.expovariate(4.0)
        spans.append((0, 0, at, at + length, 0))
        at += length

    parts = covered(np.array(spans), edges)

    for part, left, right in zip(parts, edges[:-1], edges[1:], strict=True):
        overlap = sum(max(0.0, min(end, right) - max(start, left)) for _, _, start, end, _ in spans)
        assert part == pytest.approx(overlap / (right - left), abs=1e-9)


def test_a_timeline_is_read_on_and_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    file.write_bytes(
        b'["a","compute",1.0,2.0,0]\nnot json\n["a","compute","x",2.0,0]\n["b","wait",0.5,1.5,1]\n["a","se'
    )
    spans = Spans(tmp_path)
    spans.look()
    before = spans.window(0.0, 5.0)["spans"]
    with file.open("ab") as more:
        more.write(b'nd",2.0,3.0,1]\n')
    spans.look()

    assert before == [[1, 2, 0.5, 1.5, 1], [0, 0, 1.0, 2.0, 0]]
    assert spans.window(0.0, 5.0)["spans"][-1] == [0, 5, 2.0, 3.0, 1]
    assert spans.facts()["seconds"][0][0] == 1.0  # type: ignore[index]


def test_a_file_that_was_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    lines = LineFile(file)
    first = lines.read()
    file.write_bytes(b'{"a": 3}\n')

    assert (first, lines.read(), lines.begun_anew) == ([{"a": 1}, {"a": 2}], [{"a": 3}], 1)


def test_planning_again_is_planning_the_changed_file(tmp_path: Path) -> None:
    problem = read_problem(PROBLEM)
    other = tmp_path / "other.toml"
    text = (
        PROBLEM.read_text().replace("price_per_hour = 2.42", "price_per_hour = 9.5").replace("limit = 32", "limit = 3")
    )
    other.write_text(text.replace("min_samples_per_s = 2000000.0", "min_samples_per_s = 250000.0"))

    found = plan_under(problem, WhatIf(min_samples_per_s=250_000.0, prices={"v100": 9.5}, limits={"v100": 3}))

    by_hand = plan_under(read_problem(other), WhatIf())
    assert {**found, "seconds": 0} == {**by_hand, "seconds": 0}
    assert found["cost_per_hour"] == pytest.approx(sum(stage["cost_per_hour"] for stage in found["stages"]))
    slowest = min(range(len(found["stages"])), key=lambda at: found["stages"][at]["samples_per_s"])
    assert found["bottleneck"] == slowest
    assert found["samples_per_s"] == pytest.approx(found["stages"][slowest]["samples_per_s"])


def test_every_point_of_the_curve_is_the_plan_at_its_own_speed() -> None:
    problem = read_problem(PROBLEM)
    curve = curve_under(problem, WhatIf())

    for point in curve[::3]:
        again = plan_under(problem, WhatIf(min_samples_per_s=point["samples_per_s"]))
        assert again["cost"] == pytest.approx(point["cost"])
    assert [p["samples_per_s"] for p in curve] == sorted(p["samples_per_s"] for p in curve)
    assert [p["cost"] for p in curve] == sorted(p["cost"] for p in curve)


@pytest.mark.parametrize(
    "what_if",
    [
        WhatIf(prices={"tpu": 1.0}),
        WhatIf(prices={"cpu": -1.0}),
        WhatIf(limits={"cpu": -4}),
        WhatIf(min_samples_per_s=float("nan")),
        WhatIf(prices={"cpu": float("inf")}),
    ],
    ids=str,
)
def test_a_what_if_that_makes_no_sense_is_refused_with_a_hint(what_if: WhatIf) -> None:
    with pytest.raises(DovetailError) as refused:
        changed(make_problem(), what_if)

    assert refused.value.hint


def test_a_floor_that_nothing_reaches_says_what_would_do() -> None:
    with pytest.raises(NoPlanError) as refused:
        plan_under(read_problem(PROBLEM), WhatIf(min_samples_per_s=1e12))

    assert "lower" in refused.value.hint


def test_the_facts_of_a_problem_name_each_type_and_layer_once() -> None:
    problem = make_problem()
    facts = problem_facts(problem)

    assert [each["name"] for each in facts["types"]] == ["cpu", "gpu"]
    assert [each["kind"] for each in facts["types"]] == ["cpu", "gpu"]
    assert facts["layers"][0]["seconds"] == {"cpu": 1.0, "gpu": 1.0}


def test_files_too_large_for_the_page_are_refused() -> None:
    problem = msgspec.to_builtins(make_problem())
    layer = {"on": {"cpu": problem["layer"][0]["on"]["cpu"]}}
    problem["layer"] = [{**layer, "name": f"l{number}"} for number in range(2001)]
    del problem["beside"], problem["machine"], problem["link"], problem["site_link"]
    problem["resource"] = [{"name": "cpu", "price_per_hour": 1.0}]

    with pytest.raises(SpecError, match="2,001 layers"):
        thing_in(problem, "large.toml")


def test_words_mean_what_lies_there(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    daemon = tmp_path / "daemon"
    daemon.mkdir()
    (daemon / "server.json").write_text('{"url": "http://127.0.0.1:1", "process": 1}')

    things = open_things([str(PROBLEM), str(WORKLOAD), str(run), str(run.parent), str(daemon)])

    assert (list(things.problems), list(things.workloads)) == (["ctr-dnn.toml"], ["two-jobs.json"])
    assert list(things.feeds()) == ["one"]
    assert things.daemon == "http://127.0.0.1:1"


@pytest.mark.parametrize("word", ["nothing/here", "https://elsewhere", "pyproject.toml"])
def test_words_that_mean_nothing_are_refused_with_a_hint(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(DovetailError) as refused:
        open_things([word])

    assert refused.value.hint


def test_two_daemons_do_not_fit_on_one_page() -> None:
    with pytest.raises(DovetailError, match="second daemon"):
        open_things(["http://127.0.0.1:1", "http://127.0.0.1:2"])


def test_thinned_changes_end_as_all_of_them_do() -> None:
    draw = random.Random(3)
    changes = [
        Change(t_s=float(at), job=f"j{draw.randrange(40)}", type="v100", workers=draw.randrange(5))
        for at in range(9000)
    ]
    few = thinned(changes, most=1000)

    def held(lines: list[Change]) -> dict[str, int]:
        return {line.job: line.workers for line in lines}

    assert len(few) <= 1000 + 40
    assert held(few) == held(changes)
    assert [line.t_s for line in few] == sorted(line.t_s for line in few)
