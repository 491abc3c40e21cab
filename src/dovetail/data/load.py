"""Data by name: the generator, files, and users' own."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dovetail.data.cache import DEFAULT_LIMIT_BYTES, DecodedCache, default_folder
from dovetail.data.clicks import Clicks, Matches
from dovetail.data.errors import DataError
from dovetail.data.files.arrow import ArrowDecoder, HuggingFaceDecoder, saved_dataset_files
from dovetail.data.files.choosing import (
    UNSAID,
    Names,
    Said,
    chosen_columns,
    described,
    kind_in_csv,
    kind_in_files,
    said_in,
)
from dovetail.data.files.columns import SEPARATOR, Columns
from dovetail.data.files.criteo import CriteoDecoder
from dovetail.data.files.csv import CsvDecoder
from dovetail.data.files.decoder import Decoder
from dovetail.data.files.features import settled_features
from dovetail.data.files.formats import format_of, is_path
from dovetail.data.files.numpy import NumpyDecoder
from dovetail.data.files.opening import find_files, partitions_between
from dovetail.data.files.parquet import ParquetDecoder
from dovetail.data.files.source import FileSource
from dovetail.data.files.tables import TableDecoder
from dovetail.data.files.webdataset import WebDatasetDecoder
from dovetail.data.source import Source
from dovetail.encryption import keep_encrypted, read_key_file
from dovetail.errors import did_you_mean
from dovetail.logs import tell
from dovetail.references import import_function
from dovetail.spec.run import RunData

MADE_BY = "_dovetail_made_by"
MATCH_TRUTHS: Mapping[str, dict[str, Any]] = {
    "user-item": {},
    "next-item": {"num_user_slots": 1, "user_values": 10.0, "num_item_slots": 1, "num_dense": 0},
}
"""Truths of `clicks` for models that match, and the shapes of their samples."""


def load_data(name: str, **options: Any) -> Source:
    """Return a source of samples.

    `name` is a path, whose format is found out; or `clicks` (options: those of `Clicks`, or of `Matches` with truth
    `user-item` or `next-item`); a format (`criteo`, `csv`, `parquet`, `arrow`, `numpy`, `webdataset`, `huggingface`)
    with the option `path`; or `package.module:function`, which is called with the options and returns a `Source`.

    Options of files are path, cache, cache_limit_bytes, max_bad_rows and hash_into; of all but `criteo` also label,
    weight, dense, slots, multi_valued, separator, fields, shapes, whole, ignore, transforms, and of `csv` delimiter.
    `fields` are further columns of sequences or tensors, `shapes` what theirs are, `whole` those of text that are whole
    numbers; `label` may be several columns, or None. Where neither dense, slots nor fields are named, columns are taken
    by their names and types (see `dovetail.data.files.choosing`), and so are those that `ignore` leaves. `transforms`
    make columns of others (see `dovetail.data.files.features`).
    """
    name, options = named_data(name, options)
    if ":" in name:
        return _made_by(_own(name, options), name, options)
    if name not in DATA:
        raise DataError(
            f"there are no data `{name}`",
            hint=did_you_mean(name, DATA) + ", a path, or package.module:function for your own",
        )
    maker = DATA[name]
    _check_options(name, maker, options)
    source = maker(**options)
    columns = getattr(source, "columns", None)
    if isinstance(columns, Columns):
        options = settled_options(options, columns)
    return _made_by(source, name, options)


def open_data(name: str, options: Mapping[str, Any], *, key_file: str | None) -> Source:
    """Return data by their name; with a `key_file`, what is kept of them on disk once decoded is encrypted with it."""
    if key_file is None:
        return load_data(name, **options)
    kept = options.get("cache", True)
    if kept is False or "cache" not in options_known(named_data(name, options)[0], {"cache": kept}):
        return load_data(name, **options)
    apart = f"encrypted-{read_key_file(Path(key_file)).id.hex()}"
    folder = (default_folder() if isinstance(kept, bool) else Path(kept)) / apart
    keep_encrypted(folder, key_file)
    source = load_data(name, **{**options, "cache": str(folder)})
    if (made := how_made(source)) is not None:  # with the options that whoever opens them again gives too
        as_given = {key: value for key, value in made[1].items() if key != "cache"}
        _made_by(source, made[0], as_given | ({"cache": kept} if "cache" in options else {}))
    return source


def settled_options(options: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Return options with the columns in them that were chosen, so that others who read with them choose the same."""
    said = said_in(options)
    if said.is_whole and not said.has_patterns and said.columns() == columns:
        return dict(options)
    return {key: value for key, value in options.items() if key != "ignore"} | columns.options()


