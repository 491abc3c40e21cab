"""Jobs over several sites in virtual time: slowed by the links between, in fair shares, and charged for their bytes."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dovetail.cli.main import app
from dovetail.errors import SpecError
from dovetail.scheduler.registry import make_policy
from dovetail.simulator.crossings import Crossing, SiteWays
from dovetail.simulator.engine import simulate
from dovetail.simulator.metrics import Trial
from dovetail.spec.link import SiteLink
from dovetail.spec.workload import Failure, NodeGroup, Workload, read_workload, write_workload
from tests.makers import make_site_link
from tests.simulator.makers import make_job

GB = 1e9


def two_sites(*jobs, links=(), types=("v100",), workers=4, **given) -> Workload:
    """Return a node of each type at `eu` and at `us`, and 1 GB/s between the two at 2 cents a GB there, 1 back."""
    nodes = [NodeGroup(type=name, workers=workers, site=site) for name in types for site in ("eu", "us")]
    both = [make_site_link(price_per_gb=0.02), make_site_link("us", "eu", price_per_gb=0.01)]
    return Workload(nodes=tuple(nodes), jobs=jobs, site_links=tuple(links or both), **{"restart_s": 0.0, **given})


def wide(job_id: str = "a", *, on: str = "v100", speed: float = 5.0, **given):
    """Return a job that needs eight workers of a type."""
    return make_job(job_id, speed={on: {"8": speed}}, min_workers=8, **given)


def run(workload: Workload, policy: str = "fifo") -> Trial:
    return simulate(workload, make_policy(policy), name=policy)


def test_a_job_at_two_sites_goes_no_faster_than_the_link_and_pays_both_ways():
    trial = run(two_sites(wide(work=1000.0, site_bytes=0.5 * GB), restart_s=10.0))

    # 1 GB/s carry 2 units of work a second: 500 s, and 0.5 GB each way for each of 1000 units.
    assert trial.outcome.jobs[0].finish_s == pytest.approx(510.0)
    assert trial.outcome.egress_cost == pytest.approx(1000 * 0.5 * 0.03)
    assert trial.changes[0].sites == ("eu", "us")


def test_a_link_that_is_fast_enough_slows_nobody_and_is_paid_all_the_same():
    trial = run(two_sites(wide(work=1000.0, site_bytes=0.1 * GB)))

    assert trial.outcome.jobs[0].finish_s == pytest.approx(200.0)
    assert trial.outcome.egress_cost == pytest.approx(3.0)


def test_a_job_that_says_nothing_of_bytes_between_sites_sends_none():
    trial = run(two_sites(wide(work=1000.0)))

    assert trial.outcome.jobs[0].finish_s == pytest.approx(200.0)
    assert trial.outcome.egress_cost == 0.0


def test_a_job_that_fits_one_site_stands_there():
    small = make_job("small", work=100.0, speed={"v100": {"4": 1.0}}, min_workers=4, site_bytes=1000 * GB)
    trial = run(two_sites(small))

    assert trial.outcome.jobs[0].finish_s == pytest.approx(100.0)
    assert trial.outcome.jobs[0].egress_cost == 0.0
    assert len(trial.changes[0].sites) == 1


def test_two_jobs_share_a_link_until_one_is_done():
    jobs = [wide("a", work=100.0, site_bytes=GB), wide("b", on="k80", work=200.0, site_bytes=GB)]
    trial = run(two_sites(*jobs, types=("v100", "k80")))

    # Half a unit a second each: `a` is done after 200 s, when `b` has 100 left and the link to itself.
    assert [job.finish_s for job in trial.outcome.jobs] == pytest.approx([200.0, 300.0])
    assert [job.egress_cost for job in trial.outcome.jobs] == pytest.approx([3.0, 6.0])


def test_a_job_that_comes_later_slows_the_one_that_runs():
    jobs = [wide("a", work=100.0, site_bytes=GB), wide("b", on="k80", work=100.0, site_bytes=GB, submit_s=50.0)]
    trial = run(two_sites(*jobs, types=("v100", "k80")))

    # `a` does 50 alone, 50 in a hundred seconds beside `b`, which then does its other 50 alone.
    assert [job.finish_s for job in trial.outcome.jobs] == pytest.approx([150.0, 200.0])


def test_what_was_paid_before_a_failure_stays_paid():
    failure = Failure(t_s=40.0, type="v100", nodes=1, down_s=100.0)
    trial = run(two_sites(wide(work=100.0, site_bytes=GB), failures=(failure,)))

    # 40 units, a pause until 140 s, 60 more: every unit is sent once.
    assert trial.outcome.jobs[0].finish_s == pytest.approx(200.0)
    assert trial.outcome.egress_cost == pytest.approx(100 * 0.03)


def test_three_sites_send_each_to_each():
    nodes = tuple(NodeGroup(type="v100", workers=4, site=site) for site in "abc")
    links = tuple(make_site_link(one, other, price_per_gb=0.01) for one, other in ("ab", "bc", "ac"))
    job = make_job(work=100.0, speed={"v100": {"12": 5.0}}, min_workers=12, site_bytes=GB)
    trial = run(Workload(nodes=nodes, jobs=(job,), site_links=links, restart_s=0.0))

    # Six ways of 1 GB a unit at a cent each, all at once.
    assert trial.outcome.jobs[0].finish_s == pytest.approx(100.0)
    assert trial.outcome.egress_cost == pytest.approx(100 * 6 * 0.01)


def test_links_are_shared_so_that_who_wants_little_gets_it_and_the_others_the_same():
    ways = SiteWays(("eu", "us"), [make_site_link(bytes_per_s=10.0)])
    wants = {0: 2.0, 1: 20.0, 2: 5.0}
    crossings = {job: Crossing(ways=((0, 1), (1, 0)), bytes_per_work=1.0, speed=speed) for job, speed in wants.items()}

    assert ways.speeds(crossings) == pytest.approx({0: 2.0, 1: 4.0, 2: 4.0})


@settings(max_examples=150, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.sets(st.integers(0, 3), min_size=2, max_size=4), st.floats(0.01, 100), st.floats(0.01, 100)),
        min_size=1,
        max_size=6,
    ),
    rates=st.lists(st.floats(0.1, 100), min_size=6, max_size=6),
)
def test_nobody_can_have_more_of_a_link_without_taking_from_one_who_has_no_more(jobs, rates):
    pairs = [(one, other) for one in range(4) for other in range(one + 1, 4)]
    links = [SiteLink(source=str(a), target=str(b), bytes_per_s=r) for (a, b), r in zip(pairs, rates, strict=True)]
    ways = SiteWays(("0", "1", "2", "3"), links)
    crossings = {
        job: Crossing(ways=ways.between(sorted(sites)), bytes_per_work=size, speed=speed)
        for job, (sites, size, speed) in enumerate(jobs)
    }
    sent = {job: speed * crossings[job].bytes_per_work for job, speed in ways.speeds(crossings).items()}
    room = {way: rate for (a, b), rate in zip(pairs, rates, strict=True) for way in ((a, b), (b, a))}
    on_way = defaultdict(list)
    for job, crossing in crossings.items():
        for way in crossing.ways:
            on_way[way].append(sent[job])

    assert all(sum(shares) <= room[way] * (1 + 1e-9) for way, shares in on_way.items())
    for job, crossing in crossings.items():
        assert sent[job] <= crossing.wants_bytes_per_s * (1 + 1e-9)
        if sent[job] < crossing.wants_bytes_per_s * (1 - 1e-9):  # then some way is full, and nobody on it has more
            assert any(
                sum(on_way[way]) >= room[way] * (1 - 1e-9) and sent[job] >= max(on_way[way]) * (1 - 1e-9)
                for way in crossing.ways
            )


@pytest.mark.parametrize("policy", ["dovetail", "fifo", "srtf"])
@pytest.mark.parametrize("seed", range(4))
def test_every_unit_of_work_is_paid_once_however_often_jobs_stop_and_share(policy, seed):
    jobs = [
        wide(f"{on}-{number}", on=on, speed=2.0 + number, work=50.0 + 40 * number, submit_s=17.0 * number * seed,
             site_bytes=(0.3 + number) * GB)
        for number in range(4) for on in ("v100", "k80")
    ]  # fmt: skip
    trial = run(two_sites(*jobs, types=("v100", "k80"), restart_s=5.0, round_s=60.0), policy)

    paid = {job.id: job.egress_cost for job in trial.outcome.jobs}
    assert paid == pytest.approx({job.id: job.work * job.site_bytes / GB * 0.03 for job in jobs})
    # Nor can all of their bytes have passed a link of 1 GB/s faster than this.
    assert trial.outcome.makespan_s >= sum(job.work * job.site_bytes for job in jobs) / GB


def test_a_workload_without_sites_says_nothing_of_egress():
    plain = Workload(nodes=(NodeGroup(type="v100", workers=8),), jobs=(wide(),))
    outcome = run(plain).outcome

    assert outcome.egress_cost is None
    assert all(change.sites is None for change in run(plain).changes)


def test_a_workload_of_sites_is_read_as_it_was_written(tmp_path: Path):
    workload = two_sites(wide(site_bytes=GB))
    write_workload(workload, tmp_path / "workload.json")

    assert read_workload(tmp_path / "workload.json") == workload


def test_the_command_shows_the_egress_of_every_job(tmp_path: Path):
    write_workload(two_sites(wide(site_bytes=0.5 * GB, work=1000.0)), tmp_path / "workload.json")
    shown = CliRunner().invoke(app, ["simulate", str(tmp_path / "workload.json"), "--policy", "fifo"])
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "workload.json"), "--policy", "fifo", "--json"])

    found = json.loads(result.stdout.splitlines()[-1])
    assert math.isclose(found["egress_cost"], 15.0)
    assert math.isclose(found["jobs"][0]["egress_cost"], 15.0)
    assert "$15.00" in shown.stdout


@pytest.mark.parametrize(
    ("nodes", "links", "message"),
    [
        ([("v100", "eu"), ("v100", "us")], [], "site_links joins nothing: nodes of `v100` stand at `eu` and at `us`"),
        ([("v100", "eu"), ("k80", None)], [], "nodes[1].site is missing"),
        ([("v100", "eu"), ("v100", "us")], [make_site_link("eu", "asia")], 'site_links[0].to is "asia"'),
        ([("v100", None)], [make_site_link()], 'site_links[0].from is "eu", which is no site'),
        ([("v100", " ")], [], 'site is " ", expected a name'),
    ],
)
def test_sites_that_do_not_fit_together_are_refused(nodes, links, message):
    with pytest.raises(SpecError) as refused:
        Workload(
            nodes=tuple(NodeGroup(type=name, workers=8, site=site) for name, site in nodes),
            jobs=(wide(),),
            site_links=tuple(links),
        )

    assert message in str(refused.value)
    assert refused.value.hint


def test_two_unlinked_sites_with_types_of_their_own_are_two_clusters():
    nodes = (NodeGroup(type="v100", workers=8, site="eu"), NodeGroup(type="k80", workers=8, site="us"))

    assert run(Workload(nodes=nodes, jobs=(wide(),))).outcome.jobs[0].restarts == 0


def test_bytes_between_sites_below_zero_are_refused():
    with pytest.raises(SpecError, match="site_bytes is -1"):
        wide(site_bytes=-1.0)


def test_policies_know_that_more_workers_than_a_site_has_go_at_the_pace_of_a_link():
    # Alone at a site 3 units a second; over the sites 5, of which the link carries one.
    job = make_job(work=300.0, speed={"v100": {"4": 3.0, "8": 5.0}}, min_workers=4, site_bytes=GB)

    for policy in ("dovetail", "fifo", "srtf"):
        outcome = run(two_sites(job), policy).outcome
        assert outcome.jobs[0].finish_s == pytest.approx(100.0)
        assert outcome.egress_cost == 0.0


def test_where_the_link_carries_it_the_wider_job_is_the_faster_one():
    job = make_job(work=300.0, speed={"v100": {"4": 3.0, "8": 5.0}}, min_workers=4, site_bytes=0.25 * GB)
    outcome = run(two_sites(job), "dovetail").outcome

    # The link carries 4 of the 5.
    assert outcome.jobs[0].finish_s == pytest.approx(75.0)
    assert outcome.egress_cost == pytest.approx(300 * 0.25 * 0.03)
