"""Replace damaged rows by rows of another replica, or rebuild them from an object of this or another cluster.

A row is the effect of one entry, so replicas at the same offset hold the same bytes. A repair needs a proof of which
row is damaged. Either the row is inconsistent (`aae.scrub.row_proofs`): then a consistent row of another replica
replaces it. Or the tree proves it: it followed the applied entries, so the correct rows are those that fold to its
leaf. Without a proof the row stays, and so does the alarm. Only in-sync replicas take part. A row is written between
two batches of apply, if it is still the damaged one (`repl.store.port.TransferStore.mend`). Callers are
`aae.scrub.row_audit`, `aae.scrub.replica_agreement` and the fold `repair-keys`. Rules: docs/protocol.md R-MEND.

A bucket type with one replica is repaired from the clusters that full-sync compares with. Their objects are read over
the HTTP API of batch jobs (`aae.row_stream.wire`), and used only if a key row or the tree here proves them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import msgspec
import structlog

from isthmus.aae.ports import LocalReplicas, NodeRpc, RpcHandler
from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.wire import Frames, Rows, RowsRequest, RowView, Tail
from isthmus.aae.scrub.row_proofs import (
    fold_rows,
    is_consistent,
    key_row_of,
    matches_object,
    newest_changes,
    row_tail,
    segment_rows,
)
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.repl.http.client import HttpPeer, PeerCredentials, as_protected
from isthmus.repl.machine import machine
from isthmus.repl.model.entry import EntryKind, decode_key_row
from isthmus.repl.model.errors import CodecError, Corruption, IsthmusError, NotReady, PeerFault
from isthmus.repl.model.keys import SEGMENT_COUNT, key_hash, segment_of
from isthmus.repl.store import row_codec
from isthmus.repl.store.port import DamagedChange, Snapshot, Store
from isthmus.repl.store.rows import CHANGE_HEAD, SEGMENT_BYTES, segment_name, split_tail
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import unforeseen

PLAN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest plan that is read: some 100,000 replicas."""


class ForeignObjects(Protocol):
    """Objects of the clusters that full-sync compares with."""

    async def objects(self, partition: int, segment: int) -> Mapping[str, Mapping[bytes, bytes]]:
        """{name of a peer: {tail: canonical object}} of a segment; peers that do not respond are left out."""


def fetch_foreign_objects(
    urls: Sequence[str], access: PeerCredentials, timeout_ms: int, bucket_type: bytes, segment: int
) -> dict[bytes, bytes]:
    """{tail: canonical object} of a segment, from a node of another cluster; blocks. Raises PeerFault, CodecError."""
    failure: PeerFault | CodecError = PeerFault("no node of the other cluster has a whole replica of it")
    for url in urls:
        peer = HttpPeer(url, 1, access)
        try:
            path = f"{wire.PLAN_PATH}?bucket_type={quote(bucket_type, safe='')}"
            replicas = _whole_replicas(peer.get(path, timeout_ms=timeout_ms, limit_bytes=PLAN_BYTES_MAX), segment, url)
        except (PeerFault, CodecError) as error:
            failure = error
            continue
        finally:
            peer.abort()
        for partition, node in replicas:
            try:
                return _fetch(node, access, timeout_ms, RowsRequest(bucket_type, partition, segment, segment + 1))
            except (PeerFault, CodecError) as error:
                failure = error
    raise failure


def _whole_replicas(plan: bytes, segment: int, asked_url: str) -> list[tuple[int, str]]:
    """(partition, URL) of the whole replicas that have the segment, leaders first; with TLS if `asked_url` has it.
    Raises CodecError."""
    try:
        found: list[tuple[bool, int, str]] = []
        for one in json.loads(plan)["partitions"]:
            first, end = one["segments"]
            if first <= segment < end:
                copies: list[Any] = [copy for copy in one["copies"] if copy["whole"]]
                found += [(not copy["leads"], int(one["partition"]), str(copy["http"])) for copy in copies]
        return [(partition, as_protected(url, asked_url)) for _, partition, url in sorted(found)]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"not a plan of rows: {error!r:.200}") from error


