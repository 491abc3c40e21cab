"""Whether a run goes on: its coordinator is asked, and a silence of seconds is an answer too."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from dovetail.runtime.errors import TrainingError
from dovetail.runtime.folder import SUMMARY
from dovetail.runtime.messages import Report, Status
from dovetail.runtime.process import Process

CONNECT_S = 5.0
"""How long an address may take to accept a connection."""
ANSWER_S = 5.0
"""How long a coordinator may take to answer."""
START_S = 30.0
"""How long a coordinator may take to listen where its launcher is there: it starts, or comes back."""
LOOK_S = 0.2


def ask_how_it_goes(process: Process, *, is_under_way: bool = False, answer_s: float = ANSWER_S) -> Report:
    """Return how the run goes whose folder a process looks at; refuse one that does not go on.

    `is_under_way` says that its launcher is there: whoever is to listen may still be starting.
    """
    spec, folder = process.blueprint.coordinator, process.folder
    address = spec.local_address if process.is_local else spec.address
    until_s = time.monotonic() + (START_S if is_under_way else 0.0)
    while not (is_open := _is_open(address)) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    if not is_open:
        if (folder / SUMMARY).is_file():
            raise TrainingError(
                f"the run in {folder} is over", hint=f"go on with: dovetail train --resume {folder} --epochs N"
            )
        raise TrainingError(
            f"{folder} is not under way: nobody listens at {address}",
            hint=f"go on with: dovetail train --resume {folder}; from another machine, join with --over-network and "
            "have network.address set",
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
