"""One SQLite file: what is written is on disk before anything is done about it, and what was seen is kept in it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError

_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, key TEXT UNIQUE, user TEXT NOT NULL, state TEXT NOT NULL,
  submission BLOB NOT NULL, submitted_s REAL NOT NULL, started_s REAL, finished_s REAL,
  attempt INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0, type TEXT, workers INTEGER NOT NULL DEFAULT 0, since_s REAL NOT NULL,
  attained REAL NOT NULL DEFAULT 0, pinned INTEGER, why TEXT, told_s REAL, error TEXT,
  done REAL, total REAL, loss REAL, units TEXT NOT NULL DEFAULT '[]') STRICT;
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state);
CREATE TABLE IF NOT EXISTS events (
  number INTEGER PRIMARY KEY AUTOINCREMENT, t_s REAL NOT NULL, job TEXT, what TEXT NOT NULL, type TEXT,
  workers INTEGER, detail TEXT) STRICT;
CREATE INDEX IF NOT EXISTS events_by_job ON events (job);
CREATE TABLE IF NOT EXISTS speeds (kind TEXT, type TEXT, workers INTEGER, speed REAL, t_s REAL) STRICT;
CREATE TABLE IF NOT EXISTS sizes (kind TEXT, seconds REAL) STRICT;
CREATE TABLE IF NOT EXISTS changes (job TEXT, what TEXT, seconds REAL, t_s REAL) STRICT;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT) STRICT;
"""


class Database:
    """The file; every method is one transaction, from any thread."""

    def __init__(self, path: Path) -> None:
        """Open or make it."""
        self._lock = threading.RLock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30.0)
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
            if "units" not in {row[1] for row in self._db.execute("PRAGMA table_info(jobs)")}:  # of an older daemon
                self._db.execute("ALTER TABLE jobs ADD COLUMN units TEXT NOT NULL DEFAULT '[]'")
        except (sqlite3.Error, OSError) as error:
            raise DovetailError(
                f"{path}: {error}", hint="it is not what `dovetail serve` wrote, or its disk is full: see the disk"
            ) from None

    def close(self) -> None:
        """Close it."""
        with self._lock:
            self._db.close()

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """Do several things or none."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as problem:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(problem, sqlite3.Error):
                    raise DovetailError(f"the state cannot be written: {problem}", hint="see the disk") from None
                raise

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return what a query finds."""
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def note(self, what: str, *, job: str | None = None, workers: int | None = None, detail: str | None = None) -> None:
        """Write down an event."""
        with self.change() as db:
            note_event(db, job, what, time.time(), workers=workers, detail=detail)

    def events(self, *, job: str | None = None, after: int = 0, most: int = 10_000) -> list[dict[str, Any]]:
        """Return events in order."""
        names = ("number", "t_s", "job", "what", "type", "workers", "detail")
        rows = self.rows(
            f"SELECT {', '.join(names)} FROM events WHERE number > ? AND (? IS NULL OR job = ?) "  # noqa: S608
            "ORDER BY number LIMIT ?",
            (after, job, job, most),
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def add_speed(self, kind: str, type_: str, workers: int, speed: float) -> None:
        """Keep a measured speed."""
        with self.change() as db:
            db.execute("INSERT INTO speeds VALUES (?, ?, ?, ?, ?)", (kind, type_, workers, speed, time.time()))

    def speeds(self, most: int = 2000) -> list[tuple[str, str, int, float]]:
        """Return measured speeds, the newest ones in the order they were seen."""
        query = "SELECT kind, type, workers, speed FROM speeds ORDER BY rowid DESC LIMIT ?"
        return [tuple(row) for row in reversed(self.rows(query, (most,)))]

    def sizes(self, most: int = 2000) -> list[tuple[str, float]]:
        """Return the sizes of finished jobs, in seconds on one worker."""
        return [tuple(row) for row in self.rows("SELECT kind, seconds FROM sizes ORDER BY rowid DESC LIMIT ?", (most,))]

    def add_change(self, job: str, what: str, seconds: float) -> None:
        """Keep how long a start or a resize took."""
        with self.change() as db:
            db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (job, what, seconds, time.time()))

    def changes_s(self, what: str, most: int = 50) -> list[float]:
        """Return how long the last starts or resizes took."""
        query = "SELECT seconds FROM changes WHERE what = ? ORDER BY rowid DESC LIMIT ?"
        return [row[0] for row in self.rows(query, (what, most))]

    def setting(self, name: str) -> str | None:
        """Return a setting that outlives the daemon."""
        rows = self.rows("SELECT value FROM settings WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def set(self, name: str, value: str | None) -> None:
        """Keep a setting."""
        with self.change() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))


def note_event(
    db: sqlite3.Connection,
    job: str | None,
    what: str,
    now_s: float,
    type_: str | None = None,
    workers: int | None = None,
    detail: str | None = None,
) -> None:
    """Write down an event, within a transaction."""
    db.execute(
        "INSERT INTO events (t_s, job, what, type, workers, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (now_s, job, what, type_, workers, detail),
    )
