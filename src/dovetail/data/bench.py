"""How fast data are read: in order and in training order, cold and cached, by so many readers, and what bounds it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dovetail.data.ahead import num_cores
from dovetail.data.loader import Loader
from dovetail.data.source import Source

BATCH = 4096
BLOCK_SAMPLES = 512
"""As a run has them unless its file says otherwise."""
LONGEST_S = 5.0
"""How long one figure is measured at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSpeed:
    """One figure."""

    what: str
    readers: int
    samples_per_s: float


def read_speed(source: Source, *, epoch: int, shuffle: bool, readers: int, samples: int) -> float:
    """Return samples/s of an epoch, or of so much of it as can be read in `LONGEST_S`."""
    loader = Loader(
        source,
        batch_size=BATCH,
        epoch=epoch,
        shuffle=shuffle,
        block_samples=BLOCK_SAMPLES,
        num_samples=samples,
        prefetch=0 if readers == 1 else 2 * readers,
        readers=readers,
        pin=False,
    )
    begin_s = time.perf_counter()
    for _ in loader:
        if time.perf_counter() - begin_s > LONGEST_S:
            break
    return loader.position / max(1e-9, time.perf_counter() - begin_s)


def bench(opened: Callable[..., Source], *, samples: int, is_file: bool) -> dict[str, Any]:
    """Measure a source; `opened(cache=...)` opens it anew, with a cache in a folder, or without one."""
    counts = sorted({1, 2, num_cores()} & set(range(1, num_cores() + 1)))
    figures: list[ReadingSpeed] = []
    opened().read(0, 1)  # compiles
    begin_s = time.perf_counter()
    source = opened()
    open_s = time.perf_counter() - begin_s
    end = samples if source.num_samples is None else min(samples, source.num_samples)
    if is_file:
        for readers in counts[-1:]:
            speed = read_speed(opened(cache=False), epoch=0, shuffle=True, readers=readers, samples=end)
            figures.append(ReadingSpeed(what="first epoch, nothing cached", readers=readers, samples_per_s=speed))
        read_speed(source, epoch=0, shuffle=True, readers=counts[-1], samples=end)  # fills the cache
        getattr(source, "settle", lambda: None)()
    for what, shuffle in (("in order", False), ("in training order", True)):
        for readers in counts:
            speed = read_speed(source, epoch=1, shuffle=shuffle, readers=readers, samples=end)
            called = f"{what}, cached" if is_file else what
            figures.append(ReadingSpeed(what=called, readers=readers, samples_per_s=speed))
    bound, advice = _bound(figures, is_file=is_file)
    return {
        "samples": end,
        "open_s": round(open_s, 4),
        "cores": num_cores(),
        "figures": [
            {"what": each.what, "readers": each.readers, "samples_per_s": round(each.samples_per_s)} for each in figures
        ],
        "bound": bound,
        "advice": advice,
    }


def _bound(figures: list[ReadingSpeed], *, is_file: bool) -> tuple[str, str]:
    """Return what reading is bound by, and what to do about it."""
    in_order = max(each.samples_per_s for each in figures if each.what.startswith("in order"))
    trained = [each.samples_per_s for each in figures if each.what.startswith("in training order")]
    cold = [each.samples_per_s for each in figures if each.what.startswith("first")]
    if is_file and cold and cold[0] < max(trained) / 2:
        return (
            "decoding and hashing, in the first epoch; then assembling",
            "keep the cache on, with room for all data (cache_limit_bytes): later epochs and runs read from it",
        )
    if max(trained) < in_order / 2:
        return (
            "reading at random: the data are read by ranges",
            "give the source a gather(samples), raise data.block_samples, or write the samples to Parquet",
        )
    if len(trained) > 1 and trained[-1] > 1.3 * trained[0]:
        return "assembling, on one core", "nothing: readers are added while a worker waits for data"
    return "assembling, and the memory it copies through", "nothing: a worker is rarely as fast"
