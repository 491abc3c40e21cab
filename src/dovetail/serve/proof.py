"""How daemon and client show each other over TCP that they have the token, without ever sending it.

    client   GET /v1/challenge?nonce=A
    daemon   {"challenge": B, "proof": HMAC(token, "daemon", A, B)}
    client   any request on the same connection, with
             Authorization: Dovetail HMAC(token, "client", A, B, method, path, body)

Whoever listens on the port of a daemon that is gone has no proof, and hears nothing but A. A challenge is good for one
request, on the connection that it was given on.
"""

from __future__ import annotations

import hashlib
import hmac
import re

SCHEME = "Dovetail "
NONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")


def daemon_proof(token: str, nonce: str, challenge: str) -> str:
    """Return what a daemon answers a nonce with."""
    return _signed(token, b"daemon", nonce.encode(), challenge.encode())


def client_proof(token: str, nonce: str, challenge: str, method: str, target: str, body: bytes) -> str:
    """Return what a client sends in place of the token, for one request alone."""
    digest = hashlib.sha256(body).digest()
    return _signed(token, b"client", nonce.encode(), challenge.encode(), method.encode(), target.encode(), digest)


def _signed(token: str, *parts: bytes) -> str:
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()
