"""The daemon's API under requests that follow its own document, and many that do not (schemathesis)."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.daemons import PATHS, Daemon

EXAMPLES = "40"
UNCHECKED = "ignored_auth,positive_data_acceptance"
"""Requests without a token are tests/serve/test_daemon.py's. What fits the document may still be refused: a run file
has a format of its own, and a cluster its own types."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_request_brings_the_api_to_an_error_of_its_own_or_off_its_document(tmp_path):
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed: pip install schemathesis")
    words = ["--nodes", "cpu:4x1", "--policy", "tests.serve.daemons:StartsNothing"]
    with Daemon(tmp_path / "daemon", *words) as daemon:
        job = daemon.submit(name="there", command=["true"])["id"]
        url = json.loads((daemon.folder / "server.json").read_bytes())["url"]
        token = (daemon.folder / "token").read_text().strip()
        program = shutil.which("schemathesis") or str(Path(sys.executable).with_name("schemathesis"))
        command = [program] if Path(program).exists() else [sys.executable, "-m", "schemathesis.cli"]
        done = subprocess.run(
            [
                *(*command, "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {token}"),
                *("--max-examples", EXAMPLES, "--seed", "1", "--no-color", "--request-timeout", "20"),
                *("--exclude-checks", UNCHECKED),
            ],
            env={**os.environ, "PYTHONPATH": PATHS},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert daemon.job(job)["state"] in ("queued", "cancelled"), "it is still there, and nothing was run"
        assert daemon.process.poll() is None
