"""The page in a real browser: every view loaded and used, an empty console, nothing asked of anybody else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from dovetail.dashboard import HtmlReport
from dovetail.spec import read_problem
from dovetail.spec.files import write_problem
from tests.dashboard.served import DOVETAIL, PATHS, PROBLEM, WORKLOAD, Looker, Served, browser, served
from tests.dashboard.test_feed import write
from tests.waiting import wait_until

HOSTILE = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>"
HOSTILE_FILE = "<img src=x onerror=window.pwned=1>.json"
SMALL = ("--set", "model.options.num_rows=5000")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A run that goes on until somebody ends it."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    command = [*DOVETAIL, "train", "ctr-dnn", "--out", str(folder), "--samples", "10000000", "--batch", "500"]
    started = subprocess.Popen(
        [*command, *SMALL, "--timeline", str(folder.parent / "small.svg")],
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size)
        yield folder, started
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait(60)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, chromium: Any, training: tuple[Path, Any]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("dashboard")
    write_problem(read_problem(PROBLEM), folder / "p.json")
    text = (folder / "p.json").read_text().replace("v100", HOSTILE).replace('"embedding"', f'"{HOSTILE}"', 1)
    (folder / HOSTILE_FILE).write_text(text)
    other = folder / HOSTILE_FILE.removesuffix(".json")
    other.mkdir()
    write(
        other, 0, 6, workers={HOSTILE: {"share": 1.0, "idle": 0.1, "data": 0, "samples_per_s": 1}}, metrics={HOSTILE: 1}
    )
    (other / "happened.jsonl").write_bytes(msgspec.json.encode({"unix_s": 1e9 + 2, "text": HOSTILE}) + b"\n")
    (other / "blueprint.json").write_bytes(msgspec.json.encode({"id": HOSTILE, "run": {"model": {"name": HOSTILE}}}))
    with served(folder, PROBLEM, folder / HOSTILE_FILE, WORKLOAD, training[0], other) as found:
        yield found


@pytest.fixture(scope="module")
def watched(
    chromium: Any, dashboard: Served, training: tuple[Path, subprocess.Popen[bytes]]
) -> tuple[Path, dict[str, Any]]:
    """Watch the run in a browser while it goes on, and to its end; return its folder, and what was seen."""
    folder, started = training
    looker = Looker(chromium)
    page = looker.page
    page.goto(dashboard.url + "/#run/small")
    page.get_by_text("Live", exact=True).wait_for()
    page.wait_for_function("() => Number(document.querySelector('.view-run').dataset.events) >= 2")
    page.wait_for_function("() => document.querySelectorAll('.meter').length > 2")  # a worker has done something
    seen: dict[str, Any] = {"steps": [tile(looker, "step")]}
    page.wait_for_function(
        "(first) => ![...document.querySelectorAll('.value')].some((it) => it.innerText === first)",
        arg=seen["steps"][0],
    )
    seen["steps"].append(tile(looker, "step"))
    started.terminate()
    started.wait(60)
    page.get_by_text("Stopped", exact=True).wait_for()
    page.get_by_text("What happened").wait_for()
    seen["happened"] = page.locator(".happened").inner_text()
    check_quiet(looker, dashboard.url)
    looker.close()
    return folder, seen


@pytest.fixture
def looker(chromium: Any) -> Iterator[Looker]:
    found = Looker(chromium)
    yield found
    found.close()


def check_quiet(looker: Looker, url: str) -> None:
    """Check that the console is empty, that nobody else was asked, and that no name became markup or a script."""
    assert looker.complaints == []
    assert {urlsplit(each).netloc for each in looker.asked if not each.startswith("data:")} <= {urlsplit(url).netloc}
    assert looker.page.evaluate("window.pwned") is None
    assert looker.page.evaluate("document.querySelectorAll('img, main script, iframe, object').length") == 0


def tile(looker: Looker, name: str) -> str:
    """Return what a tile says."""
    found = looker.page.locator(".tile", has=looker.page.get_by_text(name, exact=True))
    return str(found.locator(".value").inner_text())


def test_a_live_run_is_watched_to_its_end(watched: tuple[Path, dict[str, Any]]) -> None:
    folder, seen = watched
    first, later = (int(step.replace(",", "")) for step in seen["steps"])
    summary = json.loads((folder / "summary.json").read_text())

    assert 0 < first < later <= summary["step"]
    assert "checkpoint" in seen["happened"]


def test_a_plan_is_shown_and_made_again_by_sliders_and_by_points_of_the_curve(
    looker: Looker, dashboard: Served
) -> None:
    page = looker.page
    page.goto(dashboard.url + "/#plan/ctr-dnn.toml")
    page.get_by_text("bottleneck").first.wait_for()
    before = tile(looker, "cost")
    assert tile(looker, "throughput") == "2.354 M"
    assert page.locator(".layer").count() == 16

    page.get_by_role("slider", name="price, $ an hour").nth(1).press("End")  # ten times the price of a v100
    page.wait_for_function("(before) => document.querySelector('.tiles').innerText.indexOf(before) < 0", arg=before)
    dear = dashboard.task(do="plan", file="ctr-dnn.toml", what_if={"prices": {"v100": 24.2}})[1]["answer"]
    assert float(tile(looker, "cost").strip("$")) == pytest.approx(dear["cost"], rel=1e-3)

    page.get_by_role("button", name="As in the file").click()
    page.wait_for_function("(before) => document.querySelector('.tiles').innerText.indexOf(before) >= 0", arg=before)
    points = page.get_by_role("group", name="Cost against speed").get_by_role("button", name="3.96 M")
    points.wait_for()
    points.focus()
    page.keyboard.press("Enter")  # the fastest, by keyboard
    fastest = dashboard.task(do="curve", file="ctr-dnn.toml")[1]["answer"]["plans"][-1]
    page.wait_for_function("() => document.querySelector('.tiles').innerText.includes('3.96')")
    assert float(tile(looker, "cost").strip("$")) == pytest.approx(fastest["cost"], rel=1e-3)
    check_quiet(looker, dashboard.url)


def test_a_floor_that_nothing_reaches_is_told_with_the_way_out(looker: Looker, dashboard: Served) -> None:
    page = looker.page
    page.goto(dashboard.url + "/#plan/ctr-dnn.toml")
    field = page.get_by_role("spinbutton", name="at least in samples/s")
    field.fill("1e9")
    field.press("Enter")
    page.get_by_role("alert").wait_for()

    assert "lower `min_samples_per_s`" in page.get_by_role("alert").inner_text()
    check_quiet(looker, dashboard.url)


def test_a_dropped_file_is_opened_whatever_its_name(looker: Looker, dashboard: Served, tmp_path: Path) -> None:
    page = looker.page
    (tmp_path / HOSTILE_FILE).write_bytes(WORKLOAD.read_bytes().replace(b'"id"', b'"id"'))
    page.goto(dashboard.url + "/#plan")
    page.locator("input[type=file]").set_input_files(tmp_path / HOSTILE_FILE)
    page.get_by_role("heading", name=HOSTILE_FILE).wait_for()
    page.get_by_text("What came of it").wait_for()

    assert "#simulate/" in page.url
    check_quiet(looker, dashboard.url)


def test_names_of_layers_types_files_runs_and_workers_are_shown_as_they_are(looker: Looker, dashboard: Served) -> None:
    page = looker.page
    page.goto(dashboard.url + "/#plan")
    page.get_by_label("Problem", exact=True).select_option(HOSTILE_FILE)
    page.get_by_role("heading", name=HOSTILE_FILE).wait_for()
    page.get_by_text(HOSTILE).first.wait_for()
    page.get_by_role("link", name="Run", exact=True).click()
    page.get_by_role("link", name=HOSTILE_FILE.removesuffix(".json"), exact=True).click()
    page.get_by_text(HOSTILE).first.wait_for()
    page.get_by_role("rowheader", name=HOSTILE).first.wait_for()

    check_quiet(looker, dashboard.url)


def test_a_run_is_shown_with_its_workers_and_its_timeline_moves_by_keyboard(
    looker: Looker, dashboard: Served, watched: tuple[Path, Any]
) -> None:
    page = looker.page
    page.goto(dashboard.url + "/#run/small")
    page.get_by_text("Stopped", exact=True).wait_for()
    canvas = page.get_by_role("img", name="Timeline of 1 worker")
    canvas.focus()
    under = page.locator(".under-picture").first
    page.wait_for_function("() => document.querySelector('.under-picture').innerText !== ''")
    whole = under.inner_text()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    enlarged = under.inner_text()
    page.keyboard.press("0")

    assert whole.startswith("0 s to")
    assert enlarged != whole
    assert under.inner_text() == whole
    drawn = page.evaluate(
        "(c) => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size", canvas.element_handle()
    )
    assert drawn > 10
    assert page.locator(".u-wrap").count() >= 2
    assert page.get_by_text("Not in this run's folder").count() == 1
    check_quiet(looker, dashboard.url)


def test_a_workload_is_simulated_and_played(looker: Looker, dashboard: Served) -> None:
    page = looker.page
    page.goto(dashboard.url + "/#simulate/two-jobs.json")
    page.wait_for_function("() => document.querySelector('.view-simulate').dataset.simulated === '5'")
    _, fifo = dashboard.task(do="simulate", file="two-jobs.json", policy="fifo")
    row = page.get_by_role("row", name="fifo")
    moment = page.get_by_label("Moment")
    moment.focus()
    page.keyboard.press("Home")

    assert f"{fifo['answer']['restarts']}" in row.inner_text()
    assert "0 done" in page.locator(".card", has=page.get_by_role("heading", name="fifo")).inner_text()
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => Number(document.querySelector('input[aria-label=Moment]').value) > 5")
    page.get_by_role("button", name="Pause").click()
    check_quiet(looker, dashboard.url)


def test_a_report_is_looked_at_without_any_server(looker: Looker, watched: tuple[Path, Any], tmp_path: Path) -> None:
    report = HtmlReport(HOSTILE)
    report.add_problem(PROBLEM, methods=("greedy",), note=HOSTILE)
    report.add_run(watched[0])
    report.add_simulation(WORKLOAD, policies=("fifo",))
    report.write(tmp_path / "report.html")
    page = looker.page
    page.goto((tmp_path / "report.html").as_uri())
    page.get_by_role("heading", name=HOSTILE).wait_for()
    page.get_by_role("link", name="Plan", exact=True).click()
    page.get_by_role("group", name="Cost against speed").get_by_role("button").last.click()
    assert tile(looker, "throughput") == "3.96 M"
    page.get_by_role("link", name="Run", exact=True).click()
    page.get_by_role("img", name="Timeline of 1 worker").wait_for()
    page.get_by_role("link", name="Simulate", exact=True).click()
    page.get_by_text("What came of it").wait_for()

    assert looker.complaints == []
    assert [each for each in looker.asked if not each.startswith(("file:", "data:"))] == []
    assert page.evaluate("window.pwned") is None


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_no_view_has_a_serious_fault_of_accessibility_in_either_theme(
    chromium: Any, dashboard: Served, watched: tuple[Path, Any], theme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe looks for faults").AXE_FILE_PATH.read_text()
    looker = Looker(chromium, theme=theme)
    page = looker.page
    for view, ready in (
        ("#plan/ctr-dnn.toml", "What if"),
        ("#run/small", "Timeline"),
        ("#run", "Runs side by side"),
        ("#simulate/two-jobs.json", "Played over time"),
    ):
        page.goto(dashboard.url + "/" + view)
        page.get_by_text(ready).first.wait_for()
        page.evaluate(axe)  # into this page alone: the policy lets nobody else bring a script
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        serious = [
            (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
            for each in found["violations"]
            if each["impact"] in SERIOUS
        ]
        assert serious == [], (view, theme)
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")  # and it does find faults
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert "button-name" in [each["id"] for each in found["violations"] if each["impact"] in SERIOUS]
    looker.close()


def test_what_a_browser_loads_first_is_small(looker: Looker, dashboard: Served) -> None:
    looker.page.goto(dashboard.url)
    looker.page.get_by_text("What if").wait_for()
    entries = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
    sizes = looker.page.evaluate(f"{entries}.map((each) => [each.name, each.decodedBodySize])")

    assert len([name for name, _ in sizes if name.endswith((".js", ".css"))]) == 2
    assert sum(size for _, size in sizes) < 250_000  # with the plan and the curve that the first view asks for
    assert sum(size for name, size in sizes if "/api/" not in name) < 200_000


def test_nothing_is_wider_than_a_phone(chromium: Any, dashboard: Served, watched: tuple[Path, Any]) -> None:
    looker = Looker(chromium, width=375)
    for view in ("#plan/ctr-dnn.toml", "#run/small", "#run", "#simulate/two-jobs.json"):
        looker.page.goto(dashboard.url + "/" + view)
        looker.page.locator("section.card").first.wait_for()
        looker.page.wait_for_timeout(300)

        assert looker.page.evaluate("document.documentElement.scrollWidth") <= 375, view
    looker.close()
