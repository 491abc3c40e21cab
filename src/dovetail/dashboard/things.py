"""What the words on a command line mean: runs, folders of runs, problems, workloads, and a daemon's address.

Whoever looks at the page asks for things by their names. A name is looked up here and nowhere else, so nothing can be
asked for that the dashboard was not given.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dovetail.dashboard.asked import read_thing
from dovetail.dashboard.run_feed import RunFeed
from dovetail.errors import DovetailError, SpecError
from dovetail.runtime.folder import BLUEPRINT, METRICS
from dovetail.spec import Problem

RUNS = Path("runs")
DAEMON_ADDRESS = "server.json"
MOST_RUNS = 500
"""Of one folder; the newest ones."""


@dataclass
class Things:
    """What the dashboard was given, by name."""

    problems: dict[str, Path] = field(default_factory=dict)
    workloads: dict[str, Path] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    """Folders of runs: looked through again whenever somebody asks."""
    daemon: str | None = None
    """The address of a daemon."""
    _given: list[Path] = field(default_factory=list)
    _feeds: dict[str, RunFeed] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_run(self, folder: Path) -> RunFeed:
        """Take in a run; return what reads it."""
        with self._lock:
            self._given.append(folder)
            return self._feed(folder)

    def feeds(self) -> dict[str, RunFeed]:
        """Return what reads each run, by name: those that were given first, then those of folders, the newest first."""
        with self._lock:
            for folder in (*self._given, *(run for place in self.folders for run in _runs_in(place))):
                self._feed(folder)
            return {name: feed for name, feed in self._feeds.items() if feed.folder.is_dir()}

    def feed(self, name: str) -> RunFeed:
        """Return what reads a run."""
        found = self._feeds.get(name) or self.feeds().get(name)
        if found is None:
            raise UnknownThingError(name, "run")
        return found

    def file(self, name: str) -> Path:
        """Return the file of a problem or a workload."""
        found = self.problems.get(name) or self.workloads.get(name)
        if found is None:
            raise UnknownThingError(name, "file")
        return found

    def _feed(self, folder: Path) -> RunFeed:
        for feed in self._feeds.values():
            if feed.folder == folder:
                return feed
        feed = RunFeed(_free_name(folder.name or str(folder), self._feeds), folder)
        self._feeds[feed.name] = feed
        for name in ("problem.json",):
            path = folder / name
            if path.is_file() and (folder / "plan.json").is_file():
                self.problems.setdefault(_free_name(f"{feed.name}/{name}", self.problems), path)
        return feed


class UnknownThingError(DovetailError):
    """Nothing of this name was given to the dashboard."""

    def __init__(self, name: str, what: str) -> None:
        """Name it, cut short."""
        super().__init__(f"there is no {what} `{name[:80]}`", hint="reload the page; it lists what there is")


def open_things(words: Sequence[str]) -> Things:
    """Return what words mean, in their order; without any, the runs in `runs` if there is such a folder."""
    things = Things()
    for word in words:
        _open(things, word)
    if not words and RUNS.is_dir():
        things.folders.append(RUNS.absolute())
    return things


def is_run_folder(folder: Path) -> bool:
    """Say whether a folder is one run's."""
    return (folder / BLUEPRINT).is_file() or (folder / METRICS).is_file()


def _open(things: Things, word: str) -> None:
    path = Path(word)
    if word.startswith(("http://", "https://")):
        if word.startswith("https://"):
            raise DovetailError(f"{word}: daemons speak http", hint="give http://HOST:PORT; over SSH: ssh -L")
        _set_daemon(things, word.rstrip("/"))
    elif path.is_dir():
        _open_folder(things, path.absolute())
    elif path.is_file():
        kept = things.problems if isinstance(read_thing(path), Problem) else things.workloads
        kept[_free_name(path.name, {**things.problems, **things.workloads})] = path.absolute()
    else:
        raise SpecError(
            "is neither a file, a folder nor an address",
            file=word,
            hint="give a run's folder, a folder of runs, a problem, a workload, or http://HOST:PORT of a daemon",
        )


def _open_folder(things: Things, folder: Path) -> None:
    if is_run_folder(folder):
        things.add_run(folder)
    elif (folder / DAEMON_ADDRESS).is_file():
        try:
            found = msgspec.json.decode((folder / DAEMON_ADDRESS).read_bytes(), type=dict[str, str | int])
            _set_daemon(things, str(found["url"]))
        except (OSError, msgspec.MsgspecError, KeyError):
            raise DovetailError(
                f"{folder / DAEMON_ADDRESS} does not say where its daemon is", hint="start it: dovetail serve"
            ) from None
    else:
        things.folders.append(folder)


def _set_daemon(things: Things, url: str) -> None:
    if things.daemon not in (None, url):
        raise DovetailError(f"{url} is a second daemon", hint="one page shows one cluster: start another for this one")
    things.daemon = url


def _runs_in(place: Path) -> list[Path]:
    """Return the runs of a folder, the newest first; one that cannot be read has none."""
    with suppress(OSError):
        found = [(each.stat().st_mtime, each) for each in place.iterdir() if each.is_dir() and is_run_folder(each)]
        return [each for _, each in sorted(found, reverse=True)[:MOST_RUNS]]
    return []


def _free_name(name: str, taken: Iterable[str]) -> str:
    """Return a name that nothing else has."""
    names, number, found = set(taken), 1, name
    while found in names:
        number += 1
        found = f"{name} ({number})"
    return found
