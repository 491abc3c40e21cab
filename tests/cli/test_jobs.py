"""How `dovetail jobs` shows jobs."""

import pytest
from typer.testing import CliRunner

from dovetail.cli.jobs import _print_jobs
from dovetail.cli.main import app

JOB = {
    "id": "click-model-12", "state": "running", "stopping": False, "user": "ann", "workers": 4, "type": "cpu",
    "total": 100, "done": 50, "samples_per_s": 49_600.0, "loss": 0.6681, "submitted_s": 100.0,
    "finished_s": 112.0, "error": None,
}  # fmt: skip


def test_a_long_error_takes_no_room_from_the_other_columns(capsys):
    error = "model `shop:build` could not be built: TypeError: build() got an unexpected keyword argument 'widht' " * 2
    _print_jobs([JOB, JOB | {"id": "wrong-13", "state": "failed", "workers": 0, "error": error}])

    shown = capsys.readouterr().out
    for words in (
        "click-model-12",
        "running",
        "ann",
        "4 cpu",
        "50%",
        "0.6681",
        "12 s",
        "wrong-13",
        "failed",
        "shop:build",
    ):
        assert words in shown, shown


RUN = '[model]\nname = "{model}"\n[data]\nname = "{data}"\n'


@pytest.mark.parametrize(
    ("words", "model", "data", "complaint", "way_out"),
    [
        (["run.toml"], "ctr-dn", "clicks", "`ctr-dn` is no model", "did you mean `ctr-dnn`"),
        (["run.toml"], "net.py:build", "clicks", "there is no file `net.py`", "from this folder"),
        (
            ["run.toml"],
            "nowhere_at_all.net:build",
            "clicks",
            "there is no module `nowhere_at_all.net`",
            "--env PYTHONPATH",
        ),
        (["run.toml"], "ctr-dnn", "day_*.parquet", "no file `day_*.parquet`", "check the path"),
        (["run.tml"], "ctr-dnn", "clicks", "there is no program `run.tml`", "ends in .toml"),
        (
            ["ctr-dnn"],
            "ctr-dnn",
            "clicks",
            "there is no program `ctr-dnn`",
            "dovetail train ctr-dnn --write-run run.toml",
        ),
        (["run.toml", "now"], "ctr-dnn", "clicks", "there is no program `run.toml`", "a run file stands alone"),
        (["gone.toml"], "ctr-dnn", "clicks", "gone.toml", "run.toml"),
    ],
)
def test_what_could_never_run_is_not_handed_in(tmp_path, monkeypatch, words, model, data, complaint, way_out):
    (tmp_path / "run.toml").write_text(RUN.format(model=model, data=data))
    monkeypatch.chdir(tmp_path)

    said = CliRunner().invoke(app, ["submit", *words, "--folder", "no-daemon-is-asked"])

    assert said.exit_code == 1
    assert complaint in said.stderr
    assert way_out in said.stderr.partition("hint: ")[2]
