"""The comparison reports equality only if every key of every cluster is as expected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest

from isthmus.node.demo.history import SHA1_HEX, Expectation, blob_id
from isthmus.node.demo.verify import CHUNK_BYTES, CHUNK_COUNT, NAMED_DIFFERENCES, VerifyResult, compare


class Cluster:
    """A cluster as the comparison sees it, from a dictionary; counts what one read returned at most."""

    def __init__(self, objects: dict[bytes, tuple[bytes, ...]]) -> None:
        self.objects = objects
        self.listing: list[bytes] | None = None
        self.largest_read = (0, 0)

    def list_keys(self, bucket: bytes) -> Iterable[bytes]:
        return self.listing if self.listing is not None else list(self.objects)

    def read(self, bucket: bytes, keys: Sequence[bytes]) -> list[list[bytes]]:
        found = [list(self.objects.get(key, ())) for key in keys]
        size = sum(len(v) for values in found for v in values)
        self.largest_read = max(self.largest_read[0], len(keys)), max(self.largest_read[1], size)
        return found


def expected_of(values: dict[bytes, bytes], gone: set[bytes]) -> Expectation:
    return Expectation(
        {key: blob_id(value, SHA1_HEX) for key, value in values.items()},
        {key: len(value) for key, value in values.items()},
        gone,
    )


VALUES = {b"k%d" % n: b"value %d" % n for n in range(1000)} | {b"\xff": b"", b"big": b"x" * (CHUNK_BYTES + 1)}
GONE = {b"gone%d" % n for n in range(300)}


def verdict_of(east: Cluster, west: Cluster) -> VerifyResult:
    verdict = VerifyResult()
    compare({"east": east, "west": west}, b"b", expected_of(VALUES, GONE), verdict)
    return verdict


def equal_pair() -> tuple[Cluster, Cluster]:
    objects = {key: (value,) for key, value in VALUES.items()}
    return Cluster(dict(objects)), Cluster(dict(objects))


def test_equal_clusters_are_equal_and_all_was_read_in_bounded_chunks() -> None:
    """Two clusters as expected give no difference; all keys were counted; no read exceeded its bounds."""
    east, west = equal_pair()
    seen = 0

    def count(keys: int) -> None:
        nonlocal seen
        seen += keys

    verdict = VerifyResult()
    compare({"east": east, "west": west}, b"b", expected_of(VALUES, GONE), verdict, count)
    assert verdict.equal
    assert not verdict.differences
    assert (verdict.keys_compared, verdict.deleted_compared) == (len(VALUES), len(GONE))
    assert seen == len(VALUES) + len(GONE)
    assert verdict.bytes_compared == 2 * sum(map(len, VALUES.values()))
    assert east.largest_read[0] <= CHUNK_COUNT
    assert east.largest_read[1] == CHUNK_BYTES + 1, "the one larger value came alone"


PLANTED = {
    "missing": ("is missing", lambda c: c.objects.pop(b"k7")),
    "extra": ("is extra", lambda c: c.objects.update({b"new": (b"x",)})),
    "other bytes": ("has other bytes", lambda c: c.objects.update({b"k7": (b"value 8",)})),
    "emptied": ("has other bytes", lambda c: c.objects.update({b"k7": (b"",)})),
    "siblings": ("has 2 siblings", lambda c: c.objects.update({b"k7": (b"value 7", b"value 7")})),
    "deleted is there": ("was deleted and", lambda c: c.objects.update({b"gone7": (b"x",)})),
    "not listed": ("is not listed", lambda c: setattr(c, "listing", [k for k in c.objects if k != b"k7"])),
    "listed twice": ("is listed twice", lambda c: setattr(c, "listing", [*c.objects, b"k7"])),
    "deleted is listed": ("was deleted and is listed", lambda c: setattr(c, "listing", [*c.objects, b"gone7"])),
}


@pytest.mark.parametrize("cluster", ["east", "west"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found_and_named(name: str, cluster: str) -> None:
    """Any one difference, on either cluster, is reported with its cluster, key and kind."""
    east, west = equal_pair()
    words, plant = PLANTED[name]
    plant(east if cluster == "east" else west)
    verdict = verdict_of(east, west)
    assert not verdict.equal
    assert all(re.match(rf"{cluster}: b/'(k7|new|gone7)': ", difference) for difference in verdict.differences)
    assert any(words in difference for difference in verdict.differences)


def test_many_differences_are_counted_and_the_first_are_named() -> None:
    """An empty cluster differs in every key; twenty are named, all are counted."""
    east, _ = equal_pair()
    verdict = verdict_of(east, Cluster({}))
    assert len(verdict.differences) == NAMED_DIFFERENCES
    assert verdict.difference_count == 2 * len(VALUES)
