"""The cluster's page over a real daemon: jobs submitted, resized and cancelled, and where the token never is."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.serve.client import Client, SignedLine
from dovetail.serve.submission import Submission
from tests.dashboard.served import Looker, Served, browser, served
from tests.dashboard.test_browser import SERIOUS, check_quiet
from tests.serve.daemons import Daemon
from tests.waiting import wait_until

HOSTILE = "<img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("cluster") / "jobs"
    found = Daemon(folder, "--nodes", "cpu:2x1", "--policy", "fifo").start()
    found.client.ask("GET", "/v1/cluster")
    yield found
    found.kill()


@pytest.fixture(scope="module")
def token(daemon: Daemon) -> str:
    return (daemon.folder / "token").read_text().strip()


@pytest.fixture(scope="module")
def url(daemon: Daemon) -> str:
    return str(json.loads((daemon.folder / "server.json").read_text())["url"])


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("page"), url) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def looker(chromium: Any) -> Iterator[Looker]:
    found = Looker(chromium)
    yield found
    found.close()


def open_cluster(looker: Looker, address: str, token: str, *, keep: bool = False) -> Any:
    """Open the page of a cluster, and type the token."""
    page = looker.page
    page.goto(address)
    page.get_by_label("Token").fill(token)
    if keep:
        page.get_by_label("keep it for this tab").check()
    page.get_by_role("button", name="Use it").click()
    page.get_by_role("heading", name="Who held what").wait_for()
    return page


def state_of(client: Client, job: str) -> str:
    return str(client.ask("GET", f"/v1/jobs/{job}")["state"])


@pytest.mark.parametrize("through", ["the daemon", "a dashboard"])
def test_a_job_is_submitted_resized_and_cancelled_on_the_page(
    looker: Looker, daemon: Daemon, dashboard: Served, url: str, token: str, through: str
) -> None:
    address = f"{url}/dashboard/" if through == "the daemon" else f"{dashboard.url}/#cluster"
    page = open_cluster(looker, address, token)
    page.get_by_text("Submit a job").click()
    page.get_by_label("name", exact=True).fill("by-hand")
    page.get_by_label("user", exact=True).fill(HOSTILE)
    page.get_by_label("a command").fill(f"sh -c 'echo \"{HOSTILE}\" >&2; sleep 300'")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("is submitted").wait_for()
    job = page.get_by_text("is submitted").inner_text().split()[0]
    row = page.locator(".jobs").get_by_role("row", name=job)
    row.get_by_text("running", exact=True).wait_for()
    assert HOSTILE in row.inner_text()

    row.get_by_label(f"workers of {job}").fill("1")
    row.get_by_role("button", name=f"Resize {job}").click()
    wait_until(lambda: daemon.client.ask("GET", f"/v1/jobs/{job}")["pinned"] == 1)
    wait_until(lambda: HOSTILE in daemon.client.ask("GET", f"/v1/jobs/{job}/log")["text"])
    row.get_by_role("button", name=job, exact=True).click()
    page.get_by_role("dialog").get_by_text(HOSTILE).last.wait_for()
    page.get_by_role("button", name="Close").click()

    row.get_by_role("button", name=f"Cancel {job}").click()
    wait_until(lambda: state_of(daemon.client, job) == "cancelled")
    row.get_by_text("cancelled", exact=True).wait_for()
    page.get_by_text(f"{job} cancelled").first.wait_for()

    check_quiet(looker, address)
    assert all(token not in each for each in looker.asked)
    assert token not in page.url
    assert page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])").count(token) == 0
    for log in (daemon.folder / "log.jsonl", daemon.folder.parent / "jobs.out", dashboard.log):
        assert token not in log.read_text()


def test_a_token_is_kept_for_the_tab_alone_where_that_is_ticked(looker: Looker, url: str, token: str) -> None:
    page = open_cluster(looker, f"{url}/dashboard/", token, keep=True)
    page.reload()
    page.get_by_role("heading", name="Who held what").wait_for()
    other = looker.context.new_page()
    other.goto(f"{url}/dashboard/")
    other.get_by_label("Token").wait_for()

    page.get_by_role("button", name="Forget the token").click()
    page.get_by_label("Token").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_wrong_token_shows_nothing(looker: Looker, url: str, dashboard: Served) -> None:
    for address in (f"{url}/dashboard/", f"{dashboard.url}/#cluster"):
        looker.page.goto(address)
        looker.page.get_by_label("Token").fill("not-the-token-at-all")
        looker.page.get_by_role("button", name="Use it").click()
        looker.page.get_by_role("alert").wait_for()

        assert looker.page.get_by_text("Who held what").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_a_cluster_has_no_serious_fault_of_accessibility(
    chromium: Any, daemon: Daemon, url: str, token: str, theme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe looks for faults").AXE_FILE_PATH.read_text()
    daemon.client.submit(Submission(name="waits", command=["true"]))
    looker = Looker(chromium, theme=theme)
    page = open_cluster(looker, f"{url}/dashboard/", token)
    page.get_by_text("Submit a job").click()
    page.get_by_text("waits-").first.wait_for()
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    looker.close()

    assert [each["id"] for each in found["violations"] if each["impact"] in SERIOUS] == []


def test_only_the_page_itself_is_given_to_whoever_has_no_token(daemon: Daemon, url: str, dashboard: Served) -> None:
    port = int(url.rpartition(":")[2])
    answers = {}
    for path in ("/dashboard/", "/dashboard/page.js", "/dashboard/api/things", "/dashboard/../v1/jobs", "/v1/jobs"):
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        line.request("GET", path)
        with line.getresponse() as answer:
            answers[path] = (answer.status, answer.read())
        line.close()
    through = {path: dashboard.ask(path)[0] for path in ("/v1/jobs", "/v1/stream", "/v1/cluster")}

    assert [status for status, _ in answers.values()] == [200, 200, 200, 401, 401]
    assert b"policy" not in answers["/dashboard/api/things"][1]
    assert set(through.values()) == {401}


def events_in(url: str, token: str, count: int, after: int) -> list[dict[str, Any]]:
    """Return the first events of a daemon's stream after a number."""
    found: list[dict[str, Any]] = []
    with SignedLine(url, token) as line, line.send("GET", f"/v1/stream?after={after}", b"") as answer:
        kind = ""
        while len(found) < count:
            text = answer.readline().decode().rstrip("\n")
            kind = text.removeprefix("event: ") if text.startswith("event: ") else kind
            if text.startswith("data: ") and kind == "event":
                found.append(json.loads(text.removeprefix("data: ")))
    return found


