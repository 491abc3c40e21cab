"""Logs that programs read."""

import io
import json
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import pytest

from dovetail.logs import JsonLines, json_lines, tell, tell_as

Captured = pytest.CaptureFixture[str]


def read(capsys: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_has_time_level_role_run_and_text(capsys: Captured) -> None:
    with json_lines("launcher", "job-7"):
        tell("a checkpoint", step=3, loss=None)

    (line,) = read(capsys)
    assert {key: line[key] for key in ("level", "role", "run", "step", "text")} == {
        "level": "info",
        "role": "launcher",
        "run": "job-7",
        "step": 3,
        "text": "a checkpoint",
    }
    assert "loss" not in line
    assert abs((datetime.fromisoformat(line["time"]) - datetime.now(UTC)).total_seconds()) < 60


def test_what_others_print_is_of_lines_too_and_a_line_is_written_when_it_is_whole(capsys: Captured) -> None:
    with json_lines("server-0"):
        sys.stderr.write("half ")
        sys.stderr.write('a "line"\n\nerror: no disk\nno end')
        whole = read(capsys)
    rest = read(capsys)

    assert [(line["level"], line["text"]) for line in whole] == [("info", 'half a "line"'), ("error", "error: no disk")]
    assert [line["text"] for line in rest] == ["no end"]


def test_tracebacks_come_as_lines_the_first_of_them_an_error(capsys: Captured) -> None:
    with json_lines("worker"):
        try:
            json.loads("{")
        except ValueError:
            traceback.print_exc()

    first, *_, last = read(capsys)
    assert (first["level"], first["text"]) == ("error", "Traceback (most recent call last):")
    assert last["text"].startswith("json.decoder.JSONDecodeError")


def test_outside_of_it_people_read_plain_text(capsys: Captured) -> None:
    with json_lines("launcher", wanted=False):
        tell("words", step=3)
        tell_as("server-0", "more words")

    first, second = capsys.readouterr().err.splitlines()
    assert first == "words"
    assert second.endswith(" server-0: more words")


def test_inside_another_a_run_is_named_for_its_time_alone(capsys: Captured) -> None:
    before = sys.stderr
    with json_lines("launcher"):
        with json_lines("launcher", "a-1", wanted=False):
            tell("in")
            tell_as("worker", "other", run="b-2")
        tell("out")

    assert [(line["role"], line.get("run"), line["text"]) for line in read(capsys)] == [
        ("launcher", "a-1", "in"),
        ("worker", "b-2", "other"),
        ("launcher", None, "out"),
    ]
    assert sys.stderr is before


def test_nobody_draws_a_table_on_such_a_stream() -> None:
    assert not JsonLines(io.StringIO(), role="launcher", run=None).isatty()
