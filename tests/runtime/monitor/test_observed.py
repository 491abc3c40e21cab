"""What others are told of a run: figures for Prometheus, logs that programs read, one id through all processes."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from dovetail.errors import SpecError
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import PROMETHEUS
from dovetail.runtime.messages import Report
from dovetail.runtime.messages.membership import WorkerStatus
from dovetail.runtime.monitor.metrics_page import MetricsPage
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.private_folder import remove_private_folder
from dovetail.spec.run import Run
from dovetail.spec.run_sections import RunLog
from tests.runtime.counting import PLAIN, slow_counting
from tests.runtime.runs import make_run

ROOT = Path(__file__).parents[3]
DOVETAIL = [sys.executable, "-c", "from dovetail.cli.main import main; main()"]


def prepared(folder: Path, **more: bool) -> Blueprint:
    blueprint = prepare(make_run(samples=400), folder, **more)
    remove_private_folder(blueprint.private_folder)
    return blueprint


def with_metrics(metrics: str | int) -> Run:
    return msgspec.structs.replace(make_run(), log=RunLog(metrics=metrics))


def asked(port: int, path: str = "/metrics") -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    finally:
        line.close()


def port_in(folder: Path) -> int:
    (target,) = json.loads((folder / PROMETHEUS).read_text())
    return int(target["targets"][0].rpartition(":")[2])


def test_a_run_has_an_id_of_its_own_and_keeps_it_when_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.delenv("DOVETAIL_JOB", raising=False)
    first, other = prepared(tmp_path / "a"), prepared(tmp_path / "b")

    assert re.fullmatch(r"a-[0-9a-f]{6}", first.id)
    assert first.id != other.id
    assert prepared(tmp_path / "a", resume=True).id == first.id


def test_a_run_of_a_daemons_job_is_called_like_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_JOB", "mine-7")

    assert prepared(tmp_path / "a").id == "mine-7"


@pytest.mark.parametrize(
    ("said", "where"),
    [(9100, ("127.0.0.1", 9100)), ("0", ("127.0.0.1", 0)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:8", ("::1", 8))],
)
def test_figures_are_served_on_this_machine_unless_told_otherwise(said, where):
    assert RunLog(metrics=said).metrics_address() == where


@pytest.mark.parametrize("said", ["", "web", "host:", "1:70000", -1])
def test_what_is_no_address_is_refused(said):
    with pytest.raises(SpecError, match="metrics is "):
        RunLog(metrics=said)


def test_the_page_shows_the_newest_report_and_is_gone_with_the_run(tmp_path):
    blueprint, told = prepared(tmp_path / "a"), []
    page = MetricsPage(told.append)
    page.begin(tmp_path / "a", with_metrics(0))
    try:
        port = port_in(tmp_path / "a")
        worker = WorkerStatus(name="w", state="working", share=1.0, samples_per_s=50.0, idle=0.25, samples=80, kept=0.5)
        report = Report(
            state="running",
            generation=1,
            step=4,
            epoch=0,
            samples=80,
            total_samples=400,
            samples_per_s=50.0,
            loss=0.5,
            auc=float("nan"),
            checkpoint_step=0,
            workers=(worker,),
            servers=("server-0",),
            events=(),
            next_event=0,
        )
        page.report(report)
        status, text = asked(port)
        missing = asked(port, "/")
    finally:
        page.close()

    assert status == 200
    assert f'dovetail_run_loss{{run="{blueprint.id}"}} 0.5\n' in text
    assert f'dovetail_run_samples_total{{run="{blueprint.id}"}} 80.0\n' in text
    assert f'dovetail_worker_idle_ratio{{run="{blueprint.id}",worker="w"}} 0.25\n' in text
    assert f'dovetail_worker_rows_kept_ratio{{run="{blueprint.id}",worker="w"}} 0.5\n' in text
    assert "dovetail_run_auc" not in text  # it is not known
    assert missing[0] == 404
    assert told == [f"figures for Prometheus: http://127.0.0.1:{port}/metrics"]
    assert not (tmp_path / "a" / PROMETHEUS).exists()
    with pytest.raises(ConnectionRefusedError):
        asked(port)


def test_a_port_that_is_taken_is_told(tmp_path):
    prepared(tmp_path / "a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = MetricsPage()
        with pytest.raises(TrainingError, match="Address already in use"):
            page.begin(tmp_path / "a", with_metrics(taken.getsockname()[1]))
        page.close()


def test_who_hangs_up_or_says_nothing_is_in_nobodys_way(tmp_path):
    prepared(tmp_path / "a")
    page = MetricsPage()
    page.begin(tmp_path / "a", with_metrics(0))
    try:
        port = port_in(tmp_path / "a")
        with socket.create_connection(("127.0.0.1", port)):  # says nothing
            socket.create_connection(("127.0.0.1", port)).close()
            assert asked(port)[0] == 200
    finally:
        page.close()


def test_one_id_is_in_every_line_of_every_process_in_the_figures_and_in_the_trace(tmp_path):
    """A run as the daemon starts it."""
    asked_for = tmp_path / "asked"
    model = slow_counting(0.001, until=asked_for)
    run = make_run(model=model, optimizer=PLAIN, reduction="sum", samples=60_000, workers=2)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    folder, trace = tmp_path / "run", tmp_path / "trace.json"
    words = ["train", str(tmp_path / "run.json"), "--out", str(folder), "--metrics", "0", "--timeline", str(trace)]
    paths = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "DOVETAIL_LOG": "json", "DOVETAIL_JOB": "mine-7"}
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen([*DOVETAIL, *words], env=environment, stdout=subprocess.DEVNULL, stderr=err)
    try:
        text, until_s = "", time.monotonic() + 100
        while "dovetail_run_samples_total" not in text and time.monotonic() < until_s and process.poll() is None:
            if (folder / PROMETHEUS).exists():
                try:
                    text = asked(port_in(folder))[1]
                except OSError:
                    break
            time.sleep(0.05)
        asked_for.touch()
        assert process.wait(150) == 0, (tmp_path / "err").read_text()
    finally:
        process.kill()
        process.wait()

    assert 'dovetail_run_samples_total{run="mine-7"}' in text
    assert not (folder / PROMETHEUS).exists()
    logs = {path.stem: path.read_text().splitlines() for path in (folder / "logs").glob("*.log")}
    assert sorted(logs) == ["coordinator", "server-0", "worker-0", "worker-1"]
    for role, lines in logs.items():
        assert lines
        for line in map(json.loads, lines):
            assert (line["role"], line["run"]) == (role, "mine-7")
            assert {"time", "level", "text"} <= line.keys()
    own = [json.loads(line) for line in (tmp_path / "err").read_text().splitlines()]
    assert {(line["role"], line["run"]) for line in own} == {("launcher", "mine-7")}
    assert max(line.get("samples", 0) for line in own) == 60_000
    check_trace(json.loads(trace.read_text()), name="mine-7", workers={"worker-0", "worker-1"})


def check_trace(trace, *, name, workers):
    """See that a file has what Perfetto and Chrome need of one in the JSON trace event format."""
    events = trace["traceEvents"]
    assert trace["otherData"] == {"run": name}
    named = {(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M"}
    assert ("process_name", name) in named
    assert workers <= {thread for what, thread in named if what == "thread_name"}
    bars = [event for event in events if event["ph"] == "X"]
    assert len(bars) > 100
    for event in bars:
        assert {"name", "ph", "pid", "tid", "ts", "dur"} <= event.keys()
        assert all(isinstance(event[key], int) for key in ("pid", "tid", "ts", "dur"))
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    assert {event["tid"] for event in bars} <= {event["tid"] for event in events if event["ph"] == "M"}
