"""The process that speaks to Ray for a launcher.

Ray ends whoever uses it when its head is gone, and has signals and threads of its own. So it has a process of its own
as well: should that end, the launcher starts another, and its coordinator and servers never notice. It ends when the
launcher does, and with it every keeper that it has in the cluster.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dovetail.runtime.launch.hosts.protocol import AskFacts, CloseKeeper, FramedSocket, RequestRefused, encode
from dovetail.runtime.launch.hosts.ray.messages import (
    Ask,
    Connected,
    Forget,
    FromDriver,
    Hold,
    LetGo,
    Node,
    Open,
    Reply,
    ToDriver,
    decode_to_driver,
)
from dovetail.runtime.launch.hosts.ray.node import NodeKeeper
from dovetail.runtime.launch.hosts.shipped_code import own_code

BEGIN_S = 60.0
"""How long an actor may take to begin."""
FACTS_S = 5.0
"""How long one that is there may take to answer."""
CLOSE_S = 3.0
PIN = 0.001
"""How much a reservation takes of the resource by which Ray names a node."""
PINGS = 4
"""How often a keeper hears of us in the time after which it would take us for gone."""
MOST_THREADS = 256


class Driver:
    """What a launcher has in the cluster."""

    def __init__(self, line: FramedSocket, lost_s: float) -> None:
        """Answer on a line."""
        self._line, self._lost_s = line, lost_s
        self._actors: dict[str, Any] = {}
        self._died_on: dict[str, str] = {}
        """The node on which a host's last keeper died: one that comes back at the same address is another."""
        self._held: dict[str, Any] = {}

    def serve(self) -> None:
        """Answer until the launcher hangs up, then end every keeper."""
        self.send(Connected(here=ray.util.get_node_ip_address(), nodes=tuple(nodes())))
        threading.Thread(target=self._ping, name="dovetail-ping", daemon=True).start()
        with ThreadPoolExecutor(MOST_THREADS) as pool:
            with suppress(EOFError, OSError, ValueError):
                while True:
                    self._take(decode_to_driver(self._line.receive()), pool)
            list(pool.map(self._close, list(self._actors)))

    def send(self, message: FromDriver) -> None:
        """Tell the launcher; one that is gone hears nothing."""
        with suppress(OSError):
            self._line.send(encode(message))

    def _ping(self) -> None:
        """Have keepers hear of us, also while a long request is on its way to one."""
        while True:
            for actor in list(self._actors.values()):
                with suppress(Exception):
                    actor.ping.remote()
            time.sleep(self._lost_s / PINGS)

    def _take(self, message: ToDriver, pool: ThreadPoolExecutor) -> None:
        """Do what is asked for: what nobody waits for at once, so that it is done before what comes next."""
        match message:
            case Forget():
                self._forget(message.host)
            case LetGo():
                self._let_go(message.key)
            case _:
                pool.submit(self._answer, message)

    def _answer(self, message: Open | Ask | Hold) -> None:
        """Answer what takes time."""
        try:
            match message:
                case Open():
                    reply = self._open(message)
                case Ask():
                    reply = self._ask(message)
                case Hold():
                    reply = self._hold(message)
        except Exception as error:  # whatever Ray raises: the launcher tries again
            reply = Reply(message.number, lost=_first_line(error))
        self.send(reply)

    def _open(self, message: Open) -> Reply:
        """Have a keeper on a node: the one that is there where it answers, else a new one."""
        host, facts = message.host, encode(AskFacts())
        if host in self._actors:
            try:
                return Reply(message.number, answer=ray.get(self._actors[host].answer.remote(facts), timeout=FACTS_S))
            except ActorDiedError:
                self._forget(host)
        node = self._node_at(message.address, not_=self._died_on.get(host))
        if node is None:
            return Reply(message.number, lost=f"Ray has no node at {message.address} any more")
        keeper = ray.remote(NodeKeeper).options(
            num_cpus=0,
            max_restarts=0,
            max_concurrency=2,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            runtime_env={"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}},
        )
        actor = keeper.remote(self._lost_s)
        try:
            code, answer = ray.get([actor.code.remote(), actor.answer.remote(facts)], timeout=BEGIN_S)
        except ActorDiedError as error:
            self._died_on[host] = node
            if "ModuleNotFoundError" in str(error) or "ImportError" in str(error):
                return Reply(
                    message.number,
                    problem=f"node {message.address} cannot import Dovetail: {_last_line(error)}",
                    hint="install this version of dovetail[ray] into the Python that runs `ray start` there",
                )
            return Reply(message.number, lost=f"the keeper on {message.address} did not begin: {_last_line(error)}")
        except RayError:
            ray.kill(actor)
            raise
        if code != own_code():
            ray.kill(actor)
            return Reply(
                message.number,
                problem=f"node {message.address} has another Dovetail than this machine",
                hint="install the same version into the Python that runs `ray start` there",
            )
        self._actors[host] = actor
        self._died_on[host] = node
        return Reply(message.number, answer=answer)

    def _ask(self, message: Ask) -> Reply:
        """Pass a request on."""
        actor = self._actors.get(message.host)
        if actor is None:
            return Reply(message.number, lost="there is no keeper")
        return Reply(message.number, answer=ray.get(actor.answer.remote(message.request), timeout=message.timeout_s))

    def _hold(self, message: Hold) -> Reply:
        """Reserve resources of a node, in a placement group of one bundle."""
        if message.key in self._held:
            return Reply(message.number)
        group = placement_group([{**message.resources, f"node:{message.address}": PIN}], strategy="STRICT_PACK")
        if not group.wait(message.timeout_s):
            remove_placement_group(group)
            wanted = ", ".join(f"{count:g} of `{name}`" for name, count in message.resources.items())
            return Reply(
                message.number,
                problem=f"node {message.address} has not {wanted} free: another job of the cluster holds them",
                hint="wait for that job, or give the run fewer workers",
            )
        self._held[message.key] = group
        return Reply(message.number)

    def _let_go(self, key: str) -> None:
        """Give back a reservation."""
        group = self._held.pop(key, None)
        if group is not None:
            with suppress(Exception):
                remove_placement_group(group)

    def _forget(self, host: str) -> None:
        """End a keeper."""
        actor = self._actors.pop(host, None)
        if actor is not None:
            with suppress(Exception):
                ray.kill(actor)

    def _close(self, host: str) -> None:
        """Have a keeper end its processes and remove what was brought."""
        with suppress(Exception):
            close = encode(CloseKeeper())
            ray.get(self._actors[host].answer.remote(close), timeout=CLOSE_S)

    def _node_at(self, address: str, not_: str | None) -> str | None:
        """Return the node at an address; where there seem to be two, not that one which was lost."""
        alive = [str(node["NodeID"]) for node in ray.nodes() if node["Alive"] and _address(node) == address]
        return next((node for node in alive if node != not_), next(iter(alive), None))


def nodes() -> list[Node]:
    """Return the nodes of the cluster, and what nobody has taken of them."""
    free_of = _free_resources()
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            free = free_of.get(str(node["NodeID"]), {}) if free_of is not None else dict(node["Resources"])
            gpus = float(node["Resources"].get("GPU", 0.0))
            found.append(Node(name=str(node.get("NodeName", "")), address=_address(node), free=free, gpus=gpus))
    return sorted(found, key=lambda node: node.address)


def _free_resources() -> dict[str, dict[str, float]] | None:
    """Return what is free on each node, where this Ray tells."""
    try:
        from ray._private.state import available_resources_per_node  # noqa: PLC0415 - Ray has no public word for it
    except ImportError:
        return None
    return dict(available_resources_per_node())


def _address(node: dict[str, Any]) -> str:
    return str(node["NodeManagerAddress"])


def _first_line(error: BaseException) -> str:
    """Return what is wrong, in a line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def _last_line(error: BaseException) -> str:
    """Return the end of a traceback in words."""
    return next(reversed(str(error).strip().splitlines()), type(error).__name__)


def main() -> None:
    """Connect, say so, and serve."""
    descriptor, address, lost_s = sys.argv[1:]
    line = FramedSocket(socket.socket(fileno=int(descriptor)))
    driver = Driver(line, float(lost_s))
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # whatever Ray raises
        hint = "see `ray status`; this machine must be a node too: ray start --address=HEAD:PORT --num-cpus=0"
        if "token" in str(error).lower():
            hint = "set RAY_AUTH_MODE=token, and give the cluster's token: RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"
        driver.send(RequestRefused(error=_first_line(error), hint=hint))
    else:
        driver.serve()
        ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
