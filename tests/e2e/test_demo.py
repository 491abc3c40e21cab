"""The demo: what it types is what a user could type, and what it shows can be followed."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dovetail.cli.main import app

ROOT = Path(__file__).parents[2]
DEMO = runpy.run_path(str(ROOT / "examples" / "demo.py"))
STEPS = (*DEMO["MAIN"], *DEMO["REST"])


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.command)
def test_every_step_of_the_demo_can_be_typed(step):
    words = shlex.split(step.command)
    if words[0].endswith(".py"):
        assert (ROOT / words[0]).is_file()
    else:
        command = typer.main.get_command(app).commands[words[0]]
        rest = words[1:]
        if rest[0] in getattr(command, "commands", {}):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context("dovetail", rest)
    for word in words:
        if word.startswith("examples/"):
            assert (ROOT / word.partition(":")[0]).is_file()


def test_no_two_steps_of_the_demo_make_the_same_file():
    made = [word for step in STEPS for word in re.findall(r"(?:--out|--plot|--timeline) (out/\S+)", step.command)]

    assert len(made) == len(set(made))


@pytest.mark.slow  # a minute or two
@pytest.mark.timeout(900)
@pytest.mark.processes
def test_the_demo_goes_through_and_is_short():
    done = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
    )

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) < 120
    assert [int(number) for number in re.findall(r"^\[(\d+)\]", done.stdout, re.M)] == list(range(1, 8))
    for name in re.findall(r"out/\w+\.html", done.stdout):
        assert "<html" in (ROOT / name).read_text(encoding="utf-8")
