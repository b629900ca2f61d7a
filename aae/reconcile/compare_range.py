"""Read and join the rows of a range of segments of two clusters; runs on Spark's executors.

One task reads both sides of a range and joins them, so nothing is shuffled, and a range is the unit of retry.
Contiguous ranges are read as streams (`row_reader`), scattered segments by full-sync's requests (`aae.exchange.wire`),
and by streams if these fail because of a damaged row. Callers turn errors into results, so that the driver can name the
segments. For the comparison of keys see `verdicts`.

`joined` compares rows without decoding them: a key row without its last field, the offset, has the same bytes in every
replica of the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgpack
from xxhash import xxh64_intdigest

from isthmus.aae.exchange import wire
from isthmus.aae.reconcile.client import Credentials, ReplicaDirectory, TaskRate, fetch_plan, first_response
from isthmus.aae.reconcile.key_rows import parsed
from isthmus.aae.reconcile.row_reader import RangeStream, RangeUnreadable, plan_ranges, wait_for_ranges
from isthmus.aae.reconcile.verdicts import Name, ObservedKey, is_reaped
from isthmus.aae.row_stream import wire as row_wire
from isthmus.aae.row_stream.blobs import Blobs
from isthmus.aae.row_stream.wire import OBJECT_BYTES_MAX, Consistency, Rows, RowsRequest, RowView
from isthmus.aae.trees.tree import BRANCH_COUNT, Hashes
from isthmus.repl.http.client import HttpPeer, HttpRefused
from isthmus.repl.model.entry import KEY_ROW_VERSION, decode_key_row
from isthmus.repl.model.errors import CodecError, IsthmusError, PeerFault
from isthmus.repl.model.keys import SEGMENT_BITS
from isthmus.repl.store.rows import SEGMENT_BYTES, split_tail

SCATTERED_MAX: Final = 4_096
"""Segments of one request for clocks."""

CLOCK_ROWS: Final = 50_000
"""Rows of one response: some MB."""

REAPED_REQUESTS_MAX: Final = 64
"""Requests for the reaped keys of one read: three segments with a damaged row among 4,096 take about as many. What was
not read then counts as unread."""

GIVE_UP_AFTER_S: Final = 30
"""How long a range is tried before it is unreachable: a dead leader is replaced within seconds."""

_FAULT: Final = ObservedKey(b"", 0, 0, tombstone=False)

Runs = Sequence[tuple[int, int]]
"""Ranges [first, end) of segments, ascending and disjoint."""

Response = TypeVar("Response")


class SideSpec(NamedTuple):
    """A cluster, as tasks receive it. `cluster`: its expected uuid; `rows_per_second`: a task's share, 0: no limit."""

    urls: tuple[str, ...]
    bucket_type: str
    token_file: str = ""
    ca_file: str = ""
    cluster: bytes = b""
    rows_per_second: float = 0.0
    give_up_after_s: int = GIVE_UP_AFTER_S
    certificate_file: str = ""
    key_file: str = ""

    @property
    def credentials(self) -> Credentials:
        """Files for authentication."""
        return Credentials(self.token_file, self.ca_file, self.certificate_file, self.key_file)


class ReadPoint(NamedTuple):
    """Rows are as of everything below `offset` of a partition."""

    partition: int
    epoch: int
    offset: int


class RangeRows(NamedTuple):
    """The rows of some ranges. `unremembered`: segments whose reaped keys could not be read, so that a key without a
    row may have been deleted."""

    rows: dict[Name, ObservedKey]
    as_of: list[ReadPoint]
    bytes: int
    unremembered: frozenset[int] = frozenset()


class UnexpectedCluster(PeerFault):
    """A response of another cluster than the run's."""

    reason = "other-cluster"


def plan_of(side: SideSpec) -> ReplicaDirectory:
    """The plan of a cluster. Raises PeerFault, BadInput."""
    plan = fetch_plan(side.urls, side.credentials, side.bucket_type)
    if side.cluster and plan.cluster != side.cluster:
        raise UnexpectedCluster(
            f"{side.urls[0]} is of cluster {plan.cluster_name}, uuid {plan.cluster.hex()}, not the run's"
        )
    return plan


