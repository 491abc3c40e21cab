"""Everything a daemon knows, in one SQLite file: what is written is on disk before anything is done about it.

A daemon that is killed at any moment finds here what it had decided, and in the jobs' folders what came of it. States:

    queued -> running -> done, failed or cancelled
    queued -> cancelled
    running -> queued     stopped with a checkpoint, or lost; it goes on later
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from dovetail.errors import DovetailError
from dovetail.serve.steady_clock import SteadyClock
from dovetail.serve.submission import Submission

_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, key TEXT UNIQUE, user TEXT NOT NULL, state TEXT NOT NULL,
  submission BLOB NOT NULL, submitted_s REAL NOT NULL, started_s REAL, finished_s REAL,
  attempt INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0, type TEXT, workers INTEGER NOT NULL DEFAULT 0, since_s REAL NOT NULL,
  attained REAL NOT NULL DEFAULT 0, pinned INTEGER, why TEXT, told_s REAL, error TEXT,
  done REAL, total REAL, loss REAL, units TEXT NOT NULL DEFAULT '[]',
  heard INTEGER NOT NULL DEFAULT 0) STRICT;
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

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "done", "failed", "cancelled")
Why = Literal["cancel", "wait", "target"]
"""Why a running job was told to stop: for good, to go on later, or because its loss is low enough."""
CLOCK = "clock"
MOST_OPEN = 100_000
"""How many jobs may wait or run at once."""


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
            there = {row[1] for row in self._db.execute("PRAGMA table_info(jobs)")}
            for name, kind in (("units", "TEXT NOT NULL DEFAULT '[]'"), ("heard", "INTEGER NOT NULL DEFAULT 0")):
                if name not in there:  # of an older daemon
                    self._db.execute(f"ALTER TABLE jobs ADD COLUMN {name} {kind}")
            self.clock = self._begin_clock()
        except (sqlite3.Error, OSError) as error:
            raise DovetailError(
                f"{path}: {error}", hint="it is not what `dovetail serve` wrote, or its disk is full: see the disk"
            ) from None

    def _begin_clock(self) -> SteadyClock:
        """Return the clock that all moments in the file are by."""
        last = self._db.execute("SELECT max(t_s) FROM events").fetchone()[0]
        kept = self._db.execute("SELECT value FROM settings WHERE name = ?", (CLOCK,)).fetchone()
        clock = SteadyClock.begin(None if kept is None else kept[0], last or 0.0)
        if kept is None or kept[0] != clock.kept:
            self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (CLOCK, clock.kept))
        return clock

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
            note_event(db, job, what, self.clock.now_s(), workers=workers, detail=detail)

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
            db.execute("INSERT INTO speeds VALUES (?, ?, ?, ?, ?)", (kind, type_, workers, speed, self.clock.now_s()))

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
            db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (job, what, seconds, self.clock.now_s()))

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


class JobRecord(msgspec.Struct, kw_only=True):
    """A row of the table of jobs."""

    number: int
    id: str
    user: str
    state: State
    submission: Submission
    submitted_s: float
    started_s: float | None
    finished_s: float | None
    attempt: int
    failures: int
    """How often in a row it was lost, or ended, without having got on."""
    type: str | None
    workers: int
    """What it is to have while it runs, 0 while it waits."""
    since_s: float
    """When it was given its workers, or lost them."""
    attained: float
    """Worker-seconds up to then."""
    pinned: int | None
    """The size that its user asked for."""
    why: Why | None
    told_s: float | None
    """When it was told to stop."""
    error: str | None
    done: float | None
    """How far it had come when it was last seen to end, of how much, and with which loss."""
    total: float | None
    loss: float | None
    units: list[int]
    """Which of its type's units it holds, those of workers that are still leaving last."""
    heard: int
    """How long its file of figures was when it was last started: more than that is what this attempt has done."""

    @property
    def held(self) -> int:
        """How many workers nobody else may have: its own, and those that are still leaving."""
        return max(self.workers, len(self.units)) if self.state == "running" else 0

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("queued", "running")

    def attained_s(self, now_s: float) -> float:
        """Return the worker-seconds it has held."""
        return self.attained + (self.workers * max(0.0, now_s - self.since_s) if self.state == "running" else 0.0)


_COLUMNS = ", ".join(JobRecord.__struct_fields__)


