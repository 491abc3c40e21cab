"""The HTML page of a chart: the picture inline, and its facts as a table."""

from __future__ import annotations

import html
from dataclasses import dataclass

from dovetail.charts.style import ACCENT, ALARM, FAINT, INK, MUTED, PAPER, QUIET

_PAGE_COLOURS = {
    "paper": (PAPER, "#15181d"),
    "ink": (INK, "#eceff4"),
    "muted": (MUTED, "#a0a8b5"),
    "quiet": (QUIET, "#687180"),
    "faint": (FAINT, "#3b424d"),
    "accent": (ACCENT, "#63b3ee"),
    "alarm": (ALARM, "#ff8a80"),
}
"""What the colours are called on the page, with what each is by day and in the dark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTable:
    """The facts of a chart as text, for readers who cannot see it or want the numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def html_page(title: str, svg: str, table: FactTable | None) -> str:
    """Return one HTML page that needs no other file: the picture inline and its facts beneath."""
    picture = svg[svg.index("<svg") :]
    for name, (by_day, _) in _PAGE_COLOURS.items():
        picture = picture.replace(by_day, f"var(--{name})")
    return _PAGE.format(
        title=html.escape(title),
        light=" ".join(f"--{name}: {by_day};" for name, (by_day, _) in _PAGE_COLOURS.items()),
        dark=" ".join(f"--{name}: {in_the_dark};" for name, (_, in_the_dark) in _PAGE_COLOURS.items()),
        picture=picture.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1),
        table=_table(table) if table else "",
    )


def _table(table: FactTable) -> str:
    """Return facts as an HTML table."""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table>\n<caption>{html.escape(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n"
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ {light} color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
body {{ margin: 0 auto; padding: 1.5rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }}
.wide {{ overflow-x: auto; }}
svg {{ display: block; width: 100%; min-width: 44rem; height: auto; }}
table {{ margin: 1.5rem 0; border-collapse: collapse; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; color: var(--muted); padding-bottom: .5rem; }}
th, td {{ text-align: left; padding: .3rem 1.4rem .3rem 0; border-bottom: 1px solid var(--faint);
  white-space: nowrap; }}
th {{ color: var(--muted); font-weight: 600; }}
</style>
</head>
<body>
<div class="wide">
{picture}</div>
{table}</body>
</html>
"""
