"""What workers ask of a server and bring it: refused where it makes no sense, before anything of it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.codecs.payload import NO_PLACES, Places, unpack
from dovetail.runtime.blueprint import TableSpec
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Push, Residual
from dovetail.runtime.server.attempts import Floats, Keys, RowGradients

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


def gradients_in(
    push: Push, arrays: Sequence[Any], exact: Places = NO_PLACES
) -> tuple[list[RowGradients], Floats | None]:
    """Return the gradients of rows, by table, and the dense ones that a push brings, be they in fewer bits or not.

    Of dense ones that are, the numbers at the places `exact` are not.
    """
    if len(arrays) != 2 * len(push.tables) + push.dense:
        raise TrainingError(f"{push.worker} pushed {len(arrays)} arrays for {len(push.tables)} tables", hint=BUG)
    rows = [(table, arrays[2 * place], _read(push, arrays[2 * place + 1])) for place, table in enumerate(push.tables)]
    return rows, _read(push, arrays[-1], exact) if push.dense else None


def _read(push: Push, array: Any, exact: Places = NO_PLACES) -> Any:
    """Return gradients out of their payload, where they came in one; what is in it is checked like all others."""
    return unpack(array, exact=exact, where=f"a push of {push.worker}") if array.dtype == np.uint8 else array


def residual_in(message: Residual, arrays: Sequence[Any], num_dense: int) -> Floats:
    """Return what a worker keeps back of dense gradients, as it says."""
    kept: Floats = arrays[0] if len(arrays) == 1 else np.empty(0, dtype=np.float32)
    if kept.dtype != np.float32 or kept.shape != (num_dense,) or not np.isfinite(kept).all():
        raise TrainingError(
            f"{message.worker} keeps back {kept.dtype} {kept.shape} of ({num_dense},) parameters", hint=BUG
        )
    return kept


def check_gradients(
    rows: Sequence[RowGradients], dense: Floats | None, specs: Sequence[TableSpec], *, num_dense: int
) -> None:
    """Refuse gradients that are not those of these tables and that many dense parameters."""
    for position, keys, values in rows:
        spec = _spec_of(position, specs)
        shape = (len(keys), spec.width)
        if keys.dtype != np.int64 or keys.ndim != 1 or values.dtype != np.float32 or values.shape != shape:
            raise TrainingError(
                f"gradients of table {position} are {values.dtype} {values.shape} for {keys.dtype} {keys.shape}",
                hint=BUG,
            )
        _check_keys(position, keys, spec)
    if dense is not None and (dense.dtype != np.float32 or dense.shape != (num_dense,)):
        raise TrainingError(
            f"the dense gradient is {dense.dtype} {dense.shape}, the parameters are ({num_dense},)", hint=BUG
        )


def _spec_of(position: int, specs: Sequence[TableSpec]) -> TableSpec:
    """Return what a table is like."""
    if not 0 <= position < len(specs):
        raise TrainingError(f"there is no table {position}", hint=BUG)
    return specs[position]


def _check_keys(position: int, keys: Keys, spec: TableSpec) -> None:
    """Refuse keys that a table has no rows for: they would be made, and be in every checkpoint from then on."""
    if len(keys) and not (keys.min() >= 0 and keys.max() < spec.num_rows):
        raise TrainingError(
            f"table {position} has {spec.num_rows} rows, and is asked for {keys.min()} to {keys.max()}", hint=BUG
        )
