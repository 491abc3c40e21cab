"""Messages between processes: a typed header, then the raw bytes of each array.

    frame 0     b"DVTL", one byte of version, msgpack of the envelope
    frame 1..n  the bytes of one array each; none of these where the arrays lie in shared memory

The envelope is `[request, body, [[dtype, shape], ...], lane]`; the lane is null or `[file name, offsets]`, and null
offsets say that the arrays are in frames and the lane only waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, Union

import msgspec

from dovetail.transport.arrays import MOST_ARRAYS, Array, ArrayClaim, Buffer, Length, Sendable, as_frame, claims_of
from dovetail.transport.errors import WireError

MAGIC = b"DVTL"
PROTOCOL_VERSION = 1
PREFIX = MAGIC + bytes([PROTOCOL_VERSION])
MAX_FRAME_BYTES = 1 << 30


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The answer to an envelope that nobody could make sense of; part of every union of messages."""

    reason: str


class SharedMemoryReference(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where in shared memory the arrays of an envelope are, and where those of its answer may go."""

    name: str
    offsets: Annotated[list[Length], msgspec.Meta(max_length=MOST_ARRAYS)] | None = None


class SharedMemory(Protocol):
    """Shared memory as the codec sees it."""

    def views(self, claims: Sequence[ArrayClaim], offsets: Sequence[int]) -> tuple[Array, ...]:
        """Return read-only views of the arrays the other side wrote."""
        ...


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message with its arrays, which are read-only views of what arrived.

    Views into shared memory hold until `reply` at a listener, and until the next `ask` at a caller.
    """

    sender: bytes
    """Routing id of the sender; empty at a caller, which has only one peer."""
    request: int
    """Number of the request, the same in its answer; 0 in a message that needs none, or that nobody asked for."""
    message: Any
    arrays: tuple[Array, ...] = ()
    lane: Any = field(default=None, repr=False, compare=False)
    """The shared memory the envelope came with, for its answer."""
    owner: str = ""
    """At a listener: the process whose key the sender has, whatever the message says."""
    connection: int = field(default=-1, repr=False, compare=False)
    """File descriptor of the connection it came through, for `Flow`; -1 where there is none."""


class EnvelopeCodec:
    """Turns messages of a union into frames and back; the messages are tagged, frozen, array-like Structs."""

    def __init__(self, union: Any, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        """Make encoder and decoder for the union, to which `Refused` is added."""
        self._union = union
        self.max_frame_bytes = max_frame_bytes
        envelope = msgspec.defstruct(
            "Envelope",
            [
                ("request", Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]),
                ("body", Union[union, Refused]),  # noqa: UP007 - the union is a value here
                ("arrays", Annotated[list[ArrayClaim], msgspec.Meta(max_length=MOST_ARRAYS)]),
                ("lane", SharedMemoryReference | None, None),
            ],
            frozen=True,
            array_like=True,
            forbid_unknown_fields=True,
        )
        self._envelope: Any = envelope
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[Any], Any] = msgspec.msgpack.Decoder(envelope).decode
        self._decode_number = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode

    def limited_to(self, max_frame_bytes: int) -> EnvelopeCodec:
        """Return a codec of the same messages with another limit."""
        return (
            self
            if max_frame_bytes == self.max_frame_bytes
            else EnvelopeCodec(self._union, max_frame_bytes=max_frame_bytes)
        )

    def pack(
        self, request: int, message: Any, arrays: Sequence[Sendable] = (), *, lane: SharedMemoryReference | None = None
    ) -> list[Buffer]:
        """Return the frames of an envelope; arrays that lie in a lane need none."""
        claims = claims_of(arrays, self.max_frame_bytes) if arrays else []
        frames: list[Buffer] = [PREFIX + self._encode(self._envelope(request, message, claims, lane))]
        if lane is None or lane.offsets is None:
            frames += map(as_frame, arrays)
        return frames

    def unpack(
        self,
        frames: Sequence[Any],
        *,
        sender: bytes = b"",
        owner: str = "",
        lanes: Callable[[str], SharedMemory] | None = None,
        connection: int = -1,
    ) -> Envelope:
        """Return the envelope in these frames (bytes or anything with a buffer), or raise `WireError`.

        `lanes` finds the shared memory of a name.
        """
        if not frames:
            raise WireError("a message without frames")
        envelope = self._open(memoryview(frames[0]))
        try:
            reference = envelope.lane
            lane = lanes(reference.name) if reference is not None and lanes is not None else None
            if reference is None or reference.offsets is None:
                arrays = self._inline(envelope.arrays, frames)
            elif lane is None:
                raise WireError(
                    "the arrays of a message are in shared memory, which is not set up here",
                    hint="give both sides the same folder for lanes, or none",
                )
            elif len(frames) != 1:
                raise WireError(f"a message with arrays in shared memory has {len(frames)} frames, expected 1")
            else:
                arrays = lane.views(envelope.arrays, reference.offsets)
        except WireError as error:
            error.request = envelope.request
            raise
        return Envelope(sender, envelope.request, envelope.body, arrays, lane, owner, connection)

    def _open(self, header: memoryview) -> Any:
        """Return the envelope in a header frame."""
        if bytes(header[:4]) != MAGIC:
            raise WireError(f"a message starts with {bytes(header[:4])!r}, expected {MAGIC!r}")
        if len(header) < len(PREFIX) or header[4] != PROTOCOL_VERSION:
            version = header[4] if len(header) > 4 else "none"
            raise WireError(f"a message has protocol version {version}, expected {PROTOCOL_VERSION}")
        try:
            return self._decode(header[5:])
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:
            raise WireError(f"a header makes no sense: {error}", request=self._number(header[5:])) from None

    def _number(self, packed: memoryview) -> int:
        """Return the request number of an envelope that is otherwise broken, or 0."""
        try:
            number = msgspec.msgpack.decode(self._decode_number(packed)[0], type=int)
        except (msgspec.DecodeError, RecursionError, IndexError):
            return 0
        return number if 0 <= number < 1 << 63 else 0

    def _inline(self, claims: Sequence[ArrayClaim], frames: Sequence[Any]) -> tuple[Array, ...]:
        """Return views over the frames after the header."""
        if len(frames) != 1 + len(claims):
            raise WireError(f"a message with {len(claims)} arrays has {len(frames)} frames, expected {1 + len(claims)}")
        if not claims:
            return ()
        return tuple(self._view(claim, memoryview(frame)) for claim, frame in zip(claims, frames[1:], strict=True))

    def _view(self, claim: ArrayClaim, frame: memoryview) -> Array:
        nbytes = claim.nbytes()
        if nbytes > self.max_frame_bytes:
            raise WireError(f"an array claims {nbytes} bytes, the limit is {self.max_frame_bytes}")
        if nbytes != frame.nbytes:
            raise WireError(f"an array of {claim.dtype}{list(claim.shape)} has {frame.nbytes} bytes, expected {nbytes}")
        return claim.over(frame)
