"""How everyone gets from one generation into the next, in one state: that of the journal, or of a checkpoint."""

from __future__ import annotations

from dovetail.runtime.blueprint import Blueprint
from dovetail.runtime.coordinator.checkpoints import KeptCheckpoint
from dovetail.runtime.coordinator.decisions import Decisions
from dovetail.runtime.coordinator.journal import CommitLine, Past, StartLine
from dovetail.runtime.coordinator.membership import Roster, Server, Worker
from dovetail.runtime.messages import Adopt, Apply, Commit, Load, Ready

ASK_AGAIN_S = 5.0
"""How long a server may be silent about what it was asked for before it is asked again."""


class Generations:
    """What is left of the generation before, and how far the servers are with the next."""

    def __init__(self, blueprint: Blueprint, roster: Roster, decisions: Decisions, past: Past | None) -> None:
        """Begin, or go on where a coordinator that died stood."""
        self._roster, self._decisions = roster, decisions
        self._is_sync = blueprint.run.training.mode == "sync"
        self._has_ring = blueprint.run.training.dense == "ring"
        self._past = past
        self._came_back = past is not None
        """Whether this coordinator knows of the past from the journal alone."""
        self._generation_of: dict[str, int] = {}
        """The generation in which each server said hello."""
        self._asked: Load | Adopt | None = None
        self._asked_s = 0.0
        if past is not None:
            roster.generation, roster.era = past.start.generation, past.start.era

    def heard(self, server: str, generation: int) -> None:
        """Note in which generation a server said hello."""
        self._generation_of[server] = generation

    def tell_again(self, worker: Worker) -> None:
        """Tell a member of a ring of the last commit, which the coordinator that died may not have told it of."""
        if self._came_back and self._has_ring and self._past is not None and self._past.commit is not None:
            commit = self._past.commit
            generation = self._past.start.generation
            self._decisions.send(
                worker,
                Apply(generation=generation, step=commit.step, scale=commit.dense_scale, factor=commit.factor),
            )

    def leave(self) -> None:
        """Throw away what is under way, everywhere."""
        self._roster.generation += 1
        for server in self._roster.servers.values():
            server.is_ready = False
        self._decisions.send_all(self._roster.workers.values(), self._roster.reset())

    def forget_past(self) -> None:
        """Go on from a checkpoint."""
        self._past, self._came_back = None, False

    def remember(self, start: StartLine, decided: CommitLine | None) -> None:
        """Go on from where the run stands; servers keep their state, or come back with it.

        The last step of `start` may be one that was just `decided`, and that not all servers have heard of.
        """
        self._past, self._came_back = Past.of(start), False
        self._past.commit = decided
        self._generation_of.clear()

    @property
    def has_past(self) -> bool:
        """Say whether the next generation goes on from where the run stands, not from a checkpoint."""
        return self._past is not None

    def why_not_held(self) -> str:
        """Say which servers that came have another state than the run goes on with; empty where none has.

        In ssp and async a server may be ahead: whatever it has applied it will not apply again.
        """
        past = self._past
        if past is None or self._roster.missing_servers:
            return ""
        came = [server for name, server in self._roster.servers.items() if name in self._generation_of]
        return ", ".join(
            f"{server.name} came back with {server.version} of {past.num_counted}"
            if server.era == past.start.era
            else f"{server.name} came back without its state"
            for server in came
            if not self._is_held(server, past)
        )

    def ask_servers(self, kept: KeptCheckpoint, now_s: float) -> None:
        """Once every server is there, have all of them in one state."""
        if self._roster.missing_servers:
            return
        self._roster.generation += 1
        generation = self._roster.generation
        if self._past is not None:
            if self._came_back:
                self._decisions.say(f"the coordinator came back at step {self._past.step}")
            if self._past.commit is not None:
                self._commit_again(self._past, self._past.commit)
            self._asked = Adopt(generation=generation)
        else:
            self._roster.era = generation
            folder = str(kept.folder.absolute())
            self._asked = Load(generation=generation, step=kept.manifest.step, folder=folder)
        self._asked_s = now_s
        self._decisions.send_all(self._roster.servers.values(), self._asked)

    def ask_again(self, now_s: float) -> None:
        """Ask servers again that have not answered: a connection may have broken meanwhile; none does it twice."""
        asked = self._asked
        if asked is None or asked.generation != self._roster.generation or now_s - self._asked_s < ASK_AGAIN_S:
            return
        self._asked_s = now_s
        late = [server for server in self._roster.servers.values() if not server.is_ready]
        self._decisions.send_all(late, asked)

    def _is_held(self, server: Server, past: Past) -> bool:
        """Say whether a server holds what the run goes on with, or can: one that lacks the last commit has its sums."""
        if server.era != past.start.era:
            return False
        if not self._is_sync:
            return server.version >= past.num_counted
        waits = past.commit is not None and self._generation_of[server.name] == past.start.generation
        return server.version == past.step or (waits and server.version == past.step - 1)

    def _commit_again(self, past: Past, line: CommitLine) -> None:
        """Tell servers of the last commit, which some may not have heard of; the others will not apply it again."""
        self._decisions.send_all(
            self._roster.servers.values(),
            Commit(
                generation=past.start.generation,
                step=line.step,
                scale=line.scale,
                dense_scale=line.dense_scale,
                factor=line.factor,
            ),
        )

    def ready(self, server: Server, message: Ready) -> bool:
        """Note that a server did as it was asked; return whether all have."""
        server.version, server.era = message.version, message.era
        server.is_ready = message.generation == self._roster.generation
        return self._roster.servers_are_ready

    def begin(self) -> Past | None:
        """Return where the generation begins, or None where it begins with the checkpoint."""
        past, self._past = self._past, None
        self._came_back = False
        return past

    def others_than(self, step: int) -> str:
        """Say what servers hold where that is not as many steps as count; in ssp and async, tasks may be ahead."""
        servers = self._roster.servers.values()
        stand = all(
            server.era == self._roster.era and (server.version == step or (not self._is_sync and server.version > step))
            for server in servers
        )
        return "" if stand else ", ".join(f"{server.name} {server.version}" for server in servers)
