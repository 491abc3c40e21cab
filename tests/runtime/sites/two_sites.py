"""Several sites on this machine, as tests start them: each a run of its own, all looked at in turn."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dovetail.data.clicks import Clicks
from dovetail.embedding.hashing import first_values
from dovetail.runtime.blueprint import Blueprint, table_seed
from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.prepare.sites import make_site_keys
from dovetail.spec.run import Run
from dovetail.spec.run_sections import RunExchange, RunSite
from tests.runtime.runs import NUM_ROWS, assert_same_state, last_state

DEADLINE_S = 300.0


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that are free now, and that no connection is given by itself."""
    for _ in range(100):
        first = random.SystemRandom().randrange(20_000, 32_000)
        with ExitStack() as things:
            try:
                for port in range(first, first + count):
                    things.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return first
    raise AssertionError("no free ports")


def at_sites(
    run: Run, folder: Path, names: Sequence[str] = ("a", "b"), *, address: str | None = None, **exchange: Any
) -> dict[str, Run]:
    """Return a run as it is at each site, with their keys made."""
    address = address or f"127.0.0.1:{free_ports(run.servers.count)}"
    sites = [RunSite(name=name, address=None if number else address) for number, name in enumerate(names)]
    settings = {
        "every": 4,
        "bits": 32,
        "wait_s": DEADLINE_S,
        "end_wait_s": DEADLINE_S,
        "keys": str(folder / "site-keys"),
    }
    found = {}
    for name in names:
        how = RunExchange(here=name, **(settings | exchange))
        found[name] = msgspec.structs.replace(run, sites=sites, exchange=how)
    make_site_keys(found[names[0]], folder / "site-keys")
    return found


def train_sites(
    runs: dict[str, Run],
    folder: Path,
    *,
    meanwhile: Callable[[dict[str, LocalRun]], None] = lambda _: None,
    at: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
    deadline_s: float = DEADLINE_S,
) -> None:
    """Run all sites to the end; `meanwhile` is called again and again, and may take runs out and put others in.

    `at` says where the processes of each site are started.
    """
    began_s = time.monotonic()
    running: dict[str, LocalRun] = {}
    with ExitStack() as things:
        for name, run in runs.items():
            with at(name):
                prepare(run, folder / name)
                running[name] = things.enter_context(LocalRun(folder / name))
        done: set[str] = set()
        while len(done) < len(runs) or running:
            for name, local in list(running.items()):
                with at(name):
                    report = local.look(0.02)
                assert report is None or report.state != "failed", f"{name}: {report.error}"
                if report is not None and report.state == "done":
                    done.add(name)
                    running.pop(name).__exit__(None, None, None)
            meanwhile(running)
            assert time.monotonic() - began_s < deadline_s, {name: local.events for name, local in running.items()}


def assert_counted_once_at_every_site(folder: Path, names: Sequence[str]) -> None:
    """Check the last checkpoints of a counting model against the data: at every site the union, the same bits."""
    states = [last_state(folder / name) for name in names]
    blueprint = Blueprint.read(folder / names[0])
    data, samples = Clicks(**blueprint.run.data.options), blueprint.all_samples
    epochs = blueprint.run.training.epochs
    expected = epochs * np.bincount(data.read(0, samples).ids.numpy() % NUM_ROWS, minlength=NUM_ROWS)
    seed = table_seed(blueprint.run.training.seed, 0)
    for state in states:
        keys = state.keys[0]
        grown = state.rows[0] - first_values(keys, width=1, seed=seed, scale=blueprint.tables[0].scale)
        counts = np.zeros(NUM_ROWS, dtype=np.int64)
        counts[keys] = np.rint(grown[:, 0]).astype(np.int64)
        np.testing.assert_array_equal(counts, expected)
        assert state.dense.tolist() == [samples * epochs]
    assert sum(state.manifest.position for state in states) == samples * epochs
    for state in states[1:]:
        assert_same_state(state, states[0])
