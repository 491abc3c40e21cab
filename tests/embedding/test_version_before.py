"""Checkpoints of tables that the version before wrote, when `adam` had a count of steps in every row."""

import base64
import zlib

import numpy as np
import pytest

from dovetail.embedding import Adagrad, Adam, AdamPerRow, Table, TableError

MANIFEST = (
    "eNpFT8uOwjAMvO9n+FxQHk1L+jMojZ0lok2rJIAE4t/XLSvh04ztmbE7iUa2TgfjR6/IeEm26w0GSUEbxJ8XXGNCGCDcpgkaKFRrTL8Fhhc8ItYL"
    "DKqBZa1xjk/KWzu5mVjg0M0smMjlxIpzdpXb4igbGKk6uWH7wWrHlhmtJU5LgkHS4fTe4ojDNQPvpl2utOmFUp3Q1hhpTjy6uMxLooF0m8874/M4"
    "plRaWcw2oyssTvzCZykvj7LbhjjR/svqcj2IrY7FBaqUypJ5Aj54qYwI3dga26JG1ML2vbdGjCePFtj+spT69cRYrv+Mb0K6R09ffqdc4v7h+w9q"
    "anUD"
)
PART = (
    "eNqzYGQAg2ql7NTKYiWraqWUksqCVCUrJU8zEyUdpeKMRBAv2jhWRyklsSQxPj8trTi1BKgy2kDHyCS2VkepJD83qbgkPy8Vj3YDTO1GJlD9Rfnl"
    "KDrdjI2QLdaxwKrX0MgApDk5vzSvBNViVO2YmoE6dQyNjUC6i1NT80jTa2ykY2gCdHatAgSwQoKPARqMDJxQ+iTDg30lSgx7bnWa2sXH6u0tUbpt"
    "9TRbwar1QJfdhgwXazlL/n3OKif2BYeusa1ZqWWXOtfSSk7spFV8v5OdJSOzddB//73mT5psnf7N2uucfGSvjIqYlRlPodWFM2dsGYSarRihdsLs"
    "hQEAXT+G4A=="
)
"""Rows 1, 5 and 9 of width 2 under Adam(learning_rate=0.1), stepped twice, three times and once."""
AFTER = np.fromstring(
    """
    -0.20716619491577148 -0.42361965775489807 0.08984440565109253 0.07431566715240479 0.0007272709044627845
    0.002105375984683633 0.27100005745887756 0.0029969625174999237
    -0.4604954719543457 0.03854962810873985 0.06366284936666489 -0.06625411659479141 0.0025897163432091475
    0.0006894193938933313 0.34390008449554443 0.00399395264685154
    -0.048987992107868195 0.057087481021881104 -0.0024135634303092957 0.012632645666599274 0.0010037957690656185
    0.0018974216654896736 0.1900000423192978 0.0019989742431789637
    """,
    dtype=np.float32,
    sep=" ",
).reshape(3, 8)
"""What the version before made of them in a fourth step."""
FOURTH = np.sin(np.arange(6, dtype=np.float32) + 3).reshape(3, 2)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "saved" / "000001-full"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(zlib.decompress(base64.b64decode(MANIFEST)))
    (folder / "part-00000.safetensors").write_bytes(zlib.decompress(base64.b64decode(PART)))
    return folder.parent


@pytest.mark.parametrize("optimizer", [{}, {"optimizer": Adam(learning_rate=0.1)}], ids=["as saved", "told adam"])
def test_rows_go_on_with_their_own_count_as_the_version_before_would_have(saved, tmp_path, optimizer):
    with Table.load(saved, **optimizer) as table:
        assert table.optimizer == AdamPerRow(learning_rate=0.1)
        table.update([1, 5, 9], FOURTH)
        np.testing.assert_allclose(table.rows([1, 5, 9]), AFTER, rtol=1e-6)  # sines have no bits to rely on
        table.save(tmp_path / "again")
    with Table.load(tmp_path / "again", **optimizer) as table:
        assert table.optimizer == AdamPerRow(learning_rate=0.1)
        np.testing.assert_allclose(table.rows([1, 5, 9]), AFTER, rtol=1e-6)


def test_rows_of_adam_are_not_those_of_another_optimizer(saved):
    with pytest.raises(TableError, match="the state of adam-per-row, not of adagrad"):
        Table.load(saved, optimizer=Adagrad())
