"""Masks that cancel in pairs: each two workers know a secret, one adds what it is expanded to, the other subtracts it.

Two workers agree by X25519, twice: by keys that each process draws for itself, which go through the coordinator, and by
the keys that prove who sends (`transport.keys`), which do not. Who has only read messages, or hands out keys of its own
in the place of others', learns no secret; who learns the lasting keys later learns none either.

    secret  = HKDF-SHA256(X25519(drawn) || X25519(lasting), salt = run, info = both names and drawn keys)
    key     = HMAC-SHA256(secret, generation, step, server)
    mask    = AES-256 in counter mode, keyed by `key`: uniform modulo 2^32

A key is for one vector: masks of an attempt at a step that came to nothing are never used again, and never told.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zmq.utils import z85

from dovetail.errors import MissingExtraError
from dovetail.runtime.errors import TrainingError
from dovetail.runtime.messages import MaskKey
from dovetail.transport import KeyRing

Words = NDArray[np.uint32]
ATTEMPT = struct.Struct("<qqq")
FEWEST = 2
"""A sum of one is what it was."""


def check_installed() -> None:
    """Refuse masked sums without the package that they need."""
    try:
        import cryptography  # noqa: F401, PLC0415 - loaded only where it is used
    except ImportError:
        raise MissingExtraError("the package `cryptography`", extra="encryption") from None


class MaskKeys:
    """The keys of one worker's process, and the secrets that it shares."""

    def __init__(self, name: str, run: str, keys: KeyRing) -> None:
        """Draw a key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415

        self._name, self._run, self._keys = name, run, keys
        self._drawn: Any = X25519PrivateKey.generate()
        self._lasting: Any = X25519PrivateKey.from_private_bytes(z85.decode(keys.own(name)[1]))
        self.public = self._drawn.public_key().public_bytes_raw().hex()
        """What others need of the drawn one."""
        self._secrets: dict[MaskKey, bytes] = {}
        self._last = (-1, -1)

    def begin(self, generation: int, step: int, members: Sequence[MaskKey]) -> None:
        """Begin an attempt at a step, with others or not at all; no attempt is begun twice."""
        names = [member.name for member in members]
        if len(set(names)) < max(FEWEST, len(names)) or MaskKey(name=self._name, public=self.public) not in members:
            raise TrainingError(
                f"{self._name} would be added up with {', '.join(sorted(set(names) - {self._name})) or 'nobody'}",
                hint="masked sums are of two workers or more, each there once, as it said itself",
            )
        if (generation, step) <= self._last:
            raise TrainingError(
                f"the masks of step {step} in generation {generation} were used already", hint="a bug: report it"
            )
        self._last = (generation, step)

    def mask(self, members: Sequence[MaskKey], server: int, count: int) -> Words:
        """Return the sum of this worker's masks for a server in the attempt that was begun."""
        total = np.zeros(count, dtype=np.uint32)
        nothing, stream = bytes(4 * count), np.empty(4 * count + 15, dtype=np.uint8)
        for member in members:
            if member.name == self._name:
                continue
            key = hmac.digest(self._secret(member), ATTEMPT.pack(*self._last, server), hashlib.sha256)
            _expand(key, nothing, stream)
            mask = stream[: 4 * count].view(np.uint32)
            if self._name < member.name:
                total += mask
            else:
                total -= mask
        return total

    def _secret(self, other: MaskKey) -> bytes:
        """Return what is known to this worker and another alone."""
        if other not in self._secrets:
            self._secrets[other] = self._agree(other)
        return self._secrets[other]

    def _agree(self, other: MaskKey) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        try:
            drawn = self._drawn.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other.public)))
            lasting = X25519PublicKey.from_public_bytes(z85.decode(self._keys.public(other.name)))
            shared = drawn + self._lasting.exchange(lasting)
        except ValueError:
            raise TrainingError(f"{self._name} was given no key of {other.name}", hint="a bug: report it") from None
        both = sorted([f"{self._name}={self.public}", f"{other.name}={other.public}"])
        return HKDF(algorithm=SHA256(), length=32, salt=self._run.encode(), info="/".join(both).encode()).derive(shared)


def _expand(key: bytes, nothing: bytes, stream: NDArray[np.uint8]) -> None:
    """Write a key's stream over an array."""
    from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415 - loaded only where it is used
    from cryptography.hazmat.primitives.ciphers.algorithms import AES  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.modes import CTR  # noqa: PLC0415

    Cipher(AES(key), CTR(bytes(16))).encryptor().update_into(nothing, stream.data)
