"""A trained model in files that need no Dovetail: its parameters, its program, and how to load them.

model.safetensors   every parameter and buffer under the name that the module itself has for it
model.pt2           the scoring path as torch.export has it, for any batch size
model.json          which model with which options, its inputs, the schema of the data, and how ids are made
read_encrypted.py   decrypts the first two, where the run is kept encrypted
read_rows.py        from raw rows to the inputs, where the data have named columns
README.txt          how to load them
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save, save_file
from torch import Tensor, nn
from torch.nn import functional

from dovetail.data import read_rows
from dovetail.data.batch import FIELDS, Batch
from dovetail.data.load import how_made, open_data
from dovetail.data.schema import Schema
from dovetail.data.source import Source
from dovetail.encryption import encoded, keep_encrypted, key_for, read_encrypted
from dovetail.models.answers import heads_of
from dovetail.models.layer_graph import LayerGraph
from dovetail.models.whole import WholeModel
from dovetail.runtime import checkpoint as checkpoints
from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.errors import TrainingError, cannot_write
from dovetail.runtime.finished.predict import asked_source
from dovetail.runtime.finished.restore import check_by_name, restore_model
from dovetail.runtime.model.build import Model
from dovetail.runtime.model.kept_model import kept_model
from dovetail.runtime.trust import check_trusted

READER = "read_rows.py"
DECRYPT = "read_encrypted.py"
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
    made = {"dense", "ids", "offsets", *(field.name for field in source.schema.fields)}
    if getattr(source, "columns", None) is None or not set(inputs) <= made:
        return ()
    (out / READER).write_text(READER_PROGRAM, encoding="utf-8")
    return (READER,)


WEIGHTS, PROGRAM, FACTS, README = "model.safetensors", "model.pt2", "model.json", "README.txt"
CHECKED_SIZES = (5, 1, 2)
"""Batch sizes on which the program must answer as the model does; the first is the one it is made from."""
LOOKED_AT = 4096
"""Samples whose longest sequence says how long those are that a program of one length takes."""
LONGER = 3
"""By so many zeros sequences are made longer to see that a program takes any length."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    folder: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    parameters: int
    least_samples: int = 1
    """The fewest samples that the program takes at once: torch.export cannot do without two for some layers."""
    lengths: dict[str, int] = {}
    """How long sequences are that the program takes, where it does not take any length."""
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
    model = model if model is not None else kept_model(folder, blueprint.run, trust=trust)
    source = None if source is None else asked_source(source, {}, blueprint, model, labels=True)
    check_by_name(blueprint.run, model=model, source=source)
    check_trusted(folder, blueprint.run, trust=trust, own_model=model is not None, own_data=source is not None)
    if source is None:
        run = blueprint.run
        source = open_data(run.data.name, run.data.options, key_file=run.checkpoint.key_file)
    keep_encrypted(out, blueprint.run.checkpoint.key_file)
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
    program = _write_program(scoring, source, out)
    tensors = {name: value.detach().clone().contiguous() for name, value in model.owner.state_dict().items()}
    schema = asdict(source.schema) | {"fields": _fields(source, program.lengths)}
    details = {**(facts or {}), "inputs": scoring.inputs, "schema": schema, **reader_facts(source)}
    try:
        if key_for(out) is None:
            save_file(tensors, out / WEIGHTS)
        else:
            (out / WEIGHTS).write_bytes(encoded(out / WEIGHTS, save(tensors)))
            (out / DECRYPT).write_text(Path(read_encrypted.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        (out / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(details), indent=1))
        readers = write_reader(out, source, scoring.inputs)
        said = _readme(scoring.inputs, model, program, readers, is_encrypted=key_for(out) is not None)
        (out / README).write_text(said, encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise cannot_write(out, error) from None
    decrypts = () if key_for(out) is None else (DECRYPT,)
    files = (WEIGHTS, *(() if program.why_not else (PROGRAM,)), FACTS, *readers, *decrypts, README)
    total = sum(value.numel() for value in tensors.values())
    return Exported(
        folder=str(out),
        files=files,
        inputs=scoring.inputs,
        parameters=total,
        least_samples=program.least_samples,
        lengths=program.lengths,
        why_no_program=program.why_not,
    )


def _fields(source: Source, lengths: dict[str, int]) -> list[dict[str, Any]]:
    """Return further fields as they really are: how many dimensions, whole numbers or not, and of which length."""
    batch, found = source.read(0, 1), []
    for field in source.schema.fields:
        tensor = batch.extra[field.name]
        dims = tensor.dim() - 1
        shape = field.shape if len(field.shape) == dims and None not in field.shape else (None,) * dims
        kind = str(tensor.dtype).removeprefix("torch.")
        length = {"length": lengths[field.name]} if field.name in lengths else {}
        found.append({"name": field.name, "shape": shape, "dtype": kind, **length})
    return found


class Program(msgspec.Struct, frozen=True):
    """What torch.export made of a model."""

    least_samples: int = 1
    lengths: dict[str, int] = {}
    """Of sequences, where only one length can be taken."""
    why_not: str = ""
    """Where it gave up: what it said."""


def _write_program(scoring: Scoring, source: Source, out: Path) -> Program:
    """Write the scoring path by torch.export, as free as can be; else say why that cannot be.

    Recurrent layers are unrolled, so a program of theirs has one length, and may want two samples at least.
    """
    batches = [source.read(0, size) for size in CHECKED_SIZES]
    longest = _longest(scoring.inputs, source)
    of_lengths: list[dict[str, int]] = [{}, longest] if longest else [{}]
    why = ""
    for least, lengths in product((1, 2), of_lengths):
        try:
            checked = [batch for batch in batches if batch.num_samples >= least]
            arguments = [_arguments(scoring, batch, lengths) for batch in checked]
            if longest and not lengths:
                arguments += [_arguments(scoring, batches[0], longest | {n: m + LONGER for n, m in longest.items()})]
            _export(scoring, arguments, _shapes(scoring.inputs, source, least, lengths), out / PROGRAM)
        except OSError as error:
            with suppress(OSError):
                (out / PROGRAM).unlink(missing_ok=True)
            raise cannot_write(out / PROGRAM, error) from None
        except Exception as problem:  # torch.export fails in as many ways as there are models
            (out / PROGRAM).unlink(missing_ok=True)
            first_line = next(iter(str(problem).strip().splitlines()), "")
            why = why or f"{type(problem).__name__}: {first_line}{_way_out(str(problem))}"
        else:
            return Program(least, lengths)
    return Program(why_not=why)


def _way_out(problem: str) -> str:
    """Return what helps, as far as that is known."""
    if "specialized it to be a constant" not in problem:
        return ""
    return (
        " The model takes the size of these samples for any: write x.shape[0] for len(x), and no int(...), .item() or "
        "branch on a size."
    )


def _export(scoring: Scoring, arguments: list[tuple[Tensor, ...]], shapes: Any, path: Path) -> None:
    """Write a program made from the first arguments, once it answers all of them as the model does."""
    with _any_batch_size(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how PyTorch's own layers are written
        made = torch.export.export(scoring, arguments[0], dynamic_shapes=shapes)
        saved = io.BytesIO()
        torch.export.save(made, saved)  # to memory: on a full disk it would take the process with it
        path.write_bytes(encoded(path, saved.getvalue()))
        if key_for(path) is None:
            del saved
            loaded = torch.export.load(path).module()
        else:
            saved.seek(0)
            loaded = torch.export.load(saved).module()
        for each in arguments:
            if not _same(loaded(*each), scoring(*each)):
                raise TrainingError(f"it answers otherwise for inputs of {[list(one.shape) for one in each]}", hint="")


def _longest(inputs: tuple[str, ...], source: Source) -> dict[str, int]:
    """Return the longest of each sequence that a model reads, over samples from the first on."""
    free = [field.name for field in source.schema.fields if field.name in inputs and None in field.shape]
    if not free:
        return {}
    count = LOOKED_AT if source.num_samples is None else min(LOOKED_AT, source.num_samples)
    batch = source.read(0, count)
    return {name: batch.extra[name].shape[1] for name in free if batch.extra[name].dim() == 2}


def _arguments(scoring: Scoring, batch: Batch, lengths: dict[str, int]) -> tuple[Tensor, ...]:
    """Return what a batch passes to `forward`, sequences with zeros behind up to a length."""
    named = zip(scoring.inputs, scoring.arguments(batch), strict=True)
    return tuple(
        functional.pad(tensor, (0, lengths[name] - tensor.shape[1])) if name in lengths else tensor
        for name, tensor in named
    )


def _shapes(inputs: tuple[str, ...], source: Source, least_samples: int, lengths: dict[str, int]) -> tuple[Any, ...]:
    """Return which sizes may change: the samples, the ids, with the samples the bags of ids, and free lengths."""
    num_slots, batch = source.schema.num_slots, source.read(0, 1)
    samples = torch.export.Dim("samples", min=least_samples, max=1 << 24)
    num_ids = torch.export.Dim("ids", min=0, max=1 << 40)
    sizes: dict[str, Any] = {"ids": {0: num_ids}, "offsets": {0: num_slots * samples + 1} if num_slots else None}
    for at, field in enumerate(source.schema.fields):
        free = None in field.shape and field.name not in lengths
        dims = range(1, batch.extra[field.name].dim()) if free else ()
        named = {dim: torch.export.Dim(f"length_{at}_{dim}", min=0, max=1 << 24) for dim in dims}
        sizes[field.name] = {0: samples, **named}
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


def _readme(
    inputs: tuple[str, ...], model: Model, program: Program, readers: tuple[str, ...], *, is_encrypted: bool
) -> str:
    """Return how to load what lies in the folder."""
    limits = ""
    if program.least_samples > 1:
        limits += (
            f"\nIt takes {program.least_samples} samples at least, as torch.export cannot do without for one of the "
            "layers: to score one, give it twice.\n"
        )
    for name, length in program.lengths.items():
        limits += f"\n`{name}` has {length} values a sample, zeros behind: a layer is unrolled to that length.\n"
    run = f"""
The program needs PyTorch alone:

    import torch
    model = torch.export.load("{PROGRAM}").module()
    scores = model({", ".join(inputs)})
{limits}"""
    shapes = f"""
`dense` is float32 [samples, numbers]; `ids` is int64, the ids of all samples and slots one after the other; `offsets`
is int64 [samples * slots + 1]: where each slot of each sample begins in `ids`, and the number of ids last. Further
fields have one row a sample, with zeros behind those that are shorter. {FACTS} names the numbers, slots and fields in
their order.
"""
    read = f"""
{READER} makes these tensors of raw rows, also for a module with the parameters below:

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
    model.eval()
"""
    each = [WEIGHTS] if program.why_not else [WEIGHTS, PROGRAM]
    decrypt = f"""
{" and ".join(each)} {"is" if len(each) == 1 else "are"} encrypted. With the run's key, and the package `cryptography`:

""" + "".join(f"    python {DECRYPT} KEY_FILE {name} decrypted/{name}\n" for name in each)
    parts = (decrypt if is_encrypted else "", "" if program.why_not else run, shapes, read if readers else "", weights)
    return "A model that was trained by Dovetail.\n" + "".join(parts)
