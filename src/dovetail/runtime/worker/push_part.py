"""What one server gets of a push: gradients packed once, sent with keys only where it does not know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from numpy.typing import NDArray

from dovetail.runtime.messages import Push
from dovetail.runtime.worker.keys import Keys, LookUp
from dovetail.transport import Channel


@dataclass(frozen=True, slots=True)
class PushPart:
    """By look-up: its keys and its gradients that are the server's; then the dense ones."""

    look_ups: Sequence[LookUp]
    keys: Sequence[Keys]
    rows: Sequence[NDArray[Any]]
    dense: NDArray[Any] | None

    def ask(self, channel: Channel, message: Push, *, with_keys: bool = False) -> int:
        """Send it; look-ups whose pull the server knows are named, unless it wants keys after all."""
        pulls = [-1 if with_keys else look_up.pull for look_up in self.look_ups]
        arrays: list[NDArray[Any]] = []
        for pull, keys, values in zip(pulls, self.keys, self.rows, strict=True):
            arrays += [values] if pull >= 0 else [keys, values]
        if self.dense is not None:
            arrays.append(self.dense)
        places = tuple(look_up.place for look_up in self.look_ups)
        return channel.ask(msgspec.structs.replace(message, pulls=tuple(pulls), places=places), arrays)
