"""A run that began with an object goes on, is scored and exported by whoever has its folder, without the program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.runtime import resume, train
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.folder import MODEL
from dovetail.runtime.model.kept_model import keep_model, kept_model
from dovetail.spec.run import Run, RunModel

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.act = act
        self.bag = nn.EmbeddingBag(40, width, sparse=True, include_last_offset=True, mode="sum")
        self.register_buffer("shift", torch.full((1,), 0.5))
        self.scale = torch.tensor([2.0])  # neither parameter nor buffer
        self.fixed = nn.Parameter(torch.full((1,), 3.0), requires_grad=False)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(width + 1, 1)

    def forward(self, ids, offsets, dense):
        known = [self.bag(ids, offsets), dense * self.scale * self.fixed + self.shift]
        return self.out(self.drop(self.act(torch.cat(known, 1))))[:, 0]
"""
PROGRAM = """
import sys
import torch
from torch import nn
sys.path.insert(0, {library!r})
from own_nets import Net

class Script(nn.Module):  # of the main script: it is kept with its code
    def __init__(self, width):
        super().__init__()
        self.inner = Net(width, torch.tanh)

    def forward(self, ids, offsets, dense):
        return self.inner(ids, offsets, dense) * 2

OWN = dict(script=Script, module=lambda width: Net(width, torch.relu), closure=lambda w: Net(w, lambda x: x.abs()))

if __name__ == "__main__":
    import dovetail

    for name, make in OWN.items():
        for folder, epochs in (("whole", 3), ("part", 1)):
            torch.manual_seed(1)
            dovetail.train(
                make(5), "rows.csv", folder=name + "-" + folder, epochs=epochs, batch=32, seed=3, lr=0.05,
                optimizer="adam", data_options=dict(dense=["x"], slots=["u"], hash_into=40, cache=False),
            )
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of a program that is over; a module of it lies in a folder that only the program knew."""
    place = tmp_path_factory.mktemp("kept")
    (place / "library").mkdir()
    (place / "library" / "own_nets.py").write_text(NET)
    (place / "program.py").write_text(PROGRAM.format(library=str(place / "library")))
    lines = [f"{i * 7 % 3 == 0:d},{i % 11 / 5},u{i % 23}" for i in range(160)]
    (place / "rows.csv").write_text("\n".join(["label,x,u", *lines, ""]))
    source = str(Path(__file__).resolve().parents[3] / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, *sys.path])}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=place, env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


def dovetail(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("kind", ["module", "script", "closure"])
def test_a_run_of_an_object_goes_on_by_the_command_line_as_if_it_had_never_stopped(place, kind, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])

    going_on = dovetail("train", "--resume", f"{kind}-part", "--epochs", "3", "--json")
    measured = dovetail("evaluate", f"{kind}-part", "--json")
    scored = dovetail("predict", f"{kind}-part", "--samples", "3")
    for folder in ("whole", "part"):
        dovetail("export", f"{kind}-{folder}", "--out", f"{kind}-{folder}-model")

    assert json.loads(going_on.splitlines()[-1])["is_complete"] is True
    expected = load_file(place / f"{kind}-whole-model" / "model.safetensors")
    found = load_file(place / f"{kind}-part-model" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    assert float(found[next(name for name in found if name.endswith("fixed"))]) == 3.0
    assert json.loads(measured.splitlines()[-1])["samples"] == 160
    assert len(scored.splitlines()) == 4


@pytest.mark.parametrize("kind", ["module", "script"])
def test_a_program_that_goes_on_may_leave_the_model_out_with_workers_too(place, kind, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])

    assert resume(f"{kind}-whole", epochs=4, workers=1).samples == 640


class Line(nn.Module):
    def __init__(self, limit: float = 0.0) -> None:
        super().__init__()
        self.limit = limit
        self.one = nn.Linear(1, 1)
        self.other = nn.Linear(1, 1)
        self.other.weight = self.one.weight

    def forward(self, dense):
        return (self.one(dense) + self.other(dense)).clamp(min=self.limit)


RUN = Run(model=RunModel(name=f"{Line.__module__}.Line"))


