"""Whatever people keep samples in, as a source."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dovetail.data.datasets import dataset_source
from dovetail.data.errors import DataError
from dovetail.data.source import Source
from dovetail.data.tables import as_table, table_source
from dovetail.errors import did_you_mean


def as_source(data: Any, **options: Any) -> Source:
    """Return samples that someone has as a source.

    Sources are taken as they are; `options` are those of `table_source` for pandas, Polars and Arrow tables and Hugging
    Face data sets, and those of `dataset_source` for PyTorch's data sets and loaders, and for anything alike.
    """
    if isinstance(data, Source):
        _refuse(options, (), data)
        return data
    table = as_table(data)
    maker: Any = table_source if table is not None else dataset_source
    if table is None and not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise DataError(
            f"a {type(data).__name__} is no source of samples",
            hint="give a Dataset, a DataLoader, a table of pandas, Polars or Arrow, or an object with `schema`, "
            "`num_samples` and `read(first, last)`",
        )
    if isinstance(data, Mapping | str | bytes):
        raise DataError(
            f"a {type(data).__name__} is no source of samples", hint="give a list of samples, or a table with columns"
        )
    _refuse(options, tuple(inspect.signature(maker).parameters)[1:], data)
    source: Source = maker(data if table is None else table, **options)
    return source


def _refuse(options: Mapping[str, Any], known: tuple[str, ...], data: Any) -> None:
    """Refuse options that nothing is done with."""
    for option in options:
        if option not in known:
            raise DataError(f"a {type(data).__name__} has no option `{option}`", hint=did_you_mean(option, known))
