"""Reports: one file with all that it shows, in which nothing else can run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.dashboard import HtmlReport
from dovetail.dashboard.page import script, style
from dovetail.errors import DovetailError
from dovetail.spec import read_problem
from dovetail.spec.files import write_problem
from tests.dashboard.served import PROBLEM, WORKLOAD
from tests.dashboard.test_feed import write

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=pwned()>"


def data_in(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_report_holds_what_the_planner_the_simulator_and_the_run_say(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run, 0, 40)
    report = HtmlReport("All of it")
    report.add_note("Two words.")
    report.add_problem(PROBLEM, note="a problem")
    report.add_run(run)
    report.add_simulation(WORKLOAD, policies=("dovetail", "fifo"))
    report.write(tmp_path / "report.html")

    data = data_in((tmp_path / "report.html").read_text())

    assert data["plans"][0]["plan"]["optimal"]
    assert [each["method"] for each in data["plans"][0]["tried"]][:3] == ["exact", "genetic", "greedy"]
    assert len(data["plans"][0]["curve"]) > 5
    assert data["runs"][0]["facts"]["curves"]["samples"][-1] == 3900.0
    assert list(data["simulations"][0]["trials"]) == ["dovetail", "fifo"]
    assert len(data["simulations"][0]["trials"]["fifo"]["jobs"]) == 2


def test_a_report_asks_nobody_and_lets_its_own_script_alone_run() -> None:
    report = HtmlReport("x")
    report.add_problem(PROBLEM, methods=())
    page = report.html()

    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    for text in (script(), style()):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
        assert text in page
    assert "unsafe" not in policy[1]
    assert "default-src 'none'" in policy[1]
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!#|data:,)", markup)


def test_names_in_files_never_become_markup(tmp_path: Path) -> None:
    problem = read_problem(PROBLEM)
    layers = (msgspec.structs.replace(problem.layers[0], name=HOSTILE), *problem.layers[1:])
    write_problem(msgspec.structs.replace(problem, layers=layers), tmp_path / "p.json")
    report = HtmlReport(HOSTILE)
    report.add_problem(tmp_path / "p.json", name=HOSTILE, note=HOSTILE)
    page = report.html()

    assert HOSTILE not in page
    assert page.count("<script") == 2  # the data, and our script
    assert data_in(page)["plans"][0]["problem"]["layers"][0]["name"] == HOSTILE
    assert f"<title>{html.escape(HOSTILE, quote=False)}</title>" in page


def test_two_things_of_one_name_stay_apart() -> None:
    report = HtmlReport()
    report.add_problem(PROBLEM, methods=())
    report.add_problem(PROBLEM, methods=())

    assert [each["name"] for each in data_in(report.html())["plans"]] == ["ctr-dnn.toml", "ctr-dnn.toml (2)"]


def test_a_problem_without_a_plan_is_reported_with_the_way_out() -> None:
    report = HtmlReport()
    report.add_problem(read_problem(PROBLEM).with_floor(1e12), name="impossible", methods=())

    assert "lower" in data_in(report.html())["plans"][0]["plan"]["hint"]


@pytest.mark.parametrize(
    "make",
    [
        lambda report, folder: report.html(),
        lambda report, folder: report.add_run(folder),
        lambda report, folder: report.add_problem(WORKLOAD),
        lambda report, folder: report.add_simulation(PROBLEM),
    ],
    ids=["empty", "no run", "a workload", "a problem"],
)
def test_a_report_that_cannot_be_made_says_why(tmp_path: Path, make: Callable[[HtmlReport, Path], None]) -> None:
    with pytest.raises(DovetailError) as refused:
        make(HtmlReport(), tmp_path)

    assert refused.value.hint


def test_a_report_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    report = HtmlReport()
    report.add_problem(PROBLEM, methods=())

    with pytest.raises(DovetailError, match="cannot be written"):
        report.write(tmp_path / "nowhere" / "report.html")
