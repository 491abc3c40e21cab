from __future__ import annotations

import pytest

from tests.runtime.worker.makers import Bench


@pytest.fixture
def make_bench(tmp_path):
    made = []

    def make(**how):
        made.append(Bench(tmp_path / f"run-{len(made)}", **how))
        return made[-1]

    yield make
    for bench in made:
        bench.close()
