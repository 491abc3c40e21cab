"""Files as a source of samples: any samples at any time, decoded once where a cache has room."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from dovetail.data.ahead import num_cores
from dovetail.data.assembling import assemble, parts_of
from dovetail.data.batch import Batch
from dovetail.data.cache import DecodedCache, KeptPart
from dovetail.data.errors import MOST_SHOWN, BadRow, BadRows, DataError
from dovetail.data.files.decoder import ROWS_PER_PART, DecodedPart, Decoder
from dovetail.data.files.opening import DataFile, find_files, version_of
from dovetail.data.order import WINDOW_BYTES
from dovetail.data.packed import PackedSamples, joined, packed
from dovetail.data.schema import Schema
from dovetail.data.transforms import hash_ids, hashed_schema
from dovetail.data.write_behind import WriteBehind

READER_NAME = "dovetail-decode"


class FileIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What a file's footer, or one pass over it, tells: where its parts are, and how many rows each has."""

    places: tuple[int, ...]
    num_rows: tuple[int, ...]
    bad_by_reason: dict[str, int] | None = None
    """Broken rows by reason; None where rows were not looked at."""
    bad_examples: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Some consecutive rows of one file, which are fetched, decoded and kept together."""

    file: DataFile
    key: str
    place: int
    first_row: int
    """Within the file."""
    first: int
    """Within the data set."""
    last: int
    is_counted: bool
    """Whether its broken rows are known already."""


class FileSource:
    """The rows of some files, numbered through; a broken row keeps its number and is left out.

    Opening it looks at footers where files have them, and else reads every file once, unless the cache remembers an
    earlier pass. `bad_rows` tells what was skipped so far; more than `max_bad_rows` are an error, as soon as they are
    found. Parts are decoded by several threads, once while the cache has room, and mapped from it. A file that changes
    after it was opened is an error: what was read before and what comes after would be a mixture.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        decoder: Decoder,
        *,
        cache: DecodedCache | None = None,
        max_bad_rows: int = 0,
        hash_into: int | Mapping[str, int] | None = None,
    ) -> None:
        self._decoder, self._cache, self._max_bad_rows = decoder, cache, max_bad_rows
        self.schema: Schema = hashed_schema(decoder.schema, hash_into)
        self._sizes = None if hash_into is None else tuple(slot.hash_into or 0 for slot in self.schema.slots)
        self.bad_rows = BadRows()
        self._parts: list[FilePart] = []
        self.num_samples = 0
        self._begin()
        for file in find_files(paths):
            self._add(file)
        if not self.num_samples:
            raise DataError("the files hold no rows", hint="check what the path names")
        self._check_some_are_good()
        self._firsts = np.array([part.first for part in self._parts], dtype=np.int64)

    def _begin(self) -> None:
        """Have nothing in memory."""
        self._lock = threading.Lock()
        self._held: OrderedDict[int, PackedSamples] = OrderedDict()
        self._mapped: dict[int, PackedSamples] = {}
        self._pending: dict[int, Future[PackedSamples]] = {}
        self._wanted: frozenset[int] = frozenset()
        self._counted: set[int] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._written: WriteBehind | None = None
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        """Leave out what another process makes for itself."""
        own = ("_lock", "_held", "_mapped", "_pending", "_wanted", "_counted", "_pool", "_written", "_process")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Begin with nothing in memory."""
        self.__dict__.update(state)
        self._begin()

    def folded(self, num_rows: int) -> FileSource:
        """Return the same rows with ids modulo `num_rows`, which take fewer bytes, for who takes them so anyway."""
        if self._sizes is not None:
            return self
        other = copy.copy(self)
        other._sizes = (num_rows,) * len(self.schema.slots)
        other._parts = [replace(part, key=f"{part.key}-of-{num_rows}") for part in self._parts]
        other._begin()
        other._counted = set(self._counted)
        return other

    @property
    def columns(self) -> object:
        """Which columns are what, where the files have named ones; else None."""
        return getattr(self._decoder, "columns", None)

    @property
    def parts(self) -> tuple[int, ...]:
        """The first sample of each part: what an order draws first."""
        return tuple(self._firsts.tolist())

    def read(self, first: int, last: int) -> Batch:
        """Return rows `first` up to but not including `last`, broken ones left out."""
        if not 0 <= first <= last:
            raise DataError(f"samples {first} to {last} were asked for", hint="ask for 0 <= first <= last")
        return self.gather(np.arange(first, max(first, min(last, self.num_samples))))

    def gather(self, samples: NDArray[np.int64], *, shift: int = 0, pin: bool = False) -> Batch:
        """Return samples by their numbers, in that order, broken ones left out; `shift` is added to their ids."""
        numbers = parts_of(samples, self._firsts) if len(samples) else np.zeros(1, dtype=np.int64)
        parts = self._all(numbers.tolist())
        return assemble(samples, parts, self._firsts[numbers], shift=shift, pin=pin)

    def expect(self, ranges: NDArray[np.int64]) -> None:
        """Have parts decoded, mapped and checked in the background: samples of these ranges come soon, in this order.

        They stay in memory until others are expected.
        """
        numbers = [
            number
            for first, last in ranges.tolist()
            for number in range(
                int(np.searchsorted(self._firsts, first, side="right")) - 1, int(np.searchsorted(self._firsts, last))
            )
        ]
        with self._lock:
            self._wanted = frozenset(numbers)
            for number in [each for each in self._mapped if each not in self._wanted]:
                del self._mapped[
                    number
                ]  # a part that has left the cache takes room on the disk as long as it is mapped
            numbers = [number for number in numbers if not self._is_at_hand(number)]
        for number in numbers:
            self._submit(number)

    def _is_at_hand(self, number: int) -> bool:
        return number in self._mapped or number in self._held or number in self._pending

    def _all(self, numbers: Sequence[int]) -> list[PackedSamples]:
        """Return parts, those that are not at hand decoded at once by as many threads as there are cores."""
        with self._lock:
            missing = [number for number in numbers if not self._is_at_hand(number)]
        for number in missing[1:]:
            self._submit(number)
        return [self._part(number) for number in numbers]

    def _submit(self, number: int) -> None:
        """Have a part made ready by another thread."""
        if self._process != os.getpid():  # forked: threads stay behind
            self._begin()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(num_cores(), thread_name_prefix=READER_NAME)
            pool = self._pool
        pool.submit(self._quietly, number)

    def _quietly(self, number: int) -> None:
        """Make a part ready; what goes wrong is told to who asks for it."""
        with contextlib.suppress(Exception):  # it goes wrong again, in front
            self._part(number)

    def _part(self, number: int) -> PackedSamples:
        """Return a part from memory, the cache, or the file; it is made ready by whoever asks first."""
        with self._lock:
            found = self._mapped.get(number)
            if found is None and number in self._held:
                self._held.move_to_end(number)
                found = self._held[number]
            if found is not None:
                return found
            mine = number not in self._pending
            pending = self._pending.setdefault(number, Future())
        if mine:
            try:
                pending.set_result(self._made(number))
            except BaseException as problem:
                pending.set_exception(problem)
                raise
            finally:
                with self._lock:
                    self._pending.pop(number, None)
        return pending.result()

    def _made(self, number: int) -> PackedSamples:
        """Return a part that nobody has in memory."""
        part = self._parts[number]
        if self._cache is None:
            return self._hold(number, self._decoded(part))
        if (kept := self._cached(part)) is not None:
            return self._map(number, kept)
        with contextlib.ExitStack() as turn:
            is_first = turn.enter_context(self._cache.decoding(part.key))
            if not is_first and (kept := self._cached(part)) is not None:
                return self._map(number, kept)
            decoded = self._decoded(part)
            held = self._hold(number, decoded)
            self._writer(self._cache).put(part.key, decoded, turn.pop_all(), lambda: self._let_go(number))
        return held

    def _writer(self, cache: DecodedCache) -> WriteBehind:
        """Return what writes to the cache."""
        with self._lock:
            if self._written is None:
                self._written = WriteBehind(cache)
            return self._written

    def _let_go(self, number: int) -> None:
        """Have a part that was written mapped where it is in memory: its pages are the page cache's then."""
        with self._lock:
            is_held = number in self._held
        if is_held and (kept := self._cached(self._parts[number])) is not None:
            with self._lock:
                if self._held.pop(number, None) is not None:
                    self._mapped[number] = kept.samples

    def settle(self) -> None:
        """Wait until all that was decoded is in the cache, as far as it has room."""
        if self._written is not None:
            self._written.wait()

    def _cached(self, part: FilePart) -> KeptPart | None:
        """Return a part from the cache, mapped."""
        kept = self._cache.get(part.key) if self._cache is not None else None
        return kept if kept is not None and kept.samples.num_rows == part.last - part.first else None

    def _map(self, number: int, kept: KeptPart) -> PackedSamples:
        """Take in a part of the cache."""
        self._count(number, kept)
        with self._lock:
            self._mapped[number] = kept.samples
        return kept.samples

    def _hold(self, number: int, decoded: KeptPart) -> PackedSamples:
        """Keep a part in memory; of those that are not expected, the last few."""
        self._count(number, decoded)
        with self._lock:
            self._held[number] = decoded.samples
            self._held.move_to_end(number)
            others = [each for each in self._held if each not in self._wanted]
            excess = sum(self._held[each].num_bytes for each in others) - WINDOW_BYTES // 2
            for each in others[:-1]:
                if excess > 0:
                    excess -= self._held.pop(each).num_bytes
        return decoded.samples

    def _count(self, number: int, part: KeptPart) -> None:
        """Count the broken rows of a part, once, and refuse too many."""
        own = self._parts[number]
        with self._lock:
            if not own.is_counted and number not in self._counted:
                self._counted.add(number)
                examples = (
                    BadRow(file=str(own.file), row=own.first_row + row + 1, reason=reason)
                    for row, reason in part.bad_examples
                )
                self.bad_rows.merge(part.bad_by_reason, examples)
        self._check_some_are_good()
        self.bad_rows.check(self._max_bad_rows)

    def _check_some_are_good(self) -> None:
        if self.num_samples and self.bad_rows.total == self.num_samples:
            raise DataError(
                f"all {self.num_samples:,} rows are broken; the first: {self.bad_rows.examples[0]}",
                hint="is this the right format, and are these the right columns?",
            )

    def _decoded(self, part: FilePart) -> KeptPart:
        """Decode a part, and refuse a file that is not the one that was opened."""
        rows, bad = part.last - part.first, BadRows()
        pieces: list[PackedSamples] = []
        found = 0
        try:
            for piece in self._decoder.decode(part.file, part.place, part.first_row):
                bad.add(piece.bad_rows)
                pieces.append(self._packed(piece))
                found += piece.num_rows
                if found >= rows:
                    break
        except DataError:
            _check_unchanged(part.file)  # then that is what is wrong
            raise
        _check_unchanged(part.file)
        if found != rows:
            raise DataError(
                f"`{part.file}` has {found:,} rows where there were {rows:,}",
                hint="leave files alone while they are read",
            )
        return KeptPart(
            samples=joined(pieces),
            bad_by_reason=dict(bad.by_reason),
            bad_examples=tuple((row.row - 1 - part.first_row, row.reason) for row in bad.examples),
        )

    def _packed(self, piece: DecodedPart) -> PackedSamples:
        batch = piece.batch if self._sizes is None else hash_ids(piece.batch, self._sizes)
        return packed(batch, num_rows=piece.num_rows, num_slots=self.schema.num_slots)

    def _add(self, file: DataFile) -> None:
        """Take in one file, from its footer, the cache's index of it, or by reading it."""
        identity = f"{self._decoder.identity}/{self._sizes}/{file}/{file.num_bytes}/{file.version}"
        key = hashlib.sha256(identity.encode()).hexdigest()[:32]
        layout = getattr(self._decoder, "layout", None)
        fresh: OrderedDict[str, PackedSamples] = OrderedDict()
        if layout is not None:
            index = self._grouped(layout(file))
        else:
            index = self._remembered(key) or self._index(file, key, fresh)
        if index.bad_by_reason is not None:
            examples = (BadRow(file=str(file), row=row, reason=reason) for row, reason in index.bad_examples)
            self.bad_rows.merge(index.bad_by_reason, examples)
            self.bad_rows.check(self._max_bad_rows)
        first_row = 0
        for place, rows in zip(index.places, index.num_rows, strict=True):
            start = self.num_samples
            self._parts.append(
                FilePart(
                    file=file,
                    key=f"{key}-{first_row}",
                    place=place,
                    first_row=first_row,
                    first=start,
                    last=start + rows,
                    is_counted=index.bad_by_reason is not None,
                )
            )
            if f"{key}-{first_row}" in fresh:
                self._held[len(self._parts) - 1] = fresh[f"{key}-{first_row}"]
            first_row += rows
            self.num_samples += rows

    def _grouped(self, layout: Iterable[tuple[int, int]]) -> FileIndex:
        """Return parts that are not too small to be kept one by one, from (place, rows) of those of a file."""
        least = getattr(self._decoder, "rows_per_part", ROWS_PER_PART)
        parts: list[tuple[int, int]] = []
        for place, rows in layout:
            if parts and parts[-1][1] + rows <= least:
                parts[-1] = (parts[-1][0], parts[-1][1] + rows)
            elif rows:
                parts.append((place, rows))
        return FileIndex(places=tuple(place for place, _ in parts), num_rows=tuple(rows for _, rows in parts))

    def _remembered(self, key: str) -> FileIndex | None:
        """Return what the cache knows of a file."""
        text = self._cache.get_text(key) if self._cache is not None else None
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=FileIndex)
        except msgspec.DecodeError:
            return None

    def _index(self, file: DataFile, key: str, fresh: OrderedDict[str, PackedSamples]) -> FileIndex:
        """Read a file from end to end and keep its parts, in `fresh` without a cache; stop at a broken row too many."""
        own, total = BadRows(), self.bad_rows.total
        places: list[int] = []
        counts: list[int] = []
        for piece in self._decoder.decode(file):
            own.add(piece.bad_rows)
            if own.total + total > self._max_bad_rows:
                self.bad_rows.merge(own.by_reason, own.examples)
                self.bad_rows.check(self._max_bad_rows)
            bad = BadRows()
            bad.add(piece.bad_rows)
            kept = KeptPart(
                samples=self._packed(piece),
                bad_by_reason=dict(bad.by_reason),
                bad_examples=tuple((row.row - 1 - sum(counts), row.reason) for row in bad.examples),
            )
            if self._cache is None or not self._cache.put(f"{key}-{sum(counts)}", kept):
                fresh[f"{key}-{sum(counts)}"] = kept.samples
                while sum(each.num_bytes for each in fresh.values()) > WINDOW_BYTES // 2:
                    fresh.popitem(last=False)
            places.append(piece.place)
            counts.append(piece.num_rows)
        _check_unchanged(file)
        index = FileIndex(
            places=tuple(places),
            num_rows=tuple(counts),
            bad_by_reason=dict(own.by_reason),
            bad_examples=tuple((row.row, row.reason) for row in own.examples[:MOST_SHOWN]),
        )
        if self._cache is not None:
            self._cache.put_text(key, msgspec.json.encode(index).decode())
        return index


def _check_unchanged(file: DataFile) -> None:
    """Refuse a file that is another one than when it was opened."""
    if version_of(file) != file.version:
        raise DataError(
            f"`{file}` has changed since it was opened",
            hint="samples of before and after would be a mixture: put the old file back, or begin again with this one",
        )