def read_runs(side: SideSpec, runs: Runs, *, committed: bool = False, bodies: bool = False) -> RangeRows:
    """All rows of the ranges. `committed`: from leaders only, including all writes acknowledged before, and with the
    reaped keys that they remember (R-REAP), as full-sync reads them; `bodies`: also read each object, and report a
    fault if it does not match its row. Raises PeerFault, CodecError, Retryable; nothing read counts then."""
    if (scattered(runs) or committed) and not bodies:
        try:
            return _by_clocks(side, [segment for run in runs for segment in range(*run)])
        except (PeerFault, CodecError) as error:
            if isinstance(error, UnexpectedCluster):
                raise
            # A damaged row ends the whole answer; a stream shows all others beside it.
    found = _by_streams(side, runs, committed, bodies)
    return _with_reaped(side, runs, found) if committed else found


def places_of(side: SideSpec, runs: Runs) -> dict[Name, tuple[int, int]]:
    """(partition, offset of its newest change) of all keys of the ranges, from leaders; rows that cannot be decoded are
    left out. Raises as `read_runs`."""
    parts = plan_of(side).partitions
    found: dict[Name, tuple[int, int]] = {}
    for rows in frames_of(side, runs, [], committed=True):
        for name, data in zip(rows.names, rows.key_rows, strict=True):
            segment = int.from_bytes(name[:SEGMENT_BYTES], "big")
            partition = next(one.partition for one in parts if one.first <= segment < one.end)
            try:
                found[split_tail(name[SEGMENT_BYTES:])] = partition, decode_key_row(data).offset
            except IsthmusError:
                continue
    return found


def scattered(runs: Runs) -> bool:
    """Whether to request the segments by number, instead of one stream per range."""
    return len(runs) > 1 and sum(end - first for first, end in runs) <= SCATTERED_MAX


def roots_of(side: SideSpec) -> Hashes:
    """The hashes of all branches. Raises PeerFault, CodecError."""
    question = wire.encode_roots_request(wire.RootsRequest(side.bucket_type.encode()))
    return _post(side, wire.PATHS[0], question, lambda body: wire.decode_hashes(body, BRANCH_COUNT).hashes)[0]


def leaves_of(side: SideSpec, branches: Sequence[int]) -> Hashes:
    """The leaves of branches in the full tree. Raises PeerFault, CodecError."""
    asked = wire.LeavesRequest(side.bucket_type.encode(), tuple(branches), SEGMENT_BITS)
    count = wire.leaf_count(asked)
    return _post(
        side, wire.PATHS[1], wire.encode_leaves_request(asked), lambda body: wire.decode_hashes(body, count).hashes
    )[0]


def decoded(names: Sequence[bytes], key_rows: Sequence[bytes]) -> Iterable[tuple[Name, ObservedKey]]:
    """The rows of a frame, with their names; a row that cannot be decoded has a fault. Raises CodecError for an invalid
    name."""
    joined = b"\xdd" + len(key_rows).to_bytes(4, "big") + b"".join(key_rows)
    try:
        raws = msgpack.unpackb(joined, use_list=False, max_map_len=0, max_ext_len=0)
        sound = all(tuple(map(type, raw)) == _ROW_TYPES and raw[0] == KEY_ROW_VERSION for raw in raws)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
        sound = False
    for at, name in enumerate(names):
        named = split_tail(name[SEGMENT_BYTES:])
        if sound:
            _, clock, hash64, modified_ms, size, siblings, dead, _ = raws[at]
            yield named, ObservedKey(clock, hash64, modified_ms, dead, size, siblings)
        else:
            yield named, _one(key_rows[at])


def _checked_objects(
    objects: Sequence[bytes], found: Iterable[tuple[Name, ObservedKey]]
) -> Iterable[tuple[Name, ObservedKey]]:
    """The rows, with a fault if the object does not match the hash in its row.

    For an object that is too large to be sent, only the row is compared."""
    for data, (name, seen) in zip(objects, found, strict=True):
        too_large = not data and (seen.size_bytes or 0) > OBJECT_BYTES_MAX
        if seen.fault or too_large or xxh64_intdigest(data) == seen.hash64:
            yield name, seen
        else:
            what = "the object does not match its key row: its hash differs" if data else "the key row has no object"
            yield name, _FAULT._replace(fault=what)


