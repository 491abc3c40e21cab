"""A host reached over SSH.

Who a host is is checked by its key, as OpenSSH does: one that `known_hosts` does not list is refused. Files, keys of
the run among them, come there through the same encrypted login. The connections of all hosts share one thread.
"""

from __future__ import annotations

import asyncio
import getpass
import secrets
import shlex
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dovetail.errors import MissingExtraError
from dovetail.runtime.launch.hosts import shipped_code as code
from dovetail.runtime.launch.hosts.protocol import (
    LENGTH_BYTES,
    AskFacts,
    HostFacts,
    HostProblem,
    KeeperAnswer,
    KeeperRequest,
    Unreachable,
    decode_answer,
    encode,
    framed,
    length_of,
)
from dovetail.spec.hosts import Host, HostsFile
from dovetail.version import __version__

CONNECT_S = 10.0
"""How long a host may take to let us in."""
PROBE_S = 60.0
ANSWER_S = 45.0
"""How long a keeper may take to start and answer."""
KEEPALIVE_S = 5.0
T = TypeVar("T")


def _asyncssh() -> Any:
    """Return the package that speaks SSH."""
    try:
        import asyncssh  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingExtraError("asyncssh, which `--on hosts.toml` needs,", extra="ssh") from None
    return asyncssh


class EventLoop:
    """The thread that all connections of a process are in."""

    def __init__(self) -> None:
        """Start it; it ends with this process."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="dovetail-ssh", daemon=True).start()

    def run(self, todo: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns; it sees to its own deadlines."""
        return asyncio.run_coroutine_threadsafe(todo, self._loop).result()


