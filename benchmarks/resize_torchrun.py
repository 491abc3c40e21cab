"""torchrun's elastic training of one small model, one agent a worker: for `benchmarks/resize.py`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).parent / "elastic_ddp.py"
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it (torch 2.13) a second agent waits for an address that the first never writes."""
WAIT_S = 120.0
SETTLE_S = 1.5


class Torchrun:
    """Agents that come and go."""

    def __init__(self, folder: Path) -> None:
        """Start the first."""
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._agents: list[subprocess.Popen[bytes]] = []
        self.resize(1)

    def resize(self, workers: int) -> None:
        """Start agents, or have some end."""
        while len(self._agents) > workers:
            self._agents.pop().send_signal(signal.SIGTERM)
        while len(self._agents) < workers:
            self._agents.append(self._agent())

    def _agent(self) -> subprocess.Popen[bytes]:
        with (self._folder / "out").open("ab") as out:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node", "1"),
                    *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", "resize"),
                    *(
                        "--local-addr",
                        "127.0.0.1",
                        "--rdzv-conf",
                        "last_call_timeout=1",
                        "--monitor-interval",
                        "0.1",
                        "--max-restarts",
                        "100",
                    ),
                    *(str(SCRIPT), str(self._folder)),
                ],
                stdout=out,
                stderr=out,
                env={**os.environ, "OMP_NUM_THREADS": "1", **OWN_STORE},
            )

    def wait_for(self, workers: int) -> None:
        """Wait until so many workers train together, and then a little longer."""
        until_s = time.monotonic() + WAIT_S
        while self._steps()[-1:] != [workers]:
            if time.monotonic() > until_s:
                sys.exit(f"error: torchrun does not get to {workers}\n{(self._folder / 'out').read_text()[-3000:]}")
            time.sleep(0.1)
        time.sleep(SETTLE_S)

    def step_ends(self) -> list[float]:
        """Return when each step ended."""
        return sorted(float(line.split()[0]) for line in self._lines())

    def _steps(self) -> list[int]:
        return [int(line.split()[1]) for line in self._lines()]

    def _lines(self) -> list[str]:
        path = self._folder / "steps-0"
        return [line for line in path.read_text().splitlines() if len(line.split()) == 2] if path.exists() else []

    def end(self) -> None:
        """End all agents; each ends its worker."""
        for agent in self._agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self._agents:
            try:
                agent.wait(30.0)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
