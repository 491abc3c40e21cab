"""Print how much of each package the tests ran: `.ci/packages.py`, after `pytest --cov`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from coverage import Coverage

SOURCE = Path(__file__).parents[1] / "src" / "dovetail"
DEEP = ("runtime",)
"""Packages so large that each part has a line of its own."""


def package_of(path: Path) -> str:
    """Return the package that a file is counted for."""
    *folders, _ = path.relative_to(SOURCE).parts
    return ".".join(["dovetail", *folders[: 2 if folders[:1] in [[name] for name in DEEP] else 1]])


def main() -> None:
    """Read what was measured, and print a table."""
    measured = Coverage()
    measured.load()
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted(SOURCE.rglob("*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        for name in (package_of(path), "all"):
            totals[name][0] += len(statements)
            totals[name][1] += len(missing)
    everything = totals.pop("all")
    print(f"{'package':<34}{'statements':>12}{'not run':>10}{'covered':>10}")
    for name, (num_statements, num_missing) in [*sorted(totals.items()), ("all", everything)]:
        share = 1 - num_missing / num_statements if num_statements else 1.0
        print(f"{name:<34}{num_statements:>12,}{num_missing:>10,}{share:>10.1%}")


if __name__ == "__main__":
    main()