def named_data(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return data by the name of their format, where they are named by a path, or by the option `path` alone."""
    if name == RunData().name and "path" in options:
        found = format_of(options["path"])
        return found.name, {**found.options, **options}
    if name in DATA or (":" in name and "://" not in name) or not is_path(name):
        return name, dict(options)
    if "path" in options:
        raise DataError(
            f"the data are at `{name}`, and at the option path={options['path']!r}", hint="leave one of them out"
        )
    found = format_of(name)
    return found.name, {**found.options, "path": name, **options}


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
    known = set(inspect.signature(maker).parameters if maker is not None else ()) - {"path"}
    known -= set() if name == "csv" else {"delimiter"}
    return {option: value for option, value in options.items() if option in known}


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
    kind: str,
    *,
    path: str | Sequence[str],
    label: Names | None = UNSAID,
    dense: Names | None = None,
    slots: Names | None = None,
    multi_valued: Names | None = None,
    separator: str = SEPARATOR,
    delimiter: str | None = None,
    cache: str | Path | bool = True,
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    max_bad_rows: int = 0,
    hash_into: int | Mapping[str, int] | None = None,
    weight: str | None = None,
    fields: Names | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    whole: Names | None = None,
    ignore: Names | None = None,
    transforms: Names | None = None,
) -> Source:
    """Return samples in files with named columns; those that nobody names are taken by their names and types."""
    said = Said(
        label=label,
        dense=dense,
        slots=slots,
        multi_valued=multi_valued,
        separator=separator,
        weight=weight,
        fields=fields,
        shapes=shapes,
        whole=whole,
        ignore=ignore,
        transforms=transforms,
    )
    if delimiter is not None and kind != "csv":
        raise DataError(f"`{kind}` has no option `delimiter`", hint="leave it out: its columns need none")
    parsed = said.columns()  # what is said wrongly is said before a file is opened
    decoder = TABLES[kind](columns=Columns(label=None, separator=parsed.separator))
    if isinstance(decoder, CsvDecoder) and delimiter is not None:
        decoder = replace(decoder, delimiter=delimiter)
    paths = saved_dataset_files(path) if kind == "huggingface" else path
    columns = columns_of(decoder, paths, said)
    return _files(paths, replace(decoder, columns=columns), cache, cache_limit_bytes, max_bad_rows, hash_into)


def columns_of(decoder: TableDecoder, paths: str | Sequence[str], said: Said) -> Columns:
    """Return which columns of some files are what, with what a first pass tells; what was chosen is told once."""
    files = find_files(paths)
    is_csv = decoder.format == "csv"
    if said.is_whole and is_csv and not said.has_patterns:
        columns = said.columns()
    else:
        types = decoder.types(files[0])
        for name in partitions_between(paths, files):
            types = types if name in types.names else types.append(pa.field(name, pa.string()))
        where = paths if isinstance(paths, str) else str(files[0])
        columns = chosen_columns(
            said,
            types,
            where=where,
            label_names=decoder.label_names,
            kind_of=kind_in_csv if is_csv else kind_in_files,
        )
        if not said.is_whole:
            tell_once(described(columns, where, decoder.format))

    def tables(names: tuple[str, ...]) -> Iterator[pa.Table]:
        for file in files:
            yield from (part.table for part in decoder.tables(file, names))

    return replace(columns, transforms=settled_features(columns.transforms, tables))


def tell_once(text: str) -> None:
    """Tell something, unless this process did before."""
    if text not in _TOLD:
        _TOLD.add(text)
        tell(text)


_TOLD: set[str] = set()
TABLES: dict[str, type[TableDecoder]] = {
    "csv": CsvDecoder,
    "parquet": ParquetDecoder,
    "arrow": ArrowDecoder,
    "numpy": NumpyDecoder,
    "webdataset": WebDatasetDecoder,
    "huggingface": HuggingFaceDecoder,
}
"""Formats with named columns."""
DATA: dict[str, Callable[..., Source]] = {
    "clicks": clicks,
    "criteo": criteo,
    **{kind: partial(column_files, kind) for kind in TABLES},
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
    return FileSource(path, decoder, cache=kept, max_bad_rows=max_bad_rows, hash_into=hash_into)


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
