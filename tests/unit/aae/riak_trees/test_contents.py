"""Riak's trees: kept by applied entries they are what a scan of the key rows makes, and what a Riak has."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.aae.riak_trees import contents as contents_module
from isthmus.aae.riak_trees.contents import ReplacedClocks, RiakContents, RiakTree
from isthmus.aae.trees.tree import HashTree
from isthmus.aae.trees.tree_builder import TreeBuild
from isthmus.repl.model.entry import NO_OFFSET, Entry, EntryKind, encode_key_row, make_entry
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import SEGMENT_COUNT, key_hash
from isthmus.repl.model.objects import Summary
from isthmus.repl.model.vclock import Clock, decode_clock, encode_clock
from isthmus.repl.riak.clocks import parse_clock_text
from isthmus.repl.riak.tree_hash import leaf_hash, segment_id
from isthmus.repl.store.rows import bucket_head, segment_name

CAPTURES = Path(__file__).parents[2] / "repl" / "riak" / "captures"
PARTITION = 3
TYPE = b"maps"

Names = tuple[bytes, bytes]


class Noted(ReplacedClocks):
    """The clocks that a leader notes; `forgotten`: offsets of entries that another one made."""

    def __init__(self) -> None:
        self.clocks: dict[int, bytes] = {}
        self.followed: set[int] = set()

    def follow(self, partition: int, *, wanted: bool) -> None:
        """See ReplacedClocks."""
        (self.followed.add if wanted else self.followed.discard)(partition)

    def take(self, partition: int, end: int) -> Mapping[int, bytes]:
        """See ReplacedClocks."""
        assert partition == PARTITION
        taken = {offset: clock for offset, clock in self.clocks.items() if offset < end}
        self.clocks = {offset: clock for offset, clock in self.clocks.items() if offset >= end}
        return taken

    def bucket_type(self, partition: int) -> bytes:
        """See ReplacedClocks."""
        return TYPE


class Leader:
    """Entries as a leader makes them, and the key rows that they leave."""

    def __init__(self) -> None:
        self.noted = Noted()
        self.contents = RiakContents(self.noted)
        self.rows: dict[Names, tuple[Clock, int]] = {}
        self.entries: list[Entry] = []

    def put(self, names: Names, clock: Clock, *, leaving: bool = False) -> None:
        """A write of an object or tombstone."""
        before = self.rows.get(names)
        if before is not None:
            self.noted.clocks[len(self.entries)] = encode_clock(before[0])
        kind = EntryKind.LEAVING if leaving else EntryKind.DATA
        self._add(kind, names, clock, NO_OFFSET if before is None else before[1])
        self.rows[names] = clock, len(self.entries) - 1

    def reap(self, names: Names) -> None:
        """The removal of a key, or the memory of one that is not here."""
        clock, previous = self.rows.pop(names, (((b"a", 1, 1),), NO_OFFSET))
        self._add(EntryKind.REAP, names, clock, previous)

    def barrier(self) -> None:
        """An entry that is of no key."""
        offset = len(self.entries)
        self.entries.append(make_entry(EntryKind.BARRIER, 1, offset, request_id=b"", origin=bytes(16), time_ms=0))

    def _add(self, kind: EntryKind, names: Names, clock: Clock, previous: int) -> None:
        offset = len(self.entries)
        row = encode_key_row(Summary(encode_clock(clock), 5, 1, 1, 1, kind is not EntryKind.DATA), offset)
        self.entries.append(
            make_entry(
                kind, 1, offset, request_id=b"", origin=bytes(16), time_ms=0, key_hash=key_hash(*names),
                previous_offset=previous, bucket=names[0], key=names[1], row=row,
            )
        )  # fmt: skip

    def scanned(self) -> HashTree:
        """The tree of the rows."""
        tree = self.contents.tree()
        named = sorted(
            (segment_name(key_hash(*names) >> 44) + bucket_head(names[0]) + names[1], names) for names in self.rows
        )
        rows = [
            encode_key_row(Summary(encode_clock(self.rows[names][0]), 5, 1, 1, 1, False), self.rows[names][1])
            for _, names in named
        ]
        if named:
            self.contents.add_page(tree, TYPE, [name for name, _ in named], rows)
        return tree


ACTORS = (b"a", b"b" * 8, b"c" * 20)
times = st.sampled_from([1, 1_700_000_000, 63_900_000_000])
acts = st.tuples(
    st.sampled_from(["put", "put", "leave", "reap", "barrier"]),
    st.tuples(st.sampled_from([b"b", b"b\0"]), st.sampled_from([b"k1", b"k2", b"\0k", b"\xff"])),
    st.dictionaries(st.sampled_from(ACTORS), st.tuples(st.integers(1, 1 << 40), times), min_size=1),
)


def _do(leader: Leader, act: tuple[str, Names, dict[bytes, tuple[int, int]]]) -> None:
    what, names, entries = act
    match what:
        case "reap":
            leader.reap(names)
        case "barrier":
            leader.barrier()
        case _:
            clock = tuple((actor, *entries[actor]) for actor in sorted(entries))
            leader.put(names, clock, leaving=what == "leave")


@given(st.lists(acts, max_size=30), st.integers(0, 30), st.integers(1, 7), st.integers(1, 9))
def test_a_tree_kept_by_apply_is_that_of_a_scan(
    history: list[tuple[str, Names, dict[bytes, tuple[int, int]]]], begun: int, step: int, waiting: int
) -> None:
    """Whatever the entries are, when the tree was built, how many entries come at once, and how many changes wait to
    be hashed; a build that goes on meanwhile ends with the same tree."""
    leader = Leader()
    before = contents_module.WAITING_MAX
    contents_module.WAITING_MAX = waiting  # type: ignore[misc]
    try:
        for act in history[:begun]:
            _do(leader, act)
        leader.noted.take(PARTITION, len(leader.entries))
        kept, start = leader.scanned(), len(leader.entries)
        build = TreeBuild(0, SEGMENT_COUNT, leader.contents, TYPE)
        base = leader.scanned()
        for act in history[begun:]:
            _do(leader, act)
        for at in range(start, len(leader.entries), step):
            changes = leader.contents.changes(PARTITION, leader.entries[at : at + step])
            assert changes is not None
            leader.contents.change(kept, changes)
            build.add(changes)
            if at == start:
                build.set_snapshot_offset(start)
    finally:
        contents_module.WAITING_MAX = before  # type: ignore[misc]
    assert not kept.differing_leaves(leader.scanned())
    assert not build.complete(base).differing_leaves(leader.scanned())
    expected = np.zeros(SEGMENT_COUNT, np.uint32)
    for names, (clock, _) in leader.rows.items():
        expected[segment_id(TYPE, *names) & (SEGMENT_COUNT - 1)] ^= leaf_hash(TYPE, *names, clock)
    branches = expected.reshape(4096, 256)
    assert (kept.branch_hashes() == np.bitwise_xor.reduce(branches, axis=1)).all()
    for branch in set(np.flatnonzero(expected) >> 8):
        assert (kept.leaves(int(branch)) == branches[branch]).all()


def test_what_another_leader_made_is_not_known() -> None:
    """An update whose old clock was not noted makes the tree invalid; a first write, or a reap, does not."""
    leader = Leader()
    leader.put((b"b", b"k"), ((b"a", 1, 1),))
    leader.put((b"b", b"k"), ((b"a", 2, 1),))
    leader.reap((b"b", b"k"))
    leader.noted.clocks.clear()
    assert leader.contents.changes(PARTITION, leader.entries[:1]) is not None
    assert leader.contents.changes(PARTITION, leader.entries[1:2]) is None
    assert leader.contents.changes(PARTITION, leader.entries[2:]) is not None
    without_row = leader.entries[2]._replace(row=b"")  # as the first versions made it
    assert leader.contents.changes(PARTITION, [without_row]) is None


def test_a_damaged_row_is_no_leaf() -> None:
    """It raises Corruption, which names the key."""
    tree, contents = RiakTree(), Leader().contents
    name = segment_name(0) + bucket_head(b"b") + b"k"
    row = encode_key_row(Summary(encode_clock(((b"a", 1, 1),)), 5, 1, 1, 1, False), 7)
    contents.add_page(tree, TYPE, [name], [row])
    for damaged in (row[:-1], row.replace(b"\x91\x93", b"\x91\x92"), b""):
        with pytest.raises(Corruption, match="b'b'/b'k'"):
            contents.add_page(tree, TYPE, [name], [damaged])


def captured(name: str) -> bytes:
    return bytes.fromhex((CAPTURES / f"{name}.hex").read_text().replace("\n", ""))


def test_a_riaks_own_tree_is_made_of_its_keys_and_clocks() -> None:
    """Two keys that an OpenRiak listed are all that its branches 61 and 368 have, and its root has their hashes."""
    listed = json.loads(captured("http_cached_keysclocks"))["keys-clocks"]
    branches = json.loads(zlib.decompress(captured("http_cached_branches_zlib")))["branches"]
    root = np.frombuffer(zlib.decompress(captured("http_cached_root_zlib")), ">u4")
    tree = RiakTree()
    for one in listed:
        names = one.get("bucket-type", "default").encode(), one["bucket"].encode(), one["key"].encode()
        clock = parse_clock_text(one["clock"])
        tree.change(segment_id(*names) & (SEGMENT_COUNT - 1), leaf_hash(*names, decode_clock(encode_clock(clock))))
    assert len(branches) == 2
    for branch in branches:
        leaves = np.frombuffer(base64.b64decode(bytes(branch["branch"])), ">u4")
        assert (tree.leaves(branch["branch-id"]) == leaves).all()
        assert tree.branch_hashes()[branch["branch-id"]] == root[branch["branch-id"]] != 0
