"""The comparison at the end: every key of every cluster against the history's expected end.

Lists each bucket and reads every value, on each cluster by itself: nothing missing, nothing extra, every byte equal (by
git's own blob id), no siblings, every deleted key deleted. It reads only, and does not know how the data came there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from isthmus.node.demo.history import Expectation, blob_id

CHUNK_COUNT: Final = 200
CHUNK_BYTES: Final = 4_000_000
"""Keys and bytes of values in one request: few round trips, and two chunks fit into memory easily. A larger value is
requested alone."""

NAMED_DIFFERENCES: Final = 20
"""Differences that are kept with their keys; the others are counted. Enough to see what they have in common."""


class Reader(Protocol):
    """Reads of one cluster. Both methods retry what fails while a node restarts."""

    def list_keys(self, bucket: bytes) -> Iterable[bytes]:
        """Every live key of a bucket, in any order."""

    def read(self, bucket: bytes, keys: Sequence[bytes]) -> list[list[bytes]]:
        """The values of each key's siblings, in order of `keys`; none when deleted or never written."""


@dataclass
class VerifyResult:
    """Result of the comparison, over buckets and clusters."""

    keys_compared: int = 0
    """Keys compared byte by byte, each counted once for all clusters."""
    deleted_compared: int = 0
    """Deleted keys that were read, each counted once."""
    bytes_compared: int = 0
    """Bytes of all values compared, counted on each cluster."""
    difference_count: int = 0
    differences: list[str] = field(default_factory=list)
    """The first NAMED_DIFFERENCES of them: "CLUSTER: BUCKET/KEY: what differs"."""

    @property
    def equal(self) -> bool:
        """True when nothing differs."""
        return self.difference_count == 0

    def differs(self, cluster: str, bucket: bytes, key: bytes, what: str) -> None:
        """Record one difference."""
        self.difference_count += 1
        if len(self.differences) < NAMED_DIFFERENCES:
            shown_bucket, shown_key = (part.decode(errors="backslashreplace") for part in (bucket, key))
            self.differences.append(f"{cluster}: {shown_bucket}/{shown_key!r}: {what}")


def compare(
    clusters: Mapping[str, Reader],
    bucket: bytes,
    expected: Expectation,
    verdict: VerifyResult,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Compare one bucket of every cluster with its expected end, into `verdict`; `progress` receives counts of keys."""
    for name, reader in clusters.items():
        listed: set[bytes] = set()
        for key in reader.list_keys(bucket):
            if key in listed:
                verdict.differs(name, bucket, key, "is listed twice")
            elif key in expected.gone:
                verdict.differs(name, bucket, key, "was deleted and is listed")
            elif key not in expected.live:
                verdict.differs(name, bucket, key, "is extra: it was never written")
            listed.add(key)
        for key in expected.live.keys() - listed:
            verdict.differs(name, bucket, key, "is not listed")
    for keys in _chunks(expected):
        for name, reader in clusters.items():
            for key, values in zip(keys, reader.read(bucket, keys), strict=True):
                verdict.bytes_compared += sum(map(len, values))
                what = _difference(values, expected.live.get(key))
                if what is not None:
                    verdict.differs(name, bucket, key, what)
        progress(len(keys))
    verdict.keys_compared += len(expected.live)
    verdict.deleted_compared += len(expected.gone)


def _difference(values: Sequence[bytes], blob: str | None) -> str | None:
    """Why `values` are not the value with the id `blob` (None: no value at all), or None when they are."""
    if len(values) > 1:
        return f"has {len(values)} siblings"
    if blob is None:
        return "was deleted and has a value" if values else None
    if not values:
        return "is missing"
    actual = blob_id(values[0], blob)
    return None if actual == blob else f"has other bytes: blob {actual[:12]} instead of {blob[:12]}"


def _chunks(expected: Expectation) -> Iterator[list[bytes]]:
    """All keys, in chunks of bounded count and size."""
    chunk: list[bytes] = []
    size_bytes = 0
    for key in (*expected.live, *expected.gone):
        key_bytes = expected.sizes.get(key, 0)
        if chunk and (len(chunk) == CHUNK_COUNT or size_bytes + key_bytes > CHUNK_BYTES):
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(key)
        size_bytes += key_bytes
    if chunk:
        yield chunk
