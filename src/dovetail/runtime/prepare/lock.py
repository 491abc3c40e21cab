"""A run belongs to one launcher at a time: a file in its folder, locked by the operating system, that says whose it is.

The lock is held by an open file, which coordinator and servers inherit: it lasts until the last of those who write into
the folder has ended, however they end. So a file that nobody holds is a stale one, whatever it says, and a process id
that was given out again fools nobody.

`flock` reaches as far as the file system lets it. On one machine: to every process, in whatever container. Over NFS: to
other machines as well, unless it is mounted with `nolock` or `local_lock`. Where a file system has no locks at all,
what the file says counts: a process of this machine is looked for, one of another is taken to be alive.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec
import psutil

from dovetail.runtime.errors import TrainingError, cannot_write
from dovetail.runtime.folder import LOCK

ENDING_S = 10.0
"""How long processes of a launcher that is gone are given to end: they do when it does."""
LOOK_S = 0.05
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
SAME_S = 1.0
"""How far apart two readings of one process's start may lie."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a run is."""

    process: int
    started: float
    """When the process began, in seconds since 1970: a later one of the same number is another."""
    host: str

    @classmethod
    def here(cls) -> Owner:
        """Return the facts of this process."""
        return cls(process=os.getpid(), started=psutil.Process().create_time(), host=socket.gethostname())

    @property
    def is_here(self) -> bool:
        """Say whether it is a process of this host."""
        return self.host == socket.gethostname()

    @property
    def is_gone(self) -> bool:
        """Say whether it is known to have ended."""
        if not self.is_here:
            return False
        try:
            return bool(abs(psutil.Process(self.process).create_time() - self.started) > SAME_S)
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False

    def __str__(self) -> str:
        """Return it in words."""
        return f"process {self.process} on {self.host}"


class RunLock:
    """The right to write into a run's folder, until it is released or the process ends.

    with RunLock(folder):
        ...
    """

    def __init__(self, folder: Path, *, is_own: bool = False) -> None:
        """Take it, making the folder where there is none; refuse where a process that lives has it.

        A folder that `is_own` is nobody else's even where it is there: another start may just have made it.
        """
        self.folder = folder
        self._made: list[Path] = []
        try:
            self._made = _missing(folder)
            if is_own and folder not in self._made:
                self._made.insert(0, folder)
            self._file = self._take()
        except OSError as error:
            self._remove_made()
            raise cannot_write(folder, error) from None
        except BaseException:
            self._remove_made()
            raise

    @property
    def descriptor(self) -> int:
        """Return the open file, for processes that hold the lock as well."""
        return self._file

    def _take(self) -> int:
        """Return the locked file, with this process's facts in it."""
        until_s = time.monotonic() + ENDING_S
        while True:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:  # whoever can open the file can lock it
                file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # another start failed in this moment, and took its folder with it
                continue
            try:
                if self._is_ours(file, until_s):
                    self._sign(file)
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            time.sleep(LOOK_S)

    def _sign(self, file: int) -> None:
        """Write whose the lock is; a disk without room for that has none for a run."""
        with suppress(OSError):  # of a version before, or of another of this group
            os.fchmod(file, 0o600)
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, msgspec.json.encode(Owner.here()) + b"\n", 0)
        except OSError:
            with suppress(OSError):
                (self.folder / LOCK).unlink()
            raise

    def _is_ours(self, file: int, until_s: float) -> bool:
        """Say whether the file is locked now, by us; refuse where that is not to be waited for."""
        owner = _owner_in(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if (owner is None or owner.is_gone) and time.monotonic() < until_s:
                return False  # it is just starting, or its processes are ending
            raise self._refusal(owner) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            if owner is not None and not owner.is_gone:
                raise self._refusal(owner) from None
        with suppress(FileNotFoundError):
            return os.fstat(file).st_ino == (self.folder / LOCK).stat().st_ino
        return False  # whoever had it removed the file: it locks nothing any more

    def _refusal(self, owner: Owner | None) -> TrainingError:
        """Return the error for a run that is another's."""
        if owner is None:
            who = "another process, which is just starting"
        elif owner.is_gone:
            who = f"what {owner} has left running"
        else:
            who = str(owner)
        return TrainingError(
            f"{self.folder} is in use by {who}",
            hint="wait until it has ended, stop it (its process takes SIGTERM, and keeps a checkpoint), "
            "or help it: dovetail join; to train beside it, choose another folder",
        )

    def release(self) -> None:
        """Let go of the run; a folder that was made for it and is still empty goes too."""
        with suppress(OSError):
            (self.folder / LOCK).unlink()
        os.close(self._file)
        self._remove_made()

    def _remove_made(self) -> None:
        """Remove the folders that were made for this, where nothing is in them."""
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def owner_of(folder: Path) -> Owner | None:
    """Return whose a run is that is under way, or None where nobody has it; takes no lock.

    A lock that cannot be looked at is not free: it is looked at again, and refused where that does not help.
    """
    until_s = time.monotonic() + ENDING_S
    while True:
        try:
            return _owner_of(folder)
        except PermissionError:
            raise TrainingError(
                f"{folder / LOCK} may not be opened: it is another user's run", hint="have them do it, or see its mode"
            ) from None
        except OSError as error:
            if time.monotonic() > until_s:
                raise TrainingError(
                    f"{folder / LOCK} cannot be opened: {error.strerror}", hint="see the disk, and `ulimit -n`"
                ) from None
        time.sleep(LOOK_S)


def _owner_of(folder: Path) -> Owner | None:
    """Return whose a run is; OSError: that cannot be told."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        owner = _owner_in(file)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return owner or Owner(process=0, started=0.0, host="a host that is not known yet")
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return None if owner is not None and owner.is_gone else owner
        return None
    finally:
        os.close(file)


def _owner_in(file: int) -> Owner | None:
    """Return what a lock's file says, or None where it says nothing yet."""
    try:
        return msgspec.json.decode(os.pread(file, 4096, 0), type=Owner)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _missing(folder: Path) -> list[Path]:
    """Return the folders that are not there yet, the innermost first."""
    found = []
    while not folder.exists():
        found.append(folder)
        folder = folder.parent
    return found
