"""What lives on a node of the cluster, as an actor: the keeper of a launcher's processes there.

Workers are processes that the keeper starts, as on any host: their tensors go over Dovetail's own transport, and a
worker that is killed takes nobody with it. When the actor ends, however it ends, they end too.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from dovetail.runtime.launch.hosts.keeper import Keeper
from dovetail.runtime.launch.hosts.protocol import AskStates
from dovetail.runtime.launch.hosts.shipped_code import own_code
from dovetail.runtime.private_folder import make_private_folder

LOOK_S = 0.5


class NodeKeeper:
    """A keeper that is called by Ray."""

    def __init__(self, lost_s: float) -> None:
        """Make a folder for files, in the place of those that actors left that were killed."""
        self._keeper = Keeper(make_private_folder(Path(tempfile.gettempdir())), lost_s=lost_s)
        threading.Thread(target=self._end_when_alone, name="dovetail-alone", daemon=True).start()

    def code(self) -> str:
        """Return a checksum of the Dovetail that this node has."""
        return own_code()

    def ping(self) -> None:
        """Hear that the launcher is there, while it waits for something else."""
        self._keeper.answer(AskStates())

    def answer(self, request: bytes) -> bytes:
        """Do what the launcher asks for."""
        return self._keeper.answer_encoded(request)

    def _end_when_alone(self) -> None:
        """End, with every process, once the launcher must be gone, or has said that it goes."""
        while not self._keeper.is_alone and not self._keeper.is_closed:
            time.sleep(LOOK_S)
        self._keeper.close()
        time.sleep(LOOK_S)  # for an answer that is on its way
        os._exit(0)
