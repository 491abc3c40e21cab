"""Files as a source of samples: any range at any time, decoded once where a cache has room."""

from __future__ import annotations

import bisect
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from dovetail.data.batch import Batch, concatenate
from dovetail.data.cache import DecodedCache
from dovetail.data.errors import BadRow, BadRows, DataError
from dovetail.data.files.decoder import DecodedPart, Decoder
from dovetail.data.files.opening import DataFile, find_files
from dovetail.data.schema import Schema

PARTS_IN_MEMORY = 3


class FileIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass over a file tells: where its parts are, how many rows each has, and which are broken."""

    places: tuple[int, ...]
    num_rows: tuple[int, ...]
    bad_by_reason: dict[str, int]
    bad_examples: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Some consecutive rows of one file, by their numbers in the whole data set."""

    file: DataFile
    key: str
    place: int
    first_row: int
    """Within the file."""
    first: int
    """Within the data set."""
    last: int


class FileSource:
    """The rows of some files, numbered through; a broken row keeps its number and is left out.

    Opening it reads every file once, unless the cache remembers an earlier pass: rows are counted, broken ones
    reported, and decoded parts kept. `bad_rows` tells what was skipped; more than `max_bad_rows` are an error.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        decoder: Decoder,
        *,
        cache: DecodedCache | None = None,
        max_bad_rows: int = 0,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._max_bad_rows = max_bad_rows
        self._recent: OrderedDict[str, Batch] = OrderedDict()
        self._lock = threading.Lock()
        self.bad_rows = BadRows()
        self._parts: list[FilePart] = []
        self._num_rows = 0
        for file in find_files(paths):
            self._add(file)
        if not self._num_rows:
            raise DataError("the files hold no rows", hint="check what the path names")
        if self.bad_rows.total == self._num_rows:
            raise DataError(
                f"all {self._num_rows:,} rows are broken; the first: {self.bad_rows.examples[0]}",
                hint="is this the right format, and are these the right columns?",
            )
        self._starts = [part.first for part in self._parts]

    def __getstate__(self) -> dict[str, object]:
        """Leave out what another process makes for itself."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_recent")}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Begin with nothing in memory."""
        self.__dict__.update(state, _lock=threading.Lock(), _recent=OrderedDict())

    @property
    def schema(self) -> Schema:
        """What a sample consists of."""
        return self._decoder.schema

    @property
    def columns(self) -> object:
        """Which columns are what, where the files have named ones; else None."""
        return getattr(self._decoder, "columns", None)

    @property
    def num_samples(self) -> int:
        """How many rows there are, broken ones included."""
        return self._num_rows

    def read(self, first: int, last: int) -> Batch:
        """Return rows `first` up to but not including `last`, broken ones left out."""
        if not 0 <= first <= last:
            raise DataError(f"samples {first} to {last} were asked for", hint="ask for 0 <= first <= last")
        last = min(last, self._num_rows)
        position = max(0, bisect.bisect_right(self._starts, first) - 1)
        pieces: list[Batch] = []
        while position < len(self._parts) and (self._parts[position].first < last or not pieces):
            part = self._parts[position]
            batch = self._part(part)
            wanted = (batch.sample_ids >= first - part.first) & (batch.sample_ids < last - part.first)
            chosen = torch.nonzero(wanted).reshape(-1)
            begin, end = (int(chosen[0]), int(chosen[-1]) + 1) if chosen.numel() else (0, 0)
            piece = batch.slice(begin, end)
            pieces.append(piece.with_sample_ids(piece.sample_ids + part.first))
            position += 1
        return concatenate(pieces)

    def _add(self, file: DataFile) -> None:
        """Take in one file, from the cache's index of it or by reading it."""
        identity = f"{self._decoder.identity}/{file}/{file.num_bytes}/{file.version}"
        key = hashlib.sha256(identity.encode()).hexdigest()[:32]
        index = self._remembered(key)
        if index is None:
            index = self._index(file, key)
            if self._cache is not None:
                self._cache.put_text(key, msgspec.json.encode(index).decode())
        else:
            examples = (BadRow(file=str(file), row=row, reason=reason) for row, reason in index.bad_examples)
            self.bad_rows.merge(index.bad_by_reason, examples)
            self.bad_rows.check(self._max_bad_rows)
        first_row = 0
        for number, (place, rows) in enumerate(zip(index.places, index.num_rows, strict=True)):
            start = self._num_rows
            part_key = f"{key}-{number:06}"
            self._parts.append(
                FilePart(file=file, key=part_key, place=place, first_row=first_row, first=start, last=start + rows)
            )
            first_row += rows
            self._num_rows += rows

    def _remembered(self, key: str) -> FileIndex | None:
        """Return what the cache knows of a file."""
        text = self._cache.get_text(key) if self._cache is not None else None
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=FileIndex)
        except msgspec.DecodeError:
            return None

    def _index(self, file: DataFile, key: str) -> FileIndex:
        """Read a file from end to end, keep its parts, and stop at the first broken row too many."""
        own = BadRows()
        places, counts = [], []
        for number, part in enumerate(self._decoder.decode(file)):
            own.add(part.bad_rows)
            self.bad_rows.add(part.bad_rows)
            self.bad_rows.check(self._max_bad_rows)
            self._keep(f"{key}-{number:06}", part)
            places.append(part.place)
            counts.append(part.num_rows)
        return FileIndex(
            places=tuple(places),
            num_rows=tuple(counts),
            bad_by_reason=dict(own.by_reason),
            bad_examples=tuple((row.row, row.reason) for row in own.examples),
        )

    def _keep(self, key: str, part: DecodedPart) -> None:
        """Put a decoded part into memory and into the cache."""
        if self._cache is not None:
            self._cache.put(key, part.batch)
        with self._lock:
            self._recent[key] = part.batch
            self._recent.move_to_end(key)
            while len(self._recent) > PARTS_IN_MEMORY:
                self._recent.popitem(last=False)

    def _part(self, part: FilePart) -> Batch:
        """Return the rows of a part from memory, the cache, or the file."""
        with self._lock:
            if part.key in self._recent:
                self._recent.move_to_end(part.key)
                return self._recent[part.key]
        cached = self._cache.get(part.key) if self._cache is not None else None
        if cached is None:
            decoded = next(self._decoder.decode(part.file, part.place, part.first_row))
            self._keep(part.key, decoded)
            return decoded.batch
        with self._lock:
            self._recent[part.key] = cached
            while len(self._recent) > PARTS_IN_MEMORY:
                self._recent.popitem(last=False)
        return cached