def test_readers_of_a_cluster_hear_the_same_and_go_on_where_they_were(daemon: Daemon, url: str, token: str) -> None:
    for number in range(3):
        daemon.client.submit(Submission(name=f"short-{number}", command=["true"]))

    one, two = events_in(url, token, 6, 0), events_in(url, token, 6, 0)
    rest = events_in(url, token, 3, one[2]["number"])
    listed = daemon.client.ask("GET", "/v1/events?after=0")["events"]

    def told(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [tuple(value for name, value in event.items() if name != "t_s") for event in events]

    assert told(one) == told(two)
    assert told(rest) == told(one[3:])
    assert [each["number"] for each in one] == [each["number"] for each in listed[:6]]


def test_a_decision_says_what_the_policy_was_told_and_what_it_answered(daemon: Daemon) -> None:
    def decided() -> bool:
        found = daemon.client.ask("GET", "/v1/decision")
        return any(job["id"] == submitted["id"] for job in found.get("jobs", ()))

    submitted = daemon.client.submit(Submission(name="told", command=["sleep", "30"]))
    wait_until(decided)
    (job,) = [each for each in daemon.client.ask("GET", "/v1/decision")["jobs"] if each["id"] == submitted["id"]]
    daemon.client.ask("POST", f"/v1/jobs/{submitted['id']}/cancel", {})

    assert job["left"] > 0
    assert set(job["speeds"]) == {"cpu"}
    assert job["wanted_workers"] in (0, 1, 2)
