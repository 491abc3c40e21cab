"""Pages of names: Python's, errors', metrics'. `docs/generate.py` writes them with the others."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dovetail
import dovetail.errors
from dovetail.models.metrics import RATIOS, Auc, RecallAt
from dovetail.prometheus import page_of
from dovetail.runtime.messages import Report
from dovetail.runtime.messages.membership import WorkerStatus
from dovetail.runtime.monitor.metrics_page import families_of
from dovetail.serve.prometheus import Counters, metrics_text

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "python_examples.py"
CLASS = re.compile(r"^class \w+\(.*(?:Error|Problem|Lost|Broken|Ended)", re.MULTILINE)
"""How the files look that may have errors of their own."""
WRITTEN = "<!-- Written by docs/generate.py from the code. Do not edit. -->"
WIDTH = 110


def examples() -> dict[str, str]:
    """Return the example of each public name, as a program."""
    source = EXAMPLES.read_text(encoding="utf-8")
    lines = source.splitlines()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    bodies = {node.name: textwrap.dedent("\n".join(lines[node.lineno : node.end_lineno])).strip() for node in functions}
    return {name: _as_program(body) + "\n" for name, body in bodies.items()}


def _as_program(body: str) -> str:
    """Return the body of a function as a program, which has two blank lines around a class."""
    return re.sub(r"\n\n(?=class |if __name__)", "\n\n\n", body) if "\nclass " in body else body


def python_names() -> str:
    """Return the page of every public name of the package, each with its example."""
    shown = examples()
    kinds: dict[str, list[str]] = {"Commands": [], "Values": [], "Packages": []}
    for name in dovetail.__all__:
        found = getattr(dovetail, name)
        heading, lines = _told(name, found)
        kinds[heading] += [*lines, "```python", shown[name].rstrip(), "```", ""]
    lines = [PYTHON_INTRODUCTION]
    for heading, each in kinds.items():
        lines += [f"## {heading}", "", *each]
    return "\n".join(lines).rstrip() + "\n"


def _told(name: str, found: Any) -> tuple[str, list[str]]:
    """Return under which heading a name is, and what is said of it."""
    if callable(found) and not isinstance(found, type):
        return "Commands", _function(name, found)
    if isinstance(found, ModuleType):
        return "Packages", _package(name, found)
    return "Values", _value(name, found)


def _function(name: str, found: Any) -> list[str]:
    """Return what a command does, and what it takes; a package that is called like one has its function's."""
    function = _called(found) if isinstance(found, ModuleType) else found
    lines = [f"### `{name}`", "", "```python", *_signature(name, function), "```", ""]
    return [*lines, inspect.getdoc(function) or "", ""]


def _called(package: ModuleType) -> Any:
    """Return the function that a package is when it is called."""
    body = inspect.getsource(type(package).__call__)
    called = re.search(r"return self\.(\w+)\(|self\.(\w+)\(", body)
    if called is None:
        raise ValueError(f"{package.__name__} calls no function of its own")
    return getattr(package, called[1] or called[2])


def _signature(name: str, function: Any) -> list[str]:
    """Return how a function is called, a parameter a line where one line is too long."""
    signature = inspect.signature(function)
    parameters = [_parameter(each) for each in signature.parameters.values()]
    first_keyword = next(
        (at for at, each in enumerate(signature.parameters.values()) if each.kind is each.KEYWORD_ONLY), None
    )
    if first_keyword is not None:
        parameters.insert(first_keyword, "*")
    answer = _annotation(signature.return_annotation)
    line = f"dovetail.{name}({', '.join(parameters)}) -> {answer}"
    if len(line) <= WIDTH:
        return [line]
    return [f"dovetail.{name}(", *(f"    {each}," for each in parameters), f") -> {answer}"]


def _parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter as it is written; a default that is a function is only said to be there."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {'...' if callable(parameter.default) else repr(parameter.default)}"


