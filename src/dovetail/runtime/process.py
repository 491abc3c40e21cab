"""What every process of a run has: a name, the blueprint, its keys, and a line to the coordinator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.logs import tell_as
from dovetail.runtime.blueprint import Blueprint, ServerSpec
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import KEYS
from dovetail.runtime.messages import Message, Senders
from dovetail.runtime.private_folder import hold
from dovetail.transport import Caller, EnvelopeCodec, KeyRing, Listener, SharedMemoryFile

HEARTBEAT_S = 0.5
COORDINATOR_PATIENCE_S = 180.0
"""How long a process goes on without a word from the coordinator; the launcher starts that again well before."""


class Process:
    """One process of a run: `name` says which."""

    def __init__(self, folder: Path, name: str, *, is_local: bool = True) -> None:
        """Read the blueprint in the run's folder; `is_local` says whether the servers' host is this process's own."""
        self.folder, self.name, self.is_local = folder, name, is_local
        self.process_id = os.getpid()
        self.blueprint = Blueprint.read(folder)
        self.codec = EnvelopeCodec(Message)
        self.keys = KeyRing(folder / KEYS)
        if is_local:
            hold(self.blueprint.private_folder)

    @property
    def lanes(self) -> Path | None:
        """Return the folder of shared memory, where this process can use it."""
        return Path(self.blueprint.lanes) if self.blueprint.lanes is not None and self.is_local else None

    def log(self, text: str) -> None:
        """Write a line to this process's log, which is its stderr."""
        tell_as(self.name, text, run=self.blueprint.id)

    def listen(
        self, addresses: Sequence[str], on_lane: Callable[[SharedMemoryFile], None] = lambda _: None
    ) -> Listener:
        """Return the socket that others call; `on_lane` is called with the shared memory of each of them."""
        return Listener(
            addresses,
            codec=self.codec,
            keys=self.keys,
            name=self.name,
            lanes=self.lanes,
            log=self.log,
            on_lane=on_lane,
        )

    def call(self, spec: ServerSpec, *, suffix: str = "", lane_bytes: int = 0) -> Caller:
        """Return a line to another process; with `lane_bytes`, large arrays go through shared memory on one host."""
        is_near = self.is_local and spec.local_address != spec.address  # else it is on another host
        return Caller(
            spec.local_address if is_near else spec.address,
            codec=self.codec,
            keys=self.keys,
            name=self.name,
            peer=spec.name,
            identity=f"{self.name}/{self.process_id}{suffix}".encode(),
            lanes=self.lanes if lane_bytes and is_near else None,
            lane_bytes=max(lane_bytes, 1 << 16),
        )

    def call_coordinator(self) -> Caller:
        """Return the line to the coordinator."""
        return self.call(self.blueprint.coordinator)

    def senders(self) -> Senders:
        """Return who may say what in this run."""
        return Senders(
            coordinator=self.blueprint.coordinator.name,
            servers=[spec.name for spec in self.blueprint.servers],
            has_ring=self.blueprint.run.training.dense == "ring",
            stage_workers=self.blueprint.stage_workers,
        )

    @staticmethod
    def check_coordinator(silent_s: float) -> None:
        """Give up where the coordinator has been silent for too long."""
        if silent_s > COORDINATOR_PATIENCE_S:
            raise TrainingError(
                f"the coordinator has been silent for {silent_s:.0f} s",
                hint="start again with: dovetail train --resume",
            )
