"""Data by name: the generator, files, and users' own."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dovetail.data.cache import DEFAULT_LIMIT_BYTES, DecodedCache
from dovetail.data.clicks import Clicks, Matches
from dovetail.data.errors import DataError
from dovetail.data.files import Columns, CriteoDecoder, CsvDecoder, FileSource, ParquetDecoder
from dovetail.data.files.decoder import Decoder
from dovetail.data.source import Source
from dovetail.data.transforms import hashed
from dovetail.errors import did_you_mean
from dovetail.references import import_function

MADE_BY = "_dovetail_made_by"
MATCH_TRUTHS: Mapping[str, dict[str, Any]] = {
    "user-item": {},
    "next-item": {"num_user_slots": 1, "user_values": 10.0, "num_item_slots": 1, "num_dense": 0},
}
"""Truths of `clicks` for models that match, and the shapes of their samples."""


def load_data(name: str, **options: Any) -> Source:
    """Return a source of samples.

    `name` is `clicks` (options: those of `Clicks`, or of `Matches` with truth `user-item` or `next-item`), `criteo`,
    `csv` or `parquet` (path, cache, cache_limit_bytes, max_bad_rows, hash_into; label, weight, dense, slots,
    multi_valued, separator, fields, shapes, whole for the last two), or `package.module:function`, which is called with
    the options and returns a `Source`. `fields` are further columns of sequences or tensors, `shapes` what theirs are,
    `whole` those of text that are whole numbers; `label` may be several columns, or None.
    """
    if ":" in name:
        return _made_by(_own(name, options), name, options)
    if name not in DATA:
        raise DataError(
            f"there are no data `{name}`", hint=did_you_mean(name, DATA) + ", or package.module:function for your own"
        )
    maker = DATA[name]
    _check_options(name, maker, options)
    return _made_by(maker(**options), name, options)


def how_made(source: object) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the options by which `load_data` made a source; None where something else made it."""
    made: tuple[str, dict[str, Any]] | None = getattr(source, MADE_BY, None)
    return made


def _made_by(source: Source, name: str, options: Mapping[str, Any]) -> Source:
    """Note how a source was made, where it can hold a note: such a source need not travel to workers."""
    with contextlib.suppress(AttributeError, TypeError):
        object.__setattr__(source, MADE_BY, (name, dict(options)))
    return source


def options_known(name: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some options that data of this name take: what `csv` files are read with holds for `parquet`."""
    maker = DATA.get(name or "")
    known = inspect.signature(maker).parameters if maker is not None else {}
    return {option: value for option, value in options.items() if option in known and option != "path"}


def clicks(*, truth: str = "deep", **options: Any) -> Source:
    """Return generated clicks; truths `user-item` and `next-item` are for models that match."""
    maker: type[Clicks | Matches] = Matches if truth in MATCH_TRUTHS else Clicks
    _check_options("clicks", maker, options)
    return Matches(**(MATCH_TRUTHS[truth] | options)) if truth in MATCH_TRUTHS else Clicks(truth=truth, **options)


def criteo(
    *,
    path: str | Sequence[str],
    cache: str | Path | bool = True,
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    max_bad_rows: int = 0,
    hash_into: int | Mapping[str, int] | None = None,
) -> Source:
    """Return click logs in the public TSV format."""
    return _files(path, CriteoDecoder(), cache, cache_limit_bytes, max_bad_rows, hash_into)


def column_files(
    kind: Literal["csv", "parquet"],
    *,
    path: str | Sequence[str],
    label: str | Sequence[str] | None = "label",
    dense: Sequence[str] = (),
    slots: Sequence[str] = (),
    multi_valued: Sequence[str] = (),
    separator: str = "|",
    delimiter: str | None = None,
    cache: str | Path | bool = True,
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    max_bad_rows: int = 0,
    hash_into: int | Mapping[str, int] | None = None,
    weight: str | None = None,
    fields: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    whole: Sequence[str] = (),
) -> Source:
    """Return samples in files with named columns: CSV with a header, or Parquet."""
    columns = Columns(
        label=label if label is None or isinstance(label, str) else tuple(label),
        dense=names(dense),
        slots=names(slots),
        multi_valued=names(multi_valued),
        separator=separator,
        weight=weight,
        fields=names(fields),
        shapes=tuple((name, tuple(shape)) for name, shape in (shapes or {}).items()),
        whole=names(whole),
    )
    if kind == "csv":
        decoder: Decoder = CsvDecoder(columns=columns, delimiter="," if delimiter is None else delimiter)
    elif delimiter is not None:
        raise DataError("`parquet` has no option `delimiter`", hint="leave it out: the columns of Parquet need none")
    else:
        decoder = ParquetDecoder(columns=columns)
    return _files(path, decoder, cache, cache_limit_bytes, max_bad_rows, hash_into)


def names(words: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of columns; a single one need not be a list."""
    return (words,) if isinstance(words, str) else tuple(words)


DATA: dict[str, Callable[..., Source]] = {
    "clicks": clicks,
    "criteo": criteo,
    "csv": partial(column_files, "csv"),
    "parquet": partial(column_files, "parquet"),
}


def _files(
    path: str | Sequence[str],
    decoder: Decoder,
    cache: str | Path | bool,
    limit_bytes: int,
    max_bad_rows: int,
    hash_into: int | Mapping[str, int] | None,
) -> Source:
    """Return the source of some files; `cache` is a folder, True for the usual one, False for none."""
    if max_bad_rows < 0:
        raise DataError(f"max_bad_rows is {max_bad_rows}", hint="set it to 0 or more")
    folder = None if isinstance(cache, bool) else cache
    kept = DecodedCache(folder, limit_bytes=limit_bytes) if cache is not False else None
    source = FileSource(path, decoder, cache=kept, max_bad_rows=max_bad_rows)
    return source if hash_into is None else hashed(source, hash_into)


def _own(name: str, options: dict[str, Any]) -> Source:
    function = import_function(name, what="data", error=DataError)
    _check_options(name, function, options)
    try:
        source = function(**options)
    except Exception as problem:
        raise DataError(
            f"data `{name}` could not be opened: {type(problem).__name__}: {problem}",
            hint="call the function yourself to see where it fails",
        ) from problem
    if not isinstance(source, Source):
        raise DataError(
            f"`{name}` returned a {type(source).__name__}, not a source of samples",
            hint="return an object with `schema`, `num_samples` and `read(first, last)`; see dovetail.data.Source",
        )
    return source


def _check_options(name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that a maker does not take, and the lack of one it needs."""
    known = inspect.signature(maker).parameters
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not open_ended:
            raise DataError(f"`{name}` has no option `{option}`", hint=did_you_mean(option, known))
    for option, parameter in known.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        if needed and option not in options:
            raise DataError(f"`{name}` needs the option `{option}`", hint=f"give {option}=...")
