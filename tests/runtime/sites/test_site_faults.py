"""Sites that are lost and come back, servers that are: every sample counts once, and all sites end the same."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from dovetail.runtime.launch.local import LocalRun
from dovetail.runtime.prepare.run_folder import prepare
from dovetail.runtime.sites.figures import read_facts
from dovetail.spec.run_sections import RunSaving
from testbed import Hosts, available
from testbed.hosts import inside
from tests.runtime.counting import PLAIN, slow_counting
from tests.runtime.runs import kill, make_run
from tests.runtime.sites.two_sites import assert_counted_once_at_every_site, at_sites, free_ports, train_sites

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]
OUTER = {"outer_rate": 1.0, "outer_momentum": 0.0}


def test_a_site_killed_whole_comes_back_and_a_server_too_and_every_sample_counts_once(tmp_path: Path) -> None:
    run = make_run(
        model=slow_counting(0.002), optimizer=PLAIN, samples=6000, batch=100, reduction="sum", workers=1,
        checkpoint=RunSaving(every_steps=15),
    )  # fmt: skip
    runs = at_sites(run, tmp_path, wait_s=1.5, **OUTER)
    things = ExitStack()
    done: list[str] = []

    def latest(site: str, *sites: str) -> int:
        """Return the last exchange of these sites that a site has, 0 where there is none."""
        return max((each.exchange for each in read_facts(tmp_path / site) if each.sites == sites), default=0)

    def meanwhile(running: dict[str, LocalRun]) -> None:
        if not done and latest("b", "a", "b") >= 3:
            local = running.pop("b")
            for child in local.children.values():
                child.handle.kill()
            local.__exit__(None, None, None)
            done.append("b is killed")
        elif len(done) == 1 and latest("a", "a") > latest("b", "a", "b"):
            prepare(runs["b"], tmp_path / "b", resume=True)
            running["b"] = things.enter_context(LocalRun(tmp_path / "b"))
            done.append("b is back, after an exchange of a alone")
        elif len(done) == 2 and max(latest("a", "a", "b"), latest("a", "b")) > latest("a", "a") and "a" in running:
            kill(running["a"], "server-0")
            done.append("a server of a is killed, after an exchange that b was in again")

    with things:
        train_sites(runs, tmp_path, meanwhile=meanwhile)
    assert len(done) >= 2, done  # where this process was slow, the sites were done before the server could be killed
    assert_counted_once_at_every_site(tmp_path, ("a", "b"))


@pytest.mark.slow
@pytest.mark.skipif(not available().hosts, reason="no network namespaces here")
def test_a_site_cut_off_for_half_a_minute_then_killed_whole_and_brought_back(tmp_path: Path) -> None:
    run = make_run(
        model=slow_counting(0.003), optimizer=PLAIN, samples=20_000, batch=100, reduction="sum", workers=1,
        checkpoint=RunSaving(every_steps=20),
    )  # fmt: skip
    things = ExitStack()
    times: list[float] = []
    with Hosts(["a", "b"], rates=[2.5e6, 2.5e6]) as hosts, things:
        runs = at_sites(run, tmp_path, address=f"{hosts.address('a')}:7411", wait_s=5.0, end_wait_s=200.0, **OUTER)

        def link(word: str) -> None:
            times.append(time.monotonic())
            words = ["ip", "-n", hosts.namespace("b"), "link", "set", "eth0", word]
            subprocess.run(words, check=True, timeout=30)

        def meanwhile(running: dict[str, LocalRun]) -> None:
            count = len(read_facts(tmp_path / "b"))
            if not times and count >= 4:
                link("down")
            elif len(times) == 1 and time.monotonic() - times[0] >= 30.0:
                assert any(each.sites == ("a",) for each in read_facts(tmp_path / "a"))
                link("up")
            elif len(times) == 2 and time.monotonic() - times[1] >= 3.0 and "b" in running:
                local = running.pop("b")
                for child in local.children.values():
                    child.handle.kill()
                local.__exit__(None, None, None)
                times.append(time.monotonic())
            elif len(times) == 3 and time.monotonic() - times[2] >= 8.0:
                with inside(hosts.namespace("b")):
                    prepare(runs["b"], tmp_path / "b", resume=True)
                    running["b"] = things.enter_context(LocalRun(tmp_path / "b"))
                times.append(time.monotonic())

        train_sites(
            runs, tmp_path, meanwhile=meanwhile, at=lambda name: inside(hosts.namespace(name)), deadline_s=300.0
        )
    assert len(times) == 4
    assert_counted_once_at_every_site(tmp_path, ("a", "b"))


@pytest.mark.slow
def test_a_site_comes_back_while_the_first_one_is_gone_and_catches_up_from_another(tmp_path: Path) -> None:
    run = make_run(
        model=slow_counting(0.004), optimizer=PLAIN, samples=12_000, batch=120, reduction="sum", workers=1,
        checkpoint=RunSaving(every_steps=15),
    )  # fmt: skip
    names = ("a", "b", "c")
    runs = at_sites(run, tmp_path, names, wait_s=1.5, **OUTER)
    address = f"127.0.0.1:{free_ports(1)}"
    for name, each in runs.items():
        sites = [msgspec.structs.replace(site, address=address) if site.name == "b" else site for site in each.sites]
        runs[name] = msgspec.structs.replace(each, sites=sites)
    things = ExitStack()
    done: list[str] = []
    missed: list[int] = []

    def latest(site: str) -> int:
        return max((each.exchange for each in read_facts(tmp_path / site)), default=0)

    def end(running: dict[str, LocalRun], name: str) -> None:
        local = running.pop(name)
        for child in local.children.values():
            child.handle.kill()
        local.__exit__(None, None, None)
        done.append(f"{name} is killed")

    def bring_back(running: dict[str, LocalRun], name: str) -> None:
        prepare(runs[name], tmp_path / name, resume=True)
        running[name] = things.enter_context(LocalRun(tmp_path / name))
        done.append(f"{name} is back")

    def meanwhile(running: dict[str, LocalRun]) -> None:
        if not done and latest("c") >= 3:
            end(running, "c")
        elif len(done) == 1 and latest("b") >= latest("c") + 4:
            end(running, "a")
            missed.append(latest("b"))
            bring_back(running, "c")
        elif len(done) == 3 and latest("c") >= missed[0]:
            bring_back(running, "a")

    with things:
        train_sites(runs, tmp_path, meanwhile=meanwhile)
    assert done == ["c is killed", "a is killed", "c is back", "a is back"]
    words = (tmp_path / "c" / "logs" / "server-0.log").read_text()
    assert "catches up from b" in words
    assert_counted_once_at_every_site(tmp_path, names)
