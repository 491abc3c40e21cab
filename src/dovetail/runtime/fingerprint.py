"""What the data and the code of a worker are known by: whoever joins with others would train another model."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path

from dovetail import __version__
from dovetail.data.imports import ImportProblem, imported
from dovetail.data.source import Source
from dovetail.runtime.blueprint import Fingerprint
from dovetail.spec.run import Run

LOOKED_AT = 16
"""Samples at the beginning, in the middle and at the end of an epoch that stand for all."""
NUMBERS_TOLERANCE = 1e-3
"""How far sums of numbers may be apart: machines round differently."""


def fingerprint_of(run: Run, source: Source, samples: int) -> Fingerprint:
    """Return what `source`, of which an epoch has so many samples, and the code that the run names are known by."""
    keys, numbers = _looks(source, samples)
    return Fingerprint(
        version=__version__,
        dense=tuple(source.schema.dense),
        slots=tuple(slot.name for slot in source.schema.slots),
        fields=tuple(field.name for field in source.schema.fields),
        num_samples=source.num_samples,
        keys=keys,
        numbers=numbers,
        code={name: code for name in (run.model.name, run.data.name) if (code := _code_of(name))},
    )


def differences(run: Fingerprint, here: Fingerprint) -> Iterator[str]:
    """Yield in words what is not as the run has it."""
    if run.version != here.version:
        yield f"Dovetail is {here.version} here, and {run.version} in the run"
    named = (("numbers", run.dense, here.dense), ("slots", run.slots, here.slots), ("fields", run.fields, here.fields))
    for what, its, own in named:
        if its != own:
            yield f"the data's {what} are {_listed(own)} here, and {_listed(its)} in the run"
    if run.num_samples != here.num_samples:
        yield f"the data have {_count(here.num_samples)} samples here, and {_count(run.num_samples)} in the run"
    elif run.keys != here.keys or not math.isclose(run.numbers, here.numbers, rel_tol=NUMBERS_TOLERANCE):
        yield f"the data are as many here, but other ones: some of {3 * LOOKED_AT} samples looked at differ"
    for name, code in run.code.items():
        if here.code.get(name) != code:
            yield f"the file that `{name}` is in is another one here"


def _looks(source: Source, samples: int) -> tuple[str, float]:
    """Return a checksum of the ids of some samples, and a sum of their numbers and labels."""
    checksum, numbers = hashlib.sha256(), 0.0
    for begin in sorted({0, max(0, samples // 2 - LOOKED_AT), max(0, samples - LOOKED_AT)}):
        try:
            batch = source.read(begin, min(samples, begin + LOOKED_AT))
        except Exception:  # whoever trains on them will say what is wrong with them
            checksum.update(b"unreadable")
            continue
        for tensor in (batch.sample_ids, batch.ids, batch.offsets):
            checksum.update(tensor.numpy().tobytes())
        numbers += float(batch.dense.abs().double().sum() + batch.labels.double().sum())
    return checksum.hexdigest()[:32], numbers


def _code_of(name: str) -> str:
    """Return a checksum of the file that `package.module:function` is in; nothing for what comes with Dovetail."""
    if ":" not in name:
        return ""
    try:
        file = inspect.getsourcefile(inspect.unwrap(imported(name)))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:32]
    except (ImportProblem, OSError, TypeError):
        return ""


def _listed(names: tuple[str, ...]) -> str:
    """Return names in words, the first few of many."""
    shown = ", ".join(f"`{name}`" for name in names[:5])
    return f"{shown}, ... ({len(names)})" if len(names) > 5 else shown or "none"


def _count(number: int | None) -> str:
    """Return a number of samples in words."""
    return "endlessly many" if number is None else f"{number:,}"
