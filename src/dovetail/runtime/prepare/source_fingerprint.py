"""What data and code are known by: a part of a run's fingerprint, and what a worker that joins must have alike."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path

from dovetail.data.batch import Batch
from dovetail.data.order import Order
from dovetail.data.source import Source
from dovetail.errors import DovetailError
from dovetail.references import import_function
from dovetail.runtime.blueprint import SourceFingerprint
from dovetail.runtime.sealed import checksum_of_bytes
from dovetail.spec.run import Run
from dovetail.version import __version__

LOOKED_AT = 16
"""Samples at the beginning, in the middle and at the end of an epoch that stand for all."""
TOTAL_TOLERANCE = 1e-3
"""How far sums of numbers may be apart."""


def source_fingerprint(run: Run, source: Source, samples: int) -> SourceFingerprint:
    """Return what `source`, of which an epoch has so many samples, and the code that the run names are known by.

    Samples that cannot be read are left to whoever trains on them, who will say why.
    """
    first, checksum, total = "", hashlib.sha256(), 0.0
    for begin in sorted({0, max(0, samples // 2 - LOOKED_AT), max(0, samples - LOOKED_AT)}):
        batch = _read(source, begin, min(samples, begin + LOOKED_AT))
        if batch is None:
            checksum.update(b"unreadable")
            continue
        if not begin:
            first = checksum_of_bytes(b"".join(tensor.numpy().tobytes() for tensor in batch.tensors()))
        for tensor in (batch.sample_ids, batch.ids, batch.offsets):
            checksum.update(tensor.numpy().tobytes())
        total += float(batch.dense.abs().double().sum() + batch.labels.double().sum())
    return SourceFingerprint(
        version=__version__,
        numbers=tuple(source.schema.dense),
        slots=tuple(slot.name for slot in source.schema.slots),
        fields=tuple(field.name for field in source.schema.fields),
        num_samples=source.num_samples,
        first=first,
        ids=checksum.hexdigest()[:32],
        total=total,
        parts=_parts_of(run, source, samples),
        code={name: code for name in (run.model.name, run.data.name) if (code := _code_of(name))},
    )


def unlike(run: SourceFingerprint, here: SourceFingerprint) -> Iterator[str]:
    """Yield in words what a machine has otherwise than a run."""
    if run.version != here.version:
        yield f"Dovetail is {here.version} here, and {run.version} in the run"
    for what in ("numbers", "slots", "fields"):
        its, own = getattr(run, what), getattr(here, what)
        if its != own:
            yield f"the data's {what} are {_listed(own)} here, and {_listed(its)} in the run"
    if run.num_samples != here.num_samples:
        yield f"the data have {_count(here.num_samples)} samples here, and {_count(run.num_samples)} in the run"
    elif run.ids != here.ids or not math.isclose(run.total, here.total, rel_tol=TOTAL_TOLERANCE):
        yield f"the data are as many here, but other ones: some of {3 * LOOKED_AT} samples looked at differ"
    if run.parts != here.parts:
        yield "the data lie in other parts here, from which samples are drawn in another order"
    for name, code in run.code.items():
        if here.code.get(name) != code:
            yield f"the file that `{name}` is in is another one here"


def _read(source: Source, begin: int, end: int) -> Batch | None:
    """Return some samples; None where they cannot be read."""
    try:
        return source.read(begin, end)
    except Exception:  # whatever a source of the user's own raises
        return None


def _parts_of(run: Run, source: Source, samples: int) -> str:
    """Return a checksum of where the data's parts begin, where the order depends on that."""
    order = Order(
        num_samples=samples,
        shuffle=run.data.shuffle,
        window_samples=run.data.window_samples,
        parts=getattr(source, "parts", None),
    )
    return order.parts_checksum


def _code_of(name: str) -> str:
    """Return a checksum of the file that `package.module:function` is in; nothing for what comes with Dovetail."""
    if ":" not in name:
        return ""
    try:
        file = inspect.getsourcefile(inspect.unwrap(import_function(name)))
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:32]
    except (DovetailError, OSError, TypeError):
        return ""


def _listed(names: tuple[str, ...]) -> str:
    """Return names in words, the first few of many."""
    shown = ", ".join(f"`{name}`" for name in names[:5])
    return f"{shown}, ... ({len(names)})" if len(names) > 5 else shown or "none"


def _count(number: int | None) -> str:
    """Return a number of samples in words."""
    return "endlessly many" if number is None else f"{number:,}"