_ROW_TYPES: Final = (int, bytes, int, int, int, int, bool, int)


def _one(data: bytes) -> ObservedKey:
    try:
        row = decode_key_row(data)
    except IsthmusError as error:
        return _FAULT._replace(fault=str(error)[:200])
    return ObservedKey(row.clock, row.hash64, row.last_modified_ms, row.tombstone, row.size_bytes, row.sibling_count)


def frames_of(
    side: SideSpec, runs: Runs, as_of: list[ReadPoint], *, committed: bool = False, bodies: bool = False
) -> Iterator[Rows]:
    """The frames of the ranges, one stream per partition; appends their read points to `as_of`."""
    consistency = Consistency.COMMITTED if committed else Consistency.ANY
    ask = partial(plan_of, side)
    plan = ask()
    pace = TaskRate(side.rows_per_second)
    for run in runs:
        try:
            parts = plan_ranges(plan, run, 1, consistency)
        except RangeUnreadable:
            plan, parts = wait_for_ranges(ask, run, 1, consistency, side.give_up_after_s)
        for part in parts:
            asked = RowsRequest(
                side.bucket_type.encode(), part.partition, part.first, part.end,
                RowView.OBJECTS if bodies else RowView.KEYS, consistency=consistency,
            )  # fmt: skip
            stream = RangeStream(asked, part, side.credentials, give_up_after_s=side.give_up_after_s, ask=ask)
            for _, rows in stream.frames():
                yield rows
                pace.wait_for(len(rows.names))
            as_of.extend(ReadPoint(one.partition, one.epoch, one.offset) for one in stream.pieces)


def _by_streams(side: SideSpec, runs: Runs, committed: bool, bodies: bool) -> RangeRows:
    taken = RangeRows({}, [], 0)
    size = 0
    for rows in frames_of(side, runs, taken.as_of, committed=committed, bodies=bodies):
        found = decoded(rows.names, rows.key_rows)
        taken.rows.update(_checked_objects(rows.objects, found) if bodies else found)
        size += sum(sum(map(len, each)) for each in (rows.names, rows.key_rows, rows.objects))
    return taken._replace(bytes=size)


def _by_clocks(side: SideSpec, segments: Sequence[int]) -> RangeRows:
    taken = RangeRows({}, [], 0)
    size = 0
    pace = TaskRate(side.rows_per_second)
    left = list(segments)
    while left:
        asked = wire.ClocksRequest(
            side.bucket_type.encode(), tuple(left[:SCATTERED_MAX]), SEGMENT_BITS, 0, 0, CLOCK_ROWS
        )  # fmt: skip
        decode = partial(wire.decode_rows, request=asked)
        page, length = _post(side, wire.PATHS[2], wire.encode_clocks_request(asked), decode)
        size += length
        for row in page.rows:
            taken.rows[row.bucket, row.key] = ObservedKey(row.clock, row.hash64, row.modified_ms, row.tombstone)
        pace.wait_for(len(page.rows))
        left = left[page.covered :]
    return taken._replace(bytes=size)


def _with_reaped(side: SideSpec, runs: Runs, found: RangeRows) -> RangeRows:
    """The rows of streams, with the reaped keys that the leaders remember: a stream has none. A segment with a damaged
    row does not answer, and is left out of the next request. Raises UnexpectedCluster."""
    size, requests = found.bytes, 0
    asked = [[segment for run in runs for segment in range(*run)]]
    unread: list[int] = []
    while asked:
        segments = asked.pop()
        if requests == REAPED_REQUESTS_MAX:
            unread += segments
            continue
        requests += 1
        try:
            page = _by_clocks(side, segments)
        except (PeerFault, CodecError) as error:
            if isinstance(error, UnexpectedCluster):
                raise
            half = len(segments) // 2
            asked += [segments[:half], segments[half:]] if half else []
            unread += [] if half else segments
            continue
        size += page.bytes
        for name, seen in page.rows.items():
            if is_reaped(seen):
                found.rows.setdefault(name, seen)
    return found._replace(bytes=size, unremembered=frozenset(unread))


