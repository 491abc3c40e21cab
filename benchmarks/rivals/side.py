"""Run one side of a comparison and read its result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def run_side(script: str, *options: object, python: str = sys.executable, timeout_s: float = 600) -> dict[str, Any]:
    """Run `SCRIPT.py` of this folder with an interpreter; return the JSON of its last line."""
    command = [python, str(FOLDER / f"{script}.py"), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        sys.exit(f"error: {script} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