class JobStore(Database):
    """The jobs in the file."""

    def submit(self, submission: Submission) -> tuple[JobRecord, bool]:
        """Keep a new job; return it, and whether it is new: the same key again is the same job."""
        now_s = self.clock.now_s()
        with self.change() as db:
            if submission.key is not None:
                found = db.execute("SELECT id FROM jobs WHERE key = ?", (submission.key,)).fetchone()
                if found is not None:
                    return self.job(found[0]), False
            count = db.execute("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')").fetchone()[0]
            if count >= MOST_OPEN:
                raise DovetailError(f"{count:,} jobs wait or run already", hint="wait until some are done")
            cursor = db.execute(
                "INSERT INTO jobs (key, user, state, submission, submitted_s, since_s) "
                "VALUES (?, ?, 'queued', ?, ?, ?)",
                (submission.key, submission.user, msgspec.json.encode(submission), now_s, now_s),
            )
            job_id = f"{submission.name}-{cursor.lastrowid}"
            db.execute("UPDATE jobs SET id = ? WHERE number = ?", (job_id, cursor.lastrowid))
            note_event(db, job_id, "submitted", now_s)
        return self.job(job_id), True

    def job(self, job_id: str) -> JobRecord:
        """Return a job by its id."""
        rows = self.rows(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job_id,))  # noqa: S608 - our own columns
        if not rows:
            raise UnknownJobError(job_id)
        return _job(rows[0])

    def jobs(self, states: Sequence[str] = STATES, *, last: int | None = None) -> list[JobRecord]:
        """Return jobs in order of submission, all or the last so many."""
        marks = ", ".join("?" * len(states))
        rows = self.rows(
            f"SELECT {_COLUMNS} FROM jobs WHERE state IN ({marks}) ORDER BY number DESC LIMIT ?",  # noqa: S608
            (*states, -1 if last is None else last),
        )
        return [_job(row) for row in reversed(rows)]

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are of each state."""
        found = dict(self.rows("SELECT state, count(*) FROM jobs GROUP BY state"))
        return {state: found.get(state, 0) for state in STATES}

    def begin(
        self, job_id: str, *, type_: str, workers: int, units: Sequence[int] = (), heard: int = 0
    ) -> JobRecord | None:
        """Have a waiting job run from now on, before any process is started; None where it no longer waits."""
        now_s = self.clock.now_s()
        with self.change() as db:
            cursor = db.execute(
                "UPDATE jobs SET state = 'running', attempt = attempt + 1, type = ?, workers = ?, units = ?, "
                "heard = ?, since_s = ?, started_s = coalesce(started_s, ?), why = NULL, told_s = NULL "
                "WHERE id = ? AND state = 'queued'",
                (type_, workers, json.dumps(list(units)), heard, now_s, now_s, job_id),
            )
            if cursor.rowcount == 0:
                return None
            note_event(db, job_id, "started", now_s, type_, workers)
        return self.job(job_id)

    def resize(
        self, job: JobRecord, workers: int, *, units: Sequence[int] | None = None, detail: str | None = None
    ) -> None:
        """Have a running job get other workers of its type; without `units` it keeps those it holds."""
        now_s = self.clock.now_s()
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET workers = ?, units = ?, attained = ?, since_s = ? WHERE id = ? AND state = 'running'",
                (
                    workers,
                    json.dumps(list(job.units if units is None else units)),
                    job.attained_s(now_s),
                    now_s,
                    job.id,
                ),
            )
            note_event(db, job.id, "resized", now_s, job.type, workers, detail)

    def keep_units(self, job: JobRecord) -> None:
        """Let go of the units of workers that have left."""
        with self.change() as db:
            db.execute("UPDATE jobs SET units = ? WHERE id = ?", (json.dumps(job.units[: job.workers]), job.id))

    def tell_to_stop(self, job_id: str, why: Why) -> None:
        """Note why a running job is to stop; a wish to cancel is never taken back."""
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET why = ? WHERE id = ? AND state = 'running' AND (why IS NULL OR why != 'cancel')",
                (why, job_id),
            )

    def told(self, job_id: str) -> None:
        """Note that a job was told to stop: from now on its grace runs."""
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET told_s = ? WHERE id = ? AND state = 'running' AND told_s IS NULL",
                (self.clock.now_s(), job_id),
            )

    def finish(
        self,
        job: JobRecord,
        state: State,
        *,
        error: str | None = None,
        failures: int = 0,
        figures: tuple[float | None, float | None, float | None] = (None, None, None),
    ) -> None:
        """Have a running job wait again, or be over; `figures` are work done, work in all, and the loss."""
        now_s = self.clock.now_s()
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET state = ?, finished_s = ?, error = ?, failures = ?, workers = 0, type = NULL, "
                "units = '[]', attained = ?, since_s = ?, why = NULL, told_s = NULL, done = ?, total = ?, loss = ? "
                "WHERE id = ?",
                (
                    state,
                    None if state == "queued" else now_s,
                    error,
                    failures,
                    job.attained_s(now_s),
                    now_s,
                    *figures,
                    job.id,
                ),
            )
            note_event(db, job.id, "stopped" if state == "queued" else state, now_s, job.type, 0, error)
            if state == "done":
                kind, seconds = job.submission.speed_kind, job.attained_s(now_s)
                db.execute("INSERT INTO sizes VALUES (?, ?)", (kind, max(seconds, 1e-3)))

    def cancel(self, job_id: str) -> JobRecord:
        """Cancel a job: at once where it waits; one that runs is to stop."""
        job, now_s = self.job(job_id), self.clock.now_s()
        with self.change() as db:
            cursor = db.execute(
                "UPDATE jobs SET state = 'cancelled', finished_s = ? WHERE id = ? AND state = 'queued'", (now_s, job.id)
            )
            if cursor.rowcount:
                note_event(db, job_id, "cancelled", now_s)
        self.tell_to_stop(job_id, "cancel")
        return self.job(job_id)

    def pin(self, job_id: str, workers: int | None) -> JobRecord:
        """Hold a job to a size, or to none."""
        with self.change() as db:
            db.execute("UPDATE jobs SET pinned = ? WHERE id = ?", (workers, job_id))
            note_event(db, job_id, "pinned" if workers else "unpinned", self.clock.now_s(), workers=workers)
        return self.job(job_id)


class UnknownJobError(DovetailError):
    """A job that nobody submitted."""

    def __init__(self, job_id: str) -> None:
        """Name it."""
        super().__init__(f"there is no job `{job_id[:80]}`", hint="dovetail jobs lists them")


def _job(row: Sequence[Any]) -> JobRecord:
    values = dict(zip(JobRecord.__struct_fields__, row, strict=True))
    values["submission"] = msgspec.json.decode(values["submission"], type=Submission)
    values["units"] = json.loads(values["units"])
    return JobRecord(**values)
