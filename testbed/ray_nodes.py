"""A Ray cluster on this machine: every host of the bed is a node with a `ray start` of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.hosts import HostError, Hosts

PORT = 6379
_STORE_BYTES = 80 << 20  # the least that Ray takes is 75 MiB
_START_S = 90.0
_STARTED = "Ray runtime started"


class RayNodes:
    """Nodes on the hosts of a bed, the first of them the head; each has units of the types that are given.

    Only those who have the token in `environment` are let in.
    """

    def __init__(
        self,
        hosts: Hosts,
        types: Mapping[str, Mapping[str, int]],
        folder: Path,
        *,
        hidden: Sequence[Path] = (),
    ) -> None:
        """Keep which host has how many units of each type; logs and sockets go into `folder`, of a short path.

        What lies in the `hidden` folders is not seen by nodes other than the head.
        """
        self._hosts, self._types, self._folder, self._hidden = hosts, types, folder, hidden
        self._head = next(iter(types))
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        token = folder / "token"
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
        }
        """What a process needs to be let in."""

    @property
    def address(self) -> str:
        """The head's address and port."""
        return f"{self._hosts.address(self._head)}:{PORT}"

    def __enter__(self) -> Self:
        """Start the head, then the others; wait until all are there."""
        if importlib.util.find_spec("ray") is None:
            raise HostError("Ray is not installed", hint="pip install 'dovetail[ray]'")
        self._folder.mkdir(parents=True, exist_ok=True)
        token = Path(self.environment["RAY_AUTH_TOKEN_PATH"])
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        try:
            self.start(self._head)
            self.wait_for(self._head)
            others = [name for name in self._types if name != self._head]
            for name in others:
                self.start(name)
            for name in others:
                self.wait_for(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every node, the head last."""
        for name in reversed(list(self._types)):
            self.kill(name)

    def start(self, name: str) -> None:
        """Start a node, for the first time or again."""
        as_what, own_view = ["--head", f"--port={PORT}", "--include-dashboard=false"], []
        if name != self._head:
            as_what = [f"--address={self.address}"]
            hide = "".join(f"mount -t tmpfs none {shlex.quote(str(path))} && " for path in self._hidden)
            own_view = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{hide}exec "$@"', "node"]
        command = [
            *("ip", "netns", "exec", self._hosts.namespace(name), *own_view),
            *(sys.executable, "-m", "ray.scripts.scripts", "start"),
            *("--block", "--disable-usage-stats", "--include-log-monitor=false", "--num-cpus=0"),
            *(f"--node-ip-address={self._hosts.address(name)}", f"--object-store-memory={_STORE_BYTES}"),
            *(f"--temp-dir={self._folder / name}", f"--resources={json.dumps(dict(self._types[name]))}", *as_what),
        ]
        with self._log(name).open("wb") as log:
            self._started[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End everything on a host at once, as a power cut does: the node, and what anybody started on it."""
        for process_id in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        node = self._started.pop(name, None)
        if node is not None:
            node.kill()
            node.wait()

    def processes(self, name: str) -> list[int]:
        """Return the processes on a host, without this one."""
        command = ("ip", "netns", "pids", self._hosts.namespace(name))
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return [int(word) for word in done.stdout.split() if int(word) != os.getpid()]

    def wait_for(self, name: str) -> None:
        """Wait until a node is a part of the cluster."""
        until_s = time.monotonic() + _START_S
        while _STARTED not in self._log(name).read_text(errors="replace"):
            if self._started[name].poll() is not None or time.monotonic() > until_s:
                raise HostError(f"the node `{name}` did not start", hint=f"see {self._log(name)}")
            time.sleep(0.1)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"
