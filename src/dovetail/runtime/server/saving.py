"""A server's part of a checkpoint: fixed at once, written while the server goes on."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError
from dovetail.runtime.checkpoint import STATISTICS, checksums_in, table_folder
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import Save, SaveBegun, Saved, SaveFailed
from dovetail.runtime.server.redo.log import RedoLog
from dovetail.runtime.server.shard import Shard


class PartSaving:
    """The part under way, where there is one."""

    def __init__(self, name: str, number: int, shard: Shard, redo: RedoLog) -> None:
        """Start without any; `number` is the server's."""
        self._name, self._number, self._shard, self._redo = name, number, shard, redo
        self._under_way: tuple[Save, list[Future[Any]]] | None = None
        self._begun: tuple[int, int] | None = None
        """Generation and number of the part that was begun last."""

    @property
    def is_under_way(self) -> bool:
        """Say whether a part is being written."""
        return self._under_way is not None

    def begin(self, message: Save) -> SaveBegun | SaveFailed:
        """Fix what the part holds and begin to write it; it must be of the step that the coordinator means."""
        begun = SaveBegun(name=self._name, generation=message.generation, number=message.number)
        if self._begun == (message.generation, message.number):
            return begun  # it was told twice
        self.drop()
        try:
            if message.step != self._shard.version:
                raise TrainingError(
                    f"the checkpoint is of step {message.step}, and {self._name} holds {self._shard.version}",
                    hint="a bug: report it",
                )
            self._shard.forget_tasks(below=message.next_task)
            self._under_way = (message, self._shard.save(Path(message.folder), message.number))
        except (DovetailError, OSError) as error:
            return self._failed(message, error)
        self._begun = (message.generation, message.number)
        self._redo.at_checkpoint(message.next_task)
        return begun

    def drop(self) -> None:
        """Wait for a part that nobody wants any more."""
        if self._under_way is not None:
            for future in self._under_way[1]:
                future.exception()
            self._under_way = None

    def finished(self) -> Saved | SaveFailed | None:
        """Return, once, what became of the part; None while it is being written."""
        if self._under_way is None or not all(future.done() for future in self._under_way[1]):
            return None
        message, futures = self._under_way
        self._under_way = None
        try:
            for future in futures:
                future.result()
            folder = Path(message.folder)
            files = checksums_in(folder, only=f"dense-{self._number}.safetensors")
            files |= checksums_in(folder, only=f"sites-{self._number}.safetensors")
            if self._shard.norms is not None:
                files |= checksums_in(folder, only=STATISTICS)
            for position in range(len(self._shard.tables)):
                files |= checksums_in(folder, only=f"{table_folder(position, self._number)}/**/*")
        except (DovetailError, OSError) as error:
            return self._failed(message, error)
        return Saved(name=self._name, generation=message.generation, number=message.number, files=files)

    def _failed(self, message: Save, error: Exception) -> SaveFailed:
        """Return the report of a part that could not be written; training goes on."""
        hint = error.hint if isinstance(error, DovetailError) else "check the disk"
        generation, number = message.generation, message.number
        return SaveFailed(name=self._name, generation=generation, number=number, error=str(error), hint=hint)
