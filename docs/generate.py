"""Write the reference pages from the code, so that they cannot say anything else: `python docs/generate.py`."""

from __future__ import annotations

import inspect
import json
import sys
import tomllib
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import typer
from generate_names import errors, metrics, python_names
from msgspec import NODEFAULT, Struct

from dovetail.cli.main import app
from dovetail.planner.demands import Demands
from dovetail.planner.plan import cheapest_plan
from dovetail.spec import Plan, Problem
from dovetail.spec.checks import field_descriptions
from dovetail.spec.hosts import Host, HostsFile
from dovetail.spec.run import Run
from dovetail.spec.workload import Workload

REFERENCE = Path(__file__).resolve().parent / "reference"
RUN_EXAMPLE = REFERENCE.parents[1] / "examples" / "runs" / "ctr-dnn.toml"

HEADS = ("key", "type", "needed", "meaning")
FIRST_KEYS = (
    "model.name",
    "model.options",
    "data.name",
    "data.options",
    "data.samples",
    "training.batch",
    "training.epochs",
    "training.mode",
    "training.dense",
    "training.seed",
    "training.plan",
    "optimizer.name",
    "optimizer.learning_rate",
    "servers.count",
    "worker.name",
    "worker.count",
    "worker.device",
    "table.place",
    "checkpoint.every_steps",
    "validation.every_epochs",
)
"""The twenty keys of a run file that people use; the others are for experts."""
WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path",
}
"""What the types of Python are called on the pages."""


# Files: the keys of a struct, and of the structs inside it.


def problem_file() -> str:
    """Return the page of the problem file."""
    example_problem()  # the example is a problem, or there is no page
    lines = [PROBLEM_INTRODUCTION, "```toml", PROBLEM_EXAMPLE.strip(), "```", ""]
    for heading, kind in _tables(Problem):
        lines += [f"## {heading}", "", *_struct_lines(kind), PROBLEM_NOTES.get(heading, "")]
    return _page(lines)


def plan_file() -> str:
    """Return the page of the plan file."""
    lines = [PLAN_INTRODUCTION, "```json", _plan_example(), "```", ""]
    lines += ["## The plan", "", *_struct_lines(Plan)]
    for field in msgspec.structs.fields(Plan):
        if (kind := _struct_in(field.type)) is not None:
            lines += [f"## Each of `{field.encode_name}`", "", *_struct_lines(kind)]
    return _page([*lines, PLAN_NOTES])


def workload_file() -> str:
    """Return the page of the workload file."""
    msgspec.json.decode(WORKLOAD_EXAMPLE, type=Workload)  # the example is a workload, or there is no page
    lines = [WORKLOAD_INTRODUCTION, "```json", WORKLOAD_EXAMPLE.strip(), "```", ""]
    lines += ["## The workload", "", *_struct_lines(Workload)]
    for field in msgspec.structs.fields(Workload):
        if (kind := _struct_in(field.type)) is not None:
            lines += [f"## Each of `{field.encode_name}`", "", *_struct_lines(kind)]
    return _page(lines)


def run_file() -> str:
    """Return the page of the run file."""
    example = RUN_EXAMPLE.read_text(encoding="utf-8")
    msgspec.convert(tomllib.loads(example), Run)  # the example is a run, or there is no page
    lines = [RUN_INTRODUCTION, "```toml", example.strip(), "```", ""]
    rows = [_row(field, kind, f"{heading.strip('`[]')}.") for heading, kind, field in _first_fields()]
    lines += ["## The keys that people use", "", *_table(HEADS, rows), "", RUN_EXPERT_KEYS]
    for heading, kind in _tables(Run):
        section = heading.strip("`[]")
        left_out = {key.removeprefix(f"{section}.") for key in FIRST_KEYS if key.startswith(f"{section}.")}
        lines += [f"## {heading}", "", *_struct_lines(kind, left_out), RUN_NOTES.get(heading, "")]
    return _page(lines)


def _first_fields() -> Iterator[tuple[str, type[Struct], msgspec.structs.FieldInfo]]:
    """Yield the keys of a run file that people use, in the order of the file: heading, table, key."""
    known = {
        f"{heading.strip('`[]')}.{field.encode_name}": (heading, kind, field)
        for heading, kind in _tables(Run)
        for field in msgspec.structs.fields(kind)
    }
    yield from (known[key] for key in FIRST_KEYS)


