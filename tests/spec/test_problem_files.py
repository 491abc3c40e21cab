"""A wrong problem file is refused with its name, the key, the value and the way out, in TOML as in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import SpecError
from dovetail.spec import Problem, ResourceType, read_problem

Table = dict[str, Any]


def good_time() -> Table:
    """Return what a layer takes on one type, without a mistake."""
    return {"compute_s": 0.11, "comm_s": 0.02, "compute_parallel": 0.98, "comm_parallel": 0.9}


def good_problem() -> Table:
    """Return a problem file's content without a mistake."""
    return {
        "training": {"samples": 45_840_617, "epochs": 1, "batch": 4096, "min_samples_per_s": 200_000.0},
        "resource": [
            {"name": "cpu", "kind": "cpu", "price_per_hour": 0.04, "limit": 960},
            {"name": "v100", "kind": "gpu", "price_per_hour": 2.42},
        ],
        "layer": [
            {
                "name": "embedding",
                "kind": "embedding",
                "output_bytes": 425_984,
                "on": {"cpu": good_time(), "v100": good_time()},
            },
            {"name": "tower", "kind": "fc", "on": {"cpu": good_time(), "v100": good_time()}},
        ],
        "link": [{"from": "cpu", "to": "v100", "bytes_per_s": 12.5e9, "latency_s": 5e-5}],
    }


# --- Two small writers ------------------------------------------------------------------------------------------------


def toml_text(table: Table) -> str:
    """Return a table as TOML, laid out as people write it: [tables] and [[lists of tables]]."""
    return "\n".join(_toml_lines(table, "")) + "\n"


