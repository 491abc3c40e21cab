from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.makers import Site


@pytest.fixture
def site() -> Iterator[Site]:
    # Short: the path of a Unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="dv-"))
    yield Site(folder)
    shutil.rmtree(folder)
