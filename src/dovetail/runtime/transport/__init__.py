"""Messages between processes: typed headers, raw arrays, keys for everyone, shared memory on one host.

A `Listener` is called by any number of `Caller`s; a `DirectCaller` is the same line inside one process.
"""

from dovetail.runtime.transport.caller import Caller
from dovetail.runtime.transport.channel import Channel
from dovetail.runtime.transport.direct import DirectCaller
from dovetail.runtime.transport.envelope import PROTOCOL_VERSION, Codec, Letter, Refused
from dovetail.runtime.transport.errors import CallAbandoned, KeyRingError, ListenError, PeerLost, WireError
from dovetail.runtime.transport.keys import KeyRing, make_keys
from dovetail.runtime.transport.lanes import sweep
from dovetail.runtime.transport.listener import Listener

__all__ = [
    "PROTOCOL_VERSION",
    "CallAbandoned",
    "Caller",
    "Channel",
    "Codec",
    "DirectCaller",
    "KeyRing",
    "KeyRingError",
    "Letter",
    "ListenError",
    "Listener",
    "PeerLost",
    "Refused",
    "WireError",
    "make_keys",
    "sweep",
]