def _toml_lines(table: Table, path: str) -> list[str]:
    lines, sections = [], []
    for name, value in table.items():
        place = f"{path}.{_toml_key(name)}" if path else _toml_key(name)
        if isinstance(value, dict):
            sections += [f"[{place}]", *_toml_lines(value, place)]
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            for entry in value:
                sections += [f"[[{place}]]", *_toml_lines(entry, place)]
        else:
            lines.append(f"{_toml_key(name)} = {_toml_value(value)}")
    return lines + sections


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(name)} = {_toml_value(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    if isinstance(value, float):
        return repr(value)  # nan and inf are TOML's words too
    return json.dumps(value)


def json_text(table: Any) -> str:
    """Return a table as JSON, with NaN and Infinity as Python and JavaScript write them."""
    return json.dumps(table, indent=1)


FORMATS = pytest.mark.parametrize(
    ("to_text", "suffix"), [pytest.param(toml_text, ".toml", id="toml"), pytest.param(json_text, ".json", id="json")]
)


# --- Mistakes ---------------------------------------------------------------------------------------------------------

Change = Callable[[Table], None]


def put(key: str, value: Any) -> Change:
    """Return a change that sets one key, named as the errors name it: `resource[1].price_per_hour`."""

    def change(table: Table) -> None:
        owner, last = _owner_of(table, key)
        owner[last] = value

    return change


def drop(key: str) -> Change:
    """Return a change that takes one key away."""

    def change(table: Table) -> None:
        owner, last = _owner_of(table, key)
        del owner[last]

    return change


def both(first: Change, second: Change) -> Change:
    """Return two changes as one."""

    def change(table: Table) -> None:
        first(table)
        second(table)

    return change


def _owner_of(table: Table, key: str) -> tuple[Any, str | int]:
    steps = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", key)]
    owner: Any = table
    for step in steps[:-1]:
        owner = owner[step]
    return owner, steps[-1]


def repeat_the_link(table: Table) -> None:
    table["link"].append(table["link"][0])


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One thing wrong with a file: what the error says after the file's name, and what its hint has in it."""

    name: str
    make: Change
    says: str
    hint: str


LAYER_KINDS = "embedding, fc, concat, activation, loss, conv, attention, norm, other"
LAYER_KEYS = (
    "`name`, `on`, `kind`, `input_bytes`, `weight_bytes`, `output_bytes`, `optimizer_bytes`, `index_bytes`, "
    "`activation_bytes`, `after`"
)

MISTAKES = [
    # Numbers that cannot be
    Mistake(
        name="negative price",
        make=put("resource[1].price_per_hour", -2),
        says="resource[1].price_per_hour is -2, expected a number above zero",
        hint="in USD per unit and hour, e.g. price_per_hour = 2.42",
    ),
    Mistake(
        name="free of charge",
        make=put("resource[0].price_per_hour", 0.0),
        says="resource[0].price_per_hour is 0, expected a number above zero",
        hint="in USD per unit and hour",
    ),
    Mistake(
        name="NaN",
        make=put("layer[0].on.cpu.compute_s", float("nan")),
        says="layer[0].on.cpu.compute_s is nan, expected a finite number of at least 0",
        hint="seconds of computation on one unit for one batch",
    ),
    Mistake(
        name="infinity",
        make=put("layer[1].on.v100.comm_s", float("inf")),
        says="layer[1].on.v100.comm_s is inf, expected a finite number of at least 0",
        hint="seconds of communication on one unit for one batch",
    ),
    Mistake(
        name="minus infinity",
        make=put("training.min_samples_per_s", float("-inf")),
        says="training.min_samples_per_s is -inf, expected a finite number of at least 0",
        hint="0 = no floor",
    ),
    Mistake(
        name="negative time",
        make=put("layer[0].on.cpu.compute_s", -0.5),
        says="layer[0].on.cpu.compute_s is -0.5, expected a number of at least 0",
        hint="0 is allowed",
    ),
    Mistake(
        name="fraction above one",
        make=put("layer[0].on.cpu.compute_parallel", 1.5),
        says="layer[0].on.cpu.compute_parallel is 1.5, expected a number from 0 to 1",
        hint="from 0 to 1, e.g. 0.98",
    ),
    Mistake(
        name="percent for a fraction",
        make=put("layer[0].on.v100.comm_parallel", 90),
        says="layer[0].on.v100.comm_parallel is 90, expected a number from 0 to 1",
        hint="from 0 to 1, e.g. 0.9",
    ),
    Mistake(
        name="negative limit",
        make=put("resource[0].limit", -1),
        says="resource[0].limit is -1, expected a whole number of at least 0",
        hint="leave it out for no limit",
    ),
    Mistake(
        name="batch of zero",
        make=put("training.batch", 0),
        says="training.batch is 0, expected a whole number of at least 1",
        hint="e.g. batch = 4096",
    ),
    Mistake(
        name="no samples",
        make=put("training.samples", 0),
        says="training.samples is 0, expected a whole number of at least 1",
        hint="how many samples one epoch has",
    ),
    Mistake(
        name="no epochs",
        make=put("training.epochs", 0),
        says="training.epochs is 0, expected a number above zero",
        hint="how often the samples are seen",
    ),
    Mistake(
        name="link without bandwidth",
        make=put("link[0].bytes_per_s", 0),
        says="link[0].bytes_per_s is 0, expected a number above zero",
        hint="e.g. bytes_per_s = 12.5e9",
    ),
    Mistake(
        name="negative latency",
        make=put("link[0].latency_s", -1e-3),
        says="link[0].latency_s is -0.001, expected a number of at least 0",
        hint="before the first byte arrives",
    ),
    Mistake(
        name="negative size",
        make=put("layer[0].output_bytes", -1),
        says="layer[0].output_bytes is -1, expected a number of at least 0",
        hint="what the layer hands on for one batch",
    ),
    Mistake(
        name="huge whole number for a count",
        make=put("training.samples", 10**400),
        says="training.samples is a whole number of 401 digits, too large to compute with",
        hint="e.g. samples = 45_840_617",
    ),
    Mistake(
        name="huge whole number for a price",
        make=put("resource[0].price_per_hour", 10**400),
        says="resource[0].price_per_hour is a whole number of 401 digits, too large to compute with",
        hint="in USD per unit and hour",
    ),
    Mistake(
        name="huge whole number for a time",
        make=put("layer[0].on.v100.compute_s", 10**400),
        says="layer[0].on.v100.compute_s is a whole number of 401 digits, too large to compute with",
        hint="seconds of computation",
    ),
    # Keys that should not be there
    Mistake(
        name="unknown key at the top",
        make=put("trainig", {"samples": 1}),
        says="trainig is not a known key",
        hint="did you mean `training`?",
    ),
    Mistake(
        name="plural at the top",
        make=put("layers", 2),
        says="layers is not a known key",
        hint="did you mean `layer`?",
    ),
    Mistake(
        name="unknown key in training",
        make=put("training.batch_size", 64),
        says="training.batch_size is not a known key",
        hint="did you mean `batch`?",
    ),
    Mistake(
        name="unknown key in a resource",
        make=put("resource[1].price_per_hr", 2.42),
        says="resource[1].price_per_hr is not a known key",
        hint="did you mean `price_per_hour`?",
    ),
    Mistake(
        name="unknown key in a layer",
        make=put("layer[1].colour", "red"),
        says="layer[1].colour is not a known key",
        hint=f"known are: {LAYER_KEYS}",
    ),
    Mistake(
        name="unknown key in a layer's times",
        make=put("layer[0].on.cpu.compute", 0.11),
        says="layer[0].on.cpu.compute is not a known key",
        hint="did you mean `compute_s`?",
    ),
    Mistake(
        name="unknown key in a link",
        make=put("link[0].latency", 0.0),
        says="link[0].latency is not a known key",
        hint="did you mean `latency_s`?",
    ),
    # Keys that should be there
    Mistake(
        name="no training",
        make=drop("training"),
        says="training is missing",
        hint="add it: `training` is the table [training]",
    ),
    Mistake(
        name="no samples key",
        make=drop("training.samples"),
        says="training.samples is missing",
        hint="add it: `samples` is how many samples one epoch has",
    ),
    Mistake(
        name="no price",
        make=drop("resource[1].price_per_hour"),
        says="resource[1].price_per_hour is missing",
        hint="add it: `price_per_hour` is in USD",
    ),
    Mistake(
        name="no compute time",
        make=drop("layer[1].on.v100.compute_s"),
        says="layer[1].on.v100.compute_s is missing",
        hint="add it: `compute_s` is seconds",
    ),
    Mistake(
        name="no name",
        make=drop("layer[1].name"),
        says="layer[1].name is missing",
        hint='e.g. name = "embedding"',
    ),
    Mistake(
        name="link from nowhere",
        make=drop("link[0].from"),
        says="link[0].from is missing",
        hint="add it: `from` is the resource type the bytes leave",
    ),
    Mistake(
        name="no layer key",
        make=drop("layer"),
        says="layer is missing",
        hint="one table [[layer]] for each layer",
    ),
    Mistake(
        name="no layers",
        make=put("layer", []),
        says="layer is empty, expected at least one layer",
        hint="add a table [[layer]]",
    ),
    Mistake(
        name="no resources",
        make=put("resource", []),
        says="resource is empty, expected at least one type",
        hint="add a table [[resource]]",
    ),
    # Values of the wrong type
    Mistake(
        name="string for a number",
        make=put("resource[0].price_per_hour", "0.04"),
        says='resource[0].price_per_hour is "0.04", expected a number',
        hint="price_per_hour = 2.42",
    ),
    Mistake(
        name="string for a time",
        make=put("layer[0].on.cpu.comm_s", "20ms"),
        says='layer[0].on.cpu.comm_s is "20ms", expected a number',
        hint="seconds of communication",
    ),
    Mistake(
        name="number for a string",
        make=put("resource[0].name", 5),
        says="resource[0].name is 5, expected text in quotes",
        hint='name = "v100"',
    ),
    Mistake(
        name="bool for a number",
        make=put("resource[0].price_per_hour", True),
        says="resource[0].price_per_hour is true, expected a number",
        hint="in USD per unit and hour",
    ),
    Mistake(
        name="bool for a whole number",
        make=put("training.batch", False),
        says="training.batch is false, expected a whole number",
        hint="e.g. batch = 4096",
    ),
    Mistake(
        name="fraction for a whole number",
        make=put("training.batch", 4096.5),
        says="training.batch is 4096.5, expected a whole number",
        hint="e.g. batch = 4096",
    ),
    Mistake(
        name="half a unit",
        make=put("resource[0].limit", 2.5),
        says="resource[0].limit is 2.5, expected a whole number",
        hint="e.g. limit = 32",
    ),
    Mistake(
        name="table for a list",
        make=put("resource", {"name": "cpu", "price_per_hour": 0.04}),
        says="resource is a table, expected a list",
        hint="one table [[resource]] for each type",
    ),
    Mistake(
        name="list for a table",
        make=put("training", [1]),
        says="training is a list, expected a table",
        hint="the table [training]",
    ),
    Mistake(
        name="list of types for times",
        make=put("layer[1].on", ["cpu"]),
        says="layer[1].on is a list, expected a table",
        hint="[layer.on.NAME]",
    ),
    Mistake(
        name="number for a table of times",
        make=put("layer[1].on.cpu", 0.11),
        says="layer[1].on.cpu is 0.11, expected a table",
        hint="its keys are: `compute_s`, `comm_s`",
    ),
    Mistake(
        name="string for a list",
        make=put("layer[1].after", "embedding"),
        says='layer[1].after is "embedding", expected a list',
        hint='after = ["user", "item"]',
    ),
    Mistake(
        name="number in a list of names",
        make=put("layer[1].after", [0]),
        says="layer[1].after[0] is 0, expected text in quotes",
        hint='after = ["user", "item"]',
    ),
    Mistake(
        name="blank name",
        make=put("layer[0].name", " "),
        says='layer[0].name is " ", expected a name',
        hint="the word for this layer",
    ),
    # Words that nobody knows
    Mistake(
        name="unknown kind of resource",
        make=put("resource[1].kind", "gpus"),
        says='resource[1].kind is "gpus", expected one of cpu, gpu, other',
        hint="did you mean `gpu`?",
    ),
    Mistake(
        name="unknown kind of layer",
        make=put("layer[0].kind", "embeding"),
        says=f'layer[0].kind is "embeding", expected one of {LAYER_KINDS}',
        hint="did you mean `embedding`?",
    ),
    Mistake(
        name="unknown source of a time",
        make=put("layer[0].on.cpu.source", "guessed"),
        says='layer[0].on.cpu.source is "guessed", expected one of measured, estimated',
        hint="known are: `measured`, `estimated`",
    ),
    Mistake(
        name="unknown type in a layer's times",
        make=put("layer[0].on.v10", good_time()),
        says="layer[0].on.v10 names a resource that is not there (layer `embedding`)",
        hint="did you mean `v100`?",
    ),
    Mistake(
        name="type in the wrong case",
        make=put("layer[0].on.CPU", good_time()),
        says="layer[0].on.CPU names a resource that is not there (layer `embedding`)",
        hint="did you mean `cpu`?",
    ),
    Mistake(
        name="unknown layer in after",
        make=put("layer[1].after", ["embeddings"]),
        says='layer[1].after names "embeddings", which is no layer',
        hint="did you mean `embedding`?",
    ),
    Mistake(
        name="unknown resource in a link",
        make=put("link[0].to", "v10"),
        says='link[0].to is "v10", which is no resource',
        hint="did you mean `v100`?",
    ),
    # Things that do not fit together
    Mistake(
        name="two resources of one name",
        make=put("resource[1].name", "cpu"),
        says='resource[1].name is "cpu", the name of resource[0] too',
        hint="give each its own name",
    ),
    Mistake(
        name="two layers of one name",
        make=put("layer[1].name", "embedding"),
        says='layer[1].name is "embedding", the name of layer[0] too',
        hint="give each its own name",
    ),
    Mistake(
        name="layer that runs nowhere",
        make=put("layer[1].on", {}),
        says="layer[1].on lets layer `tower` run nowhere: it is empty",
        hint="add its times on a type that can be had, e.g. [layer.on.cpu]",
    ),
    Mistake(
        name="layer that runs only where there are no units",
        make=both(put("resource[0].limit", 0), drop("layer[1].on.v100")),
        says="layer[1].on lets layer `tower` run nowhere: every type in it has limit = 0",
        hint="e.g. [layer.on.v100]",
    ),
    Mistake(
        name="no units of any type",
        make=both(put("resource[0].limit", 0), put("resource[1].limit", 0)),
        says="layer[0].on lets layer `embedding` run nowhere: every type in it has limit = 0",
        hint="raise the limit of a type",
    ),
    Mistake(
        name="circle of layers",
        make=put("layer[0].after", ["tower"]),
        says="layer[0].after closes a circle: `embedding` reads `tower` reads `embedding`",
        hint="only layers that do not read it",
    ),
    Mistake(
        name="layer that reads itself",
        make=put("layer[1].after", ["tower"]),
        says="layer[1].after closes a circle: `tower` reads `tower`",
        hint="only layers that do not read it",
    ),
    Mistake(
        name="link given twice",
        make=repeat_the_link,
        says="link[1] gives the way from `cpu` to `v100` a second time",
        hint="one table [[link]] for each direction",
    ),
]


def complaint_about(path: Path) -> SpecError:
    """Return the error that reading a file ends in."""
    with pytest.raises(SpecError) as caught:
        read_problem(path)
    return caught.value


@FORMATS
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_told_with_file_key_value_and_hint(mistake, to_text, suffix, tmp_path):
    table = good_problem()
    mistake.make(table)
    path = tmp_path / f"broken{suffix}"
    path.write_text(to_text(table))

    error = complaint_about(path)

    assert str(error) == f"{path}: {mistake.says}"
    assert error.file == str(path)
    assert mistake.says.startswith(f"{error.key} ")
    assert mistake.hint in error.hint


@FORMATS
def test_the_problem_that_the_mistakes_go_into_is_good(to_text, suffix, tmp_path):
    path = tmp_path / f"good{suffix}"
    path.write_text(to_text(good_problem()))

    problem = read_problem(path)

    assert [resource.name for resource in problem.resources] == ["cpu", "v100"]
    assert [layer.name for layer in problem.layers] == ["embedding", "tower"]
    assert problem.layers[0].on["v100"].compute_s == 0.11
    assert problem.links[0].source == "cpu"
    assert problem.training.epochs == 1


def test_toml_and_json_give_the_same_problem(tmp_path):
    (tmp_path / "p.toml").write_text(toml_text(good_problem()))
    (tmp_path / "p.json").write_text(json_text(good_problem()))

    assert read_problem(tmp_path / "p.toml") == read_problem(tmp_path / "p.json")


# --- Files that are no problem at all ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".toml", ".json", ""])
@pytest.mark.parametrize("content", ["", " \n\t\n"], ids=["nothing", "white space"])
def test_an_empty_file_is_said_to_be_empty(content, suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_text(content)

    error = complaint_about(path)

    assert str(error) == f"{path}: is empty"
    assert "shows a whole one" in error.hint


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_binary_file_is_no_text(suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(b"ab\x89PNG\x00\xff")

    error = complaint_about(path)

    assert str(error) == f"{path}: is not text: byte 2 is 0x89"
    assert "UTF-8" in error.hint


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_file_of_zero_bytes_that_happens_to_be_text_is_refused_too(suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(b"\x00\x01\x02")

    assert str(complaint_about(path)).startswith(f"{path}: is not valid {suffix[1:].upper()}: ")


@pytest.mark.parametrize(
    ("suffix", "text", "place"),
    [
        (".toml", "[training]\nsamples = \n", "line 2"),
        (".toml", "[training\n", "line 1"),
        (".json", '{"training": {"samples": 1,\n "batch": }}', "line 2"),
        (".json", '{"training": ', "line 1"),
    ],
)
def test_broken_syntax_is_told_with_its_line(suffix, text, place, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_text(text)

    error = complaint_about(path)

    assert str(error).startswith(f"{path}: is not valid {suffix[1:].upper()}: ")
    assert place in str(error)
    assert "look at the place it names" in error.hint


@pytest.mark.parametrize(("text", "shown"), [("[]", "a list"), ('"plan"', '"plan"'), ("5", "5"), ("null", "null")])
def test_json_that_is_no_object_is_refused(text, shown, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(text)

    error = complaint_about(path)

    assert str(error) == f"{path}: holds {shown}, expected one object"
    assert "{...}" in error.hint


@pytest.mark.parametrize(
    ("once", "twice", "key"),
    [
        ('"samples": 45840617', '"samples": 1, "samples": 45840617', "training.samples"),
        ('"name": "tower"', '"name": "tower", "name": "tower"', "layer[1].name"),
        ('"link":', '"link": [], "link":', "link"),
        ('"v100": {"compute_s"', '"cpu": {}, "v100": {"compute_s"', "layer[0].on.cpu"),
    ],
)
def test_a_key_given_twice_in_json_is_named(once, twice, key, tmp_path):
    path = tmp_path / "p.json"
    text = json.dumps(good_problem())
    assert once in text
    path.write_text(text.replace(once, twice, 1))

    error = complaint_about(path)

    assert str(error) == f"{path}: {key} is given twice"
    assert "keep one of the two" in error.hint


@pytest.mark.parametrize(
    "text", ["[training]\nsamples = 1\nsamples = 2\n", "[training]\n[training]\n", "training = {batch = 1, batch = 2}"]
)
def test_a_key_given_twice_in_toml_is_refused(text, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(text)

    error = complaint_about(path)

    assert str(error).startswith(f"{path}: is not valid TOML: ")
    assert "given twice" in error.hint


@pytest.mark.parametrize(("suffix", "text"), [(".toml", "a = " + "[" * 100_000), (".json", '{"a": ' + "[" * 100_000)])
def test_a_file_nested_without_end_is_refused(suffix, text, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_text(text)

    error = complaint_about(path)

    assert str(error) == f"{path}: is nested too deeply to be read"
    assert error.hint


@FORMATS
def test_lists_in_lists_where_a_number_belongs_are_a_list(to_text, suffix, tmp_path):
    nested: list[Any] = []
    for _ in range(50):
        nested = [nested]
    table = good_problem()
    table["resource"][0]["price_per_hour"] = nested
    path = tmp_path / f"p{suffix}"
    path.write_text(to_text(table))

    assert str(complaint_about(path)) == f"{path}: resource[0].price_per_hour is a list, expected a number"


@FORMATS
def test_a_number_of_thousands_of_digits_is_refused(to_text, suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_text(to_text(good_problem()).replace("4096", "4" * 5000))

    error = complaint_about(path)

    assert str(error) == f"{path}: holds a whole number too large to compute with"
    assert "thousands of digits" in error.hint


def test_null_is_no_name(tmp_path):
    table = good_problem()
    table["resource"][0]["name"] = None  # JSON alone has null
    path = tmp_path / "p.json"
    path.write_text(json_text(table))

    assert str(complaint_about(path)) == f"{path}: resource[0].name is null, expected text in quotes"


def test_a_date_is_no_number(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(toml_text(good_problem()).replace("batch = 4096", "batch = 2026-01-31"))

    assert str(complaint_about(path)) == f"{path}: training.batch is 2026-01-31, expected a whole number"


# --- Files that are not there -----------------------------------------------------------------------------------------


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    path = tmp_path / "problem.toml"

    error = complaint_about(path)

    assert str(error) == f"{path}: no such file"
    assert "give the path of a TOML or JSON file" in error.hint


@pytest.mark.parametrize("typo", ["problme.toml", "problem.tml", "Problem.toml", "problem.json"])
def test_a_missing_file_brings_the_nearest_name_to_mind(typo, tmp_path):
    (tmp_path / "problem.toml").write_text(toml_text(good_problem()))
    (tmp_path / "unlike.json").write_text("{}")

    assert complaint_about(tmp_path / typo).hint == "did you mean `problem.toml`?"


def test_a_file_in_a_missing_folder_is_missing(tmp_path):
    path = tmp_path / "nowhere" / "problem.toml"

    assert str(complaint_about(path)) == f"{path}: no such file"


def test_a_file_below_a_file_is_missing(tmp_path):
    (tmp_path / "problem.toml").write_text("")
    path = tmp_path / "problem.toml" / "inner.toml"

    assert str(complaint_about(path)) == f"{path}: no such file"


def test_a_folder_is_no_file(tmp_path):
    error = complaint_about(tmp_path)

    assert str(error) == f"{tmp_path}: is a folder"
    assert "give the path of a TOML or JSON file" in error.hint


# --- Files that are unusual and good ----------------------------------------------------------------------------------


@FORMATS
def test_a_byte_order_mark_does_no_harm(to_text, suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + to_text(good_problem()).encode())

    assert len(read_problem(path).layers) == 2


@FORMATS
def test_lines_may_end_as_on_windows(to_text, suffix, tmp_path):
    path = tmp_path / f"p{suffix}"
    path.write_bytes(to_text(good_problem()).replace("\n", "\r\n").encode())

    assert len(read_problem(path).layers) == 2


@FORMATS
@pytest.mark.parametrize("name", ["problem", "problem.txt", "problem.conf"])
def test_a_file_of_another_name_is_read_as_what_it_looks_like(name, to_text, suffix, tmp_path):
    path = tmp_path / name
    path.write_text(to_text(good_problem()))

    assert len(read_problem(path).layers) == 2


@FORMATS
def test_names_may_be_in_any_script(to_text, suffix, tmp_path):
    table = json.loads(json.dumps(good_problem()).replace("tower", "塔 №1"))
    path = tmp_path / f"p{suffix}"
    path.write_text(to_text(table), encoding="utf-8")

    assert read_problem(path).layers[1].name == "塔 №1"


@FORMATS
def test_whole_numbers_do_where_numbers_are_asked_for(to_text, suffix, tmp_path):
    table = good_problem()
    table["resource"][1]["price_per_hour"] = 2
    path = tmp_path / f"p{suffix}"
    path.write_text(to_text(table))

    price = read_problem(path).resources[1].price_per_hour

    assert price == 2.0
    assert isinstance(price, float)


def test_a_circle_is_told_by_its_own_layers_and_not_by_those_behind_it(tmp_path):
    table = good_problem()
    reads = {"head": ["left"], "left": ["right"], "right": ["left", "source"], "source": []}
    table["layer"] = [{"name": name, "after": after, "on": {"cpu": good_time()}} for name, after in reads.items()]
    path = tmp_path / "p.json"
    path.write_text(json_text(table))

    assert str(complaint_about(path)) == f"{path}: layer[1].after closes a circle: `left` reads `right` reads `left`"


def test_a_hint_lists_no_more_than_a_dozen_names(tmp_path):
    table = good_problem()
    table["layer"] = [{"name": f"{number:03}", "on": {"cpu": good_time()}} for number in range(100)]
    table["layer"][50]["after"] = ["nothing like it"]
    path = tmp_path / "p.json"
    path.write_text(json_text(table))

    hint = complaint_about(path).hint

    assert hint.startswith("known are: `000`, `001`")
    assert hint.endswith("`011` and 88 more")


def test_long_text_is_cut_short_and_stays_on_one_line(tmp_path):
    table = good_problem()
    table["resource"][0]["price_per_hour"] = "a\n" * 500
    path = tmp_path / "p.json"
    path.write_text(json_text(table))

    message = str(complaint_about(path))

    assert "\n" not in message
    assert len(message) < len(str(path)) + 200


# --- The same checks without a file -----------------------------------------------------------------------------------


def test_values_made_in_python_are_checked_alike_and_name_no_file():
    with pytest.raises(SpecError) as caught:
        ResourceType(name="v100", price_per_hour=-2)

    assert str(caught.value) == "price_per_hour is -2, expected a number above zero"
    assert caught.value.file == ""


def test_a_number_too_long_to_print_is_told_by_its_length():
    with pytest.raises(SpecError) as caught:
        ResourceType(name="v100", price_per_hour=10**9999)

    assert str(caught.value) == "price_per_hour is a whole number of 10000 digits, too large to compute with"


# --- Whatever is wrong, it is said ------------------------------------------------------------------------------------


def problem_or_complaint(path: Path) -> Problem | SpecError:
    """Return what reading a file comes to."""
    try:
        return read_problem(path)
    except SpecError as error:
        return error


def _keys(value: Any, key: str = "") -> list[str]:
    """Return every key in a table: `training`, `training.samples`, `resource`, `resource[0]`, ..."""
    if isinstance(value, dict):
        inner = [(f"{key}.{name}" if key else name, entry) for name, entry in value.items()]
    elif isinstance(value, list):
        inner = [(f"{key}[{position}]", entry) for position, entry in enumerate(value)]
    else:
        return []
    return [found for place, entry in inner for found in (place, *_keys(entry, place))]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)  # a busy machine is not a mistake
@given(key=st.sampled_from(_keys(good_problem())), value=ANYTHING)
def test_anything_in_any_place_is_a_problem_or_a_complaint_with_key_and_hint(key, value, tmp_path_factory):
    table = good_problem()
    put(key, value)(table)
    path = tmp_path_factory.getbasetemp() / "anything.json"
    path.write_text(json_text(table))

    outcome = problem_or_complaint(path)

    if isinstance(outcome, SpecError):
        assert str(outcome).startswith(f"{path}: {outcome.key} ")
        assert outcome.hint
    else:
        assert isinstance(outcome, Problem)
