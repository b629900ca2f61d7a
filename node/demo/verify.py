"""The comparison at the end: every key of every cluster against the history's expected end.

Lists each bucket and reads every value, on each cluster by itself: nothing missing, nothing extra, every byte equal (by
git's own blob id), no siblings, every deleted key deleted. It reads only, and does not know how the data came there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from isthmus.node.demo.history import Expectation, blob_id

CHUNK_COUNT: Final = 200
CHUNK_BYTES: Final = 4_000_000
"""Keys and bytes of values in one request: few round trips, and two chunks fit into memory easily. A larger value is
requested alone."""

NAMED_DIFFERENCES: Final = 20
"""Differences that are kept with their keys; the others are counted. Enough to see what they have in common."""


class StoredValues(NamedTuple):
    """The values of a key's siblings in a cluster; none when deleted or never written."""

    values: tuple[bytes, ...]


class Reader(Protocol):
    """Reads of one cluster. Both methods retry what fails while a node restarts."""

    def list_keys(self, bucket: bytes) -> Iterable[bytes]:
        """Every live key of a bucket, in any order."""

    def read(self, bucket: bytes, keys: Sequence[bytes]) -> list[StoredValues]:
        """The values of each key, in order."""


class VerifyDifference(NamedTuple):
    """A key that differs from the expected end on one cluster."""

    cluster: str
    bucket: bytes
    key: bytes
    what: str

    def __str__(self) -> str:
        bucket, key = (part.decode(errors="backslashreplace") for part in (self.bucket, self.key))
        return f"{self.cluster}: {bucket}/{key!r}: {self.what}"


class VerifyResult:
    """Result of the comparison, over buckets and clusters."""

    def __init__(self) -> None:
        self.live_count = 0
        """Keys compared byte by byte, each counted once for all clusters."""
        self.gone_count = 0
        """Deleted keys that were read, each counted once."""
        self.value_bytes = 0
        """Bytes of all values compared, counted on each cluster."""
        self.difference_count = 0
        self.differences: list[VerifyDifference] = []
        """The first NAMED_DIFFERENCES of them."""

    @property
    def equal(self) -> bool:
        """True when nothing differs."""
        return self.difference_count == 0

    def differs(self, cluster: str, bucket: bytes, key: bytes, what: str) -> None:
        """Record one difference."""
        self.difference_count += 1
        if len(self.differences) < NAMED_DIFFERENCES:
            self.differences.append(VerifyDifference(cluster, bucket, key, what))


def compare(
    clusters: Mapping[str, Reader],
    bucket: bytes,
    expected: Expectation,
    verdict: VerifyResult,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Compare one bucket of every cluster with its expected end, into `verdict`; `progress` receives counts of keys."""
    for name, reader in clusters.items():
        _compare_listing(name, reader, bucket, expected, verdict)
    for keys in _chunks(expected):
        for name, reader in clusters.items():
            for key, found in zip(keys, reader.read(bucket, keys), strict=True):
                what = _difference(found, expected.live.get(key), verdict)
                if what is not None:
                    verdict.differs(name, bucket, key, what)
        progress(len(keys))
    verdict.live_count += len(expected.live)
    verdict.gone_count += len(expected.gone)


def _compare_listing(name: str, reader: Reader, bucket: bytes, expected: Expectation, verdict: VerifyResult) -> None:
    listed: set[bytes] = set()
    for key in reader.list_keys(bucket):
        if key in listed:
            verdict.differs(name, bucket, key, "is listed twice")
            continue
        listed.add(key)
        if key in expected.gone:
            verdict.differs(name, bucket, key, "was deleted and is listed")
        elif key not in expected.live:
            verdict.differs(name, bucket, key, "is extra: it was never written")
    for key in expected.live.keys() - listed:
        verdict.differs(name, bucket, key, "is not listed")


def _difference(found: StoredValues, blob: str | None, verdict: VerifyResult) -> str | None:
    """Why `found` is not the value with the id `blob` (None: no value at all), or None when it is."""
    verdict.value_bytes += sum(map(len, found.values))
    if len(found.values) > 1:
        return f"has {len(found.values)} siblings"
    if blob is None:
        return "was deleted and has a value" if found.values else None
    if not found.values:
        return "is missing"
    actual = blob_id(found.values[0], blob)
    return None if actual == blob else f"has other bytes: blob {actual[:12]} instead of {blob[:12]}"


def _chunks(expected: Expectation) -> Iterator[list[bytes]]:
    """All keys, live ones in chunks of bounded count and size, then the gone ones."""
    chunk: list[bytes] = []
    size_bytes = 0
    for key in expected.live:
        if chunk and (len(chunk) == CHUNK_COUNT or size_bytes + expected.sizes[key] > CHUNK_BYTES):
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(key)
        size_bytes += expected.sizes[key]
    if chunk:
        yield chunk
    gone = list(expected.gone)
    for start in range(0, len(gone), CHUNK_COUNT):
        yield gone[start : start + CHUNK_COUNT]
