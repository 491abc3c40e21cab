"""Text files in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np

from dovetail.data.errors import DataError

CHUNK_BYTES = 8 << 20
LONGEST_LINE_BYTES = 64 << 20
_NEWLINE = 10


def line_blocks(
    stream: IO[bytes], *, where: str, place: int = 0, lines_per_block: int
) -> Iterator[tuple[int, bytes, int]]:
    """Yield (place, text, number of lines) from `place` on; a place is a byte in the unpacked text.

    Every text ends in a newline; one is added where the file's last line has none.
    """
    if place:
        stream.seek(place)
    rest = b""
    while chunk := stream.read(CHUNK_BYTES):
        rest += chunk
        ends = np.flatnonzero(np.frombuffer(rest, dtype=np.uint8) == _NEWLINE)
        begin = 0
        for end in ends[lines_per_block - 1 :: lines_per_block]:
            text = rest[begin : int(end) + 1]
            yield place, text, lines_per_block
            place += len(text)
            begin = int(end) + 1
        rest = rest[begin:]
        if not ends.size and len(rest) > LONGEST_LINE_BYTES:
            raise DataError(
                f"`{where}` has a line of more than {LONGEST_LINE_BYTES >> 20} MiB", hint="is it a text file at all?"
            )
    if rest:
        text = rest if rest.endswith(b"\n") else rest + b"\n"
        yield place, text, text.count(b"\n")
