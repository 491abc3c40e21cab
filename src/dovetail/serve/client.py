"""A line to the daemon, for the command line and for programs: finds it by its folder, sends the token."""

from __future__ import annotations

import http.client
import os
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import DovetailError
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
        url, token = self._find()
        parts = urllib.parse.urlsplit(url)
        line = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=ANSWER_S)
        try:
            line.request(
                method,
                path,
                body=None if body is None else msgspec.json.encode(body),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            )
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    def _find(self) -> tuple[str, str]:
        """Return the daemon's address and token."""
        if self._where.startswith("http://"):
            token = os.environ.get("DOVETAIL_TOKEN", "")
            if not token:
                raise DovetailError("DOVETAIL_TOKEN is not set", hint="set it to what FOLDER/token holds")
            return self._where, token
        folder = Path(self._where)
        if not (folder / "state.sqlite").exists() and not self._wait_s:
            raise DovetailError(f"{folder} is no daemon's folder", hint=f"start one: dovetail serve --folder {folder}")
        url = msgspec.json.decode((folder / "server.json").read_bytes())["url"]
        return str(url), (folder / "token").read_text().strip()

    def _nobody(self, error: Exception) -> DovetailError:
        return DovetailError(
            f"no daemon answers for {self._where}: {error}", hint=f"start it: dovetail serve --folder {self._where}"
        )
