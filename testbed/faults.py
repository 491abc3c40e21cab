"""Errors of system calls and jumps of the clock, for one process alone: `faults.c`, compiled and preloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")


def why_no_faults() -> str:
    """Return why nothing can be preloaded here, or nothing."""
    if os.uname().sysname != "Linux":
        return "not Linux"
    return "" if shutil.which("gcc") else "no gcc"


class Faults:
    """What goes wrong for the processes that are started with `environment`, from one moment to the next."""

    def __init__(self, folder: Path) -> None:
        """Compile what is preloaded into a folder."""
        self._library, self._control = folder / "faults.so", folder / "faults"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", self._library, SOURCE], check=True, timeout=60)
        self.none()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to be told; its own children are not."""
        return {"LD_PRELOAD": str(self._library), "FAULTS": str(self._control)}

    def none(self) -> None:
        """Have everything go as it should."""
        self._write("")

    def fail(self, call: str, error: int, word: str = "-") -> None:
        """Have a call (open, pipe) fail with an error where its path has a word in it."""
        self._write(f"{call} {error} {word}\n")

    def set_clock(self, seconds: int) -> None:
        """Have the time of day be off by so much."""
        self._write(f"clock {seconds} -\n")

    def _write(self, text: str) -> None:
        draft = self._control.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self._control)
