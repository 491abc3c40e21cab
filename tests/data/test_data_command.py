"""`dovetail data`, as users call it."""

import json

import pytest
from typer.testing import CliRunner

from dovetail.cli.data import data, parse_options
from dovetail.errors import SpecError
from tests.data.makers import write_criteo


def run(*words: str) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a call."""
    result = CliRunner().invoke(data, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_generated_data_are_inspected_with_their_best_auc():
    status, out, _ = run("inspect", "clicks", "-o", "rows_per_slot=10", "-o", "truth=dot", "--rows", "20000", "--json")

    facts = json.loads(out)
    assert status == 0
    assert (facts["samples"], facts["looked_at"], facts["slots"]) == ("no end", 20_000, 26)
    assert facts["distinct_ids"] == 260
    assert 0.7 < facts["best_auc"] < 0.9


def test_made_data_are_read_back(tmp_path):
    file = tmp_path / "made.parquet"
    status, out, err = run("make", str(file), "--rows", "500", "-o", "num_slots=2", "-o", "num_dense=1", "--json")
    assert status == 0, err
    assert json.loads(out)["written"] == 500

    status, out, err = run(
        "inspect", "parquet", "--path", str(file), "-o", "dense=number1,", "-o", "slots=slot1,slot2",
        "-o", "multi_valued=slot1,slot2", "-o", f"cache={tmp_path}", "--json",
    )  # fmt: skip

    assert status == 0, err
    assert json.loads(out)["samples"] == 500


def test_broken_rows_are_shown_or_stop_the_command(tmp_path):
    path = write_criteo(tmp_path / "day", 20)
    path.write_text(path.read_text() + "broken\n")
    words = ["inspect", "criteo", "--path", str(path), "-o", "cache=false"]

    status, _, err = run(*words)
    assert status == 1
    assert "row 21: not 40 columns" in err
    assert "hint: repair them, or skip them with --max-bad-rows 10" in err

    status, out, _ = run(*words, "--max-bad-rows", "1")
    assert status == 0
    assert "1 broken row skipped: 1 x not 40 columns" in out


def test_a_mistake_is_also_told_in_json():
    status, out, _ = run("inspect", "clikcs", "--json")

    assert status == 1
    assert json.loads(out)["hint"].startswith("did you mean `clicks`?")


def test_options_are_numbers_words_truths_and_lists():
    assert parse_options(["a=1", "b=1.5", "c=x", "d=true", "e=x,y", "f=x,"]) == {
        "a": 1, "b": 1.5, "c": "x", "d": True, "e": ["x", "y"], "f": ["x"],
    }  # fmt: skip
    with pytest.raises(SpecError, match="sets nothing"):
        parse_options(["a"])


def test_reading_is_measured_cold_cached_and_by_readers(tmp_path):
    path = write_criteo(tmp_path / "day", 3000)

    status, out, err = run("bench", "criteo", "--path", str(path), "--json")

    assert status == 0, err
    found = json.loads(out)
    assert found["samples"] == 3000
    assert {each["what"] for each in found["figures"]} == {
        "first epoch, nothing cached", "in order, cached", "in training order, cached",
    }  # fmt: skip
    assert all(each["samples_per_s"] > 0 for each in found["figures"])
    assert found["bound"]
    assert found["advice"]

    status, out, _ = run("bench", "clicks", "--rows", "5000")
    assert status == 0
    assert "in training order" in out
    assert "bound by" in out
