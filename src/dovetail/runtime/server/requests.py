"""What workers ask of a server and bring it: refused where it makes no sense, before anything of it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.codecs.payload import NO_PLACES, Places, unpack
from dovetail.runtime.blueprint import TableSpec
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Accepted, MaskedPush, Push, Refresh, Residual
from dovetail.runtime.server.gradients import Floats, Keys, TaskPart
from dovetail.runtime.server.key_set_cache import KeySetCache

BUG = "a bug: report it"


def check_wanted(tables: Sequence[int], keys: Sequence[Keys], specs: Sequence[TableSpec]) -> None:
    """Refuse to look up what is not there."""
    if len(tables) != len(keys):
        raise TrainingError(f"{len(tables)} tables are asked for {len(keys)} arrays of keys", hint=BUG)
    for position, wanted in zip(tables, keys, strict=True):
        spec = _spec_of(position, specs)
        if wanted.dtype != np.int64 or wanted.ndim != 1:
            raise TrainingError(f"keys of table {position} are {wanted.dtype} {wanted.shape}", hint=BUG)
        _check_keys(position, wanted, spec)


def keys_of(refresh: Refresh, arrays: Sequence[Any], worker: str, kept: KeySetCache) -> Sequence[Keys] | None:
    """Return the keys that a refresh is about, or None where it names a pull that is not remembered."""
    if refresh.number < 0 or arrays:
        return arrays
    look_ups = kept.find(worker, refresh.number)
    return None if look_ups is None else [each.keys for each in look_ups]


def gradients_in(
    push: Push, arrays: Sequence[Any], kept: KeySetCache, exact: Places = NO_PLACES, num_dense: int = 0
) -> TaskPart | None:
    """Return what a push brings, be it in fewer bits or not, or None where it names a pull that is not remembered.

    Of `num_dense` dense gradients in fewer bits, the numbers at the places `exact` are not.
    """
    pulls = push.pulls or (-1,) * len(push.tables)
    places = push.places or pulls
    num_keys = sum(pull < 0 for pull in pulls)
    if not len(push.tables) == len(pulls) == len(places) or len(arrays) != len(pulls) + num_keys + push.dense:
        raise TrainingError(f"{push.worker} pushed {len(arrays)} arrays for {len(push.tables)} tables", hint=BUG)
    left, rows, wheres = iter(arrays), [], []
    for table, pull, place in zip(push.tables, pulls, places, strict=True):
        if pull < 0:
            keys, where = next(left), None
        else:
            look_ups = kept.find(push.worker.partition("/")[0], pull)
            if look_ups is None:
                return None
            if not 0 <= place < len(look_ups) or look_ups[place].table != table:
                raise TrainingError(f"{push.worker} pulled no keys of table {table} as number {place}", hint=BUG)
            _, keys, where = look_ups[place]
        rows.append((table, keys, _read(push, next(left))))
        wheres.append(where)
    dense = _read(push, arrays[-1], exact, (num_dense,)) if push.dense else None
    return TaskPart(
        push.step, push.task, push.worker, push.part, rows, dense, last=push.last, wheres=wheres, first=push.first
    )


def _read(push: Push, array: Any, exact: Places = NO_PLACES, shape: tuple[int, ...] | None = None) -> Any:
    """Return gradients out of their payload, where they came in one; what is in it is checked like all others."""
    return unpack(array, shape, exact=exact, where=f"a push of {push.worker}") if array.dtype == np.uint8 else array


def accepted(push: Push | MaskedPush, name: str, *, loss: float) -> Accepted:
    """Return what the coordinator hears of a push that counts."""
    return Accepted(
        name=name,
        generation=push.generation,
        step=push.step,
        task=push.task,
        positions=push.positions,
        samples=push.samples,
        loss=loss,
    )


def residual_in(message: Residual, arrays: Sequence[Any], num_dense: int) -> Floats:
    """Return what a worker keeps back of dense gradients, as it says."""
    kept: Floats = arrays[0] if len(arrays) == 1 else np.empty(0, dtype=np.float32)
    if kept.dtype != np.float32 or kept.shape != (num_dense,) or not np.isfinite(kept).all():
        raise TrainingError(
            f"{message.worker} keeps back {kept.dtype} {kept.shape} of ({num_dense},) parameters", hint=BUG
        )
    return kept


def check_gradients(part: TaskPart, specs: Sequence[TableSpec], *, num_dense: int) -> None:
    """Refuse gradients that are not those of these tables and that many dense parameters."""
    dense, first = part.dense, part.first
    for position, keys, values in part.rows:
        spec = _spec_of(position, specs)
        shape = (len(keys), spec.width)
        if keys.dtype != np.int64 or keys.ndim != 1 or values.dtype != np.float32 or values.shape != shape:
            raise TrainingError(
                f"gradients of table {position} are {values.dtype} {values.shape} for {keys.dtype} {keys.shape}",
                hint=BUG,
            )
        _check_keys(position, keys, spec)
    if dense is not None and first >= 0:
        if dense.dtype != np.float32 or dense.ndim != 1 or first + len(dense) > num_dense:
            raise TrainingError(f"a slice of dense gradients is {dense.dtype} {dense.shape} from {first}", hint=BUG)
    elif dense is not None and (dense.dtype != np.float32 or dense.shape != (num_dense,)):
        raise TrainingError(
            f"the dense gradient is {dense.dtype} {dense.shape}, the parameters are ({num_dense},)", hint=BUG
        )


def _spec_of(position: int, specs: Sequence[TableSpec]) -> TableSpec:
    if not 0 <= position < len(specs):
        raise TrainingError(f"there is no table {position}", hint=BUG)
    return specs[position]


def _check_keys(position: int, keys: Keys, spec: TableSpec) -> None:
    """Refuse keys that a table has no rows for: they would be made, and be in every checkpoint from then on."""
    if len(keys) and not (keys.min() >= 0 and keys.max() < spec.num_rows):
        raise TrainingError(
            f"table {position} has {spec.num_rows} rows, and is asked for {keys.min()} to {keys.max()}", hint=BUG
        )