def _post(side: SideSpec, path: str, body: bytes, decode: Callable[[bytes], Response]) -> tuple[Response, int]:
    """(decoded response, its size) of the first node that responds."""

    def send(peer: HttpPeer) -> tuple[Response, int]:
        data = peer.post(
            path,
            body,
            media_type=row_wire.MEDIA_TYPE,
            timeout_ms=side.give_up_after_s * 1000,
            limit_bytes=wire.MESSAGE_BYTES_MAX,
        )
        response = wire.decode_peer_response(data)
        if side.cluster and response.cluster != side.cluster:
            raise UnexpectedCluster(
                f"{peer.url} is of cluster {response.cluster_name}, uuid {response.cluster.hex()}, not the run's"
            )
        return decode(response.body), len(data)

    def fatal(error: PeerFault | CodecError) -> bool:
        return isinstance(error, UnexpectedCluster) or (isinstance(error, HttpRefused) and error.status < 500)

    return first_response(side.urls, side.credentials, send, fatal=fatal, failed="no node answers about trees")


def error_line(error: BaseException) -> str:
    """An error in one line."""
    return f"{getattr(error, 'reason', type(error).__name__)}: {error}"[:300]


FIRST_OFFSET: Final = b"\0"
"""Completes a row whose offset was cut off."""


class Joined(NamedTuple):
    """`same` keys have equal rows on both sides; `left` and `right` have all others. `left_rows`, `right_rows`: rows
    read."""

    same: int
    left: RangeRows
    right: RangeRows
    left_rows: int
    right_rows: int


class _Side(NamedTuple):
    """Name -> row without its offset; `damaged`: whole rows that cannot be decoded."""

    rows: dict[bytes, bytes]
    damaged: dict[bytes, bytes]
    as_of: list[ReadPoint]
    bytes: int


def joined(left: SideSpec, right: SideSpec, runs: Runs) -> Joined:
    """Join the rows of some ranges. Raises as `read_runs`."""
    mine, theirs = _read(left, runs), _read(right, runs)
    others = theirs.rows
    differing = {name for name, row in mine.rows.items() if others.get(name) != row}
    same = len(mine.rows) - len(differing)
    differing |= others.keys() - mine.rows.keys()
    damaged = mine.damaged.keys() | theirs.damaged.keys()
    # A row does not match a damaged one, whatever its bytes.
    same -= sum(name in mine.rows and name not in differing for name in damaged)
    differing |= damaged
    counts = [len(side.rows) + len(side.damaged) for side in (mine, theirs)]
    return Joined(same, _taken(mine, differing), _taken(theirs, differing), counts[0], counts[1])


def _read(side: SideSpec, runs: Runs) -> _Side:
    found = _Side({}, {}, [], 0)
    size = 0
    for rows in frames_of(side, runs, found.as_of):
        size += _take(found, rows)
    return found._replace(bytes=size)


def _take(found: _Side, rows: Rows) -> int:
    """A frame's rows; their bytes."""
    names, key_rows = Blobs.of(rows.names), Blobs.of(rows.key_rows)
    fields = parsed(key_rows)
    if fields is not None:
        data = key_rows.data
        starts, ends = key_rows.places[:-1].tolist(), fields.same_end.tolist()
        found.rows.update(zip(names, (data[start:end] for start, end in zip(starts, ends, strict=True)), strict=True))
    else:
        for name, row in zip(names, key_rows, strict=True):
            end = _same_end(row)
            if end is None:
                found.damaged[name] = row
            else:
                found.rows[name] = row[:end]
    return len(names.data) + len(key_rows.data)


def _same_end(row: bytes) -> int | None:
    """Index of a row's offset; None if the row cannot be decoded."""
    fields = parsed(Blobs.of([row]))
    return None if fields is None else int(fields.same_end[0])


def _taken(side: _Side, names: Iterable[bytes]) -> RangeRows:
    """Some rows in the form for `verdicts`."""
    sound = [name for name in names if name in side.rows]
    hurt = [name for name in names if name in side.damaged]
    rows = dict(decoded(sound, [side.rows[name] + FIRST_OFFSET for name in sound]))
    rows.update(decoded(hurt, [side.damaged[name] for name in hurt]))
    return RangeRows(rows, side.as_of, side.bytes)
