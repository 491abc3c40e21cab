"""`dovetail train`, `evaluate` and `export` as users run them: real processes, small models."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.data import load_data
from dovetail.runtime import restore_model
from dovetail.runtime.checkpoint import newest
from tests.runtime.runs import processes_in

RUNNER = CliRunner()
OPTIONS = "{ truth = 'logistic', num_slots = 4, num_multi_valued = 1, num_dense = 3, rows_per_slot = 20 }"
RUN = f"""
[model]
name = "ctr-dnn"
options = {{ num_rows = 80, width = 4, hidden = [16] }}

[data]
options = {OPTIONS}
samples = 20_000

[training]
batch = 500

[optimizer]
name = "adam"
learning_rate = 0.01

[servers]
count = 2

[[worker]]
name = "fast"

[[worker]]
name = "slow"
"""


def call(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.toml").write_text(RUN)
    return folder


@pytest.fixture(scope="module")
def first_run(place):
    """Return a run to its end on two servers and two workers: its folder, and what was printed."""
    result = call("train", place / "run.toml", "--out", place / "first", "--timeline", place / "t.html", "--json")
    assert result.exit_code == 0, result.output
    return place / "first", result


def test_a_run_ends_with_its_summary_as_one_json_object_on_the_last_line(first_run, place):
    folder, result = first_run

    facts = json.loads(result.stdout.splitlines()[-1])
    assert (facts["model"], facts["mode"], facts["samples"], facts["step"]) == ("ctr-dnn", "sync", 20_000, 40)
    assert facts["is_complete"] is True
    assert set(facts["workers"]) == {"fast", "slow"}
    assert sum(worker["samples"] for worker in facts["workers"].values()) == 20_000
    # Every key of the data is a row on one of the servers: 4 slots of 20.
    assert sum(server["rows"] for server in facts["servers"].values()) == 80
    assert facts["samples_per_s"] > 0
    assert facts["checkpoint"] == str(folder / "checkpoints" / "step-0000000040")
    assert "checkpoint of step 40 is kept" in result.stderr
    assert "fast" in (place / "t.html").read_text()


def test_the_timeline_can_be_drawn_again_from_the_folder(first_run, tmp_path):
    result = call("timeline", first_run[0], "--out", tmp_path / "again.svg", "--last", 0.2)

    assert result.exit_code == 0, result.output
    assert "the last 200 ms" in (tmp_path / "again.svg").read_text()


def test_the_model_is_evaluated_on_samples_beyond_those_it_was_trained_on(first_run):
    result = call("evaluate", first_run[0], "--samples", 20_000, "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["metric"], found["samples"], found["held_out"]) == ("auc", 20_000, True)
    assert "from sample 20,000 on" in found["on"]
    # 0.80 is the best there is for these data (Clicks.best_auc), 0.5 is chance.
    assert 0.7 < found["value"] < 0.85


def test_other_data_and_another_metric_can_be_asked_for(first_run):
    result = call(
        "evaluate", first_run[0], "--data-option", "seed=1", "--samples", 2000, "--metric", "log-loss", "--json"
    )

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    # The model's loss is the cross-entropy of two scores: the log-loss of the click.
    assert found["value"] == pytest.approx(found["loss"], rel=1e-4)
    assert "the data given" in found["on"]


def test_an_exported_program_answers_the_same_where_dovetail_cannot_be_imported(first_run, tmp_path):
    folder, _ = first_run
    result = call("export", folder, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["files"] == [
        "model.safetensors", "model.pt2", "model.json", "README.txt",
    ]  # fmt: skip
    model = restore_model(folder).eval()
    source = load_data("clicks", truth="logistic", num_slots=4, num_multi_valued=1, num_dense=3, rows_per_slot=20)
    batches = [source.read(50_000, 50_000 + size) for size in (1, 2, 300)]
    torch.save([(batch.dense, batch.ids, batch.offsets) for batch in batches], tmp_path / "inputs.pt")
    code = (
        "import sys; sys.modules['dovetail'] = None\n"
        "import torch\n"
        "model = torch.export.load(sys.argv[1] + '/out/model.pt2').module()\n"
        "torch.save([model(*each) for each in torch.load(sys.argv[1] + '/inputs.pt')], sys.argv[1] + '/scores.pt')\n"
    )

    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=250)

    with torch.no_grad():
        expected = [model.predict(batch) for batch in batches]
    assert all(torch.equal(*pair) for pair in zip(torch.load(tmp_path / "scores.pt"), expected, strict=True))
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    facts = json.loads((tmp_path / "out" / "model.json").read_text())
    assert facts["inputs"] == ["dense", "ids", "offsets"]
    assert len(facts["schema"]["slots"]) == 4


def test_a_run_goes_on_with_other_numbers_of_servers_and_workers(first_run, tmp_path):
    folder = shutil.copytree(first_run[0], tmp_path / "copy")
    before = restore_model(folder).state_dict()

    result = call("train", "--resume", folder, "--epochs", 2, "--servers", 3, "--workers", 1, "--json")

    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert (facts["samples"], facts["step"], facts["is_complete"]) == (40_000, 80, True)
    assert list(facts["workers"]) == ["worker"]
    assert set(facts["servers"]) == {"server-0", "server-1", "server-2"}
    first = restore_model(folder, checkpoint=folder / "checkpoints" / "step-0000000040").state_dict()
    assert all(torch.equal(first[name], before[name]) for name in before)
    evaluated = json.loads(call("evaluate", folder, "--samples", 20_000, "--json").stdout.splitlines()[-1])
    assert 0.7 < evaluated["value"] < 0.85


def test_sigterm_keeps_a_checkpoint_and_says_how_to_go_on(place):
    folder = place / "stopped"
    command = [Path(sys.executable).parent / "dovetail", "train", place / "run.toml", "--out", folder]
    command += ["--samples", "100000000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_a_step(folder, process)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=150)

    assert process.returncode == 0, errors
    facts = json.loads(out.splitlines()[-1])
    assert facts["is_complete"] is False
    assert facts["samples"] == 500 * facts["step"] > 0
    assert newest(folder).name == f"step-{facts['step']:010d}"
    assert "SIGTERM: keeping a checkpoint" in errors


def wait_for_a_step(folder, process):
    """Wait until a run has written that it took a step."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s and process.poll() is None:
        lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
        if lines and json.loads(lines[-1])["step"]:
            return
        time.sleep(0.1)
    raise AssertionError("no step was taken")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["ctr-dmn"], "neither a run file nor a model", "ctr-dnn"),
        (["nowhere.toml"], "nowhere.toml: no such file", "run.toml"),
        (["run.toml", "--set", "model.name=dlmr"], "no model `dlmr`", "dlrm"),
        (["run.toml", "--set", "model.options.hiden=[1]"], "has no option `hiden`", "hidden"),
        (["run.toml", "--set", "model.name=no.such.module:build"], "no.such", ""),
        (["run.toml", "--optimizer", "lion"], "no dense optimizer `lion`", "adagrad"),
        (["run.toml", "--optimizer", "torch.optim:SGD"], "no dense optimizer", "adamw"),
        (["run.toml", "--set", "optimizer.rows=lamb"], "no optimizer `lamb`", "known are"),
        (["run.toml", "--set", "optimizer.schedule.name=steps"], "steps", ""),
        (["run.toml", "--set", "data.name=cliks"], "no data `cliks`", "clicks"),
        (["run.toml", "--set", "data.options.rows=5"], "no option `rows`", ""),
        (["run.toml", "--batch", "0"], "the command line: training.batch is 0", "samples of one step"),
        (["run.toml", "--set", "training.bach=5"], "training.bach is not a known key", "batch"),
        (["run.toml", "--set", "training.batch"], "sets nothing", "KEY=VALUE"),
        (["run.toml", "--mode", "async", "--dense", "ring"], "training.dense", "sync"),
        (["run.toml", "--timeline", "t.pdf"], "t.pdf", ".html"),
        (["run.toml", "--set", "network.address=203.0.113.7"], "203.0.113.7", "network.address"),
        (["--resume", "."], "is no run", "dovetail train"),
    ],
)
def test_a_mistake_exits_1_with_error_and_hint_and_no_traceback(arguments, error, hint, place, monkeypatch):
    monkeypatch.chdir(place)
    out = [] if "--resume" in arguments else ["--out", "never"]

    result = call("train", *arguments, *out, "--json")

    assert result.exit_code == 1, result.output
    assert error in result.stderr
    assert hint in result.stderr.split("hint:")[1]
    assert "Traceback" not in result.output
    assert json.loads(result.stdout.splitlines()[-1])["error"]
    assert not (place / "never" / "checkpoints").exists()


