"""A trained model in files that need no Dovetail: its parameters, its program, and how to load them.

model.safetensors   every parameter and buffer under the name that the module itself has for it
model.pt2           the scoring path as torch.export has it, for any batch size
model.json          which model with which options, its inputs, the schema of the data, and how ids are made
read_rows.py        from raw rows to the inputs, where the data have named columns
README.txt          how to load them
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from dovetail.data import read_rows
from dovetail.data.adopt import as_source
from dovetail.data.batch import FIELDS, Batch
from dovetail.data.load import how_made, load_data
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.models.answers import heads_of
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.whole import WholeModel
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError, cannot_write
from dovetail.runtime.finished.restore import check_by_name, restore_model
from dovetail.runtime.model.build import Model
from dovetail.runtime.trust import check_trusted

READER = "read_rows.py"
HASH = (
    "FNV-1a over the UTF-8 bytes of the value, begun with the first 8 bytes (little endian) of blake2b-64 of "
    "'0/slot/NAME', then mixed by SplitMix64 and cut to 63 bits; then modulo the slot's hash_into, where it has one"
)
"""How a value of a slot becomes an id, in words; `read_rows.py` is the same as a program."""
MODULO = "id = id of the data modulo the slot's hash_into"
READER_PROGRAM = Path(read_rows.__file__).read_text(encoding="utf-8")
"""The text of the module, which needs nothing else of this package."""


def reader_facts(source: Source) -> dict[str, Any]:
    """Return what a reader of raw rows needs to know; nothing where the data do not come from named columns."""
    columns = getattr(source, "columns", None)
    if columns is None:
        return {"hash": MODULO} if any(slot.hash_into for slot in source.schema.slots) else {}
    made = how_made(source)
    facts = {
        "label": columns.label,
        "separator": columns.separator,
        "is_text": made is not None and made[0] == "csv",
        "transforms": [each.facts() for each in columns.used],
    }
    return {"hash": HASH, "columns": facts}


def write_reader(out: Path, source: Source, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Write the reader beside a model whose inputs it can make; return the files written."""
    (out / READER).unlink(missing_ok=True)
    if getattr(source, "columns", None) is None or not set(inputs) <= {"dense", "ids", "offsets"}:
        return ()
    (out / READER).write_text(READER_PROGRAM, encoding="utf-8")
    return (READER,)


WEIGHTS, PROGRAM, FACTS, README = "model.safetensors", "model.pt2", "model.json", "README.txt"
CHECKED_SIZES = (5, 1, 2)
"""Batch sizes on which the program must answer as the model does; the first is the one it is made from."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    folder: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    parameters: int
    why_no_program: str = ""
    """Where torch.export gave up: what it said."""

    def __repr__(self) -> str:
        """Return where the files are."""
        return f"<Exported {self.parameters:,} parameters to {self.folder}: {', '.join(self.files)}>"


class Scoring(nn.Module):
    """The way from a batch's tensors to the model's answer, the loss left out."""

    inputs: tuple[str, ...]

    def arguments(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return what a batch passes to `forward`."""
        return tuple(getattr(batch, name) for name in self.inputs)


class ScoringGraph(Scoring):
    """Of a graph: its layers up to the answer."""

    def __init__(self, graph: LayerGraph) -> None:
        """Take over the layers up to the answer."""
        super().__init__()
        last = graph.position(graph.scores)
        self.inputs = graph.reads_of(0, last)
        self._blocks = graph.blocks[: last + 1]
        self.layers = nn.ModuleDict({block.name: block.module for block in self._blocks})

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return the model's answer to the tensors that `inputs` names."""
        fields = dict(zip(self.inputs, tensors, strict=True))
        values: dict[str, Tensor] = {}
        for block in self._blocks:
            before = [values[name] for name in block.after or ()]
            values[block.name] = block.module(*before, *(fields[name] for name in block.reads))
        return values[self._blocks[-1].name]


class ScoringWhole(Scoring):
    """Of a user's module: the module as it is."""

    def __init__(self, model: WholeModel, schema: Schema) -> None:
        """Keep the model."""
        super().__init__()
        self.model, self.inputs = model, model.reads_of([field.name for field in schema.fields])

    def forward(self, *tensors: Tensor) -> Any:
        """Return the model's answer to the tensors that `inputs` names."""
        fields = dict(zip(self.inputs, tensors, strict=True))
        extra = {name: tensor for name, tensor in fields.items() if name not in FIELDS}
        return self.model.predict(SimpleNamespace(**fields, extra=extra))  # type: ignore[arg-type]


def export_run(
    folder: Path | str,
    out: Path | str,
    *,
    checkpoint: Path | None = None,
    model: nn.Module | None = None,
    source: Any = None,
    trust: bool = False,
) -> Exported:
    """Write the model of a run, as its newest checkpoint has it, into a folder.

    `model` and `source` are the run's own model and data where those were objects. With `trust`, code that the run's
    folder names is run even where others can write it.
    """
    folder, out = Path(folder), Path(out)
    blueprint = Blueprint.read(folder)
    source = None if source is None else as_source(source)
    check_by_name(blueprint.run, model=model, source=source)
    check_trusted(folder, blueprint.run, trust=trust, own_model=model is not None, own_data=source is not None)
    if source is None:
        source = load_data(blueprint.run.data.name, **blueprint.run.data.options)
    where = checkpoint or checkpoints.newest(folder)
    restored = restore_model(folder, model=model, source=source, checkpoint=where, trust=trust)
    facts = {
        "model": blueprint.run.model.name,
        "options": blueprint.run.model.options,
        "loss": blueprint.run.model.loss or restored.recipe.loss,
        "seed": blueprint.run.training.seed,
        "step": checkpoints.RunManifest.read(where).step,
    }
    return export_model(restored, source, out, facts=facts)


