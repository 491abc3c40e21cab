"""Training from Python: mistakes are told before anything starts, and an own model trains as a new user tries it."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from torch import nn
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.data import Clicks
from dovetail.errors import DovetailError, SpecError
from dovetail.models import ModelError, SlotEmbedding
from dovetail.runtime import TrainingError, resume, train
from dovetail.runtime.finished.result import RunPace
from dovetail.runtime.messages import Report
from dovetail.spec.run import Run, RunModel, RunTraining

DATA = Clicks(truth="logistic", num_slots=2, num_multi_valued=0, num_dense=1, rows_per_slot=10)
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_own_model.py"
SMALL = {"samples": 100, "batch": 10}
UNGUARDED = """
import sys
from dovetail.runtime import train
train("ctr-dnn", "clicks", folder=sys.argv[1], workers=1, samples=1000, model_options={"num_rows": 10, "hidden": [4]})
"""


class Tiny(nn.Module):
    """One table and one layer."""

    def __init__(self, scale=None):
        super().__init__()
        self.slots = SlotEmbedding(num_rows=20, width=2, num_slots=2)
        self.out = nn.Linear(5, 1)
        self.scale = scale

    def forward(self, ids, offsets, dense):
        import torch

        return self.out(torch.cat([self.slots(ids, offsets), dense], dim=1))


class NoSource:
    """Has samples, but not as Dovetail reads them."""


@pytest.mark.parametrize(
    ("keywords", "complaint", "hint"),
    [
        ({"bach": 10}, "bach is not a setting of a run", "batch"),
        ({"batch": 0}, r"train\(\): training.batch is 0", "samples of one step"),
        ({"optimizer": "lion"}, "no dense optimizer `lion`", "adagrad"),
        ({"optimizer": "torch.optim:SGD"}, "no dense optimizer", "adamw"),
        ({"optimizer": {"rows": "lamb"}}, "no optimizer `lamb`", "known are"),
        ({"schedule": "steps"}, "steps", "known are"),
        ({"mode": "bsp"}, "training.mode", "ssp"),
        ({"workers": 0}, "worker.*count", "at least 1"),
        ({"servers": 0}, "servers.count", "at least 1"),
        ({"loss": "hinges"}, "hinges", ""),
        ({"samples": None}, "no end", "data.samples"),
        ({"checkpoint": {"keep": 0}}, "checkpoint.keep", "at least 1"),
    ],
)
def test_a_wrong_keyword_is_refused_before_anything_starts(keywords, complaint, hint, tmp_path):
    with pytest.raises(DovetailError, match=complaint) as caught:
        train(Tiny(), DATA, folder=tmp_path / "run", **{**SMALL, **keywords})

    assert hint in caught.value.hint
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_package_is_imported_without_torch_or_compilers():
    code = "import sys, dovetail.runtime; print(sorted({'torch', 'numba', 'numpy', 'msgspec'} & set(sys.modules)))"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)

    assert ended.stdout.strip() == "[]"


def test_a_model_that_cannot_be_sent_to_workers_is_refused(tmp_path, monkeypatch):
    # A script, which sessions and pytest's own workers are not: those send code by value.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    with pytest.raises(TrainingError, match="cannot be sent to workers") as caught:
        train(Tiny(scale=lambda number: number), DATA, folder=tmp_path / "run", **(SMALL | {"workers": 2}))

    assert "picklable" in caught.value.hint


def test_data_that_are_no_source_are_refused(tmp_path):
    with pytest.raises(DovetailError, match="a NoSource is no source of samples"):
        train(Tiny(), NoSource(), folder=tmp_path / "run", **SMALL)


def test_a_run_without_a_model_is_refused(tmp_path):
    with pytest.raises(DovetailError, match="model is missing"):
        train(folder=tmp_path / "run", **SMALL)


def test_keywords_win_over_the_run_that_is_started_from(tmp_path):
    run = Run(model=RunModel(name="ctr-dnn"), training=RunTraining(batch=7))

    with pytest.raises(DovetailError, match=r"training\.epochs is 0"):
        train(run=run, folder=tmp_path / "run", epochs=0)


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(TrainingError, match="is no run"):
        resume(tmp_path)


SESSION = """
import sys
import torch
from torch import nn
from dovetail.data import Clicks
from dovetail.runtime import train

class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, 1)

    def forward(self, dense):
        return self.out(dense)

def own_loss(scores, labels):
    return (scores[:, 0] - labels).abs()

data = Clicks(truth="logistic", num_slots=2, num_multi_valued=0, num_dense=1, rows_per_slot=10)
result = train(Typed(), data, folder=sys.argv[1], loss=own_loss, workers=1, samples=1000, batch=100)
print(sorted(result.fill(Typed()).state_dict()))
"""


def test_classes_that_were_typed_into_a_session_travel_to_workers(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", SESSION, tmp_path / "run"], capture_output=True, text=True, timeout=250, check=False
    )

    assert ended.stdout.strip() == "['out.bias', 'out.weight']", ended.stderr


def test_a_script_without_the_guard_ends_with_a_hint_instead_of_starting_runs_forever(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)

    ended = subprocess.run(
        [sys.executable, script, tmp_path / "run"], capture_output=True, text=True, timeout=250, check=False
    )

    assert ended.returncode == 1
    assert "every worker runs this script from the top" in ended.stderr
    assert 'if __name__ == "__main__":' in ended.stderr
    assert ended.stderr.count("Traceback") == 1


FAILING = """
import sys
from pathlib import Path
from torch import nn
from dovetail.data import Clicks
from dovetail.runtime import train