def test_a_folder_that_holds_a_run_is_not_written_over(first_run, place):
    result = call("train", place / "run.toml", "--out", first_run[0])

    assert result.exit_code == 1
    assert "holds a run already" in result.stderr
    assert f"--resume {first_run[0]}" in result.stderr


@pytest.mark.parametrize("command", ["train", "evaluate", "export", "timeline"])
def test_help_imports_neither_torch_nor_numba_nor_matplotlib(command):
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from dovetail.cli.main import app\n"
        "assert CliRunner().invoke(app, [sys.argv[1], '--help']).exit_code == 0\n"
        "print(sorted({'torch', 'numba', 'numpy', 'matplotlib', 'msgspec'} & set(sys.modules)))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code, command], capture_output=True, text=True, check=True, timeout=250
    )

    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [[], ["--resume", "x", "--out", "y"], ["run.toml", "--mode", "bsp"]])
def test_a_command_line_that_makes_no_sense_exits_2(arguments):
    assert call("train", *arguments).exit_code == 2


@pytest.mark.parametrize("command", [["evaluate"], ["export", "--out", "x"], ["timeline", "--out", "x.svg"]])
def test_a_folder_without_a_run_is_told_apart(command, tmp_path):
    result = call(command[0], tmp_path, *command[1:])

    assert result.exit_code == 1
    assert "hint:" in result.stderr


