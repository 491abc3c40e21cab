"""The daemon's decisions under everything at once: errors, deaths, jumps of the clock and full disks in any order."""

import pytest

from tests.serve.world import walk


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_whatever_happens_no_job_is_lost_or_run_twice_and_the_queue_goes_on(tmp_path, first):
    kills = sum(walk(tmp_path / "walk", seed).kills for seed in range(first, first + 50))

    assert kills > 0, "the daemon was killed between its writes"
