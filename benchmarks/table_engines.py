"""Rows in key-value engines, stepped by the table's own kernel, and a group of processes that shares little memory.

Both engines get what helps them: keys in the order of the engine, one transaction or batch a step, no syncing, no log,
no compression of floats, reads through a mapping, and as much cache as the table has. Names and rows are cut out of one
buffer, and gradients summed by a kernel, so that Python adds little.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.embedding import Adagrad
from dovetail.embedding.kernels.batches import add_at
from dovetail.embedding.row_optimizer import adagrad

Keys = NDArray[np.int64]
EngineStep = Callable[[Keys, NDArray[np.float32]], None]
Get = Callable[[list[bytes]], list[bytes | None]]
Put = Callable[[list[tuple[bytes, bytes]]], None]
GROUPS = Path("/sys/fs/cgroup/memory")


class Engine:
    """Steps on an open engine: a look-up reads rows, an update reads them again and writes them."""

    def __init__(self, get: Get, put: Put, close: Callable[[], None], width: int) -> None:
        """Take over what reads and writes rows by name."""
        self.get, self.put, self.close, self.width = get, put, close, width
        self.settings = Adagrad().settings()

    def rows_of(self, names: list[bytes]) -> NDArray[np.float32]:
        """Return rows, zeros where there is none."""
        blank = bytes(8 * self.width)
        found = b"".join([value or blank for value in self.get(names)])
        return np.frombuffer(bytearray(found), dtype=np.float32).reshape(-1, 2 * self.width)

    def step(self, keys: Keys, gradients: NDArray[np.float32], *, reads_again: bool = True) -> None:
        """Look up a batch and update it; where it need not read again, the rows of the look-up are kept until then."""
        unique, inverse = np.unique(keys.view(np.uint64), return_inverse=True)
        joined = unique.astype(">u8").tobytes()
        names = [joined[start : start + 8] for start in range(0, len(joined), 8)]
        rows = self.rows_of(names)
        rows[inverse, : self.width]
        if reads_again:
            rows = self.rows_of(names)
        sums = np.full((len(unique), self.width), -0.0, dtype=np.float32)
        places = np.arange(len(keys) + 1)
        add_at(sums, inverse, places[:-1], places[1:], gradients, False)
        adagrad(rows, np.arange(len(unique), dtype=np.int32), sums, self.width, self.settings)
        data, size = rows.tobytes(), 8 * self.width
        self.put([(name, data[size * i : size * i + size]) for i, name in enumerate(names)])


def open_lmdb(folder: Path, width: int, _: int) -> Engine:
    """Return LMDB: no syncing, writes straight into the map; its cache is the system's page cache."""
    import lmdb

    folder.mkdir(parents=True, exist_ok=True)
    settings = {"sync": False, "metasync": False, "writemap": True, "map_async": True, "readahead": False}
    store = lmdb.open(str(folder), map_size=1 << 36, **settings)

    def get(names: list[bytes]) -> list[bytes | None]:
        with store.begin() as transaction:
            read = transaction.get
            return [read(name) for name in names]

    def put(items: list[tuple[bytes, bytes]]) -> None:
        with store.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(items)

    return Engine(get, put, store.close, width)


def open_rocksdb(folder: Path, width: int, cache_bytes: int) -> Engine:
    """Return RocksDB: no write-ahead log, a block cache of the table's budget, filters, hashed blocks."""
    import rocksdict

    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(cache_bytes))
    blocks.set_bloom_filter(10, False)
    blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    blocks.set_data_block_hash_ratio(0.75)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_allow_mmap_reads(True)
    options.set_write_buffer_size(max(cache_bytes // 4, 1 << 20))
    store = rocksdict.Rdict(str(folder), options)
    write = rocksdict.WriteOptions()
    write.disable_wal = True

    def put(items: list[tuple[bytes, bytes]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for name, value in items:
            batch.put(name, value)
        store.write(batch, write)

    def close() -> None:
        store.flush()
        store.close()

    return Engine(store.get, put, close, width)


ENGINES = {"lmdb": open_lmdb, "rocksdb": open_rocksdb}


def can_confine() -> bool:
    """Say whether this user may make groups of processes that share little memory."""
    return os.access(GROUPS / "memory.limit_in_bytes", os.R_OK) and os.access(GROUPS, os.W_OK)


def confine(name: str, limit_bytes: int) -> None:
    """Have this process take at most `limit_bytes` more from now on, the page cache of its files included."""
    group = GROUPS / name
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def forget_pages(folder: Path) -> None:
    """Have files written and leave the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDWR)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
