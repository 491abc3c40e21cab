"""Messages between processes: typed headers, raw arrays, keys for everyone, shared memory on one host.

A `Listener` is called by any number of `Caller`s.
"""

from dovetail.transport.arrays import Sendable, Unwritten
from dovetail.transport.caller import LOOK_EVERY_S, Caller, Channel, Flow
from dovetail.transport.envelope import PROTOCOL_VERSION, Envelope, EnvelopeCodec, Refused
from dovetail.transport.errors import KeyRingError, ListenError, PeerLost, WireError
from dovetail.transport.keys import KeyRing, drop_keys, make_keys
from dovetail.transport.listener import Listener
from dovetail.transport.shared_memory import SharedMemoryFile, sweep
from dovetail.transport.sockets import name_in

__all__ = [
    "LOOK_EVERY_S",
    "PROTOCOL_VERSION",
    "Caller",
    "Channel",
    "Envelope",
    "EnvelopeCodec",
    "Flow",
    "KeyRing",
    "KeyRingError",
    "ListenError",
    "Listener",
    "PeerLost",
    "Refused",
    "Sendable",
    "SharedMemoryFile",
    "Unwritten",
    "WireError",
    "drop_keys",
    "make_keys",
    "name_in",
    "sweep",
]
