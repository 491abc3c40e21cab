"""Whether a run goes on: its coordinator is asked, and a silence of seconds is an answer too."""

from __future__ import annotations

import socket
from pathlib import Path

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import SUMMARY
from dovetail.runtime.messages import Report, Status
from dovetail.runtime.process import Process

CONNECT_S = 5.0
"""How long an address may take to accept a connection."""
ANSWER_S = 5.0
"""How long a coordinator may take to answer: it may be starting."""


def ask_how_it_goes(process: Process, *, answer_s: float = ANSWER_S) -> Report:
    """Return how the run goes whose folder a process looks at; refuse one that does not go on."""
    spec, folder = process.blueprint.coordinator, process.folder
    address = spec.local_address if process.is_local else spec.address
    if not _is_open(address):
        if (folder / SUMMARY).is_file():
            raise TrainingError(
                f"the run in {folder} is over", hint=f"go on with: dovetail train --resume {folder} --epochs N"
            )
        raise TrainingError(
            f"no run goes on in {folder}: nobody listens at {address}",
            hint="start it with dovetail train; from another machine, use --over-network and set network.address",
        )
    line = process.call_coordinator()
    try:
        line.ask(Status())
        letter = line.receive(answer_s)
    finally:
        line.close()
    if letter is None or not isinstance(letter.message, Report):
        raise TrainingError(
            f"whoever listens at {address} does not answer to the keys in {folder}",
            hint="give the run's own folder, not a copy: whoever joins leaves a key there for the coordinator to find",
        )
    if letter.message.state in ("done", "failed"):
        raise TrainingError(
            f"the run in {folder} is over: {letter.message.state}", hint=f"see what it came to in {folder}/{SUMMARY}"
        )
    return letter.message


def _is_open(address: str) -> bool:
    """Say whether something accepts connections at an address of ZeroMQ's."""
    scheme, _, place = address.partition("://")
    try:
        if scheme == "ipc":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CONNECT_S)
                probe.connect(str(Path(place)))
        else:
            host, _, port = place.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError:
        return False
    return True