def export_model(model: Model, source: Source, out: Path, *, facts: dict[str, Any] | None = None) -> Exported:
    """Write a model, and what its inputs are, into a folder; `source` is data such as it reads."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / PROGRAM).unlink(missing_ok=True)
    except OSError as error:
        raise TrainingError(f"{out} cannot be made: {error.strerror}", hint="give another --out") from None
    model.eval()
    scoring = (ScoringGraph(model) if isinstance(model, LayerGraph) else ScoringWhole(model, source.schema)).eval()
    why = _write_program(scoring, source, out)
    tensors = {name: value.detach().clone().contiguous() for name, value in model.owner.state_dict().items()}
    details = {**(facts or {}), "inputs": scoring.inputs, "schema": asdict(source.schema), **reader_facts(source)}
    try:
        save_file(tensors, out / WEIGHTS)
        (out / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(details), indent=1))
        (out / README).write_text(_readme(scoring.inputs, model, has_program=not why), encoding="utf-8")
        readers = write_reader(out, source, scoring.inputs)
    except (OSError, SafetensorError) as error:
        raise cannot_write(out, error) from None
    files = (WEIGHTS, *(() if why else (PROGRAM,)), FACTS, *readers, README)
    total = sum(value.numel() for value in tensors.values())
    return Exported(folder=str(out), files=files, inputs=scoring.inputs, parameters=total, why_no_program=why)


def _write_program(scoring: Scoring, source: Source, out: Path) -> str:
    """Write the scoring path by torch.export; return why that cannot be, or nothing."""
    batches = [source.read(0, size) for size in CHECKED_SIZES]
    try:
        with _any_batch_size(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of how PyTorch's own layers are written
            made = torch.export.export(
                scoring, scoring.arguments(batches[0]), dynamic_shapes=_shapes(scoring.inputs, source.schema.num_slots)
            )
            saved = io.BytesIO()
            torch.export.save(made, saved)  # to memory: on a full disk it would take the process with it
            (out / PROGRAM).write_bytes(saved.getvalue())
            del saved
            loaded = torch.export.load(out / PROGRAM).module()
            for batch in batches:
                arguments = scoring.arguments(batch)
                if not _same(loaded(*arguments), scoring(*arguments)):
                    raise TrainingError(f"it answers otherwise for {batch.num_samples} samples", hint="")
    except OSError as error:
        with suppress(OSError):
            (out / PROGRAM).unlink(missing_ok=True)
        raise cannot_write(out / PROGRAM, error) from None
    except Exception as problem:  # torch.export fails in as many ways as there are models
        (out / PROGRAM).unlink(missing_ok=True)
        first_line = next(iter(str(problem).strip().splitlines()), "")
        return f"{type(problem).__name__}: {first_line}"
    return ""


def _shapes(inputs: tuple[str, ...], num_slots: int) -> tuple[dict[str, Any], ...] | tuple[Any, ...]:
    """Return which sizes may change: the samples, the ids, and with the samples the bags of ids."""
    samples = torch.export.Dim("samples", min=1, max=1 << 24)
    num_ids = torch.export.Dim("ids", min=0, max=1 << 40)
    sizes: dict[str, Any] = {"ids": {0: num_ids}, "offsets": {0: num_slots * samples + 1} if num_slots else None}
    return (tuple(sizes.get(name, {0: samples}) for name in inputs),)


def _same(one: Any, other: Any) -> bool:
    """Say whether two answers are the same to the last bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    ones, others = heads_of(one), heads_of(other)
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


@contextmanager
def _any_batch_size() -> Iterator[None]:
    """Have torch.export make programs for one sample too, where this version knows how."""
    from torch.fx.experimental import _config  # noqa: PLC0415 - only here

    if hasattr(_config, "backed_size_oblivious"):
        with _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            yield
    else:
        yield


def _readme(inputs: tuple[str, ...], model: Model, *, has_program: bool) -> str:
    """Return how to load what lies in the folder."""
    program = f"""
The program needs PyTorch alone:

    import torch
    model = torch.export.load("{PROGRAM}").module()
    scores = model({", ".join(inputs)})

`dense` is float32 [samples, numbers]; `ids` is int64, the ids of all samples and slots one after the other; `offsets`
is int64 [samples * slots + 1]: where each slot of each sample begins in `ids`, and the number of ids last.
{FACTS} names the numbers and slots in their order. Where there is a read_rows.py, it makes these tensors of raw rows:

    from read_rows import tensors
    scores = model(*tensors([{{"price": 3.5, "colour": "red"}}, {{"price": None, "colour": None}}]))

Rows are what pandas, Polars, Arrow or JSON have: None, NaN and NA are missing values, and read as in training. What
cannot be read as in training is refused with the name of its column.
"""
    make = (
        "from dovetail.models import load_model\n    model = load_model(name, schema=schema, **options)"
        if isinstance(model, LayerGraph)
        else f"model = {type(model.module).__name__}(...)"
    )
    weights = f"""
The parameters and buffers, under the names that the module itself has for them (which model with which options is in
{FACTS}):

    from safetensors.torch import load_file
    {make}
    model.load_state_dict(load_file("{WEIGHTS}"))
"""
    return "A model that was trained by Dovetail.\n" + (program if has_program else "") + weights
