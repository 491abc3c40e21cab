"""Messages of masked sums: which rows a step has, and gradients that make sense only in the sum."""

from __future__ import annotations

import msgspec

from dovetail.runtime.messages.kind import MessageKind


class MaskKey(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A worker, and the public key of its process for masks, as hexadecimal digits."""

    name: str
    public: str


class Agree(MessageKind, frozen=True):
    """The keys of a worker's gradients, of each table an array; answered once all `members` of the step have asked."""

    generation: int
    step: int
    worker: str
    members: tuple[str, ...]


class Agreed(MessageKind, frozen=True):
    """Of each table, the keys of all members' gradients in rising order."""


class MaskedPush(MessageKind, frozen=True):
    """A worker's gradients of a whole step under masks: one array of 32-bit words.

    Of each table a number for each key that was agreed on and each column, the dense gradient, and the loss.
    Answered by `Pushed`.
    """

    generation: int
    step: int
    task: int
    worker: str
    members: tuple[str, ...]
    positions: int
    samples: int
