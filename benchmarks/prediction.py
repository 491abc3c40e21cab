"""How far what Dovetail predicts is from what was measured.

    python benchmarks/prediction.py --part clusters                 # whole plans on real clusters
    python benchmarks/prediction.py --part clusters --plans DIR     # other plans of that format
    python benchmarks/prediction.py --part clusters --json          # the same rows as one line, last

Prints a row a case (predicted, measured, error, and what the simplest prediction gives), then the median and the worst
absolute error of each group. A case that cannot be predicted is named with its reason, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError

PARTS = ("clusters", "cpu", "gpu")
"""Each part is a file `prediction_PART.py` beside this one with `run(arguments) -> list[dict]`.

A row has `plan`, `group`, `unit`, `predicted`, `measured` and `simple`, where `measured` and `simple` may be None; or
`plan`, `group` and `refused`, the reason why there is no prediction."""


def with_errors(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with the relative errors of its two predictions, None where there is nothing to compare."""
    if "refused" in row:
        return row
    measured = row["measured"]
    errors = {
        name: None if measured is None or row[key] is None else row[key] / measured - 1
        for name, key in (("error", "predicted"), ("simple_error", "simple"))
    }
    return row | errors


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the median and worst absolute errors of each group that has any."""
    groups: dict[str, dict[str, float]] = {}
    for group in dict.fromkeys(row["group"] for row in rows):
        figures: dict[str, float] = {}
        for name in ("error", "simple_error"):
            errors = [abs(row[name]) for row in rows if row["group"] == group and row.get(name) is not None]
            if errors:
                figures |= {f"median_{name}": statistics.median(errors), f"worst_{name}": max(errors)}
        if figures:
            groups[group] = figures | {"num_plans": sum(row["group"] == group for row in rows)}
    return groups


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a row a case."""
    width = max(len(row["plan"]) for row in rows) + 2
    print(f"{'plan':{width}}{'predicted':>18}{'measured':>18}{'error':>9}{'simple':>18}{'error':>9}")
    for row in rows:
        if "refused" in row:
            print(f"{row['plan']:{width}}refused: {row['refused']}")
            continue
        cells = [value_text(row[key], row["unit"]) for key in ("predicted", "measured", "simple")]
        errors = [error_text(row[key]) for key in ("error", "simple_error")]
        print(f"{row['plan']:{width}}{cells[0]:>18}{cells[1]:>18}{errors[0]:>9}{cells[2]:>18}{errors[1]:>9}")


def value_text(value: float | None, unit: str) -> str:
    """Return a value with its unit, or a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def error_text(error: float | None) -> str:
    """Return a signed percentage, or a dash."""
    return "-" if error is None else f"{100 * error:+.1f}%"


def print_summary(groups: dict[str, dict[str, float]]) -> None:
    """Print a line a group."""
    for group, figures in groups.items():
        print(f"\n{group}, {figures['num_plans']} plans: absolute error", end="")
        for name, title in (("error", "predicted"), ("simple_error", "simple")):
            if f"median_{name}" in figures:
                median, worst = figures[f"median_{name}"], figures[f"worst_{name}"]
                print(f"   {title} median {100 * median:.1f}%, worst {100 * worst:.1f}%", end="")
    print()


def parse_arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default=PARTS[0])
    parser.add_argument("--plans", type=Path, help="folder of plans (clusters; default: those of the data folder)")
    parser.add_argument("--data", type=Path, default=os.environ.get("DOVETAIL_DATA"), help="default: $DOVETAIL_DATA")
    parser.add_argument("--json", action="store_true", help="print everything as one line of JSON, last")
    return parser.parse_args()


def main() -> int:
    """Print the part that was asked for; return the exit status."""
    arguments = parse_arguments()
    try:
        rows = [with_errors(row) for row in importlib.import_module(f"prediction_{arguments.part}").run(arguments)]
    except DovetailError as error:
        print(f"error: {error}\n\nhint: {error.hint}", file=sys.stderr)
        return 1
    groups = summary(rows)
    print_table(rows)
    print_summary(groups)
    if arguments.json:
        print(json.dumps({"part": arguments.part, "groups": groups, "rows": rows}))
    return int(any("refused" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
