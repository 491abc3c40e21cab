"""What a site keeps on disk of its exchanges, beside its checkpoints.

    sites/server-0/cuts.jsonl             at which step each round was cut, written before the round goes anywhere
    sites/server-0/exchange-00000012      an exchange, at the first site and at those with an address

A site that goes back to a checkpoint cuts the same rounds at the same steps again, and takes the exchanges that came
after the checkpoint from the first site: every sample counts once, whatever was lost. An exchange is kept until it is
in a whole checkpoint of every site.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from dovetail.atomic_file import replace_file
from dovetail.encryption import encoded, read_file
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.sites.messages import Exchange, RoundHead, SiteMessage
from dovetail.runtime.sites.rounds import Arrays
from dovetail.transport import EnvelopeCodec, WireError

CUTS = "cuts.jsonl"
LENGTHS = struct.Struct("<Q")


class Cuts:
    """The journal of a site's rounds."""

    def __init__(self, folder: Path) -> None:
        """Read what there is; a last line that was cut short says nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / CUTS
        self.heads: dict[int, RoundHead] = {}
        if not self._path.exists():
            return
        *lines, rest = self._path.read_bytes().split(b"\n")
        try:
            heads = [msgspec.json.decode(line, type=RoundHead) for line in lines]
        except msgspec.MsgspecError as error:
            raise TrainingError(
                f"{self._path} is damaged: {error}",
                hint="without it nobody knows which samples counted: start again from a checkpoint of another site",
            ) from None
        self.heads = {head.round: head for head in heads}
        if rest:
            replace_file(self._path, b"".join(line + b"\n" for line in lines), durable=True)

    def write(self, head: RoundHead) -> None:
        """Note a round that is new; it is on disk when this returns."""
        if head.round in self.heads:
            return
        self.heads[head.round] = head
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(head) + b"\n")
            file.flush()
            os.fsync(file.fileno())


class ExchangeLog:
    """The exchanges that some site may still need."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._codec = EnvelopeCodec(SiteMessage)
        found = sorted(int(path.name.partition("-")[2]) for path in folder.glob("exchange-????????"))
        self.first, self.count = (found[0], found[-1]) if found else (1, 0)

    def _path(self, number: int) -> Path:
        return self._folder / f"exchange-{number:08d}"

    def _known_as(self, path: Path) -> str:
        """Return the name of an encrypted file: that of its server too."""
        return f"{self._folder.name}/{path.name}"

    def write(self, exchange: Exchange, arrays: Arrays) -> None:
        """Keep the next exchange; it is on disk when this returns."""
        frames = [bytes(frame) for frame in self._codec.pack(0, exchange, arrays)]
        data = b"".join(LENGTHS.pack(len(frame)) + frame for frame in frames)
        path = self._path(exchange.number)
        replace_file(path, encoded(path, data, name=self._known_as(path)), durable=True)
        self.count = exchange.number

    def read(self, number: int) -> tuple[Exchange, Arrays]:
        """Return an exchange."""
        path = self._path(number)
        try:
            data, frames, at = read_file(path, name=self._known_as(path)), [], 0
            while at < len(data):
                (length,) = LENGTHS.unpack_from(data, at)
                frames.append(data[at + LENGTHS.size : at + LENGTHS.size + length])
                at += LENGTHS.size + length
            envelope = self._codec.unpack(frames)
            exchange: Exchange = envelope.message
            if exchange.number != number:
                raise WireError(f"it is exchange {exchange.number}")
        except (OSError, WireError, ValueError, struct.error) as error:
            raise TrainingError(
                f"{path} cannot be read: {error}", hint="the sites have parted: start again from one site's checkpoint"
            ) from None
        return exchange, envelope.arrays

    def begin_at(self, number: int) -> None:
        """Forget all, and go on with an exchange of this number."""
        for path in self._folder.glob("exchange-????????"):
            path.unlink(missing_ok=True)
        self.first, self.count = number, number - 1

    def drop_before(self, number: int) -> None:
        """Remove exchanges that nobody needs any more; the last one stays, for it says how many there were."""
        while self.first < min(number, self.count):
            self._path(self.first).unlink(missing_ok=True)
            self.first += 1


def arrays_of(exchange: Exchange, arrays: Arrays) -> list[Arrays]:
    """Return the arrays of each round of an exchange; none where its reader has them."""
    found, at = [], 0
    for head in exchange.rounds:
        found.append(arrays[at : at + head.num_arrays])
        at += head.num_arrays
    if at != len(arrays):
        raise WireError(f"exchange {exchange.number} has {len(arrays)} arrays, its rounds say {at}")
    return found


def left_for(
    site: int, exchange: Exchange, arrays: Arrays, *, has_own: int, early: Collection[int] = ()
) -> tuple[Exchange, Arrays]:
    """Return an exchange without the arrays that a site has.

    That are its own, from round `has_own` on, and the last rounds of sites that it got `early`.
    """
    heads: list[RoundHead] = []
    left: list[NDArray[Any]] = []
    for head, each in zip(exchange.rounds, arrays_of(exchange, arrays), strict=True):
        has_it = head.round >= has_own if head.site == site else head.last and head.site in early
        heads.append(msgspec.structs.replace(head, num_arrays=0) if has_it else head)
        left.extend([] if has_it else each)
    return msgspec.structs.replace(exchange, rounds=tuple(heads)), tuple(left)


def whole(exchange: Exchange, arrays: Sequence[Arrays]) -> tuple[Exchange, Arrays]:
    """Return an exchange with the arrays of every one of its rounds."""
    heads = [
        msgspec.structs.replace(head, num_arrays=len(each)) for head, each in zip(exchange.rounds, arrays, strict=True)
    ]
    return msgspec.structs.replace(exchange, rounds=tuple(heads)), tuple(array for each in arrays for array in each)


def completed(
    exchange: Exchange, arrays: Arrays, *, site: int, early: Mapping[tuple[int, int], Arrays]
) -> tuple[Exchange, Arrays] | None:
    """Return an exchange with the arrays that its reader, a site, got early by site and round; None where some lack."""
    found = [
        each or early.get((head.site, head.round), ())
        for head, each in zip(exchange.rounds, arrays_of(exchange, arrays), strict=True)
    ]
    if not all(each or head.site == site for head, each in zip(exchange.rounds, found, strict=True)):
        return None
    return whole(exchange, found)
