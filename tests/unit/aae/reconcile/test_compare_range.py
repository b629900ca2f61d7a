"""The comparison of a range on encoded rows gives the same result as one on decoded rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.aae.reconcile import compare_range
from isthmus.aae.reconcile.compare_range import REAPED_REQUESTS_MAX, RangeRows, ReadPoint, SideSpec, decoded
from isthmus.aae.reconcile.verdicts import ObservedKey, first_look
from isthmus.aae.row_stream.wire import Rows
from isthmus.repl.model.entry import encode_key_row
from isthmus.repl.model.errors import PeerFault
from isthmus.repl.model.objects import Summary
from isthmus.repl.store.rows import bucket_head

SUMMARY = st.builds(
    Summary,
    st.sampled_from([b"c1", b"c2"]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.just(9),
    st.just(1),
    st.booleans(),
)
ROW = st.builds(encode_key_row, SUMMARY, st.integers(0, 1 << 40)) | st.sampled_from(
    [b"", b"\xc1", b"\x98\x01\xc4\x09c"]
)
SIDE = st.dictionaries(st.integers(0, 9), ROW)
LEFT, RIGHT = SideSpec(("left",), "default"), SideSpec(("right",), "default")


def frames(rows: dict[int, bytes], size: int) -> list[Rows]:
    """A side's rows in frames of the given size."""
    named = [(b"\0\0" + bytes([n]) + bucket_head(b"b\0" * (n % 2) + b"b") + b"k%d" % n, rows[n]) for n in sorted(rows)]
    parts = [named[at : at + size] for at in range(0, len(named), size)]
    return [Rows([name for name, _ in part], [row for _, row in part], ()) for part in parts]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(SIDE, SIDE, st.integers(1, 5))
def test_joining_bytes_finds_what_decoding_every_row_finds(
    monkeypatch: pytest.MonkeyPatch, left: dict[int, bytes], right: dict[int, bytes], size: int
) -> None:
    """Matches and candidates equal those of decoded rows, for any differing, damaged or missing rows and any frames;
    different offsets are not a difference."""
    given_frames = {"left": frames(left, size), "right": frames(right, size)}

    def frames_of(side: SideSpec, _runs: Any, as_of: list[ReadPoint]) -> Iterator[Rows]:
        as_of.append(ReadPoint(1, 1, 1))
        yield from given_frames[side.urls[0]]

    monkeypatch.setattr(compare_range, "frames_of", frames_of)
    found = compare_range.joined(LEFT, RIGHT, [(0, 1)])
    whole = [
        dict(pair for rows in given_frames[side] for pair in decoded(rows.names, rows.key_rows))
        for side in ("left", "right")
    ]
    wanted = first_look(whole[0], whole[1])
    rest = first_look(found.left.rows, found.right.rows)
    assert found.same + rest.match == wanted.match
    assert sorted(rest.candidates) == sorted(wanted.candidates)
    assert (found.left_rows, found.right_rows) == (len(left), len(right))
    assert found.left.as_of == [ReadPoint(1, 1, 1)]


def test_streams_come_with_the_reaped_keys_that_leaders_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committed read of objects has the reaped keys, too; a segment that does not answer is named, and keeps no other
    one from answering. A key that is here again is not replaced by the memory of it."""
    live = ObservedKey(b"c", 7, 9, tombstone=False)
    gone = ObservedKey(b"c", 0, 0, tombstone=True)
    asked: list[int] = []

    def by_clocks(_side: SideSpec, segments: list[int]) -> RangeRows:
        asked.append(len(segments))
        if 5 in segments:
            raise PeerFault("a damaged row")
        rows = {(b"b", b"%d" % segment): gone for segment in segments}
        return RangeRows(rows | {(b"b", b"live%d" % segment): live for segment in segments}, [], 1)

    monkeypatch.setattr(compare_range, "_by_clocks", by_clocks)
    monkeypatch.setattr(compare_range, "_by_streams", lambda *_: RangeRows({(b"b", b"3"): live}, [], 10))
    found = compare_range.read_runs(LEFT, [(0, 8)], committed=True, bodies=True)
    assert found.rows == {(b"b", b"%d" % n): live if n == 3 else gone for n in range(8) if n != 5}
    assert (found.unremembered, found.bytes, asked) == ({5}, 13, [8, 4, 2, 2, 1, 1, 4])
    assert compare_range.read_runs(LEFT, [(0, 8)], bodies=True).rows == {(b"b", b"3"): live}, "a first look"

    def none(_side: SideSpec, segments: list[int]) -> RangeRows:
        asked.append(len(segments))
        raise PeerFault("gone")

    asked.clear()
    monkeypatch.setattr(compare_range, "_by_clocks", none)
    found = compare_range.read_runs(LEFT, [(0, 1000)], committed=True, bodies=True)
    assert (len(found.unremembered), len(asked)) == (1000, REAPED_REQUESTS_MAX)
