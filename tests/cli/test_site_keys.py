"""`dovetail site-keys`, and what `dovetail train` says of sites that are not ready."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.prepare.sites import check_address, portion_of
from dovetail.spec.files import read_struct
from dovetail.spec.run import Run, with_settings

RUNNER = CliRunner()
SITES = """
[model]
name = "ctr-dnn"
[training]
batch = 100
[[site]]
name = "a"
address = "127.0.0.1:7411"
[[site]]
name = "b"
share = 3
"""


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(SITES)
    return path


def at(run_file: Path, site: str | None) -> Run:
    return with_settings(read_struct(run_file, Run), {"exchange.here": site}, place="a test")


def test_keys_are_made_once_for_every_site(run_file: Path) -> None:
    made = RUNNER.invoke(app, ["site-keys", str(run_file)])
    assert made.exit_code == 0, made.output
    folder = run_file.parent / "site-keys"
    assert {path.name for path in folder.iterdir()} == {"a.public", "a.secret", "b.public", "b.secret"}
    before = (folder / "a.secret").read_bytes()
    again = RUNNER.invoke(app, ["site-keys", str(run_file)])
    assert "already" in again.output
    assert (folder / "a.secret").read_bytes() == before


def test_a_run_file_without_sites_has_no_keys_to_make(run_file: Path) -> None:
    run_file.write_text('[model]\nname = "ctr-dnn"\n')
    refused = RUNNER.invoke(app, ["site-keys", str(run_file)])
    assert refused.exit_code == 1
    assert "has no sites" in refused.output


def test_a_site_that_is_not_named_and_one_without_keys_are_refused_with_the_way_out(run_file: Path) -> None:
    with pytest.raises(TrainingError, match="a, b") as caught:
        portion_of(at(run_file, None), 1000, 100)
    assert "--site a" in caught.value.hint
    with pytest.raises(TrainingError, match="keys") as caught:
        portion_of(at(run_file, "b"), 1000, 100)
    assert "dovetail site-keys" in caught.value.hint
    RUNNER.invoke(app, ["site-keys", str(run_file)])
    portion = portion_of(at(run_file, "b"), 1000, 100)
    assert portion is not None
    assert (portion.first, portion.last, portion.own_samples) == (25, 100, 750)


def test_a_first_site_that_cannot_listen_is_refused_before_anything_starts(run_file: Path) -> None:
    RUNNER.invoke(app, ["site-keys", str(run_file)])
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for address in (taken, "192.0.2.1:7411"):  # another's port, another machine's address
            run_file.write_text(re.sub(r'address = "[^"]*"', f'address = "{address}"', run_file.read_text()))
            with pytest.raises(TrainingError, match=f"cannot listen at {address}") as caught:
                check_address(at(run_file, "a"))
            assert "a port that nobody has" in caught.value.hint


def test_a_site_that_nobody_knows_is_refused_by_name(run_file: Path) -> None:
    refused = RUNNER.invoke(app, ["train", str(run_file), "--site", "c"])
    assert refused.exit_code == 1
    assert "exchange.here" in refused.output
    assert "error:" in refused.output
    assert "hint:" in refused.output
