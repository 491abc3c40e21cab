"""The daemon from outside: what users do, what goes wrong, and what they see."""

import http.client
import json
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.runtime.counting import PLAIN, assert_each_sample_counts_once, slow_counting
from tests.runtime.runs import make_run
from tests.serve.daemons import WAITS_FOR, Daemon, python, table_of

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
COUNTS_ON = """
import os, sys, time
from dovetail.job import report, stop_asked
path = os.path.join(os.environ["DOVETAIL_JOB_FOLDER"], "state")
stop_asked()
first = int(open(path).read()) if os.path.exists(path) else 0
print("from", first, "on", sys.argv[1], file=sys.stderr, flush=True)
for step in range(first, 2000):
    time.sleep(0.0 if first else 0.05)  # it is stopped long before its end, and is soon over when it goes on
    report(work=step + 1, total=2000, loss=1.0 / (step + 1))
    open(path + ".new", "w").write(str(step + 1))
    os.replace(path + ".new", path)
    if stop_asked():
        break
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve") / "daemon"
    words = ["--nodes", "cpu:4x1", "--grace-s", "2", "--round-s", "1", "--measure-s", "1", "--quota", "small=1"]
    with Daemon(folder, *words) as running:
        running.client.ask("GET", "/v1/cluster")
        yield running


def raw(daemon, method, path, body=b"", token=None):
    """Send a request as it is; return status and answer."""
    url = json.loads((daemon.folder / "server.json").read_bytes())["url"]
    own = (daemon.folder / "token").read_text().strip()
    line = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=90)
    try:
        line.request(method, path, body=body, headers={"Authorization": f"Bearer {token or own}"})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def test_a_run_that_is_resized_five_times_goes_on_and_counts_every_sample_once(daemon, tmp_path):
    over = tmp_path / "over"
    run = make_run(model=slow_counting(0.003, until=over), optimizer=PLAIN, reduction="sum", workers=2, samples=60_000)
    job = daemon.submit(name="counting", run=table_of(run), max_workers=1)["id"]
    daemon.wait(job, lambda facts: facts["present"] == 1 and (facts["done"] or 0) > 0)

    for workers in (2, 4, 1, 2, 4):
        daemon.say("resize", job, str(workers))
        daemon.wait(job, lambda facts, workers=workers: facts["present"] == workers)
    over.touch()
    done = daemon.wait_over(job)

    assert done["state"] == "done", done
    assert done["attempt"] == 1, "nothing was started again"
    assert_each_sample_counts_once(Path(done["folder"]) / "run")
    text = daemon.say("logs", job)
    assert "extra-1 is lost: it leaves" in text
    events = daemon.client.ask("GET", f"/v1/jobs/{job}/events")["events"]
    assert [event["workers"] for event in events if event["what"] == "resized"] == [2, 4, 1, 2, 4]


def test_the_command_line_submits_lists_and_cancels(daemon, tmp_path):
    run = make_run(model=slow_counting(0.005), optimizer=PLAIN, workers=1, samples=100_000)
    path = tmp_path / "long.json"
    path.write_text(json.dumps(table_of(run)))
    job = json.loads(daemon.say("submit", str(path), "--max-workers", "2", "--priority", "2", "--json"))["id"]
    daemon.wait(job, lambda facts: (facts["done"] or 0) > 0)

    listed = {each["id"]: each for each in json.loads(daemon.say("jobs", "--json"))["jobs"]}
    assert listed[job]["state"] == "running"
    assert "of 4 workers are held" in daemon.say("cluster")
    json.loads(daemon.say("cancel", job, "--json"))
    assert daemon.wait_over(job)["state"] == "cancelled"
    assert list((Path(listed[job]["folder"]) / "run" / "checkpoints").glob("step-*")), "its last state is kept"
    assert "error: there is no job `no-such-1`" in daemon.say("cancel", "no-such-1", fails=True)


def test_a_program_that_is_resized_goes_on_from_its_checkpoint_on_other_workers(daemon):
    words = python(COUNTS_ON, "{workers}")
    job = daemon.submit(name="own", command=[words[0], *words[2:]], max_workers=1)["id"]
    daemon.wait(job, lambda facts: (facts["done"] or 0) >= 5)
    daemon.client.ask("POST", f"/v1/jobs/{job}/resize", {"workers": 3})

    done = daemon.wait_over(job)

    assert (done["state"], done["attempt"], done["done"]) == ("done", 2, 2000)
    first, second = daemon.say("logs", job).splitlines()
    assert first == "from 0 on 1"
    assert second.startswith("from ")
    assert second.endswith(" on 3")
    assert int(second.split()[1]) >= 5


def test_a_job_that_ignores_sigterm_is_ended_by_force(daemon):
    job = daemon.submit(command=python(STUBBORN))["id"]
    daemon.wait(job, lambda facts: facts["state"] == "running")
    record = Path(daemon.job(job)["folder"]) / "process-1.json"
    daemon.wait(job, lambda _: record.exists())
    time.sleep(0.5)

    daemon.client.ask("POST", f"/v1/jobs/{job}/cancel", {})

    assert daemon.wait_over(job)["state"] == "cancelled"
    assert not Path(f"/proc/{json.loads(record.read_text())['process']}/cmdline").exists()


def test_a_job_that_fails_says_why_and_one_that_cannot_start_too(daemon):
    fails = daemon.submit(command=python("import sys; sys.exit('error: no such colour')"))["id"]
    lacks = daemon.submit(command=["/no/such/program"])["id"]
    nowhere = daemon.submit(command=python(""), folder="/no/such/folder")["id"]

    assert (daemon.wait_over(fails)["state"], daemon.job(fails)["error"]) == ("failed", "no such colour")
    assert "cannot be started" in daemon.wait_over(lacks)["error"]
    assert "cannot be started in /no/such/folder" in daemon.wait_over(nowhere)["error"]


def test_two_hundred_submissions_at_once_are_two_hundred_jobs(daemon):
    daemon.client.ask("POST", "/v1/drain", {"state": "on"})
    before = len(daemon.jobs())
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda n: daemon.submit(command=["true"], key=f"crowd-{n:08}")["id"], range(200)))
        again = list(pool.map(lambda n: daemon.submit(command=["true"], key=f"crowd-{n:08}")["id"], range(200)))

    assert len(set(found)) == 200
    assert again == found, "the same key is the same job"
    assert len(daemon.jobs()) == before + 200
    for job in found:
        daemon.client.ask("POST", f"/v1/jobs/{job}/cancel", {})
    daemon.client.ask("POST", "/v1/drain", {"state": "off"})
    assert {each["state"] for each in daemon.jobs() if each["id"] in found} == {"cancelled"}


def test_a_quota_holds_whatever_the_policy_says(daemon):
    jobs = [daemon.submit(command=python("import time; time.sleep(1.5)"), user="small")["id"] for _ in range(2)]
    most = 0
    while any(daemon.job(job)["state"] in ("queued", "running") for job in jobs):
        most = max(most, sum(each["workers"] for each in daemon.jobs() if each["user"] == "small"))
        time.sleep(0.1)

    assert most <= 1
    assert [daemon.job(job)["state"] for job in jobs] == ["done", "done"]


def test_a_wrong_token_is_refused_everywhere_and_the_tokens_file_is_private(daemon):
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/metrics"), ("GET", "/openapi.json")):
        assert raw(daemon, method, path, token="x" * 43)[0] == 401
    assert raw(daemon, "GET", "/v1/jobs", token="\xe9")[0] == 401
    assert raw(daemon, "GET", "/healthz", token="wrong")[0] == 200
    assert (daemon.folder / "token").stat().st_mode & 0o777 == 0o600
    assert (daemon.folder / "state.sqlite").stat().st_mode & 0o777 == 0o600


def test_bodies_that_are_too_large_are_refused_whatever_their_header_says(daemon):
    large = json.dumps({"name": "x", "command": ["y" * (2 << 20)]}).encode()

    assert raw(daemon, "POST", "/v1/jobs", large)[0] == 413

    def pieces():
        for first in range(0, len(large), 65536):
            yield large[first : first + 65536]

    try:
        status, _ = raw(daemon, "POST", "/v1/jobs", pieces())
        assert status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # it does not even listen to the end
    assert raw(daemon, "GET", "/v1/jobs")[0] == 200


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "", ".", "..", "a" * 49, "-rf", "a b", "a\n", "a\0", "$(x)", "a.b", "é", "%2e%2e"]
)
def test_names_that_are_no_plain_files_are_refused(daemon, name):
    status, answer = raw(daemon, "POST", "/v1/jobs", json.dumps({"name": name, "command": ["true"]}).encode())

    assert status == 422
    assert json.loads(answer)["error"].startswith("job: name ")


@pytest.mark.parametrize("path", ["..%2f..%2ftoken", "%2e%2e", "x%00y", "../../token", "'; DROP TABLE jobs; --"])
@pytest.mark.parametrize("what", ["", "/log", "/events"])
def test_ids_that_are_paths_lead_nowhere(daemon, path, what):
    status, answer = raw(daemon, "GET", urllib.parse.quote(f"/v1/jobs/{path}{what}", safe="/%.'"))

    assert status == 404
    assert b"hint" in answer


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"{", "no JSON"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"name": "a"}', "needs one of `run` and `command`"),
        (b'{"name": "a", "command": ["true"], "colour": 1}', "colour"),
        (b'{"name": "a", "command": []}', "has 0 words"),
        (b'{"name": "a", "command": ["true"], "min_workers": 99}', "is 99, and there are 4 cpu"),
        (b'{"name": "a", "command": ["true"], "priority": 0}', "priority"),
        (b'{"name": "a", "command": ["true"], "priority": 1e999}', "out of range"),
        (b'{"name": "a", "command": ["true"], "types": ["v100"]}', "no type here"),
        (b'{"name": "a", "command": ["true"], "folder": "here"}', "folder"),
        (b'{"name": "a", "command": ["true"], "environment": {"A=B": "c"}}', "environment"),
        (b'{"name": "a", "command": ["true"], "environment": {"A": {}}}', "environment.A is a table, expected text"),
        (b'{"name": "a", "run": {"model": {"name": "ctr-dnn"}, "training": {"batch": -1}}}', "training.batch is -1"),
    ],
)
def test_jobs_that_make_no_sense_are_refused_with_the_key(daemon, body, what):
    status, answer = raw(daemon, "POST", "/v1/jobs", body)

    assert status == 422
    assert what in json.loads(answer)["error"]


def test_figures_are_there_for_prometheus_and_the_log_has_the_jobs_id_on_every_line_about_it(daemon, tmp_path):
    over = tmp_path / "over"
    job = daemon.submit(name="shown", command=python(WAITS_FOR, str(over)), user='a"b\\c')["id"]
    daemon.wait(job, lambda facts: facts["state"] == "running")
    raw(daemon, "GET", "/metrics", token="wrong")
    text = raw(daemon, "GET", "/metrics")[1].decode()
    over.touch()
    daemon.wait_over(job)

    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    assert values['dovetail_workers{type="cpu"}'] == 4
    assert values['dovetail_http_requests_total{status="401"}'] >= 1
    assert values["dovetail_decisions_total"] > 0
    assert any(name.startswith(f'dovetail_job_workers{{job="{job}"') for name in values)
    lines = [json.loads(line) for line in (daemon.folder / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if line.get("job") == job] == ["started", "job done"]


def test_a_method_that_a_path_does_not_take_is_refused_with_those_that_it_does(daemon):
    url = json.loads((daemon.folder / "server.json").read_bytes())["url"]
    line = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=90)
    own = (daemon.folder / "token").read_text().strip()
    line.request("DELETE", "/v1/jobs", headers={"Authorization": f"Bearer {own}"})
    answer = line.getresponse()

    assert answer.status == 405
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}
    line.close()


def test_the_document_of_the_api_names_every_route_and_its_schemas_resolve(daemon):
    document = json.loads(raw(daemon, "GET", "/openapi.json")[1])

    assert document["openapi"].startswith("3.1")
    assert {"/v1/jobs", "/v1/jobs/{job}/resize", "/v1/cluster"} <= document["paths"].keys()
    assert "name" in document["components"]["schemas"]["Submission"]["properties"]


def test_a_second_daemon_of_one_folder_is_refused(daemon):
    assert "is served by another daemon already" in daemon.say("serve", "--folder", str(daemon.folder), fails=True)


def test_drained_now_a_job_keeps_its_state_and_goes_on_later(daemon):
    words = python(COUNTS_ON, "{workers}")
    job = daemon.submit(name="pauses", command=[words[0], *words[2:]])["id"]
    daemon.wait(job, lambda facts: (facts["done"] or 0) >= 5)

    daemon.say("drain", "--now")
    daemon.wait(job, lambda facts: facts["state"] == "queued")
    assert json.loads(daemon.say("cluster", "--json"))["drain"] == "now"
    daemon.say("drain", "--off")

    assert daemon.wait_over(job)["state"] == "done"
    assert daemon.job(job)["attempt"] == 2