def test_a_metric_that_needs_more_than_scores_is_refused(first_run):
    result = call("evaluate", first_run[0], "--metric", "recall@10")

    assert result.exit_code == 1
    assert "auc or log-loss" in result.stderr


def test_no_process_is_left_behind(first_run):
    assert processes_in(first_run[0]) == []


def test_a_run_in_one_process_leaves_a_model_that_can_be_evaluated(place, tmp_path):
    done = call("train", place / "run.toml", "--in-process", "--samples", 2000, "--out", tmp_path / "run", "--json")

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["step"] == 4
    assert call("evaluate", tmp_path / "run", "--samples", 500, "--json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("train", "ctr-dnn", "--set", "model.options.num_rows=abc"), "num_rows = 'abc', expected a whole number"),
        (
            ("train", "ctr-dnn", "--set", "model.options.hidden=['a', 'b']"),
            "hidden = ['a', 'b'], expected whole numbers",
        ),
        (("profile", "ctr-dnn", "-o", "hidden=a,b"), "hidden = ['a', 'b'], expected whole numbers"),
        (("train", "ctr-dnn", "--set", "model.metric=acu"), "there is no metric `acu`"),
        (("train", "ctr-dnn", "--set", "model.loss=squard"), "there is no loss `squard`"),
    ],
)
def test_wrong_options_of_a_model_end_in_an_error_and_a_hint(tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)

    result = call(*words)

    assert result.exit_code == 1
    assert complaint in result.stderr.partition("hint:")[0]
    assert "hint:" in result.stderr
    assert isinstance(result.exception, SystemExit)  # no traceback
    assert not (tmp_path / "runs").exists()


def test_a_file_that_is_not_trained_on_is_named_on_the_command_line(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("rows.csv", range(200)), ("later.csv", range(200, 240))):
        Path(name).write_text("label,x\n" + "".join(f"{row % 2},{row / 100}\n" for row in rows))
    Path("net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))\n"
    )

    said = CliRunner().invoke(
        app,
        ["train", "net.py:build", "--data", "rows.csv", "--validation", "later.csv", "--batch", "50", "--out", "run"],
    )

    assert said.exit_code == 0, said.stderr
    assert "validation at step 4: loss " in said.stderr
    assert (tmp_path / "run" / "best").is_dir()