def _fetch(url: str, access: PeerCredentials, timeout_ms: int, asked: RowsRequest) -> dict[bytes, bytes]:
    body = wire.encode_rows_request(asked._replace(view=RowView.OBJECTS))
    peer = HttpPeer(url, 1, access)
    try:
        data = peer.post(
            wire.ROWS_PATH,
            body,
            media_type=wire.MEDIA_TYPE,
            timeout_ms=timeout_ms,
            limit_bytes=wire.FRAME_BYTES_MAX,
        )
    finally:
        peer.abort()
    found: dict[bytes, bytes] = {}
    last: object = None
    for last in Frames().feed(data):
        if isinstance(last, Rows):
            names = (bytes(name)[SEGMENT_BYTES:] for name in last.names)
            found.update(zip(names, map(bytes, last.objects), strict=True))
    if not isinstance(last, Tail) or last.rows != len(found):
        raise CodecError(f"{url}: the stream of rows has no end")
    return found


log = structlog.get_logger(__name__)

ROWS_ASKED: Final = "aae.rows_again"
LOOK_ASKED: Final = "aae.look_again"

CHECKED_ROWS_MAX: Final = 2_000
"""Rows whose objects are read after an exchange has read their segments: some tenth of a second of a thread. Further
segments are checked after the next exchange, if they still differ."""

UNREADABLE_ROWS: Final = 2_000
UNREADABLE_BYTES: Final = 1024 * 1024
"""Limits of one slice of the scan for unreadable rows: some 3 ms of a thread."""

REST_SHARE: Final = 1.0
"""Sleep after each slice, as a share of its duration: the scan reads all rows of a replica beside requests."""

TIMEOUT_MS: Final = 10_000
"""Time-out of a request to another replica."""

SOURCES_MAX: Final = 16
"""Passes over a segment: each pass repairs from one source."""

APPLIED_S: Final = 3.0
"""How long a replica waits until it has applied up to the offset of a request."""

POLL_S: Final = 0.05

NO_PROOF: Final = "no other replica in sync proves what it should be, nor its object, nor another cluster"

VERSION: Final = 1

Message = TypeVar("Message")

_decode_rows_request = msgspec.msgpack.Decoder(tuple[Literal[1], int, int, bytes | None, int]).decode
"""VERSION, partition, segment, the tail of one key (None: all keys), and the offset that must be applied."""

_decode_rows_response = msgspec.msgpack.Decoder(tuple[Literal[1], int, list[tuple[bytes, bytes]]]).decode
"""VERSION, applied offset, and (tail, key row); for one key (rows as a chunk, b"")."""

_decode_check_request = msgspec.msgpack.Decoder(tuple[Literal[1], int, int]).decode
"""VERSION, partition, segment."""


class RepairResult(NamedTuple):
    """The keys of a segment whose rows were replaced, the source of the new rows, and why other damaged rows were not
    replaced ("": there are none)."""

    keys: tuple[tuple[bytes, bytes], ...] = ()
    by: str = ""
    reason: str = ""


class _SegmentRows(NamedTuple):
    """The rows of a segment in one snapshot: the applied offset, {tail: encoded key row}, and the inconsistent ones."""

    applied: int
    rows: Mapping[bytes, bytes]
    damaged: frozenset[bytes]


