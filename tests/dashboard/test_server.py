"""The dashboard's server, asked as browsers and as others ask."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from dovetail.dashboard.page import PAGE, html, script, style
from tests.dashboard.served import PROBLEM, WORKLOAD, Served, served
from tests.dashboard.test_feed import write
from tests.waiting import wait_until

MOST_PAGE = 200_000


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("dashboard")
    run = folder / "runs" / "first"
    run.mkdir(parents=True)
    write(run, 0, 3)
    (folder / "secret.txt").write_text("secret")
    with served(folder, run.parent, PROBLEM, WORKLOAD) as found:
        found.task(do="describe", file="ctr-dnn.toml")  # what plans is there from now on
        yield found


def test_all_that_a_browser_loads_is_small() -> None:
    sizes = [len(text().encode()) for text in (html, script, style)]

    assert sum(sizes) < MOST_PAGE
    assert sum(len(gzip.compress(text().encode())) for text in (html, script, style)) < 70_000
    assert PAGE == "page.html"


def test_nothing_but_what_was_given_can_be_asked_for(dashboard: Served) -> None:
    secret = dashboard.log.parent / "secret.txt"
    paths = ["/../secret.txt", "/..%2fsecret.txt", "/api/run?name=..", f"/api/run?name={secret}", "/api/run?name="]
    paths += [
        f"/api/curve?name=../{secret.name}",
        "/api/timeline?name=../..&from=0&to=1",
        "/assets/page.js",
        "//etc/passwd",
    ]
    paths += ["/api/run/events?name=../first"]
    for path in paths:
        status, _, text = dashboard.ask(path)
        assert status == 404, path
        assert b"secret" not in text.replace(secret.name.encode(), b"")
    for name in (str(secret), "../secret.txt", "/etc/passwd", str(PROBLEM)):
        status, answer = dashboard.task(do="describe", file=name)
        assert status == 404, name
        assert "hint" in answer


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:PORT", 200),
        ("localhost:PORT", 200),
        ("[::1]:PORT", 200),
        ("evil.example:PORT", 403),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:PORT", 403),
        ("", 403),
        ("localhost.evil.example", 403),
    ],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(dashboard: Served, host: str, status: int) -> None:
    found, _, _ = dashboard.ask("/api/runs", headers={"Host": host.replace("PORT", str(dashboard.port))})

    assert found == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json", "Origin": "http://evil.example"},
        {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
        {},
    ],
    ids=str,
)
def test_another_site_cannot_have_anything_planned(dashboard: Served, headers: dict[str, str]) -> None:
    body = msgspec.json.encode({"do": "describe", "file": "ctr-dnn.toml"})

    status, _, _ = dashboard.ask("/api/task", method="POST", body=body, headers=headers)

    assert status == 403


def test_every_answer_says_what_the_browser_may_do(dashboard: Served) -> None:
    for path in ("/", "/page.js", "/page.css", "/api/runs", "/nowhere"):
        _, headers, _ = dashboard.ask(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "trusted-types 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"do": "fly"}',
        b'{"do": "plan", "what_if": {"speed": 1}}',
        b'{"do": 1e9}',
        b"\xff",
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_hint(dashboard: Served, body: bytes) -> None:
    status, _, text = dashboard.ask("/api/task", method="POST", body=body, headers={"Content-Type": "application/json"})

    assert status in (409, 422)
    assert json.loads(text)["hint"]


def test_a_file_that_is_dropped_is_bounded_in_size(dashboard: Served) -> None:
    status, answer = dashboard.task(do="describe", name="x.toml", text="#" * (1 << 20))

    assert (status, answer["hint"]) == (413, "drop a smaller file")


@pytest.mark.parametrize(
    "text", ["", "x", "{", "[training]\nsamples = 1", '{"jobs": 3}', '{"jobs": []}', "a = 1", "[" * 5000]
)
def test_a_dropped_file_that_is_none_of_ours_is_refused_in_words(dashboard: Served, text: str) -> None:
    status, answer = dashboard.task(do="describe", name="dropped.toml", text=text)

    assert status == 200
    assert "dropped.toml" in answer["error"]
    assert answer["hint"]


def test_a_dropped_problem_is_planned_as_the_file_is(dashboard: Served) -> None:
    _, by_text = dashboard.task(do="plan", name="dropped.toml", text=PROBLEM.read_text())
    _, by_name = dashboard.task(do="plan", file="ctr-dnn.toml")

    assert {**by_text["answer"], "seconds": 0} == {**by_name["answer"], "seconds": 0}


def events_of(
    dashboard: Served, path: str, count: int, headers: dict[str, str] | None = None
) -> list[tuple[str, str, str]]:
    """Return the first events of a stream: number, kind and data."""
    line = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=60)
    line.request("GET", path, headers=headers or {})
    found: list[tuple[str, str, str]] = []
    block: dict[str, str] = {}
    with line.getresponse() as answer:
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        while len(found) < count:
            text = answer.readline().decode().rstrip("\n")
            if text == "" and "data" in block:
                found.append((block["id"], block["event"], block["data"]))
            block = {} if text == "" else {**block, text.partition(": ")[0]: text.partition(": ")[2]}
    line.close()
    return found


def test_readers_of_one_run_hear_the_same_and_go_on_where_they_were(dashboard: Served) -> None:
    run = dashboard.log.parent / "runs" / "first"
    _, _, text = dashboard.ask("/api/run?name=first")
    begin = json.loads(text)["at"]
    write(run, 3, 6)
    path = f"/api/run/events?name=first&after={begin}"

    one, two = events_of(dashboard, path, 6), events_of(dashboard, path, 6)
    rest = events_of(dashboard, path, 3, {"Last-Event-ID": one[2][0]})
    lost = events_of(dashboard, "/api/run/events?name=first", 1, {"Last-Event-ID": "gone.7"})

    assert one == two
    assert rest == one[3:]
    assert [json.loads(data)["samples"] for _, _, data in one] == [300, 400, 500, 600, 700, 800]
    assert lost[0][1] == "reset"


@pytest.mark.slow
def test_a_planning_process_that_dies_is_started_again(tmp_path: Path) -> None:
    with served(tmp_path, PROBLEM) as found:
        found.task(do="describe", file="ctr-dnn.toml")
        (child,) = psutil.Process(found.process.pid).children()
        child.kill()
        wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE)
        status, answer = found.task(do="plan", file="ctr-dnn.toml")
        (other,) = psutil.Process(found.process.pid).children()

    assert status == 200
    assert answer["answer"]["optimal"]
    assert other.pid != child.pid
    assert not psutil.pid_exists(other.pid)  # nothing is left behind


def test_the_dashboard_ends_at_once_though_somebody_reads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run, 0, 2)
    found = Served(tmp_path / "dashboard.out", run)
    line = http.client.HTTPConnection("127.0.0.1", found.port, timeout=60)
    line.request("GET", "/api/run/events?name=run")
    with line.getresponse() as answer:
        answer.readline()

        assert found.end() == 0
    line.close()