def test_a_kept_model_has_its_settings_and_shared_parameters_but_not_their_values(tmp_path):
    model = Line(limit=-3.5)
    with torch.no_grad():
        model.one.bias.fill_(12345.0)
    keep_model(model, tmp_path)

    found = kept_model(tmp_path, RUN)

    assert isinstance(found, Line)
    assert found.limit == -3.5
    assert found.other.weight is found.one.weight
    assert [each.shape for each in found.parameters()] == [each.shape for each in model.parameters()]
    assert float(found.one.bias.detach()) != 12345.0


def test_a_large_table_takes_no_room_in_the_file(tmp_path):
    keep_model(nn.Sequential(nn.EmbeddingBag(1_000_000, 8, sparse=True)), tmp_path)

    assert (tmp_path / MODEL).stat().st_size < 5_000


def test_what_cannot_be_pickled_or_is_too_large_is_not_kept(tmp_path, monkeypatch):
    model = Line()
    model.file = (tmp_path / "open").open("w")
    with model.file:
        keep_model(model, tmp_path)
    assert kept_model(tmp_path, RUN) is None

    monkeypatch.setattr("dovetail.runtime.model.kept_model.MOST_BYTES", 10)
    keep_model(Line(), tmp_path)

    assert kept_model(tmp_path, RUN) is None


def test_a_folder_that_others_can_write_makes_no_model_without_a_word_of_trust(tmp_path):
    keep_model(Line(), tmp_path)
    (tmp_path / MODEL).chmod(0o666)

    with pytest.raises(TrainingError, match="holds code to run") as caught:
        kept_model(tmp_path, RUN)

    assert "--trust" in caught.value.hint
    assert isinstance(kept_model(tmp_path, RUN, trust=True), Line)


def test_a_class_that_is_gone_is_named_with_the_way_out(tmp_path):
    keep_model(Line(), tmp_path)
    kept = (tmp_path / MODEL).read_bytes()
    (tmp_path / MODEL).write_bytes(kept.replace(b"test_kept_model", b"test_gone_model"))

    with pytest.raises(TrainingError, match=r"cannot be made again: ModuleNotFoundError: .*test_gone_model") as caught:
        kept_model(tmp_path, RUN, trust=True)

    assert f"--model {Line.__module__}:Line" in caught.value.hint


@pytest.mark.parametrize("whose", ["changed", "of another user"])
def test_a_file_that_this_user_did_not_write_runs_nothing(tmp_path, monkeypatch, whose):
    keep_model(Apply(Trap()), tmp_path)
    if whose == "changed":
        kept = (tmp_path / MODEL).read_bytes()
        (tmp_path / MODEL).write_bytes(kept[:-20] + b"N" + kept[-19:])
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))

    with pytest.raises(TrainingError, match="this user did not write it here") as caught:
        kept_model(tmp_path, RUN)

    assert "--trust" in caught.value.hint
    assert not Trap.sprung
    if whose != "changed":
        assert isinstance(kept_model(tmp_path, RUN, trust=True), Apply)
        assert Trap.sprung
        assert (tmp_path / "other" / "dovetail" / "kept-models.key").stat().st_mode & 0o777 == 0o600


def test_a_model_that_no_process_could_be_sent_trains_in_this_one(tmp_path):
    (tmp_path / "rows.csv").write_text("label,x\n" + "".join(f"{i % 2},{i % 5}\n" for i in range(40)))
    model = Line()
    model.lock = (tmp_path / "open").open("w")  # no process can be sent that
    with model.lock, pytest.raises(TrainingError, match="cannot be sent to workers"):
        train(model, str(tmp_path / "rows.csv"), data_options={"dense": ["x"]}, folder=tmp_path / "two", workers=2)

    result = train(
        nn.Sequential(nn.Linear(1, 4), Apply(lambda x: x.abs()), nn.Linear(4, 1)), str(tmp_path / "rows.csv"),
        data_options={"dense": ["x"], "cache": False}, folder=tmp_path / "one", batch=20,
    )  # fmt: skip

    assert resume(tmp_path / "one", epochs=2).samples == 80
    assert evaluate_run(result.folder).samples == 40


class Trap:
    """Says so when it is made of a pickle."""

    sprung = False

    def __reduce__(self):
        return spring, ()


def spring() -> Trap:
    Trap.sprung = True
    return Trap()


class Apply(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)
