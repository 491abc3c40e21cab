"""Reading other people's text files, with errors that name the file and the line."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import SpecError


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError("no such file", file=str(path), hint="give the path of a trace") from None
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=str(path), hint="give the path of a trace") from None
    except UnicodeDecodeError:
        raise SpecError("is not text", file=str(path), hint="give a trace in UTF-8") from None
    return [line for line in text.splitlines() if line.strip()]


def whole_number(text: str, *, what: str, number: int, path: Path) -> int:
    """Return a field as a whole number, or say on which line it is none."""
    if not text.strip().isdigit():
        raise SpecError(
            f"line {number}: {what} is `{text.strip()}`", file=str(path), hint="expected a whole number there"
        )
    return int(text)


def number_in(text: str, *, what: str, number: int, path: Path) -> float:
    """Return a field as a number of at least zero, or say on which line it is none."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise SpecError(
            f"line {number}: {what} is `{text.strip()}`",
            file=str(path),
            hint="expected a number of at least zero there",
        )
    return value
