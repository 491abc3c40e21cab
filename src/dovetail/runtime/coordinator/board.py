"""Figures as TensorBoard reads them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class Board:
    """A file of scalars, written by the caller's own thread; a full disk leaves gaps and is no error."""

    def __init__(self, folder: Path) -> None:
        """Begin a file of this process's own."""
        # Slow to import, and only the coordinator needs it. Its SummaryWriter has a thread that a full disk ends,
        # and then waits for that thread for ever.
        from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415

        folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures of one moment."""
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
        with suppress(OSError):
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._writer.close()
