"""What the site has beside the files of this folder: results, a page a claim, and links to files of the repository.

MkDocs calls it (`hooks` in mkdocs.yml). Results stay where their benchmarks are, in `benchmarks/results`.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FOLDERS = {"Start here": "start", "Guides": "guides", "Concepts": "concepts", "Reference": "reference"}
"""Where the pages of each section of the navigation are."""
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s]+)(\))")
CHART = re.compile(r"^<!-- chart: (.+?) -->\n+((?:\|.*\n)+)", re.MULTILINE)
COMMAND = re.compile(r"(?:python benchmarks/|pytest |dovetail )[^`\n#]*[^`\n# ]")
SHOWN_AS_TEXT = {".py": "python", ".toml": "toml", ".json": "json", ".md": None}
"""Files of the repository that pages link to and that get a page of their own, with the language they are in."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the results to the navigation, and to each section the pages of its folder that it does not name."""
    for section in config.nav or []:
        for heading, entries in section.items():
            named = {place for entry in entries for place in (entry.values() if isinstance(entry, dict) else [entry])}
            folder = ROOT / "docs" / FOLDERS[heading]
            others = [path for path in sorted(folder.glob("*.md")) if f"{folder.name}/{path.name}" not in named]
            entries += [{title_of(path): f"{folder.name}/{path.name}"} for path in others]
    pages = [{title_of(path): f"results/{path.name}"} for path in sorted(RESULTS.glob("*.md"))]
    config.nav = [*(config.nav or []), {"Results": [{"All claims": "results/index.md"}, *pages]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages of the results, and of files of the repository that other pages link to."""
    made = {"results/index.md": results_index()}
    made |= {f"results/{path.name}": with_charts(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.md")}
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()} | made
    for source, text in texts.items():
        for _, target, _ in LINK.findall(text):
            path = repository_file(source, target)
            if path is not None and path.suffix in SHOWN_AS_TEXT and place_of(path) not in made:
                made[place_of(path)] = shown(path)
    for name, content in made.items():
        level = InclusionLevel.NOT_IN_NAV if name.startswith("files/") else InclusionLevel.INCLUDED
        files.append(File.generated(config, name, content=content, inclusion=level))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Lead links to files of the repository to the pages that they have here."""
    source = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        path = repository_file(source, match[2])
        if path is None or path.suffix not in SHOWN_AS_TEXT:
            return match[0]
        anchor = match[2].partition("#")[2]
        there = posixpath.relpath(place_of(path), posixpath.dirname(source) or ".")
        return f"{match[1]}{there}{'#' + anchor if anchor else ''}{match[3]}"

    return LINK.sub(led, markdown)


def repository_file(source: str, target: str) -> Path | None:
    """Return the file outside this folder that a link of a page leads to, or None."""
    if re.match(r"[a-z]+:|#", target):
        return None
    folder = RESULTS if source.startswith("results/") else ROOT / "docs" / posixpath.dirname(source)
    path = (folder / target.partition("#")[0]).resolve()
    is_inside = path.is_relative_to(ROOT / "docs") and path.suffix == ".md"
    return path if path.is_file() and path.is_relative_to(ROOT) and not is_inside else None


def place_of(path: Path) -> str:
    """Return where a file of the repository is on the site."""
    if path.is_relative_to(RESULTS):
        return f"results/{path.name}"
    return f"files/{path.relative_to(ROOT).as_posix().removesuffix('.md')}.md"


def shown(path: Path) -> str:
    """Return a page that shows a file."""
    text, language = path.read_text(encoding="utf-8"), SHOWN_AS_TEXT[path.suffix]
    if language is None:
        return text
    return f"---\nsearch:\n  exclude: true\n---\n# {path.relative_to(ROOT)}\n\n````{language}\n{text}````\n"


def title_of(path: Path) -> str:
    """Return the title of a page."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")


def results_index() -> str:
    """Return the page of all claims: the question, its command, and where the answer is."""
    lines = [
        "# Results",
        "",
        "Every figure that these pages quote comes from a command, on a machine that is named, with ",
    ]
    lines[-1] += "what speaks against it before the figures."
    lines += ["", "| question | command | answer |", "|---|---|---|"]
    for path in sorted(RESULTS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        question, command = re.search(r"^\*\*Question\.\*\* (.+)$", text, re.MULTILINE), COMMAND.search(text)
        answer = f"[{title_of(path)}]({path.name})"
        lines.append(f"| {question[1] if question else ''} | {f'`{command[0]}`' if command else ''} | {answer} |")
    return "\n".join(lines) + "\n"


def with_charts(text: str) -> str:
    """Return a result with a chart above each table that asks for one: `<!-- chart: COLUMN -->`."""
    return CHART.sub(lambda match: f"{bars(match[2], match[1])}\n\n{match[2]}", text)


def bars(table: str, column: str) -> str:
    """Return a column of a Markdown table as bars, one a row; rows without a number are left out."""
    plain = re.sub(r"[*`]", "", table)
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in plain.splitlines()]
    place = rows[0].index(column)
    found = [(row[0], re.search(r"\d[\d,]*\.?\d*", row[place])) for row in rows[2:]]
    values = [(name, float(number[0].replace(",", ""))) for name, number in found if number]
    longest, left = max(value for _, value in values), min(430, 7 * max(len(name) for name, _ in values) + 8)
    parts = []
    for line, (name, value) in enumerate(values):
        y, width = line * 26, (720 - left) * value / longest
        parts.append(
            f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="{left}" y="{y + 4}" width="{width:.1f}" height="18" rx="2" fill="#2f7fc1"/>'
            f'<text x="{left + 6 + width:.1f}" y="{y + 17}">{value:,g}</text>'
        )
    label = html.escape(f"{column}, by {rows[0][0] or 'row'}")
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 800 {26 * len(values) + 4}" '
        f'style="width:100%;max-width:52rem;font:13px sans-serif;fill:currentColor">{"".join(parts)}</svg>'
    )
