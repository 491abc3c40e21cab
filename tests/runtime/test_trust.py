"""Code that a run's folder names is only run where nobody else could have written the name, or with a word of trust."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.runtime import TrainingError, resume
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.finished.evaluate import evaluate_run
from dovetail.runtime.finished.export import export_run
from dovetail.runtime.finished.predict import predict_run
from dovetail.runtime.finished.restore import restore_model
from dovetail.runtime.launch.join import join
from dovetail.runtime.trust import check_trusted, why_not_ours
from dovetail.spec.run import RunData, RunModel
from dovetail.spec.run_sections import RunValidation
from tests.runtime.runs import NUM_ROWS, make_run, train

CODE = """
from pathlib import Path
from dovetail.models.load import load_model

def build(**options):
    Path(__file__).with_name("ran").touch()
    return load_model("ctr-dnn", **options)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose model is in a file beside it."""
    place = tmp_path_factory.mktemp("trust")
    (place / "own.py").write_text(CODE)
    options = {"num_rows": NUM_ROWS, "width": 4, "hidden": [8]}
    train(make_run(model=RunModel(name=f"{place / 'own.py'}:build", options=options), samples=400), place / "run")
    (place / "ran").unlink()
    return place


@pytest.fixture
def place(trained, tmp_path):
    """The same run in a folder of its own, which a test may spoil."""
    shutil.copytree(trained, tmp_path / "x")
    blueprint = Blueprint.read(trained / "run")
    model = replace(blueprint.run.model, name=f"{tmp_path / 'x' / 'own.py'}:build")
    replace(blueprint, run=replace(blueprint.run, model=model)).write(tmp_path / "x" / "run")
    return tmp_path / "x"


def open_folder(place):
    (place / "run").chmod(0o777)


def open_blueprint(place):
    (place / "run" / "blueprint.json").chmod(0o666)


def open_code(place):
    (place / "own.py").chmod(0o666)


def open_folder_of_code(place):
    place.chmod(0o777)


def give_away(place):
    os.chown(place / "run", 12345, 12345)


SPOILED = [open_folder, open_blueprint, open_code, open_folder_of_code]
if os.geteuid() == 0:
    SPOILED.append(give_away)
USES = {
    "evaluate": lambda run, **how: evaluate_run(run, num_samples=10, **how),
    "export": lambda run, **how: export_run(run, run.parent / "out", **how),
    "predict": lambda run, **how: predict_run(run, num_samples=10, **how),
    "restore": restore_model,
    "resume": resume,
    "join": join,
}


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("use", USES)
def test_code_that_others_could_have_named_is_not_run(place, spoil, use):
    spoil(place)

    with pytest.raises(
        TrainingError, match=r"names code to run, `.*own\.py:build`, and .* (can be written|belongs to)"
    ) as caught:
        USES[use](place / "run")

    assert "--trust" in caught.value.hint
    assert not (place / "ran").exists()


@pytest.mark.parametrize("use", ["evaluate", "export", "predict", "restore"])
def test_a_word_of_trust_lets_it_run(place, use):
    open_folder(place)
    USES[use](place / "run", trust=True)

    assert (place / "ran").exists()


def test_validation_data_are_code_too(place):
    open_folder(place)
    run = make_run(model=RunModel(name="ctr-dnn"))
    run = replace(run, validation=RunValidation(name="own.py:samples"))

    with pytest.raises(TrainingError, match=r"names code to run, `own\.py:samples`"):
        check_trusted(place / "run", run, trust=False)


def test_a_folder_of_ones_own_needs_no_word(place):
    evaluate_run(place / "run", num_samples=10)

    assert (place / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN"],
        ["predict", "RUN"],
        ["export", "RUN", "--out", "OUT"],
        ["train", "--resume", "RUN"],
        ["join", "RUN"],
    ],
    ids=lambda words: words[0],
)
def test_commands_say_so_and_end_with_status_1(place, words):
    open_folder(place)
    names = {"RUN": str(place / "run"), "OUT": str(place / "out")}
    done = CliRunner().invoke(app, [names.get(word, word) for word in words])

    assert done.exit_code == 1, done.output
    assert "error: " in done.output
    assert "names code to run" in done.output
    assert "hint: " in done.output
    assert "--trust" in done.output
    assert "Traceback" not in done.output
    assert not (place / "ran").exists()


def test_a_blueprint_that_names_a_function_of_the_system_is_refused(place):
    """What `package.module:function` names need not be a model, and its options are its arguments."""
    blueprint = Blueprint.read(place / "run")
    data = RunData(name="subprocess:run", options={"args": ["touch", str(place / "ran")]})
    replace(blueprint, run=replace(blueprint.run, data=data)).write(place / "run")
    open_folder(place)

    with pytest.raises(TrainingError, match=r"subprocess:run|own\.py"):
        evaluate_run(place / "run")
    assert not (place / "ran").exists()


def test_a_folder_without_code_of_its_own_may_be_anybodys(tmp_path):
    train(make_run(samples=400), tmp_path / "run")
    (tmp_path / "run").chmod(0o777)

    assert evaluate_run(tmp_path / "run", num_samples=10).samples == 10


def test_a_folder_such_as_tmp_where_nobody_can_replace_the_files_of_others_will_do(tmp_path):
    tmp_path.chmod(0o1777)

    assert why_not_ours(tmp_path) is None


def test_what_is_not_there_is_left_to_whoever_opens_it():
    assert why_not_ours(Path("/no/such/file")) is None
