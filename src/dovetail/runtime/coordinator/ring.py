"""Who is in the ring of dense parameters: formed anew for every generation, never repaired."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dovetail.runtime.messages import InRing, JoinRing, Message, Reduced, RingBroken, RingMeets

if TYPE_CHECKING:
    from dovetail.runtime.coordinator.loop import Coordinator

FORMING_S = 60.0
"""How long members may take to find each other."""


class RingMembers:
    """The members of this generation's ring, and how far they are."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Start without a ring."""
        self._coordinator = coordinator
        self._keepers: set[str] = set()
        """Workers that hold the dense parameters as they are after the last step that counts."""
        self.members: tuple[str, ...] = ()
        self._joined: set[str] = set()
        self.reduced: set[str] = set()
        self._begun_s = 0.0
        self._source = ""
        self.is_formed = False

    def forget(self) -> None:
        """Nobody holds the dense parameters any more: the run went back to a checkpoint."""
        self._keepers.clear()
        self.dissolve()

    def dissolve(self) -> None:
        """End the ring; its members keep what they hold."""
        if self.is_formed:
            self._keepers |= set(self.members)
        self.members, self.is_formed = (), False
        self._joined.clear()
        self.reduced.clear()

    @property
    def is_lost(self) -> bool:
        """Say whether no worker is left that holds the dense parameters."""
        return not (self._keepers & set(self._coordinator.workers))

    def drop(self, name: str) -> None:
        """Forget a worker that is lost."""
        self._keepers.discard(name)

    def form(self, checkpoint: str) -> None:
        """Have all workers form a ring; where nobody holds the dense parameters, from those of the checkpoint."""
        workers = self._coordinator.workers
        self.members = tuple(sorted(workers))
        self._joined.clear()
        self.reduced.clear()
        self.is_formed = False
        self._begun_s = time.monotonic()
        keepers = sorted(self._keepers & set(workers))
        self._source, self._folder = (keepers[0], "") if keepers else ("", checkpoint)
        self._send(self.members[0], meeting="")

    def _send(self, name: str, *, meeting: str) -> None:
        """Tell a member about the ring."""
        self._coordinator.send(
            self._coordinator.workers[name],
            JoinRing(
                generation=self._coordinator.generation,
                members=self.members,
                source=self._source,
                meeting=meeting,
                folder=self._folder,
            ),
        )

    def heed(self, message: Message) -> bool:
        """Take in what a member says; True where that changes what can be done."""
        if isinstance(message, RingMeets):
            for name in self.members:
                if name in self._coordinator.workers:
                    self._send(name, meeting=message.meeting)
        elif isinstance(message, InRing):
            self._joined.add(message.name)
            if self.members and self._joined >= set(self.members):
                self.is_formed = True
                self._keepers = set(self.members)
                return True
        elif isinstance(message, Reduced):
            self.reduced.add(message.name)
            return True
        elif isinstance(message, RingBroken):
            self._coordinator.restart_generation(f"{message.name} could not reach the ring: {message.error}")
        return False

    def look(self, now_s: float) -> None:
        """Give up a ring that does not come about."""
        if self.members and not self.is_formed and now_s - self._begun_s > FORMING_S:
            missing = ", ".join(sorted(set(self.members) - self._joined))
            self._coordinator.restart_generation(f"{missing} did not join the ring in {FORMING_S:.0f} s")

    @property
    def has_reduced(self) -> bool:
        """Say whether every member holds the sum of the step's gradients."""
        return self.is_formed and self.reduced >= set(self.members)