def _annotation(annotation: Any) -> str:
    """Return a type as it is written."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _value(name: str, found: Any) -> list[str]:
    """Return what a class or a constant is."""
    words = (inspect.getdoc(found) or "") if isinstance(found, type) else "The version of the package, as text."
    return [f"### `{name}`", "", words, ""]


def _package(name: str, found: ModuleType) -> list[str]:
    """Return what a package is for, and its public names."""
    rows = [
        f"| `{each}` | {_first_sentence(found, each)} |"
        for each in sorted(getattr(found, "__all__", ()), key=str.lower)
    ]
    table = ["| name | what it is |", "| --- | --- |", *rows, ""]
    return [f"### `{name}`", "", inspect.getdoc(found) or "", "", *table]


def _first_sentence(package: ModuleType, name: str) -> str:
    """Return the first line of what a name says of itself; nothing for constants, which say what their type is."""
    found = getattr(package, name)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return ""
    return (inspect.getdoc(found) or "").partition("\n")[0].replace("|", "\\|")


def errors() -> str:
    """Return the page of everything that can go wrong, as classes."""
    tree = (dovetail.errors.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0]
    lines = [ERRORS_INTRODUCTION, "```text", textwrap.dedent(tree), "```", ""]
    for name, (module, words) in sorted(error_classes().items()):
        lines += [f"## `{name}`", "", f"`from {module} import {name}`", "", words, ""]
    return "\n".join(lines).rstrip() + "\n"


def error_classes() -> dict[str, tuple[str, str]]:
    """Return the module and the docstring of `DovetailError` and of every class below it, without loading any."""
    found: dict[str, tuple[tuple[str, ...], str, str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not CLASS.search(text):
            continue
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                found[node.name] = bases, module, ast.get_docstring(node) or ""
    known = {"DovetailError"}
    while more := {name for name, (bases, *_) in found.items() if known & set(bases)} - known:
        known |= more
    return {name: found[name][1:] for name in known}


def metrics() -> str:
    """Return the page of every figure that runs, the daemon and models have."""
    worker = WorkerStatus(name="worker-0", state="running", share=1.0, samples_per_s=1.0, idle=0.0, samples=1, kept=0.0)
    report = Report(
        state="running",
        generation=0,
        step=1,
        epoch=0,
        samples=1,
        total_samples=1,
        samples_per_s=1.0,
        loss=1.0,
        auc=0.5,
        checkpoint_step=0,
        workers=(worker,),
        servers=("server-0",),
        events=(),
        next_event=0,
        metrics=(("rmse", 1.0),),
        learning_rate=1.0,
        gradient_norm=1.0,
    )
    job = SimpleNamespace(id="job-1", user="ann", type="cpu", workers=1, attempt=1)
    store = SimpleNamespace(jobs=lambda _: [job], counts=lambda: {"running": 1}, changes_s=lambda *_: [1.0])
    progress = SimpleNamespace(done=1.0, speed=1.0, loss=1.0)
    controller = SimpleNamespace(progress={"job-1": progress}, decisions=1, decision_s=1.0, problems=0)
    counters = Counters()
    counters.add(200)
    of_daemon = metrics_text(store, controller, SimpleNamespace(capacity={"cpu": 1}), counters)  # type: ignore[arg-type]
    lines = [METRICS_INTRODUCTION, "## Of a run", "", *_figures(page_of(families_of(report, {"run": "ctr-dnn-1"})))]
    lines += ["## Of the daemon", "", *_figures(of_daemon), METRICS_OF_MODELS]
    of_models = {"auc": Auc, **RATIOS, "recall@K": RecallAt}
    rows = [f"| `{name}` | {_first_line(kind)} |" for name, kind in of_models.items()]
    return "\n".join([*lines, "| metric | what it is |", "| --- | --- |", *rows]).rstrip() + "\n"


def _first_line(kind: Any) -> str:
    """Return the first line of what a class says of itself, or the class of what a function makes."""
    return (inspect.getdoc(kind if isinstance(kind, type) else kind()) or "").partition("\n")[0]


def _figures(page: str) -> list[str]:
    """Return the families of a page for Prometheus as a table."""
    lines = ["| family | type | labels | meaning |", "| --- | --- | --- | --- |"]
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", page, re.MULTILINE):
        sample = re.search(rf"^{name}\{{(.*)\}}", page, re.MULTILINE)
        labels = ", ".join(f"`{label}`" for label in re.findall(r'(\w+)="', sample[1])) if sample else ""
        lines.append(f"| `{name}` | {kinds[name]} | {labels} | {meaning} |")
    return [*lines, ""]


PYTHON_INTRODUCTION = f"""\
# Python

{WRITTEN}

`import dovetail` has every command as a function of its name, and takes what the command takes. Nothing is loaded
before it is asked for. The examples run in a folder with `clicks.parquet` and `first_training.py` of
[your first training](../start/first-training.md), `problem.toml` of [your first plan](../start/first-plan.md) and
`jobs.json` of [your first simulation](../start/first-simulation.md).
"""
ERRORS_INTRODUCTION = f"""\
# Errors

{WRITTEN}

Whatever a user can put right is a `DovetailError`: what is wrong, with the value, in `error.message`, and the way out
in `error.hint`. The command line prints both and ends with exit status 1:

```text
error: problem.toml: resource[1].price_per_hour is -2, expected a number above zero

hint: prices are in USD per unit and hour, e.g. price_per_hour = 2.42
```

With `--json` the last line on stdout is an object with `error` and `hint`, and with `DOVETAIL_LOG=json` both are fields
of a line on stderr. A wrong option or a missing argument ends with exit status 2. A traceback is a mistake
of Dovetail's own.
"""
METRICS_INTRODUCTION = f"""\
# Metrics

{WRITTEN}

Figures in Prometheus' text format. `dovetail train --metrics PORT` shows those of a run, the daemon those of itself and
its jobs at `/metrics`; [watch a run](../guides/watch.md) says how to read them. Figures that are not known yet are
left out.
"""
METRICS_OF_MODELS = """\
## Of a model

What `metric` of the run file and `dovetail evaluate --metric` take; `PART.NAME` is that of one part of an answer,
and `package.module:function` anything of yours or of torchmetrics ([your own model](../guides/models.md)).
"""
