"""`dovetail table`: what is in a checkpoint."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.embedding import Table


@pytest.fixture
def saved(tmp_path):
    with Table(width=4, host_rows=6, folder=tmp_path / "rows") as table:
        table.lookup(np.arange(20))
        for _ in range(3):
            table.lookup([7])
        table.save(tmp_path / "saved")
        table.update([7, 100], np.ones((2, 4)))
        table.lookup(np.arange(10))
        table.expire(max_age_steps=0)
        table.save(tmp_path / "saved", kind="delta")
    return tmp_path / "saved"


def test_the_chain_is_seen_as_one_table(saved):
    result = CliRunner().invoke(app, ["table", str(saved), "--json"])
    summary = json.loads(result.stdout.splitlines()[-1])

    # Rows 0 to 9 are left. The delta has row 7, counted 5 times; the others keep the count of the full checkpoint.
    assert summary["rows"] == 10
    assert summary["hot_keys"][0] == [7, 5]
    assert summary["rows_by_count"] == [["0", 0], ["1", 9], ["2-3", 0], ["4-7", 1]]
    assert [link["kind"] for link in summary["chain"]] == ["full", "delta"]
    assert [link["tombstones"] for link in summary["chain"]] == [0, 11]
    assert summary["host_rows"] + summary["disk_rows"] == 10


def test_people_see_rows_tiers_hot_keys_and_a_histogram(saved, tmp_path):
    result = CliRunner().invoke(app, ["table", str(saved), "--plot", str(tmp_path / "counts.svg")])

    assert result.exit_code == 0
    assert "rows       10 of width 4, every checksum right" in result.stdout
    assert "hot keys   7 (5)" in result.stdout
    assert "#" * 40 in result.stdout
    assert "            10   35.7%  " in result.stdout  # of 14 look-ups 9 were those of new rows
    assert "<svg" in (tmp_path / "counts.svg").read_text()


def test_the_least_budget_for_a_hit_ratio_has_room_for_its_rows(saved):
    result = CliRunner().invoke(app, ["table", str(saved), "--hit-ratio", "0.3", "--json"])
    least = json.loads(result.stdout.splitlines()[-1])["least_budget"]
    with Table(width=4, device="cpu", device_bytes=least["device_bytes"]) as table:
        for keys in np.arange(3 * least["rows"]).reshape(3, -1):
            table.on_device.look_up(keys).release()
        table.save(saved / "other")
    held = json.loads(CliRunner().invoke(app, ["table", str(saved / "other"), "--json"]).stdout.splitlines()[-1])

    assert 0.3 <= least["hit_ratio"] <= 0.357
    assert held["device_rows"] == least["rows"]


def test_a_hit_ratio_that_no_budget_reaches_is_an_error_that_says_what_is_possible(saved):
    result = CliRunner().invoke(app, ["table", str(saved), "--hit-ratio", "0.5"])

    assert result.exit_code == 1
    assert "no device reaches a hit ratio of 50.0%: with all 10 rows there it is 35.7%" in result.output
    assert "ask for 0.357 or less" in " ".join(result.output.split())


def test_a_damaged_checkpoint_is_an_error_with_a_hint(saved):
    part = saved / "000001-full" / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    result = CliRunner().invoke(app, ["table", str(saved), "--json"])

    assert result.exit_code == 1
    assert "part-00000.safetensors: is damaged" in json.loads(result.stdout)["error"]


def test_rows_on_a_device_are_told_apart(tmp_path):
    with Table(width=4, device="cpu", device_bytes=1 << 20, device_rows=6) as table:
        for keys in (np.arange(6), np.arange(3, 9)):
            table.on_device.look_up(keys).release()
        table.save(tmp_path / "saved")
    result = CliRunner().invoke(app, ["table", str(tmp_path / "saved")])

    assert "tiers      6 rows were on a device, 3 in RAM and 0 on disk" in result.stdout
