"""The documentation: generated where it can be, and true where it was written."""

import ast
import functools
import importlib
import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

import dovetail
from dovetail.cli.examples import EXAMPLES
from dovetail.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

REFERENCE = sorted(page.name for page in (DOCS / "reference").glob("*.md"))
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))

FENCE = re.compile(r"^```(\w*)[ ]?(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TOOK = re.compile(r"found in [\d.]+ \w+")
WAITING = re.compile(r"^(?:(?:compil|load)ing the planner|planning by `[a-z-]+`).* \.\.\.\n", re.MULTILINE)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    if str(DOCS) not in sys.path:
        sys.path.append(str(DOCS))  # where its other half is
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def console_steps(page: Path) -> list[tuple[str, str]]:
    """Return the commands of a page's console blocks, each with the output that is shown below it."""
    steps: list[tuple[str, list[str]]] = []
    for language, _, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "console":
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return [(command, "\n".join(output)) for command, output in steps]


def commands_of(page: Path) -> list[list[str]]:
    """Return the words of every `dovetail` command line that a page shows."""
    found = [shlex.split(command, comments=True) for command, _ in console_steps(page)]
    return [words[1:] for words in found if words[0] == "dovetail"]


@functools.cache
def whole_command() -> Any:
    """Return `dovetail` with everything below it."""
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Parse a command line down to its last option, without running anything."""
    command, name, rest = whole_command(), "dovetail", words
    while True:
        below = getattr(command, "commands", {})
        if not below:
            command.make_context(name, list(rest))
            return
        assert rest, f"`{name}` needs a command"
        assert rest[0] in below, f"`{rest[0]}` is no command of `{name}`"
        command, name, rest = below[rest[0]], rest[0], rest[1:]


def as_shown(output: str) -> list[str]:
    """Return output without what changes from run to run: how long planning took, and that one waits for it."""
    steady = TOOK.sub("found in a moment", WAITING.sub("", output))
    return [line.rstrip() for line in steady.strip("\n").splitlines() if line.strip()]


@pytest.mark.parametrize("page", REFERENCE)
def test_the_reference_is_what_the_code_says(page: str) -> None:
    expected = load_generator().pages()[page]

    on_disk = (DOCS / "reference" / page).read_text(encoding="utf-8")

    assert on_disk == expected, f"docs/reference/{page} is out of date: run `python docs/generate.py`"


def test_the_reference_does_not_depend_on_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = load_generator()
    wide = generator.commands()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERMINAL_WIDTH", "40")

    assert generator.commands() == wide


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in LINK.findall(text) if not re.match(r"[a-z]+:|#", target)]

    missing = [target for target in targets if not (page.parent / target.partition("#")[0]).exists()]

    assert not missing, f"{name_of(page)} links to {missing}"


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_every_command_line_of_a_guide_can_be_parsed(page: Path) -> None:
    for words in commands_of(page):
        try:
            parse(words)
        except Exception as error:  # a wrong option, a missing argument, a value of the wrong kind
            pytest.fail(f"{name_of(page)}: dovetail {shlex.join(words)}: {error!r} {error}")


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_file_shown_in_a_guide_is_the_file_beside_it(page: Path) -> None:
    # One without a folder is written by whoever follows the page: tests/test_pages_followed.py.
    shown = [(file, block) for _, file, block in FENCE.findall(page.read_text(encoding="utf-8")) if "/" in file]

    for file, block in shown:
        assert block == (page.parent / file).read_text(encoding="utf-8"), f"{name_of(page)} shows another {file}"


@pytest.mark.parametrize("page", RESULTS, ids=name_of)
def test_a_result_begins_with_its_question_and_its_caveats_and_names_its_command(page: Path) -> None:
    title, question, caveats, *rest = [part for part in page.read_text(encoding="utf-8").split("\n\n") if part.strip()]

    assert title.startswith("# ")
    assert re.fullmatch(r"\*\*Question\.\*\* [A-Z].*\?", question)
    assert caveats.startswith("**Caveats.** ")
    assert re.search(r"python benchmarks/\w+\.py|pytest ", "".join(rest))


def test_what_is_said_to_those_who_wait_is_no_part_of_what_is_compared() -> None:
    busy = "compiling the planner for this machine, once ...\nplanning by `brute-force` ...\na plan, found in 1.2 s\n"

    assert as_shown(busy) == as_shown("a plan, found in 30 ms\n") == ["a plan, found in a moment"]


@pytest.mark.parametrize(
    ("guide", "command"),
    [
        pytest.param(guide, command, id=f"{guide}: {number}")
        for guide in ("plan.md", "compare-methods.md")
        for number, (command, output) in enumerate(console_steps(DOCS / "guides" / guide))
        if output.strip() and not re.search(r"--method rl|--compare", command)
    ],
)
def test_a_command_of_a_guide_prints_what_the_guide_shows(
    guide: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(DOCS / "guides" / "problems", tmp_path / "problems")
    monkeypatch.chdir(folder)
    steps = console_steps(DOCS / "guides" / guide)
    position = [shown for shown, _ in steps].index(command)
    if "plan.json" in command and "--out" not in command:
        CliRunner().invoke(app, ["plan", "problem.toml", "--out", "plan.json"])

    result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])

    # Messages go to stderr and results to stdout, so a terminal may mix the two.
    assert sorted(as_shown(result.output)) == sorted(as_shown(steps[position][1]))


@pytest.mark.parametrize(
    "command", ["plan examples/problems/two-sites.toml", "simulate examples/workloads/two-sites.json"]
)
def test_a_command_of_the_guide_on_sites_prints_what_the_guide_shows(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = dict(console_steps(DOCS / "guides" / "plan-sites.md"))[f"dovetail {command}"]

    result = CliRunner().invoke(app, command.split())

    # The table of a simulation also says what its decisions took.
    took = re.compile(r"(\d%) +[\d.e-]+ ")
    assert sorted(as_shown(took.sub(r"\1 ", result.output))) == sorted(as_shown(took.sub(r"\1 ", shown)))


def test_the_python_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(DOCS / "guides" / "problems", tmp_path / "problems")
    monkeypatch.chdir(folder)
    text = (DOCS / "guides" / "plan.md").read_text(encoding="utf-8")
    code = next(block for language, file, block in FENCE.findall(text) if language == "python" and not file)

    exec(compile(code, "plan.md", "exec"), {})

    # 4e9 / 4096 batches of 7 ms at 23 x 0.04 + 2.42 USD an hour.
    cost, optimal, stages = capsys.readouterr().out.strip().split(" ", 2)
    assert float(cost) == pytest.approx(4e9 / 4096 * 0.007 / 3600 * 3.34)
    assert (optimal, stages) == ("True", "[('cpu', 23), ('v100', 1)]")
    assert f"{cost} {optimal} {stages}\n" in text


def missing_files(text: str) -> list[str]:
    """Return the files that a text of architecture.md names and that are not there.

    A name is a path from the package, from `runtime/`, or from the folder of the name before or one above it.
    """
    source = DOCS.parent / "src" / "dovetail"
    folder, missing = source, []
    for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", text):
        places = (source, source / "runtime", folder, folder.parent)
        found = [place / name for place in places if (place / name).exists()]
        missing += [] if found else [name]
        folder = found[0].parent if found else folder
    return missing


def test_every_file_that_the_walks_name_is_there() -> None:
    text = (DOCS / "concepts" / "architecture.md").read_text()
    walks = text[text.index("1. `cli/train.py`") : text.index("[Training](training.md)")]

    assert walks.count(".py`") > 60
    assert missing_files(walks) == []


def test_the_map_says_of_every_decision_in_which_file_it_is() -> None:
    text = (DOCS / "concepts" / "architecture.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text[text.index("## Where is it decided?") :].split("\n## ")[0], re.M)
    source = DOCS.parent / "src" / "dovetail"
    files = [name for _, cell in rows[1:] for name in re.findall(r"`([^`]+)`", cell)]

    assert len(rows) > 40
    assert [name for name in files if not (source / name).is_file()] == []


def test_the_reference_has_every_environment_variable() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "src").rglob("*.py"))
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")

    used, listed = (
        set(re.findall(r"\bDOVETAIL_[A-Z_]+", source)),
        set(re.findall(r"^\| `(DOVETAIL_[A-Z_]+)`", page, re.M)),
    )
    assert used == listed


def names_of_guide(page: Path) -> tuple[set[str], dict[str, str]]:
    """Return the names of Dovetail's that the Python of a guide uses, and where it imports names from."""
    public = {
        name
        for module in ("dovetail.data", "dovetail.models", "dovetail.runtime", "dovetail.embedding", "dovetail.spec")
        for name in importlib.import_module(module).__all__
    }
    used: set[str] = set()
    imported: dict[str, str] = {}
    for language, _, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                imported |= {alias.name: node.module or "" for alias in node.names}
            elif isinstance(node, ast.Name) and node.id in public:
                used.add(node.id)
            elif isinstance(node, ast.ClassDef):
                used.discard(node.name)
                imported.setdefault(node.name, "")
    return used, imported


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_guide_says_where_everything_it_uses_is_imported_from(page: Path) -> None:
    used, imported = names_of_guide(page)

    for name, module in imported.items():
        if module.startswith("dovetail"):
            has_name = hasattr(importlib.import_module(module), name)
            assert has_name or importlib.util.find_spec(f"{module}.{name}"), f"{name_of(page)}: {module} has no {name}"
    assert not used - set(imported), f"{name_of(page)} does not say where {sorted(used - set(imported))} come from"


def test_a_citation_names_the_version_that_there_is() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    assert citation["version"] == dovetail.__version__
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)


@pytest.mark.parametrize("command", [words for each in EXAMPLES.values() for words, _ in each])
def test_an_example_of_the_help_can_be_typed(command: str) -> None:
    program, *words = shlex.split(command)

    assert program == "dovetail"
    parse(words)


def test_examples_of_the_help_are_of_the_command_whose_help_it_is() -> None:
    below = whole_command().commands

    for name, each in EXAMPLES.items():
        assert all(words.split()[1] == name for words, _ in each)
        assert each[0][0] in below[name].epilog