def hosts_file() -> str:
    """Return the page of the hosts file."""
    msgspec.convert(tomllib.loads(HOSTS_EXAMPLE), HostsFile)  # the example is a hosts file, or there is no page
    lines = [HOSTS_INTRODUCTION, "```toml", HOSTS_EXAMPLE.strip(), "```", ""]
    lines += ["## The file", "", *_struct_lines(HostsFile), "## `[[host]]`", "", *_struct_lines(Host)]
    return _page(lines)


def example_problem() -> Problem:
    """Return the problem that the pages show."""
    return msgspec.convert(tomllib.loads(PROBLEM_EXAMPLE), Problem)


def _plan_example() -> str:
    """Return the plan of the problem that the pages show, its numbers in ten figures, which every machine agrees on."""
    made = cheapest_plan(example_problem(), Demands(), clock=lambda: 0.0)
    plain = msgspec.to_builtins(msgspec.structs.replace(made, seconds=0.0008))
    return json.dumps(_in_ten_figures(plain), indent=2)


def _in_ten_figures(value: Any) -> Any:
    """Return plain values with every number rounded to ten figures."""
    if isinstance(value, dict):
        return {key: _in_ten_figures(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_in_ten_figures(entry) for entry in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def _tables(kind: type[Struct], path: str = "") -> Iterator[tuple[str, type[Struct]]]:
    """Yield the heading and the struct of every table a TOML file of `kind` can have, those inside others too."""
    for field in msgspec.structs.fields(kind):
        inner = _struct_in(field.type)
        if inner is None:
            continue
        name = f"{path}{field.encode_name}"
        if get_origin(_plain(field.type)) is dict:
            name += ".NAME"
        heading = f"[[{name}]]" if get_origin(_plain(field.type)) in (tuple, Sequence) else f"[{name}]"
        yield f"`{heading}`", inner
        yield from _tables(inner, f"{name}.")


def _struct_lines(kind: type[Struct], left_out: Container[str] = ()) -> list[str]:
    """Return what a struct is, and a table of its keys but for some."""
    rows = [_row(field, kind) for field in msgspec.structs.fields(kind) if field.encode_name not in left_out]
    return [inspect.getdoc(kind) or "", "", *([*_table(HEADS, rows), ""] if rows else [])]


def _row(field: msgspec.structs.FieldInfo, kind: type[Struct], before: str = "") -> tuple[str, str, str, str]:
    """Return a key of a struct as a row of a table."""
    meaning = field_descriptions(kind).get(field.name, "")
    return f"`{before}{field.encode_name}`", _in_words(field.type), _presence(field), meaning


def _presence(field: msgspec.structs.FieldInfo) -> str:
    """Return whether a key is needed, and what it is where it is left out."""
    if field.default is NODEFAULT:
        return "required" if field.default_factory is NODEFAULT else "optional"
    if field.default is None or field.default == () or isinstance(field.default, Struct):
        return "optional"
    return f"default `{_value(field.default)}`"


def _struct_in(hint: Any) -> type[Struct] | None:
    """Return the struct inside a hint such as `tuple[Layer, ...]`, or None."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    return next((found for inner in get_args(hint) if (found := _struct_in(inner)) is not None), None)


# Commands: every command of the app, with its arguments and options.


def commands() -> str:
    """Return the page of the command line."""
    lines = [COMMANDS_INTRODUCTION]
    for path, command in _commands(("dovetail",), typer.main.get_command(app)):
        lines += [f"## `{' '.join(path)}`", "", *_command_lines(path, command)]
    rows = [(f"`{name}`", *rest) for name, *rest in VARIABLES]
    return _page([*lines, "## Environment variables", "", *_table(("variable", "set by", "meaning"), rows)])


def _commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and all commands below it, each with the words that call it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _commands((*path, name), below)


def _command_lines(path: tuple[str, ...], command: Any) -> list[str]:
    """Return how a command is called, what it does, and tables of its arguments and options."""
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    shown = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [parameter for parameter in shown if parameter.param_type_name == "option"]
    below = getattr(command, "commands", {})
    words = [*path, "[OPTIONS]"] if options else [*path]
    words += [_argument_name(argument) for argument in arguments] + (["COMMAND"] if below else [])
    lines = [*inspect.cleandoc(command.help or "").splitlines(), "", "```text", " ".join(words), "```", ""]
    if command.epilog:
        lines += ["```bash", *(line.strip().removeprefix("$ ") for line in command.epilog.split("\n\n")[1:]), "```", ""]
    if arguments:
        rows = [(f"`{_argument_name(argument)}`", argument.help or "") for argument in arguments]
        lines += [*_table(("argument", "meaning"), rows), ""]
    for panel in dict.fromkeys(getattr(option, "rich_help_panel", None) for option in options):
        within = [option for option in options if getattr(option, "rich_help_panel", None) == panel]
        rows = [_option_row(option, hints.get(option.name)) for option in within]
        lines += [*([f"{panel}:", ""] if panel else []), *_table(("option", "value", "default", "meaning"), rows), ""]
    if below:
        rows = [(f"`{' '.join((*path, name))}`", inner.get_short_help_str(1000)) for name, inner in below.items()]
        lines += [*_table(("command", "what it does"), rows), ""]
    return lines


def _argument_name(argument: Any) -> str:
    """Return what an argument is called in the usage line."""
    return str(argument.metavar or argument.name.upper())


def _option_row(option: Any, hint: Any) -> tuple[str, str, str, str]:
    """Return the row of one option."""
    names = " ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names, "", "", option.help or ""
    info = next((meta for meta in get_args(hint)[1:] if hasattr(meta, "min")), None)
    each = get_args(_plain(hint))[0] if option.multiple else hint
    value = f"`{option.metavar}`" if option.metavar else _in_words(each)
    if info is not None:
        value += "".join(
            f", {word} {bound:g}"
            for word, bound in (("at least", info.min), ("at most", info.max))
            if bound is not None
        )
    if option.multiple:
        value += ", repeatable"
    default = "" if option.default in (None, ()) else f"`{_value(option.default)}`"
    return names, value, default, option.help or ""


# Words.


def _in_words(hint: Any) -> str:
    """Return a type in words: `tuple[str, ...] | None` is a list of text."""
    hint = _plain(hint)
    if hint in WORDS:
        return WORDS[hint]
    inner = [argument for argument in get_args(hint) if argument not in (Ellipsis, NoneType)]
    if get_origin(hint) is Literal:
        return ", ".join(f"`{_value(word)}`" for word in inner)
    if get_origin(hint) is dict and not _struct_in(hint):
        return "table"
    if get_origin(hint) in (tuple, list):
        return "list, see below" if _struct_in(hint) else f"list of {_in_words(inner[0])}"
    if _struct_in(hint):
        return "table, see below"
    return " or ".join(_in_words(argument) for argument in inner)


def _plain(hint: Any) -> Any:
    """Return a hint without its annotations, and without the None of an optional one."""
    if hasattr(hint, "__metadata__"):
        return _plain(get_args(hint)[0])
    inner = [argument for argument in get_args(hint) if argument is not NoneType]
    return _plain(inner[0]) if len(inner) == 1 and len(inner) < len(get_args(hint)) else hint


def _value(value: Any) -> str:
    """Return a default as a file or a command line would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)


def _table(heads: tuple[str, ...], rows: list[Any]) -> list[str]:
    """Return a Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def _page(lines: list[str]) -> str:
    """Return lines as a page."""
    return "\n".join(lines).rstrip() + "\n"


PROBLEM_INTRODUCTION = """\
# The problem file

<!-- Written by docs/generate.py from the code. Do not edit. -->

A problem is a file in TOML or JSON. A name that ends in `.json` is read as JSON, one that ends in `.toml` as TOML. Any
other file is JSON if it starts with `{`. A key that is not listed here is an error, and so is a key given twice.

A whole problem:
"""
PROBLEM_EXAMPLE = """
[training]
samples = 45_840_617
epochs = 1
batch = 4096                  # the times below are for one batch
min_samples_per_s = 200_000   # the floor; 0 or absent = no floor

[[resource]]
name = "cpu"
kind = "cpu"
price_per_hour = 0.04         # USD per unit
limit = 960                   # units to be had

[[resource]]
name = "v100"
kind = "gpu"
price_per_hour = 2.42
limit = 32

[[layer]]
name = "embedding"
kind = "embedding"
output_bytes = 6_815_744      # what it hands on for one batch

[layer.on.cpu]                # on one unit, for one batch
compute_s = 0.110
comm_s = 0.020
compute_parallel = 0.98       # what more units can share
comm_parallel = 0.90

[[layer]]
name = "tower"
kind = "fc"

[layer.on.cpu]
compute_s = 0.700
comm_s = 0.010
compute_parallel = 0.99
comm_parallel = 0.50

[layer.on.v100]
compute_s = 0.006
comm_s = 0.002
compute_parallel = 0.99
comm_parallel = 0.50

[[link]]                      # no link at all = cuts are free
from = "cpu"
to = "v100"
bytes_per_s = 12.5e9
latency_s = 5e-5
"""
PROBLEM_NOTES = {
    "`[[machine]]`": """\
Without machines nothing is shared. With some, all units of kind cpu, servers, readers and the cores that feed
accelerators must fit into their cores together, and one process into one machine. Types that no machine names stand
elsewhere. See
[machines](../concepts/cost-model.md#machines).
""",
    "`[beside]`": """\
Without it stages are priced alone. `server_core_s` and `client_s` go together: without them rows are never on servers.
See
[what runs beside the layers](../concepts/cost-model.md#what-runs-beside-the-layers).
""",
    "`[[resource]]`": """\
`dovetail plan` also takes the key `type`, such as `type = "aws:g5.xlarge"`. The catalogue then brings `name`, `kind`,
`price_per_hour`, `memory_bytes`, `flops_per_s` and `memory_bytes_per_s`, as far as it knows them. What the table says
itself wins. See [the catalogue](../guides/catalogue.md).

An absent `limit` counts as a million units. Where no type has a `kind`, the cheapest counts as the cpu and the others
as gpus. Where some have one, a type without is `other`. Only the methods `cpu`, `gpu` and `heuristic` look at it.
""",
    "`[[layer]]`": """\
Layers may stand in any order: each is planned after the layers it reads. `after = []` is a layer that reads none. A
circle is an error.
""",
    "`[layer.on.NAME]`": """\
`NAME` is the name of a resource type. A type without such a table cannot run the layer.
""",
    "`[[link]]`": """\
Where any link is given, two types without one cannot be neighbours. A link serves both directions unless a second table
gives the way back. A link from a type to itself is what a cut inside that type costs (`--split-stages`).
""",
    "`[[site_link]]`": """\
Where any is given, every type needs a `site`, and types of two sites without a link between cannot be neighbours. It
serves both directions unless a second table gives the way back. See [plan over several sites](../guides/plan-sites.md).
""",
}
PLAN_INTRODUCTION = """\
# The plan file

<!-- Written by docs/generate.py from the code. Do not edit. -->

`dovetail plan --json` prints a plan as one JSON object on one line, the last on stdout. `--out FILE` writes the same
object to a file, which `dovetail check` reads.

The plan of the problem that [the problem file](problem-file.md) shows, with line breaks added and numbers rounded:
"""
PLAN_NOTES = """\
## Other objects

- `--pareto`: `{"method": ..., "pareto": [...]}`, with a plan for each point.
- `--compare`: `{"compare": [...]}`, with a plan for each method, or `{"method": ..., "error": ..., "hint": ...}` for a
  method that has none.
- A failure: `{"error": ..., "hint": ...}`, and the exit status is 1.
"""
COMMANDS_INTRODUCTION = """\
# Commands

<!-- Written by docs/generate.py from the code. Do not edit. -->

Results go to stdout, messages to stderr. The exit status is 0; 1 for a mistake that `error:` and `hint:` explain, or a
check that fails; 2 for a command line that makes no sense. Every command has `--help`.
"""

VARIABLES = (
    ("DOVETAIL_CATALOGUE", "you", "more catalogue files, separated like `PATH`"),
    ("DOVETAIL_LOG", "you", "`json`: every line that a process writes is a JSON object"),
    ("DOVETAIL_SERVER", "you", "the folder or address of the daemon that `submit`, `jobs` and so on ask"),
    ("DOVETAIL_TOKEN", "you", "the word by which a daemon at an address lets you in"),
    ("DOVETAIL_JOB", "the daemon, for a job", "its id"),
    ("DOVETAIL_JOB_FOLDER", "the daemon, for a job", "a folder that it keeps from start to start"),
    ("DOVETAIL_PROGRESS", "the daemon, for a job", "the file in which `dovetail.job` says how far it is"),
    ("DOVETAIL_WORKERS", "the daemon, for a job", "how many workers it has"),
    ("DOVETAIL_TYPE", "the daemon, for a job", "the type of its units"),
    ("DOVETAIL_UNITS", "the daemon, for a job", "which units it has, `0,2`"),
    ("DOVETAIL_GPUS", "the daemon, for a job", "the GPU of each worker at the start, with commas between"),
)
"""Beside these, CUDA_VISIBLE_DEVICES, NUMBA_CACHE_DIR and XDG_CACHE_HOME mean what they do elsewhere."""

WORKLOAD_INTRODUCTION = """\
# The workload file

What `dovetail simulate` reads: the nodes of a cluster and the jobs that share it, as JSON or TOML. Unknown keys are
errors.

`work` is in the units of `speed` times seconds. Between two worker counts in `speed` the speed is interpolated
linearly; below the first and beyond the last it is not allowed. A job runs on one type at a time, and every start takes
`restart_s`, with the workers held and no work done. So does a change of its size, unless `resize_s` says otherwise.
"""
WORKLOAD_EXAMPLE = """\
{"restart_s": 10.0,
 "nodes": [{"type": "v100", "workers": 4, "count": 16}],
 "jobs": [{"id": "a", "submit_s": 0.0, "work": 1000.0, "min_workers": 1, "max_workers": 8,
           "speed": {"v100": {"1": 1.0, "2": 1.9, "4": 3.4, "8": 5.9}}}]}
"""

RUN_INTRODUCTION = """\
# The run file

<!-- Written by docs/generate.py from the code. Do not edit. -->

What `dovetail train` reads, as TOML or JSON. Only `[model]` is needed. A key that is not listed here is an error. Every
key can be set from the command line, `--set training.tail=0.1`, and by keyword in Python, `train(..., tail=0.1)`.

`examples/runs/ctr-dnn.toml`:
"""
RUN_EXPERT_KEYS = """\
`worker` is a list: each kind of worker is a `[[worker]]`. The others below are expert keys, table by table: a run does
well without them.
"""
RUN_NOTES = {
    "`[data]`": """\
Data without an end, such as `clicks`, need `samples`. `dovetail evaluate` looks at what lies beyond them.
""",
    "`[training]`": """\
In `sync` a step is what one process would do with the whole batch, however it is split. In `ssp` and `async` each
worker's task of `batch` / workers samples is a step of its own. See [training](../concepts/training.md).

Without `batch_norm`, batch norms normalise by the whole batch in `sync`, by each worker's part in `ssp` and `async`:
see [models](../guides/models.md#batch-norm). `compile` is explained [there](../guides/models.md#compiled-models), too.
""",
    "`[optimizer]`": """\
Optimizers run on the servers, so only those listed can be used. Rows that a step did not touch are not changed by it:
the momentum and decay of `momentum` and `adamw` apply to dense parameters alone. Rows under `adam` are stepped as by
PyTorch's `SparseAdam`; `adam-per-row` corrects a row's bias by the steps of the row instead of those of the run.
""",
    "`[[worker]]`": """\
Without any, one process trains on all cores or a GPU, or, where something else asks for servers, two workers do.
`cores` makes unlike workers on one machine: see [check a machine](../guides/check-a-machine.md).
""",
    "`[compression]`": """\
For links that are slower than computing: see [slow links](../guides/slow-links.md).
""",
    "`[privacy]`": """\
`epsilon`, `delta` and `clip` go together: batches are drawn by chance then, each sample's gradient is clipped, and
every step gets noise. `aggregation` stands by itself. See [private training](../guides/privacy.md).
""",
    "`[network]`": """\
Messages are encrypted and both ends checked by keys that are made for each run. Tensors in shared memory, and rings,
are not: see [training](../concepts/training.md).
""",
}

HOSTS_INTRODUCTION = """\
# The hosts file

What `--on hosts.toml` reads: machines that SSH reaches, and how much of a type each one is. TOML or JSON. See
[three machines, from nothing](../guides/three-machines-over-ssh.md).
"""
HOSTS_EXAMPLE = """
lost_s = 30.0

[[host]]
name = "a"
address = "10.0.0.11"
user = "me"
python = "~/venv/bin/python"
units = 4

[[host]]
name = "gpus"
address = "10.0.0.13"
user = "me"
python = "~/venv/bin/python"
type = "v100"
units = 2
"""

PAGES = {
    "problem-file.md": problem_file,
    "plan-file.md": plan_file,
    "workload-file.md": workload_file,
    "run-file.md": run_file,
    "hosts-file.md": hosts_file,
    "commands.md": commands,
    "python.md": python_names,
    "errors.md": errors,
    "metrics.md": metrics,
}
"""The pages by file name; a new one is one function and one entry."""


def pages() -> dict[str, str]:
    """Return the content of every page."""
    return {name: write() for name, write in PAGES.items()}


def main() -> None:
    """Write every page."""
    REFERENCE.mkdir(exist_ok=True)
    for name, content in pages().items():
        (REFERENCE / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"written: docs/reference/{name}\n")


if __name__ == "__main__":
    main()
