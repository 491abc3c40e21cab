"""Figures as TensorBoard reads them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_WAITING = 1000
END_S = 10.0


class Board:
    """A file of scalars, written by the caller's own thread; a full disk leaves gaps and is no error."""

    def __init__(self, folder: Path) -> None:
        """Begin a file of this process's own; what writes it is loaded meanwhile, since that takes a second."""
        self._path = folder / "events"
        self._writer: Any = None
        self._waiting: list[tuple[float, int, dict[str, float]]] = []
        folder.mkdir(exist_ok=True)
        self._loading = threading.Thread(target=self._load, name="dovetail-board", daemon=True)
        self._loading.start()

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures of one moment."""
        self._waiting = [*self._waiting, (time.time(), step, dict(figures))][-MOST_WAITING:]
        if self._writer is not None:
            self._write_waiting(self._writer)

    def close(self) -> None:
        """Close the file."""
        self._loading.join(END_S)
        if self._writer is not None:
            with suppress(OSError):
                self._write_waiting(self._writer)
                self._writer.close()

    def _load(self) -> None:
        # Its SummaryWriter has a thread that a full disk ends, and then waits for that thread for ever.
        from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415 - slow, and only a coordinator needs it

        with suppress(OSError):
            self._writer = EventsWriter(str(self._path), f".{os.getpid()}")

    def _write_waiting(self, writer: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        waiting, self._waiting = self._waiting, []
        with suppress(OSError):
            for moment_s, step, figures in waiting:
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
                writer.write_event(Event(wall_time=moment_s, step=step, summary=Summary(value=values)))
            writer.flush()
