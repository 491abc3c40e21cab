"""Pages of the documentation as a newcomer follows them: files written, commands typed, output compared.

A block whose first line names a file (```toml problem.toml) is written into the folder; a `console` block is typed, one
command after the other; a `python` block is run. What is shown below a command, or in the `text` block below a program,
has to come out of it, line by line: a line of `...` stands for any lines, and numbers, with their units, are not
compared, as machines differ. After `<!-- yours will differ -->` a block has to go through, and that is all.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from typer.testing import CliRunner

from dovetail.cli.main import app

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?P<differs><!-- yours will differ -->\n+)?^```(?P<language>\w*)[ ]?(?P<file>.*?)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"\d[\d.,:e+-]*(?: ?(?:[kM]\b|[munk]?s\b|min\b|h\b|[kMG]i?B\b|%|x\b))*(?: [kMG])?(?:/s)?")
WAITING = re.compile(r"^(?:(?:compil|load)ing the planner|planning by `[a-z-]+`).* \.\.\.$")
ANY = "..."
LIMIT_S = 240.0
WIDTH = "118"

Typed = Callable[[str, Path], tuple[str, int]]
"""Types a command in a folder; returns what a terminal would show, and the exit status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    language: str
    file: str
    text: str
    differs: bool

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the commands of a console block with the lines that are shown below each."""
        for part in re.split(r"^\$ ", self.text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            yield command, [ANY] if self.differs else shown


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    return [
        Block(language=found["language"], file=found["file"], text=found["text"], differs=bool(found["differs"]))
        for found in FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


def as_newcomers(command: str, folder: Path) -> tuple[str, int]:
    """Type a command in a process of its own, as people do."""
    words = shlex.split(command, comments=True)
    programs = {
        "dovetail": [sys.executable, "-c", "from dovetail.cli.main import main; main()"],
        "python": [sys.executable],
    }
    paths = os.pathsep.join(path for path in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if path)
    done = subprocess.run(
        [*programs[words[0]], *words[1:]],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "COLUMNS": WIDTH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.stdout, done.returncode


def in_this_process(command: str, folder: Path) -> tuple[str, int]:
    """Type a command that starts nobody and loads little; the folder is the one that this process is in."""
    words = shlex.split(command, comments=True)
    if words[0] == "python":
        said = StringIO()
        with redirect_stdout(said):
            runpy.run_path(str(folder / words[1]), run_name="__main__")
        return said.getvalue(), 0
    done = CliRunner(env={"COLUMNS": WIDTH}).invoke(app, words[1:])
    return done.output, done.exit_code


def steady(line: str) -> str:
    """Return a line without its numbers, the strokes of its table and the room between its words."""
    return " ".join(re.sub(r"─+", "─", NUMBER.sub("#", line)).split())


def is_shown(shown: list[str], output: str) -> bool:
    """Say whether the lines of a page are those of an output; a line of `...` stands for any."""
    wanted, found = (
        [steady(line) for line in lines if line.strip() and not WAITING.match(line)]
        for lines in (shown, output.splitlines())
    )
    pattern = "".join("(?:[^\n]*\n)*?" if line == ANY else re.escape(line) + "\n" for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in found)) is not None


def follow(page: Path, folder: Path, typed: Typed = as_newcomers) -> list[str]:
    """Do what a page says, and return what came out otherwise than it shows."""
    blocks, wrong = blocks_of(page), []
    for place, block in enumerate(blocks):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
            continue
        steps = list(block.commands()) if block.language == "console" else []
        if block.language == "python":
            below = blocks[place + 1] if place + 1 < len(blocks) else None
            is_output = below is not None and below.language == "text"
            (folder / "block.py").write_text(block.text, encoding="utf-8")
            steps = [("python block.py", below.text.splitlines() if below is not None and is_output else [ANY])]
        for command, shown in steps:
            output, status = typed(command, folder)
            is_error = any(line.startswith("error:") for line in shown)
            if status != is_error or not is_shown(shown, output):
                wrong.append(f"$ {command}\n{output}(exit status {status}), where the page shows:\n" + "\n".join(shown))
    return wrong
