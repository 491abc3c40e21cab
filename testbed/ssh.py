"""SSH servers on the hosts of a test bed, each with processes, a cache and folders that the others do not see.

A host's processes are in a namespace of their own, as its network is: when the host is killed, all of them are gone in
the same moment, as when a machine loses power.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.hosts import HostError, Hosts, inside

PORT = 2222
_START_S = 15.0
_CONFIG = """
Port {port}
ListenAddress {address}
HostKey {folder}/{name}.key
AuthorizedKeysFile {folder}/user.pub
PidFile none
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
SetEnv XDG_CACHE_HOME={folder}/cache-{name}
"""


class SshServers:
    """An SSH server on each of some hosts; `key` logs in to all of them, and `known_hosts` lists who they are."""

    def __init__(self, hosts: Hosts, names: Sequence[str], folder: Path, *, hidden: Sequence[Path] = ()) -> None:
        """Keep keys and settings in a folder; what lies in the `hidden` folders is not seen by the hosts."""
        self._hosts, self._names, self._folder, self._hidden = hosts, list(names), folder, list(hidden)
        self.key, self.known_hosts = folder / "user", folder / "known_hosts"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Make keys and start the servers."""
        if why := why_no_ssh():
            raise HostError(f"SSH servers cannot be started here: {why}", hint="as root: apt install openssh-server")
        self._folder.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        _make_key(self.key)
        listed = []
        for name in self._names:
            _make_key(self._folder / f"{name}.key")
            kind, text, *_ = (self._folder / f"{name}.key.pub").read_text().split()
            listed.append(f"[{self._hosts.address(name)}]:{PORT} {kind} {text}\n")
        self.known_hosts.write_text("".join(listed))
        try:
            for name in self._names:
                self._start(name)
            for name in self._names:
                self._wait_for(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the servers and everything that they started."""
        for name in list(self._servers):
            self.kill(name)

    def start(self, name: str) -> None:
        """Start a host's server after it was killed, and wait until it is there."""
        self._start(name)
        self._wait_for(name)

    def _start(self, name: str) -> None:
        """Start a host's server."""
        config = self._folder / f"{name}.conf"
        address = self._hosts.address(name)
        config.write_text(_CONFIG.format(port=PORT, address=address, folder=self._folder, name=name))
        hide = "".join(f"mount -t tmpfs none {shlex.quote(str(path))} && " for path in self._hidden)
        words = f"{hide}exec {shutil.which('sshd')} -D -e -f {shlex.quote(str(config))}"
        with (self._folder / f"{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self._hosts.namespace(name)),
                    *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
                    *("--mount-proc", "sh", "-c", words),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        """End a host's server and every process on the host, at once."""
        server = self._servers.pop(name)
        for child in _children(server.pid):  # the first of the namespace: all others end with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
        server.kill()
        server.wait()

    def _wait_for(self, name: str) -> None:
        """Wait until a host's server accepts connections."""
        until_s = time.monotonic() + _START_S
        while True:
            with inside(self._hosts.hub), contextlib.suppress(OSError):
                socket.create_connection((self._hosts.address(name), PORT), 1.0).close()
                return
            if time.monotonic() > until_s or self._servers[name].poll() is not None:
                said = (self._folder / f"{name}.log").read_text(errors="replace").strip()
                raise HostError(f"the SSH server of `{name}` did not start: {said}", hint="see its settings")
            time.sleep(0.05)


def why_no_ssh() -> str:
    """Return why there can be no SSH servers here; nothing where there can."""
    for tool in ("sshd", "ssh-keygen", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return "this is not root" if os.geteuid() else ""


def _make_key(path: Path) -> None:
    """Make a key pair without a passphrase."""
    for old in (path, path.with_name(f"{path.name}.pub")):
        old.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=30, stdin=subprocess.DEVNULL)


def _children(process_id: int) -> list[int]:
    """Return the processes that a process has started and that live."""
    try:
        return [int(word) for word in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]
    except OSError:
        return []