class SshLine:
    """The way to one host: a login, and the keeper that it reaches there."""

    def __init__(self, host: Host, file: HostsFile, loop: EventLoop) -> None:
        """Keep how the host is reached; nobody is called yet."""
        self.host, self.here = host, ""
        self._file, self._loop, self._ssh = file, loop, _asyncssh()
        self._token = secrets.token_hex(12)
        self._python = code.in_shell(host.python)
        self._is_checked = False
        self._connection: Any = None
        self._process: Any = None

    @property
    def _user(self) -> str:
        """Return who logs in."""
        return self.host.user or getpass.getuser()

    @property
    def _place(self) -> str:
        """Return the host in words."""
        return f"host `{self.host.name}` ({self._user}@{self.host.address}:{self.host.port})"

    def open(self) -> HostFacts:
        """Log in, see that the same Dovetail is there, and reach the keeper."""
        self.close()
        return self._loop.run(self._open())

    def call(self, request: KeeperRequest, timeout_s: float) -> KeeperAnswer:
        """Return the keeper's answer."""
        return self._loop.run(self._call(request, timeout_s))

    def close(self) -> None:
        """Hang up."""
        self._loop.run(self._close())

    # -- in the connections' thread ------------------------------------------------------------------------------------

    async def _open(self) -> HostFacts:
        """Log in and reach the keeper."""
        try:
            self._connection = await self._log_in()
            self.here = str(self._connection.get_extra_info("sockname")[0])
            if not self._is_checked:
                await self._check_code()
                self._is_checked = True
            module = "dovetail.runtime.launch.hosts.daemon"
            words = f"exec {self._python} -m {module} {self._token} {self._file.lost_s}"
            self._process = await asyncio.wait_for(self._connection.create_process(words, encoding=None), CONNECT_S)
        except (self._ssh.Error, OSError, TimeoutError) as error:
            raise Unreachable(_said(error)) from None
        facts = await self._call(AskFacts(), ANSWER_S)
        if not isinstance(facts, HostFacts):
            raise Unreachable("a strange answer")
        return facts

    async def _log_in(self) -> Any:
        """Return a connection to the host that is who it should be."""
        keys = Path(self._file.known_hosts).expanduser()
        how: dict[str, Any] = {} if self.host.key is None else {"client_keys": [str(Path(self.host.key).expanduser())]}
        try:
            return await asyncio.wait_for(
                self._ssh.connect(
                    self.host.address,
                    self.host.port,
                    username=self._user,
                    known_hosts=str(keys) if keys.is_file() else b"",  # never None: that would believe any host
                    keepalive_interval=KEEPALIVE_S,
                    **how,
                ),
                CONNECT_S,
            )
        except self._ssh.HostKeyNotVerifiable:
            raise HostProblem(
                f"{self._place} is not who {keys} says, or is not listed there",
                hint=f"compare its key with the one that its owner tells you (ssh-keygen -lf, on that host), and keep "
                f"it: ssh-keyscan -p {self.host.port} {self.host.address} >> {keys}",
            ) from None
        except self._ssh.PermissionDenied:
            raise HostProblem(
                f"{self._place} does not let `{self._user}` in",
                hint=f"add your public key to ~{self._user}/.ssh/authorized_keys there (ssh-copy-id), and see `user` "
                "and `key` in the hosts file",
            ) from None
        except (self._ssh.KeyImportError, self._ssh.KeyEncryptionError, FileNotFoundError, PermissionError) as error:
            raise HostProblem(
                f"{self._place}: the private key {self.host.key} cannot be used: {_said(error)}",
                hint="give the file of a private key that has no passphrase, or add it to your SSH agent",
            ) from None

    async def _check_code(self) -> None:
        """See that the host's Python has this Dovetail, or bring it."""
        words = f"{self._python} -c {shlex.quote(code.PROBE)} {','.join(code.NEEDED)}"
        done = await asyncio.wait_for(self._connection.run(words, check=False), PROBE_S)
        found = code.read_probe(str(done.stdout or ""))
        if found is None:
            said = (str(done.stderr or "").strip().splitlines() or [f"exit status {done.exit_status}"])[-1]
            raise HostProblem(
                f"{self._place} has no Python at `{self.host.python}`: {said}",
                hint="set `python` in the hosts file to one that has Dovetail, such as /opt/venv/bin/python",
            )
        if found.missing:
            raise HostProblem(
                f"{self._place}: `{self.host.python}` (Python {found.python}) has no {', '.join(found.missing)}",
                hint=f"install Dovetail there: {self.host.python} -m pip install dovetail=={__version__}",
            )
        own = code.own_code()
        if self.host.bring:
            await self._bring_code(own)
        elif not found.version:
            raise HostProblem(
                f"{self._place}: `{self.host.python}` has no Dovetail",
                hint=f"install it there: {self.host.python} -m pip install dovetail=={__version__}; or set bring = "
                "true in the hosts file, and this one is copied there",
            )
        elif found.code != own:
            other = found.version if found.version != __version__ else f"{found.version}, with other files"
            raise HostProblem(
                f"{self._place} has Dovetail {other}, and here it is {__version__}",
                hint="install the same on both, or set bring = true in the hosts file, and this one is copied there",
            )

    async def _bring_code(self, own: str) -> None:
        """Have this Dovetail in the host's cache, once for all runs, and use it from there."""
        home = f"{code.CACHE}/{own[:32]}"
        there = await asyncio.wait_for(self._connection.run(f"test -d {home}", check=False), PROBE_S)
        if there.exit_status != 0:
            words = f"{self._python} -c {shlex.quote(code.UNPACK)} {home}"
            done = await asyncio.wait_for(
                self._connection.run(words, input=code.archive(), encoding=None, check=False), PROBE_S
            )
            if b"dovetail-unpacked True" not in (done.stdout or b""):
                said = bytes(done.stderr or b"").decode(errors="replace").strip().splitlines()
                raise HostProblem(
                    f"{self._place}: Dovetail cannot be copied there: {said[-1] if said else 'no answer'}",
                    hint="see that the home folder there can be written",
                )
        self._python = f"env PYTHONPATH={home} {self._python}"

    async def _call(self, request: KeeperRequest, timeout_s: float) -> KeeperAnswer:
        """Send a request and return its answer."""
        process = self._process
        if process is None:
            raise Unreachable("the line is not open")
        try:
            async with asyncio.timeout(timeout_s):
                process.stdin.write(framed(encode(request)))
                await process.stdin.drain()
                length = length_of(await process.stdout.readexactly(LENGTH_BYTES))
                return decode_answer(await process.stdout.readexactly(length))
        except (self._ssh.Error, OSError, EOFError, TimeoutError, ValueError) as error:
            why = _said(error)
            with suppress(Exception):  # what it said last says most
                async with asyncio.timeout(0.5):
                    why = (await process.stderr.read()).decode(errors="replace").strip() or why
            await self._close()
            raise Unreachable(why) from None

    async def _close(self) -> None:
        """Hang up at once."""
        connection, self._connection, self._process = self._connection, None, None
        if connection is not None:
            connection.abort()


def _said(error: BaseException) -> str:
    """Return an error in words; a deadline that passed has none of its own."""
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection ended"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or type(error).__name__


@cache
def _event_loop() -> EventLoop:
    """Return the one of this process: a daemon that opens the hosts again for every job starts no thread for each."""
    return EventLoop()


def ssh_lines(file: HostsFile) -> list[SshLine]:
    """Return a line to each host of a file."""
    return [SshLine(host, file, _event_loop()) for host in file.hosts]
