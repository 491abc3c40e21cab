"""What is new of a run: the same events for every reader, and nothing gone by having been read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.dashboard import run_feed
from dovetail.dashboard.run_feed import Event, RunFeed


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_feed, "LOOK_S", 0.0)


def write(folder: Path, first: int, count: int, **more: Any) -> None:
    """Write lines of figures as a run does, a second apart."""
    with (folder / "metrics.jsonl").open("a") as file:
        for at in range(first, first + count):
            line = {"time_s": at + 1.0, "unix_s": 1e9 + at, "samples": 100 * at, "total_samples": 10_000}
            file.write(json.dumps({**line, "samples_per_s": 100.0, "loss": 1 / (at + 1), "auc": None, **more}) + "\n")


def read(feed: RunFeed, seen: str | None) -> tuple[list[Event], bool]:
    feed.look()
    return feed.after(seen)


def test_two_readers_see_the_same_events_and_one_that_comes_back_goes_on(tmp_path: Path) -> None:
    write(tmp_path, 0, 5)
    feed = RunFeed("run", tmp_path)
    begin = feed.facts()["at"]
    write(tmp_path, 5, 7)

    one, two = read(feed, begin)[0], read(feed, begin)[0]
    write(tmp_path, 12, 2)
    rest = read(feed, f"{feed.era}.{one[3].number}")[0]

    assert one == two
    assert [json.loads(event.data)["samples"] for event in one] == [100 * at for at in range(5, 12)]
    assert [json.loads(event.data)["samples"] for event in rest] == [100 * at for at in range(9, 14)]
    assert [event.number for event in rest] == list(range(one[4].number, one[4].number + 5))


@pytest.mark.parametrize("seen", [None, "", "nonsense", "abc.3", "ERA.999", "ERA.-1", "ERA.1e3"])
def test_a_reader_that_has_seen_nothing_known_begins_anew(tmp_path: Path, seen: str | None) -> None:
    write(tmp_path, 0, 3)
    feed = RunFeed("run", tmp_path)
    feed.look()

    events, is_lost = feed.after(None if seen is None else seen.replace("ERA", feed.era))

    assert (events, is_lost) == ([], True)


def test_a_reader_that_was_away_for_too_long_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_feed, "KEPT_EVENTS", 10)
    write(tmp_path, 0, 3)
    feed = RunFeed("run", tmp_path)
    begin = feed.facts()["at"]
    write(tmp_path, 3, 30)

    assert read(feed, begin) == ([], True)


def test_a_run_that_was_begun_anew_in_its_folder_has_other_numbers(tmp_path: Path) -> None:
    write(tmp_path, 0, 8)
    feed = RunFeed("run", tmp_path)
    begin = feed.facts()["at"]
    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path, 0, 2)

    assert read(feed, begin) == ([], True)
    assert feed.facts()["curves"]["samples"] == [0.0, 100.0]


def test_what_happened_stands_where_it_was_in_the_curves(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    (tmp_path / "happened.jsonl").write_text(
        json.dumps({"unix_s": 1e9 + 4.5, "text": "second died (signal 9)"}) + '\n{"broken\n[1]\n'
    )
    (tmp_path / "widths.jsonl").write_text(json.dumps([1e9 + 2, "w", "to server-0", 32, 8, 1.0]) + "\n[1, 2]\n")

    facts = RunFeed("run", tmp_path).facts()

    assert [(each["ran_s"], each["text"]) for each in facts["happened"]] == [(5.5, "second died (signal 9)")]
    assert [(each["link"], each["bits"]) for each in facts["widths"]] == [("to server-0", 8)]


def test_time_in_which_nobody_ran_it_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, 4)
    write(tmp_path, 100_000, 1)  # gone on with a day later: its own clock says how long it has run since
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"time_s": 3.0, "unix_s": 1e9 + 200_000, "samples": 5, "total_samples": 9}) + "\n")

    ran_s = RunFeed("run", tmp_path).facts()["curves"]["ran_s"]

    assert ran_s[:4] == [1.0, 2.0, 3.0, 4.0]
    assert ran_s[5] - ran_s[4] == 3.0


def test_a_long_run_is_thinned_and_says_how_many_lines_it_has(tmp_path: Path) -> None:
    write(tmp_path, 0, 5000)

    facts = RunFeed("run", tmp_path).facts(points=300)

    assert len(facts["curves"]["loss"]) <= 302
    assert facts["all_points"] == 5000
    assert facts["curves"]["loss"][0] == 1.0
    assert len({len(column) for column in facts["curves"].values()}) == 1


@pytest.mark.parametrize("damage", ["blueprint.json", "summary.json", "parts.json"])
def test_a_damaged_file_leaves_the_rest_of_the_run_to_be_seen(tmp_path: Path, damage: str) -> None:
    write(tmp_path, 0, 3)
    for name in ("blueprint.json", "summary.json", "parts.json"):
        (tmp_path / name).write_text('{"run": {"model": {"name": "m"}}}')
    (tmp_path / damage).write_bytes(b'\xff\x00[{"')

    facts = RunFeed("run", tmp_path).facts()

    assert facts["curves"]["samples"] == [0.0, 100.0, 200.0]