class RowRepair:
    """Repairs local replicas and serves rows to other nodes. Methods run on the event loop; rows are read in `pool`."""

    def __init__(
        self,
        store: Store,
        *,
        replicas: LocalReplicas,
        rpc: NodeRpc,
        trees: TreeCache,
        foreign: ForeignObjects,
        cluster_uuid: bytes,
        pool: Executor,
    ) -> None:
        self._store = store
        self._replicas = replicas
        self._rpc = rpc
        self._trees = trees
        self._foreign = foreign
        self._cluster_uuid = cluster_uuid
        self._pool = pool
        self._one_at_a_time = asyncio.Lock()
        self.repaired_total = 0

    def request_handlers(self) -> dict[str, RpcHandler]:
        """Handlers of requests from other nodes, by method."""
        return {ROWS_ASKED: self._serve_rows, LOOK_ASKED: self._serve_check}

    async def repair_segment(self, partition: int, segment: int, leaf: int | None = None) -> RepairResult:
        """Repair the damaged rows of a segment; `leaf`: its correct fold, by default the tree's leaf, if there is a
        tree. Raises nothing but cancellation."""
        keys: tuple[tuple[bytes, bytes], ...] = ()
        by: list[str] = []
        async with self._one_at_a_time:
            leaf = self._trees.leaf(partition, segment) if leaf is None else leaf
            for _ in range(SOURCES_MAX):  # each damaged key may need another source
                try:
                    found = await self._repair_from_first_source(partition, segment, leaf, before=bool(keys))
                except Exception as error:  # noqa: BLE001 -- the other segments are repaired all the same
                    bug = unforeseen.exception("trees.repair_bug", error, partition=partition, segment=segment)
                    found = RepairResult(reason=str(bug))
                if not found.keys:
                    break
                keys += found.keys
                by.append(found.by)
        sources = ", ".join(dict.fromkeys(by))
        if keys:
            self.repaired_total += len(keys)
            log.warning("trees.rows_mended", partition=partition, segment=segment, keys=_names(keys), rows_of=sources)
            self._trees.invalidate(partition)
        if found.reason:
            log.warning("trees.rows_not_mended", partition=partition, segment=segment, reason=found.reason)
        return RepairResult(keys, sources, found.reason)

    async def repair_contradicting(self, partition: int, segments: Sequence[int]) -> None:
        """Repair the inconsistent rows of these segments. Raises nothing but cancellation."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._pool, self._contradicting, partition, segments)
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return
        for segment in found:
            await self.repair_segment(partition, segment)

    async def repair_keys(self, partition: int, keys: Iterable[tuple[bytes, bytes]]) -> tuple[int, Counter[str]]:
        """Repair these (bucket, key); returns how many were repaired and, by reason, how many were not."""
        repaired, refused = 0, Counter[str]()
        by_segment: dict[int, list[tuple[bytes, bytes]]] = {}
        for bucket, key in keys:
            by_segment.setdefault(segment_of(key_hash(bucket, key)), []).append((bucket, key))
        for segment, names in by_segment.items():
            found = await self.repair_segment(partition, segment)
            count = sum(name in found.keys for name in names)
            repaired += count
            if count < len(names):
                refused[found.reason or "it is not damaged any more"] += len(names) - count
        return repaired, refused

    async def request_check(self, node: str, partition: int, segment: int) -> None:
        """Have another node repair a segment of its replica. Raises its errors."""
        await self._rpc.request(node, LOOK_ASKED, msgspec.msgpack.encode((VERSION, partition, segment)), TIMEOUT_MS)

    # -- repair -----------------------------------------------------------------------------------------

    async def _repair_from_first_source(
        self, partition: int, segment: int, leaf: int | None, *, before: bool
    ) -> RepairResult:
        """Repair from the first source that helps; `before`: a row was repaired already, and a wrong fold alone is no
        reason to go on."""
        try:
            ours = await self._segment_rows(partition, segment)
        except IsthmusError as error:
            return RepairResult(reason=f"its rows cannot be read: {error}")
        if not ours.damaged and (before or leaf in (None, fold_rows(ours.rows))):
            return RepairResult()
        reasons = []
        for node in self._replicas.in_sync(partition):
            try:
                keys = await self._take_from_replica(node, partition, segment, ours, leaf)
            except IsthmusError as error:
                reasons.append(f"node {node}: {error}")
                continue
            except Exception as error:  # noqa: BLE001 -- the other sources are tried all the same
                bug = unforeseen.exception("trees.repair_bug", error, partition=partition, segment=segment, peer=node)
                reasons.append(f"node {node}: {bug}")
                continue
            if keys:
                return RepairResult(keys, f"node {node}")
        try:
            keys = await self._rebuild_from_objects(partition, ours, leaf)
            if keys:
                return RepairResult(keys, "their own objects")
            keys = await self._rebuild_change_rows(partition, ours)
            if keys:
                return RepairResult(keys, "their own key rows")
            for cluster, objects in (await self._foreign.objects(partition, segment)).items():
                keys = await self._rebuild_from_objects(partition, ours, leaf, objects)
                if keys:
                    return RepairResult(keys, f"cluster {cluster}")
        except IsthmusError as error:
            reasons.append(str(error))
        return RepairResult(reason="; ".join(reasons) or NO_PROOF)

    async def _take_from_replica(
        self, node: str, partition: int, segment: int, ours: _SegmentRows, leaf: int | None
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Replace rows that are proven damaged by those of `node`; returns their keys. Raises the error of a row only
        if no row was replaced."""
        applied, rows = await self._request_rows(node, partition, segment, None, ours.applied)
        theirs = dict(rows)
        other = {tail for tail, row in theirs.items() if ours.rows.get(tail) != row}
        wanted = {tail for tail in theirs if tail in ours.damaged}
        if leaf is not None and fold_rows({**ours.rows, **theirs}) == leaf != fold_rows(ours.rows):
            wanted |= other
        replaced: list[tuple[bytes, bytes]] = []
        failure: IsthmusError | None = None
        for tail in sorted(wanted):
            try:
                upto, items = await self._request_rows(node, partition, segment, tail, ours.applied)
                row = row_codec.decode_one(items[0][0] if items else b"")
                if row.key_row != theirs[tail] or not matches_object(row) or row_tail(row) != tail:
                    raise Corruption("its row does not match its object either, or has changed meanwhile")
                if await self._replicas.mend(partition, items[0][0], ours.rows.get(tail), min(applied, upto)):
                    replaced.append(split_tail(tail))
            except IsthmusError as error:
                failure = error
        if failure is not None and not replaced:
            raise failure
        return tuple(replaced)

    async def _rebuild_from_objects(
        self, partition: int, ours: _SegmentRows, leaf: int | None, objects: Mapping[bytes, bytes] | None = None
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Rebuild damaged rows from their own objects, or from `objects` of another cluster; returns their keys. Proof
        is the tree, the key row, or the equality of both objects; a row that cannot be decoded, on a replica without
        a tree, needs none."""
        wanted = ours.damaged
        if objects is not None:
            wanted &= objects.keys()
        elif leaf is None:
            wanted = frozenset(tail for tail in wanted if row_codec.offset_seen(ours.rows[tail]) is None)
        if not wanted:
            return ()
        loop = asyncio.get_running_loop()
        rows, same = await loop.run_in_executor(self._pool, self._rows_of_objects, partition, wanted, objects)
        rebuilt = {**ours.rows, **{tail: row.key_row for tail, row in rows.items()}}
        proven = leaf is not None and fold_rows(rebuilt) == leaf
        if not proven and (leaf is not None or objects is not None):  # each row needs its own proof
            rows = {tail: row for tail, row in rows.items() if row.key_row == ours.rows[tail] or tail in same}
        done = []
        for tail, row in rows.items():
            if await self._replicas.mend(partition, row_codec.encode([row]), ours.rows[tail], ours.applied):
                done.append(split_tail(tail))
        return tuple(done)

    async def _rebuild_change_rows(self, partition: int, ours: _SegmentRows) -> tuple[tuple[bytes, bytes], ...]:
        """Rebuild change rows that cannot be decoded from their consistent key rows; returns the keys."""
        loop = asyncio.get_running_loop()
        done = []
        for tail, row in (await loop.run_in_executor(self._pool, self._rows_without_change, partition, ours)).items():
            if await self._replicas.mend(partition, row_codec.encode([row]), row.key_row, ours.applied):
                done.append(split_tail(tail))
        return tuple(done)

    def _rows_without_change(self, partition: int, ours: _SegmentRows) -> dict[bytes, row_codec.TransferRow]:
        """In a thread: {tail: row with a new change row}. The origin of a lost change row is not known, so the new one
        has this cluster as origin: every queue offers it again, which is harmless."""
        found: dict[bytes, row_codec.TransferRow] = {}
        with closing(self._store.transfers.snapshot(partition)) as snapshot:
            for tail in sorted(ours.damaged):
                offset, data = row_codec.offset_seen(ours.rows[tail]), snapshot.named_object(tail)
                if offset is None or data is None or not _change_is_damaged(snapshot, offset):
                    continue
                time_ms = max(0, decode_key_row(ours.rows[tail]).last_modified_ms)
                head = CHANGE_HEAD.pack(EntryKind.DATA, key_hash(*split_tail(tail)), time_ms) + self._cluster_uuid
                row = row_codec.TransferRow(offset, head + tail, ours.rows[tail], data)
                if matches_object(row):
                    found[tail] = row
        return found

    def _rows_of_objects(
        self, partition: int, tails: Iterable[bytes], objects: Mapping[bytes, bytes] | None
    ) -> tuple[dict[bytes, row_codec.TransferRow], set[bytes]]:
        """In a thread: ({tail: row rebuilt from its object}, tails whose object in `objects` equals the local one).
        Keys without a readable object or without a change row are left out."""
        found: dict[bytes, row_codec.TransferRow] = {}
        same: set[bytes] = set()
        with closing(self._store.transfers.snapshot(partition)) as snapshot:
            for tail, change in newest_changes(self._store, partition, tails).items():
                ours = snapshot.named_object(tail)
                data = ours if objects is None else objects[tail]
                if data is None:
                    continue
                try:
                    row = key_row_of(data, change.offset)
                except CodecError:
                    continue
                head = CHANGE_HEAD.pack(change.kind, change.key_hash, change.time_ms) + change.origin
                found[tail] = row_codec.TransferRow(change.offset, head + tail, row, data)
                if objects is not None and data == ours:
                    same.add(tail)
        return found, same

    async def _request_rows(
        self, node: str, partition: int, segment: int, tail: bytes | None, applied: int
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """(applied offset of `node`, [(tail, key row)]) of a segment; for one `tail` [(rows as a chunk, b"")]."""
        body = msgspec.msgpack.encode((VERSION, partition, segment, tail, applied))
        response = await self._rpc.request(node, ROWS_ASKED, body, TIMEOUT_MS)
        _, offset, items = _decode(_decode_rows_response, response, "a list of rows")
        if offset < applied:
            raise CodecError(f"the rows of node {node} are as of offset {offset}, below {applied}")
        return offset, items

    # -- requests of other nodes ------------------------------------------------------------------------

    async def _serve_rows(self, _node: str, body: bytes) -> bytes:
        _, partition, segment, tail, applied = _decode(_decode_rows_request, body, "a request for rows of a segment")
        loop = asyncio.get_running_loop()
        end_s = loop.time() + APPLIED_S
        while self._store.applied(partition).offset < applied:
            if loop.time() > end_s:
                raise NotReady(f"partition {partition} is not applied to {applied} there")
            await asyncio.sleep(POLL_S)
        if not self._replicas.in_sync(partition):
            raise NotReady(f"the replica of partition {partition} is not in sync there")
        offset, items = await loop.run_in_executor(self._pool, self._read_for_peer, partition, segment, tail)
        return msgspec.msgpack.encode((VERSION, offset, items))

    def _read_for_peer(self, partition: int, segment: int, tail: bytes | None) -> tuple[int, list[tuple[bytes, bytes]]]:
        """In a thread: the response to `_request_rows`."""
        with closing(self._store.transfers.snapshot(partition)) as snapshot:
            rows = segment_rows(snapshot, segment)
            if tail is None:
                return snapshot.end.offset, list(rows.items())
            if tail not in rows:
                raise NotReady("the key was removed meanwhile")
            return snapshot.end.offset, [(snapshot.rows(decode_key_row(rows[tail]).offset, 1).rows, b"")]

    async def _serve_check(self, _node: str, body: bytes) -> bytes:
        _, partition, segment = _decode(_decode_check_request, body, "a request to check a segment")
        await self.repair_segment(partition, segment)
        return b""

    # -- reads ------------------------------------------------------------------------------------------

    async def _segment_rows(self, partition: int, segment: int) -> _SegmentRows:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read_segment, partition, segment)

    def _read_segment(self, partition: int, segment: int) -> _SegmentRows:
        with closing(self._store.transfers.snapshot(partition)) as snapshot:
            rows = segment_rows(snapshot, segment)
            damaged = frozenset(tail for tail, row in rows.items() if not is_consistent(snapshot, tail, row))
            return _SegmentRows(snapshot.end.offset, rows, damaged)

    def _contradicting(self, partition: int, segments: Sequence[int]) -> list[int]:
        """In a thread: those of `segments` with an inconsistent row, among the first CHECKED_ROWS_MAX rows."""
        found: list[int] = []
        checked = 0
        with closing(self._store.transfers.snapshot(partition)) as snapshot:
            for segment in segments:
                rows = segment_rows(snapshot, segment)
                checked += len(rows)
                if checked > CHECKED_ROWS_MAX:
                    break
                if not all(is_consistent(snapshot, tail, row) for tail, row in rows.items()):
                    found.append(segment)
        return found

    async def unreadable_segments(self, partition: int, most: int) -> list[int]:
        """Up to `most` segments with a key row or a change row that cannot be decoded. Removes change rows that cannot
        be decoded and belong to no key. Raises Corruption when the store cannot read them at all."""
        loop = asyncio.get_running_loop()
        segments, orphans = await loop.run_in_executor(self._pool, self._undecodable, partition, most)
        for offset, seen in orphans.items():
            if await self._replicas.drop_change(partition, offset, seen):
                log.warning("trees.change_row_dropped", partition=partition, offset=offset)
        return segments

    def _undecodable(self, partition: int, most: int) -> tuple[list[int], dict[int, bytes]]:
        """In a thread: (segments, {offset: change row without a key row}), both of rows that cannot be decoded, `most`
        of each. While a key row cannot be decoded, any change row may belong to it: then there are no orphans."""
        found: list[int] = []
        with (
            closing(self._store.transfers.snapshot(partition)) as snapshot,
            closing(snapshot.key_pages(segment_name(0), SEGMENT_COUNT, UNREADABLE_ROWS, UNREADABLE_BYTES)) as pages,
        ):
            damaged = _damaged_changes(snapshot, most)
            orphans, key_row_lost = dict(damaged), False
            for names, rows in pages:
                began_s = machine().monotonic_s()
                for name, row in zip(names, rows, strict=True):
                    offset = row_codec.offset_seen(row)
                    if offset is not None and offset not in damaged:
                        continue
                    if offset is None:
                        key_row_lost = True
                    else:
                        orphans.pop(offset, None)
                    segment = int.from_bytes(name[:SEGMENT_BYTES], "big")
                    if segment not in found[-1:]:
                        found.append(segment)
                        if len(found) == most:
                            return found, {}
                machine().sleep((machine().monotonic_s() - began_s) * REST_SHARE)
        return found, {} if key_row_lost else orphans

    def metrics(self) -> list[Sample]:
        """For Prometheus."""
        return [("isthmus_tree_rows_mended_total", {}, self.repaired_total)]


def _change_is_damaged(snapshot: Snapshot, offset: int) -> bool:
    try:
        snapshot.rows(offset, 1)
    except DamagedChange as error:
        return error.offset == offset
    except Corruption:
        return False
    return False


def _damaged_changes(snapshot: Snapshot, most: int) -> dict[int, bytes]:
    """In a thread: {offset: change row} of the first `most` change rows, or some more, that cannot be decoded."""
    found: dict[int, bytes] = {}
    offset: int | None = 0
    while offset is not None and len(found) < most:
        began_s = machine().monotonic_s()
        rows, offset = snapshot.damaged_changes(offset, UNREADABLE_ROWS)
        found.update(rows)
        machine().sleep((machine().monotonic_s() - began_s) * REST_SHARE)
    return found


def _names(keys: Sequence[tuple[bytes, bytes]]) -> list[str]:
    return [f"{bucket!r}/{key!r}" for bucket, key in islice(keys, 5)]


def _decode(decode: Callable[[bytes], Message], data: bytes, what: str) -> Message:
    """Decode a message between nodes. Raises CodecError."""
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not {what}, version {VERSION}: {error}") from error
