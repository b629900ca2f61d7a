"""The log's bytes: written frames are read back, and hostile bytes raise Corruption, at low cost."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.replog.epochs import clipped, common_end, epoch_at, extended, truncated
from isthmus.repl.replog.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    RUN_HEADER_BYTES,
    EntryRunKind,
    FileHeader,
    LogPosition,
    decode_file_header,
    decode_frame_header,
    decode_new_entries,
    decode_runs,
    decode_state,
    decode_wires,
    encode_entries,
    encode_file_header,
    encode_frame_header,
    encode_state,
    encode_truncate,
)
from tests.support.samples import share

U32 = st.integers(0, 2**32 - 1)
U44 = st.integers(0, 2**44 - 1)
TABLES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 99)), max_size=6).map(
    lambda rows: tuple(zip(sorted({epoch for epoch, _ in rows}), sorted({first for _, first in rows}), strict=False))
)


@given(st.binary(min_size=16, max_size=16), U44, st.integers(0, 2**64 - 1))
def test_file_headers_come_back(uuid: bytes, sequence: int, salt: int) -> None:
    """A file header decodes to what was encoded, in 56 bytes."""
    header = FileHeader(uuid, sequence, salt)
    data = encode_file_header(header)
    assert len(data) == FILE_HEADER_BYTES == 56
    assert decode_file_header(data) == header


@given(st.binary(max_size=200), st.tuples(U44, U44), st.booleans(), st.integers(0, 2**64 - 1))
def test_frame_headers_come_back(body: bytes, durable: tuple[int, int], complete: bool, seed: int) -> None:
    """A frame header decodes to what was encoded, in 48 bytes, under its own seed alone."""
    data = encode_frame_header(body, 0, durable=LogPosition(*durable), complete=complete, seed=seed)
    assert len(data) == FRAME_HEADER_BYTES == 48
    header = decode_frame_header(data, seed)
    assert (header.body_bytes, header.durable, header.complete) == (len(body), durable, complete)
    with pytest.raises(Corruption):
        decode_frame_header(data, seed ^ 1)


@given(U32, U44, st.lists(st.binary(max_size=30), min_size=1, max_size=8), TABLES)
def test_runs_come_back(partition: int, base: int, wires: list[bytes], table) -> None:
    """Runs of all kinds in one body decode to what was encoded, and every cut of entries is the right one."""
    state = encode_state(partition, base, base + 200, table)
    body = b"".join(
        [
            *encode_entries(EntryRunKind.ENTRIES, partition, 5, 4, base, wires, list(map(len, wires))),
            encode_truncate(partition, 7, 6, base),
            state,
            *encode_entries(EntryRunKind.COPIED, partition, 5, 0, base, wires, list(map(len, wires))),
        ]
    )
    runs = decode_runs(body, 4)
    assert [run.kind for run in runs] == [
        EntryRunKind.ENTRIES,
        EntryRunKind.TRUNCATE,
        EntryRunKind.STATE,
        EntryRunKind.COPIED,
    ]
    assert {(run.partition, run.base) for run in runs} == {(partition, base)}
    assert [(run.epoch, run.previous_epoch) for run in runs] == [(5, 4), (7, 6), (0, 0), (5, 0)]
    assert decode_state(body, runs[2]) == (base + 200, table)
    for first in range(len(wires)):
        for end in range(first, len(wires) + 1):
            assert decode_wires(body, runs[3], base + first, base + end) == wires[first:end]


@settings(max_examples=share(500), deadline=None)
@given(
    st.lists(st.tuples(U32, U44, st.lists(st.binary(max_size=9), min_size=1, max_size=3)), max_size=3),
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 255)), max_size=2),
    st.integers(-1, 1),
    st.sampled_from((b"", b"x")),
)
def test_new_entries_decode_as_runs_and_wires(
    runs: list[tuple[int, int, list[bytes]]], flips: list[tuple[int, int]], more: int, tail: bytes
) -> None:
    """The decoder for runs of new entries agrees with the general ones on the runs that it accepts; it refuses all that
    they refuse, and also runs of other kinds or of two epochs."""
    encoded = [
        encode_entries(EntryRunKind.ENTRIES, p, 5, 5, base, wires, list(map(len, wires))) for p, base, wires in runs
    ]
    body = bytearray(b"".join(part for parts in encoded for part in parts) + tail)
    for position, flip in flips:
        if position < len(body):
            body[position] ^= flip
    data, run_count = bytes(body), max(0, len(runs) + more)
    expected: list[tuple[int, int, int, int, bytes, list[bytes]]] | None = None
    try:
        expected = [
            (
                run.partition,
                run.epoch,
                run.base,
                run.item_count,
                data[run.payload_from - RUN_HEADER_BYTES : run.payload_to],
                decode_wires(data, run, run.base, run.base + run.item_count),
            )
            for run in decode_runs(data, run_count)
            if run.kind is EntryRunKind.ENTRIES and run.epoch == run.previous_epoch
        ]
        if len(expected) < run_count:
            expected = None
    except Corruption:
        pass
    if expected is None:
        with pytest.raises(Corruption):
            decode_new_entries(data, run_count)
    else:
        assert decode_new_entries(data, run_count) == expected


@settings(max_examples=share(300), deadline=None)
@given(st.binary(max_size=160), st.integers(0, 5))
def test_hostile_bodies_are_refused(body: bytes, run_count: int) -> None:
    """Invalid bytes raise Corruption and no other exception."""
    try:
        for run in decode_runs(body, run_count):
            match run.kind:
                case EntryRunKind.STATE:
                    decode_state(body, run)
                case EntryRunKind.ENTRIES | EntryRunKind.COPIED:
                    decode_wires(body, run, run.base, run.base + run.item_count)
                case EntryRunKind.TRUNCATE:
                    assert run.payload_from == run.payload_to
    except Corruption:
        pass


@settings(max_examples=share(300), deadline=None)
@given(st.integers(0, 191), st.integers(1, 255))
def test_a_changed_body_is_refused_or_means_the_same_shape(position: int, flip: int) -> None:
    """A flipped byte inside a body never makes a decoder crash or read past the body."""
    wires = [b"a" * 20, b"b" * 30]
    body = bytearray(
        b"".join(encode_entries(EntryRunKind.ENTRIES, 1, 2, 1, 9, wires, [20, 30]))
        + encode_state(1, 0, 9, ((1, 0), (2, 5)))
    )
    if position >= len(body):
        return
    body[position] ^= flip
    try:
        for run in decode_runs(bytes(body), 2):
            assert run.payload_to <= len(body)
            if run.kind is EntryRunKind.STATE:
                decode_state(bytes(body), run)
            elif run.kind is not EntryRunKind.TRUNCATE:
                assert sum(map(len, decode_wires(bytes(body), run, run.base, run.base + run.item_count))) <= 50
    except Corruption:
        pass


def test_a_header_that_claims_too_much_is_refused_before_anything_is_allocated() -> None:
    """A length over the limit, or more runs than fit into it, is corrupt even under a right checksum."""
    good = bytearray(encode_frame_header(b"x" * 64, 2, durable=LogPosition(1, 2), complete=False, seed=3))
    assert decode_frame_header(bytes(good), 3).run_count == 2
    for at, value in [(8, 1 << 30), (8, 63), (12, 3), (12, 0xFFFFFFFF)]:
        bad = bytearray(good)
        struct.pack_into("<I", bad, at, value)
        struct.pack_into("<Q", bad, 40, xxh64_intdigest(bytes(bad[:40]), 3))
        with pytest.raises(Corruption, match="contradicts"):
            decode_frame_header(bytes(bad), 3)


def test_another_version_is_refused_as_a_local_fault() -> None:
    """A valid header of another version raises LocalFault, not Corruption, since the log is not damaged."""
    data = bytearray(encode_file_header(FileHeader(b"u" * 16, 1, 2)))
    struct.pack_into("<I", data, 8, 9)
    struct.pack_into("<Q", data, 48, xxh64_intdigest(bytes(data[:48])))
    with pytest.raises(LocalFault) as raised:
        decode_file_header(bytes(data))
    assert not isinstance(raised.value, Corruption)
    frame = bytearray(encode_frame_header(b"", 0, durable=LogPosition(1, 2), complete=False, seed=3))
    frame[4] = 9
    struct.pack_into("<Q", frame, 40, xxh64_intdigest(bytes(frame[:40]), 3))
    with pytest.raises(LocalFault) as raised:
        decode_frame_header(bytes(frame), 3)
    assert not isinstance(raised.value, Corruption)


def table_of(epochs: list[int]):
    """The table of a log with these epochs, entry by entry."""
    table = ()
    for offset, epoch in enumerate(epochs):
        table = extended(table, epoch, offset)
    return table


@given(st.lists(st.integers(1, 6), max_size=12).map(sorted), st.integers(0, 12))
def test_epoch_tables_agree_with_a_scan(epochs: list[int], cut: int) -> None:
    """A table gives each entry's epoch; truncated, it is the shorter log's; clipped, right from start - 1 on (H2)."""
    table = table_of(epochs)
    cut = min(cut, len(epochs))
    assert [epoch_at(table, offset) for offset in range(len(epochs))] == epochs
    assert epoch_at(table, -1) == 0
    assert truncated(table, cut) == table_of(epochs[:cut])
    kept = clipped(table, cut)
    for offset in range(max(0, cut - 1), len(epochs)):
        assert epoch_at(kept, offset) == epochs[offset]
    assert len(kept) <= len(set(epochs[max(0, cut - 1) :]))


@given(st.lists(st.integers(1, 4), max_size=8).map(sorted), st.lists(st.integers(1, 4), max_size=8).map(sorted))
def test_common_end_is_never_beyond_where_the_logs_differ(left: list[int], right: list[int]) -> None:
    """Two logs agree, entry by entry, on all below the common end of their tables; equal logs agree entirely (H2)."""
    end = common_end(table_of(left), len(left), table_of(right), len(right))
    assert left[:end] == right[:end]
    assert common_end(table_of(left), len(left), table_of(left), len(left)) == len(left)