Path(sys.argv[1] + ".once").touch(exist_ok=False)

class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, 1)

    def forward(self, dense):
        return self.out(dense)

if __name__ == "__main__":
    data = Clicks(truth="logistic", num_slots=2, num_multi_valued=0, num_dense=1, rows_per_slot=10)
    train(Typed(), data, folder=sys.argv[1], workers=1, samples=1000, batch=100)
"""


def test_what_a_script_does_above_its_guard_and_can_do_but_once_is_named(tmp_path):
    script = tmp_path / "once.py"
    script.write_text(FAILING)

    ended = subprocess.run(
        [sys.executable, script, tmp_path / "run"], capture_output=True, text=True, timeout=250, check=False
    )

    assert ended.returncode == 1
    assert "a worker could not import the script that started it: FileExistsError: " in ended.stderr
    assert f"({script}, line 8)" in ended.stderr
    assert 'what is to be done once stands under `if __name__ == "__main__":`' in ended.stderr


def test_the_example_of_an_own_model_trains_over_workers_to_within_a_hundredth_of_the_best(tmp_path):
    ended = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path / "run"], capture_output=True, text=True, timeout=250, check=True
    )

    first, second = ended.stdout.strip().splitlines()
    assert first.startswith("60,000 samples")
    _, reached, *_, best = second.replace(",", "").split()
    assert float(best) - 0.01 < float(reached) < float(best) + 0.01


def test_the_pace_leaves_out_what_came_before_the_first_step(monkeypatch):
    now_s = iter([10.0, 20.0, 21.0, 22.0, 30.0])
    monkeypatch.setattr("dovetail.runtime.finished.result.time.monotonic", lambda: next(now_s))
    pace = RunPace()

    for samples in (0, 0, 100, 200, 200):  # a wait of ten seconds, two steps of one second, a wait of eight
        pace.add(report_of(samples))

    assert pace.samples_per_s == pytest.approx(100.0)


def report_of(samples):
    return Report(
        state="running", generation=1, step=0, epoch=0, samples=samples, total_samples=200, samples_per_s=0.0,
        loss=0.0, auc=0.0, checkpoint_step=0, workers=(), servers=(), events=(), next_event=0,
    )  # fmt: skip


def mean_loss(scores, labels):
    return (scores[:, 0] - labels).square().mean()


def per_sample_loss(scores, labels):
    return (scores[:, 0] - labels).square()


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (mean_loss, r"the loss `mean_loss` returned shape \[\] for 100 samples"),
        ("tests.runtime.test_api:mean_loss", "the loss `mean_loss` returned"),
        ("cross-entropy", r"needs scores of shape \[n, classes\], the model gives \[100, 1\]"),
        ({"a": "logistic"}, "losses for `a`, and the model answers one tensor"),
        (3, "a int is not a loss"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_before_anything_starts(loss, complaint, tmp_path):
    with pytest.raises(DovetailError, match=complaint):
        train(Tiny(), DATA, folder=tmp_path / "run", loss=loss, **SMALL)

    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_loss_of_ones_own_trains(tmp_path):
    result = train(Tiny(), DATA, folder=tmp_path / "run", loss=per_sample_loss, workers=1, samples=2000, batch=100)

    assert 0.0 < result.loss < 1.0


def test_one_process_and_several_workers_exclude_each_other(tmp_path):
    with pytest.raises(SpecError, match="which is one process"):
        train(Tiny(), DATA, folder=tmp_path / "run", workers=2, table={"place": "local"}, **SMALL)

    for words in (["--workers", "2"], ["--servers", "1"], ["--mode", "async"]):
        done = CliRunner().invoke(app, ["train", "ctr-dnn", "--table", "local", *words, "--out", str(tmp_path / "run")])
        assert done.exit_code == 1
        assert f"error: --table local is one process, and {' '.join(words)} asks for several" in done.stderr
        assert "hint:" in done.stderr
    assert not (tmp_path / "run").exists()


def test_floats_among_ids_are_told_how_to_be_whole(tmp_path):
    frame = pa.table({"label": [0, 1] * 20, "past": pa.array([[1.0, None, 2.0]] * 40, pa.list_(pa.float64()))})
    options = {"fields": ["past"]}

    with pytest.raises(ModelError, match="scalar types: Long, Int") as caught:
        train(Past(), frame, data_options=options, folder=tmp_path / "run", batch=10)
    result = train(Past(), frame, data_options=options | {"whole": ["past"]}, folder=tmp_path / "run", batch=10)

    assert "whole=['past'] (an option of the data)" in caught.value.hint
    assert result.samples == 40


class Past(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(5, 1)

    def forward(self, past):
        return self.items(past).sum(1)[:, 0]
