"""Scans over key rows, for a store and for a snapshot of it. From any thread.

Row layout is in `rows`; nothing is decoded, key rows go out as bytes. Close each iterator when done early.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from itertools import islice
from typing import Final

from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.store import rows
from isthmus.repl.store.row_source import Source


def scan_key_rows(
    source: Source, prefix: bytes, from_segment: int, to_segment: int
) -> Generator[tuple[int, bytes, bytes, bytes], None, None]:
    """(segment, bucket, key, encoded key row) of the key rows below `prefix`, segments [from, to), in segment order."""
    assert 0 <= from_segment <= to_segment <= SEGMENT_COUNT
    at = len(prefix)
    tail_at = at + rows.SEGMENT_BYTES
    start, stop = (prefix + rows.segment_name(segment) for segment in (from_segment, to_segment))
    with closing(source.scan(start, stop)) as scan:
        for name, row in scan:
            yield int.from_bytes(name[at:tail_at], "big"), *rows.split_tail(name[tail_at:]), row


def scan_segments(
    source: Source, prefix: bytes, ranges: Iterable[tuple[int, int]]
) -> Generator[list[tuple[bytes, bytes]], None, None]:
    """For each range [from, to) of segments, which do not go back, its (name behind `prefix`, encoded key row)."""
    at = len(prefix)
    end = prefix + rows.segment_name(SEGMENT_COUNT)
    with closing(source.scan(prefix, end)) as scan:
        row = next(scan, None)
        for first, to in ranges:
            start, stop = prefix + rows.segment_name(first), prefix + rows.segment_name(to)
            if row is not None and row[0] < start:
                try:
                    row = scan.send(start)
                except StopIteration:
                    row = None
            found = []
            while row is not None and row[0] < stop:
                found.append((row[0][at:], row[1]))
                row = next(scan, None)
            yield found


PIECE_ROWS: Final = 64
"""Rows taken between two looks at how large a page has become: with the longest names and clocks 15 MB."""


def scan_key_pages(
    source: Source, prefix: bytes, start: bytes, to_segment: int, limit_rows: int, limit_bytes: int
) -> Generator[tuple[list[bytes], list[bytes]], None, None]:
    """(names behind `prefix`, encoded key rows) from the name `start` to the segments below `to_segment`, in pages."""
    at = len(prefix)
    with closing(source.scan(prefix + start, prefix + rows.segment_name(to_segment))) as scan:
        names: list[bytes] = []
        values: list[bytes] = []
        size = 0
        while piece := list(islice(scan, min(PIECE_ROWS, limit_rows - len(names)))):
            for name, value in piece:
                names.append(name[at:])
                values.append(value)
                size += len(name) + len(value)
            if len(names) >= limit_rows or size > limit_bytes:
                yield names, values
                names, values, size = [], [], 0
        if names:
            yield names, values
