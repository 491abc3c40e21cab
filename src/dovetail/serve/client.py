"""A line to the daemon, for the command line and for programs: finds it by its folder, and makes sure who answers.

By its folder, the daemon is asked through the socket in it, which nobody else can put there. Over TCP it has to prove
that it has the token, and the token itself is never sent: whoever took the port of a dead daemon learns nothing.
"""

from __future__ import annotations

import hmac
import http.client
import os
import secrets
import socket
import struct
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import DovetailError
from dovetail.serve.proof import SCHEME, client_proof, daemon_proof
from dovetail.serve.submission import Submission

ANSWER_S = 30.0
AGAIN_S = 0.2


class Client:
    """Asks one daemon."""

    def __init__(self, folder: Path | None = None, *, server: str | None = None, wait_s: float = 0.0) -> None:
        """Find the daemon by its folder, or by `DOVETAIL_SERVER`: a folder too, or an address with DOVETAIL_TOKEN.

        With `wait_s`, one that does not answer is asked again for so long: it may be starting.
        """
        self._where = str(folder) if folder is not None else server or os.environ.get("DOVETAIL_SERVER", "")
        self._wait_s = wait_s
        if not self._where:
            raise DovetailError(
                "it is not said which daemon", hint="give --folder, or set DOVETAIL_SERVER to the daemon's folder"
            )

    def submit(self, submission: Submission) -> dict[str, Any]:
        """Hand in a job; asked again, it is the same one."""
        keyed = msgspec.structs.replace(submission, key=submission.key or str(uuid.uuid4()))
        return self.ask("POST", "/v1/jobs", keyed)

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return what the daemon answers; its errors are raised here."""
        until_s = time.monotonic() + self._wait_s
        while True:
            try:
                status, text = self._send(method, path, body)
                break
            except OSError as error:  # whoever wrote the address is gone, or just starting
                if time.monotonic() >= until_s:
                    raise self._nobody(error) from None
            except http.client.HTTPException as error:
                if time.monotonic() >= until_s:
                    raise self._nobody(error) from None
            time.sleep(AGAIN_S)
        try:
            answer: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.MsgspecError:
            raise DovetailError(
                f"{self._where} answers {status}, and no JSON", hint="is it a Dovetail daemon?"
            ) from None
        if status != 200:
            raise DovetailError(str(answer.get("error", status)), hint=str(answer.get("hint", "see the daemon's log")))
        return answer

    def _send(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        text = b"" if body is None else msgspec.json.encode(body)
        if self._where.startswith("http://"):
            token = os.environ.get("DOVETAIL_TOKEN", "")
            if not token:
                raise DovetailError("DOVETAIL_TOKEN is not set", hint="set it to what FOLDER/token holds")
            return _send_signed(self._where, token, method, path, text)
        folder = Path(self._where)
        if not (folder / "state.sqlite").exists() and not self._wait_s:
            raise DovetailError(f"{folder} is no daemon's folder", hint=f"start one: dovetail serve --folder {folder}")
        url = str(msgspec.json.decode((folder / "server.json").read_bytes())["url"])
        token = (folder / "token").read_text().strip()
        if not (folder / "socket").exists():
            return _send_signed(url, token, method, path, text)
        line = _LocalConnection(folder)
        try:
            return _ask(line, method, path, text, f"Bearer {token}")
        finally:
            line.close()

    def _nobody(self, error: Exception) -> DovetailError:
        return DovetailError(
            f"no daemon answers for {self._where}: {error}", hint=f"start it: dovetail serve --folder {self._where}"
        )


class SignedLine:
    """One request to a daemon over TCP, which has to prove itself first; the token is never sent."""

    def __init__(self, url: str, token: str, *, timeout_s: float = ANSWER_S) -> None:
        """Get ready; nothing is sent yet."""
        parts = urllib.parse.urlsplit(url)
        self._url, self._token = url, token
        self._line = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)

    def __enter__(self) -> SignedLine:
        """Send within the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def send(self, method: str, path: str, body: bytes) -> http.client.HTTPResponse:
        """Have the daemon prove itself, then send a signed request; return the answer, which is yet to be read."""
        nonce = secrets.token_urlsafe(24)
        text = _asked(self._line, "GET", f"/v1/challenge?nonce={nonce}", b"").read()
        answer = _Challenge.read(text)
        wanted = "" if answer is None else daemon_proof(self._token, nonce, answer.challenge)
        if answer is None or not hmac.compare_digest(answer.proof, wanted):
            raise DovetailError(
                f"who answers at {self._url} cannot prove to be the daemon, and was not told the token",
                hint="is the daemon running, and of this version? dovetail serve starts it",
            )
        proof = client_proof(self._token, nonce, answer.challenge, method, path, body)
        return _asked(self._line, method, path, body, f"{SCHEME}{proof}")


def _send_signed(url: str, token: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Return status and text of the answer to a signed request."""
    with SignedLine(url, token) as line:
        answer = line.send(method, path, body)
        return answer.status, answer.read()


class _Challenge(msgspec.Struct, frozen=True):
    """What a daemon answers a nonce with."""

    challenge: str
    proof: str

    @classmethod
    def read(cls, text: bytes) -> _Challenge | None:
        """Return it; None where the answer is another."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            return None


class _LocalConnection(http.client.HTTPConnection):
    """A connection to the socket in a daemon's folder, whose owner is the token's."""

    def __init__(self, folder: Path) -> None:
        """Get ready; nothing is sent yet."""
        super().__init__("localhost", timeout=ANSWER_S)
        self._folder = folder

    def connect(self) -> None:
        """Connect, and look whose process it is that listens."""
        inside = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(ANSWER_S)
            self.sock.connect(f"/proc/self/fd/{inside}/socket")  # short, however long the folder's own path is
        finally:
            os.close(inside)
        credentials = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        owner = struct.unpack("3i", credentials)[1]
        if owner not in (0, (self._folder / "token").stat().st_uid):
            raise DovetailError(
                f"{self._folder / 'socket'} is listened to by user {owner}, who is not the token's owner",
                hint="have the folder be of mode 0700, and start the daemon again",
            )


def _ask(
    line: http.client.HTTPConnection, method: str, path: str, body: bytes, authorization: str | None = None
) -> tuple[int, bytes]:
    """Return status and text of an answer."""
    answer = _asked(line, method, path, body, authorization)
    return answer.status, answer.read()


def _asked(
    line: http.client.HTTPConnection, method: str, path: str, body: bytes, authorization: str | None = None
) -> http.client.HTTPResponse:
    """Send a request, and return the answer."""
    headers = {"Content-Type": "application/json"}
    if authorization is not None:
        headers["Authorization"] = authorization
    line.request(method, path, body=body or None, headers=headers)
    return line.getresponse()
