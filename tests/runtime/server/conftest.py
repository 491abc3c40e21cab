"""Fixtures of tests of a server's parts."""

import pytest

from tests.runtime.server.kept import Kept


@pytest.fixture
def kept(tmp_path):
    made = []

    def make(*arguments, **options):
        made.append(Kept(tmp_path / f"run-{len(made)}", *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        for log, shard in each.made:
            log.close()
            shard.close()
