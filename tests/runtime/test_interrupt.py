"""Ctrl-C in `train()`: the first keeps a checkpoint and ends with a result that says so, the second ends at once."""

import json
import os
import signal
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

PROGRAM = """
import json, os, signal, sys
import dovetail

how, folder = sys.argv[1:]
asked = []

def ctrl_c(report):
    if report.step >= 3 and (not asked or how == "twice"):
        asked.append(report.step)
        os.killpg(os.getpgrp(), signal.SIGINT)  # as a terminal does: to all of them

if __name__ == "__main__":
    result = dovetail.train(
        "ctr-dnn", folder=folder, samples=4_000_000, batch=100, on_report=ctrl_c, every_s=None,
        data_options={"num_slots": 4, "num_dense": 3, "num_multi_valued": 1, "rows_per_slot": 60},
        model_options={"num_rows": 240, "width": 4, "hidden": [16, 8]}, **json.loads(os.environ["PLACE"]),
    )
    print(json.dumps({"interrupted": result.interrupted, "complete": result.is_complete, "step": result.step,
                      "asked": asked[0], "shown": repr(result), "handler": repr(signal.getsignal(signal.SIGINT))}))
"""
PLACES = {"one process": {}, "over processes": {"workers": 2, "servers": 1}}


def started(tmp_path, how, place):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), how, str(tmp_path / "run")]
    environment = os.environ | {"PLACE": json.dumps(PLACES[place])}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, start_new_session=True, check=False
    )


@pytest.mark.parametrize("place", PLACES)
def test_the_first_keeps_a_checkpoint_and_the_result_says_so(tmp_path, place):
    done = started(tmp_path, "once", place)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["interrupted"]
    assert not found["complete"]
    assert found["step"] >= found["asked"] >= 3
    assert "interrupted: " in found["shown"]
    assert f'dovetail.resume("{tmp_path / "run"}")' in found["shown"]
    assert "default_int_handler" in found["handler"]
    assert "SIGINT: keeping a checkpoint, then stopping; once more ends at once" in done.stderr
    assert (tmp_path / "run" / "checkpoints" / f"step-{found['step']:010d}").is_dir()


@pytest.mark.parametrize("place", PLACES)
def test_the_second_ends_at_once(tmp_path, place):
    done = started(tmp_path, "twice", place)

    assert done.returncode in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
    assert done.stdout == ""


CELLS = (
    """
import os, signal, dovetail
asked = []

def interrupt(report):
    if report.step >= 3 and not asked:
        asked.append(report.step)
        os.kill(os.getpid(), signal.SIGINT)  # what a notebook's button does to its kernel
""",
    """
result = dovetail.train(
    "ctr-dnn", folder="run", samples=4_000_000, batch=100, on_report=interrupt, every_s=None,
    data_options={"num_slots": 4, "num_dense": 3, "num_multi_valued": 1, "rows_per_slot": 60},
    model_options={"num_rows": 240, "width": 4, "hidden": [16, 8]},
)
""",
    "print(result.interrupted, result.step >= 3, result.is_complete)",
    "result",
)


def test_a_notebook_that_is_interrupted_has_its_result(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    assert notebook.cells[2].outputs[-1].text == "True True False\n"
    assert "<TrainingResult of run: interrupted: " in notebook.cells[3].outputs[-1].data["text/plain"]
