"""The section of a run file about what happens when processes die."""

from __future__ import annotations

from typing import Annotated

from dovetail.errors import SpecError
from dovetail.spec.checks import check_number, check_whole_number
from dovetail.spec.run_section import Meta, Section


class RunFaults(Section, frozen=True):
    """What happens when processes die."""

    restarts: Annotated[int, Meta(description="how often each process is started again, at least 0")] = 100
    restart_workers: Annotated[bool, Meta(description="whether dead workers are started again")] = True
    patience_s: Annotated[float, Meta(description="the least silence after which a process counts as lost")] = 10.0
    redo_log: Annotated[
        bool,
        Meta(description="whether servers keep what they did since the last checkpoint: a death costs no step"),
    ] = True
    log_bytes: Annotated[
        int,
        Meta(
            description="how large each server's redo log may get, and no more than half of the free disk; "
            "a checkpoint is made before it is full"
        ),
    ] = 8 << 30
    log_folder: Annotated[str | None, Meta(description="where redo logs go; absent: inside the run's folder")] = None
    replicas: Annotated[
        int, Meta(description="on how many other servers each redo log lies as well, 0 or 1: a lost disk costs no step")
    ] = 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_whole_number(self, "restarts", at_least=0)
        check_number(self, "patience_s", above=0.0)
        check_whole_number(self, "log_bytes", at_least=1 << 20)
        check_whole_number(self, "replicas", at_least=0)
        if self.replicas > 1:
            raise SpecError(f"is {self.replicas}, expected 0 or 1", key="replicas", hint="one copy is kept at most")
        if self.replicas and not self.redo_log:
            raise SpecError(
                f"is {self.replicas}, and redo_log = false", key="replicas", hint="it is the redo log that is copied"
            )
