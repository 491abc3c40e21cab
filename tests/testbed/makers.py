"""Processes to put under limits, and the marks of tests that need the machine's leave."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from testbed import available

needs_quota = pytest.mark.skipif(not available().cpu_quota, reason=available().why_not.get("cpu_quota", ""))
needs_memory = pytest.mark.skipif(not available().memory_limit, reason=available().why_not.get("memory_limit", ""))
needs_hosts = pytest.mark.skipif(not available().hosts, reason=available().why_not.get("hosts", ""))


@contextlib.contextmanager
def python(code: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run Python code that waits for a line before it begins; end it by its id."""
    command = [sys.executable, "-u", "-c", code, *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def begin(process: subprocess.Popen[str]) -> None:
    """Let a process that waits for a line go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
