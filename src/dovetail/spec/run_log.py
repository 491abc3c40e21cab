"""The section of a run file about what others are told of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from dovetail.errors import SpecError
from dovetail.spec.run_section import Meta, Section

HERE = "127.0.0.1"
LogFormat = Literal["text", "json"]


class RunLog(Section, frozen=True):
    """What programs that watch a run are told."""

    metrics: Annotated[
        str | int | None,
        Meta(description='where Prometheus finds figures at /metrics: a port of this machine, or "HOST:PORT"; 0: any'),
    ] = None
    format: Annotated[
        LogFormat | None,
        Meta(description="of logs: text, or json (an object a line); absent: what DOVETAIL_LOG says, else text"),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        if self.metrics is not None:
            self.metrics_address()

    def metrics_address(self) -> tuple[str, int]:
        """Return host and port of the page of figures."""
        host, _, port = str(self.metrics).rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise SpecError(f'is "{self.metrics}"', key="metrics", hint='give a port, or "HOST:PORT", e.g. 9100')
        return host.strip("[]") or HERE, int(port)
