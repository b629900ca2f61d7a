"""Rows that are damaged are fetched again: from another replica, or made from their own object, or another cluster's.

A row is the effect of one entry, so replicas that have applied as much hold the same bytes. Whose row is damaged is not
guessed. Either it contradicts itself: it cannot be read, or is not what its object says; then another replica's row
that does not is taken. Or the tree tells: it was kept from what was applied, so rows with which the segment's fold is
the tree's leaf are the right ones. What neither proves is left, and stays an alarm. Only copies in sync give and take,
and a row is written between two batches of apply, if it is still the damaged one (`repl.store.port.FarStore.mend`).
Who finds damage: `aae.scrub.row_audit`, `aae.scrub.replica_agreement`, and the fold `repair-keys`. Rules:
docs/protocol.md R-MEND.

The objects of a segment as other clusters have them: what a copy without replicas can be mended from.

Asked over the HTTP face that batch jobs read (`aae.row_stream.wire`), of the clusters that full-sync compares with,
with its tokens. Runs in a thread; nothing is believed here: who asks proves each object by its own key row or tree.
"""

from __future__ import annotations

import asyncio
import json
import time as clock
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgpack
import structlog

from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.wire import Frames, Rows, RowsAsked, RowView, Tail
from isthmus.aae.scrub.row_proofs import fold, is_complete, made_of, newest_changes, rows_of, says_so, tail_of
from isthmus.repl.http.client import HttpPeer, PeerCredentials, as_protected
from isthmus.repl.model.entry import EntryKind, decode_key_row
from isthmus.repl.model.errors import CodecError, Corruption, IsthmusError, NotReady, PeerFault
from isthmus.repl.model.keys import SEGMENT_COUNT, key_hash, segment_of
from isthmus.repl.store import row_codec
from isthmus.repl.store.port import DamagedChange, Snapshot, Store
from isthmus.repl.store.rows import CHANGE_HEAD, SEGMENT_BYTES, segment_name, split_tail
from isthmus.repl.telemetry import Sample

PLAN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest plan that is read: some 100,000 copies."""


def foreign_objects(
    urls: Sequence[str], access: PeerCredentials, timeout_ms: int, bucket_type: bytes, segment: int
) -> dict[bytes, bytes]:
    """Name (bucket and key as in a row's name) -> canonical object bytes. Raises PeerFault, CodecError."""
    trouble: PeerFault | CodecError = PeerFault("no node of the other cluster has a copy of it")
    for url in urls:
        peer = HttpPeer(url, 1, access)
        try:
            path = f"{wire.PLAN_PATH}?bucket_type={quote(bucket_type, safe='')}"
            places = _places(peer.get(path, timeout_ms=timeout_ms, limit_bytes=PLAN_BYTES_MAX), segment, url)
        except (PeerFault, CodecError) as error:
            trouble = error
            continue
        finally:
            peer.abort()
        for partition, node in places:
            try:
                return _asked(node, access, timeout_ms, RowsAsked(bucket_type, partition, segment, segment + 1))
            except (PeerFault, CodecError) as error:
                trouble = error
    raise trouble


def _places(plan: bytes, segment: int, asked_url: str) -> list[tuple[int, str]]:
    """(partition, URL) of the whole copies that have the segment, leaders first; with TLS where `asked_url` has it.
    Raises CodecError."""
    try:
        found: list[tuple[bool, int, str]] = []
        for one in json.loads(plan)["partitions"]:
            first, end = one["segments"]
            if first <= segment < end:
                copies: list[Any] = [copy for copy in one["copies"] if copy["whole"]]
                found += [(not copy["leads"], int(one["partition"]), str(copy["http"])) for copy in copies]
        return [(partition, as_protected(url, asked_url)) for _, partition, url in sorted(found)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"not a plan of rows: {error!r:.200}") from error


def _asked(url: str, access: PeerCredentials, timeout_ms: int, asked: RowsAsked) -> dict[bytes, bytes]:
    question = wire.encode_rows_asked(asked._replace(view=RowView.OBJECTS))
    peer = HttpPeer(url, 1, access)
    try:
        data = peer.post(
            wire.ROWS_PATH,
            question,
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

LOOKED_MAX: Final = 2_000
"""Rows whose objects are read at once because an exchange reads their segments: some tenth of a second of a thread.
What lies beyond is looked at when the next exchange reads it, if it still differs."""

UNREADABLE_ROWS: Final = 2_000
UNREADABLE_BYTES: Final = 1024 * 1024
"""What is looked through at once for rows that cannot be read: some 3 ms of a thread."""

REST_SHARE: Final = 1.0
"""Rest after that, as a share of what it took: all rows of a copy are read, and clients want the interpreter, too."""

TIMEOUT_MS: Final = 10_000
"""How long another replica may take to answer."""

SOURCES_MAX: Final = 16
"""Times that a segment is looked at once more because something of it was mended."""

APPLIED_S: Final = 3.0
"""How long a replica that is asked waits until it has applied as much as who asks."""

POLL_S: Final = 0.05

NO_PROOF: Final = "no other replica in sync proves what it should be, nor its object, nor another cluster"

VERSION: Final = 1

Handler = Callable[[str, bytes], Awaitable[bytes]]


class RepairResult(NamedTuple):
    """What became of a segment: the keys whose rows were written again, where these are from, and why others are not;
    "" when there is nothing to mend."""

    keys: tuple[tuple[bytes, bytes], ...] = ()
    by: str = ""
    reason: str = ""


class _Seen(NamedTuple):
    """The rows of a segment at one moment: names (bucket and key as they stand in a row's name) with encoded key rows;
    the keys whose row or object contradicts itself; and how far the copy is applied."""

    applied: int
    rows: Mapping[bytes, bytes]
    damaged: frozenset[bytes]


class RowRepair:
    """Asks, takes, and answers. Methods belong to the event loop; rows are read in `pool`."""

    def __init__(
        self,
        store: Store,
        *,
        others: Callable[[int], Sequence[str]],
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        mend: Callable[[int, bytes, bytes | None, int], Awaitable[bool]],
        drop_change: Callable[[int, int, bytes], Awaitable[bool]],
        own: bytes,
        leaf_of: Callable[[int, int], int | None],
        elsewhere: Callable[[int, int], Awaitable[Mapping[str, Mapping[bytes, bytes]]]],
        pool: Executor,
    ) -> None:
        """`others(partition)`: nodes with a copy in sync, where this one's is, too, the leader first. `mend` as
        `FarStore.mend`, False of a copy that is not whole; `drop_change` as `FarStore.drop_change`. `own`: the uuid of
        the cluster. `leaf_of(partition, segment)`: what the tree says, None without a tree. `elsewhere(partition,
        segment)`: objects as other clusters have them, by name of the cluster."""
        self._store = store
        self._others = others
        self._request = request
        self._mend = mend
        self._drop_change = drop_change
        self._own = own
        self._leaf_of = leaf_of
        self._elsewhere = elsewhere
        self._pool = pool
        self._turns = asyncio.Lock()
        self.on_mended: Callable[[int], None] = lambda _partition: None
        """Rows of a partition are others now."""
        self.mended_total = 0

    def request_handlers(self) -> dict[str, Handler]:
        """What other nodes may ask of this one, by method."""
        return {ROWS_ASKED: self._answer_rows, LOOK_ASKED: self._answer_look}

    async def segment(self, partition: int, segment: int, leaf: int | None = None) -> RepairResult:
        """Mend what is damaged in a segment; `leaf`: what its fold should be, without it what the tree says, if there
        is one. Raises nothing but cancellation."""
        keys: tuple[tuple[bytes, bytes], ...] = ()
        by: list[str] = []
        async with self._turns:
            leaf = self._leaf_of(partition, segment) if leaf is None else leaf
            for _ in range(SOURCES_MAX):  # each damaged key may have another source, or none
                found = await self._mended(partition, segment, leaf, before=bool(keys))
                if not found.keys:
                    break
                keys += found.keys
                by.append(found.by)
        whose = ", ".join(dict.fromkeys(by))
        if keys:
            self.mended_total += len(keys)
            log.warning("trees.rows_mended", partition=partition, segment=segment, keys=_names(keys), rows_of=whose)
            self.on_mended(partition)
        if found.reason:
            log.warning("trees.rows_not_mended", partition=partition, segment=segment, reason=found.reason)
        return RepairResult(keys, whose, found.reason)

    async def look(self, partition: int, segments: Sequence[int]) -> None:
        """Mend what contradicts itself in these segments. Raises nothing but cancellation."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._pool, self._contradicting, partition, segments)
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return
        for segment in found:
            await self.segment(partition, segment)

    async def keys(self, partition: int, keys: Iterable[tuple[bytes, bytes]]) -> tuple[int, Counter[str]]:
        """Mend these (bucket, key); how many were, and why others were not."""
        done, refused = 0, Counter[str]()
        wanted: dict[int, list[tuple[bytes, bytes]]] = {}
        for bucket, key in keys:
            wanted.setdefault(segment_of(key_hash(bucket, key)), []).append((bucket, key))
        for segment, names in wanted.items():
            found = await self.segment(partition, segment)
            mended = sum(name in found.keys for name in names)
            done += mended
            if mended < len(names):
                refused[found.reason or "it is not damaged any more"] += len(names) - mended
        return done, refused

    async def look_at(self, node: str, partition: int, segment: int) -> None:
        """Have another node mend what is damaged there. Raises what it raises."""
        await self._request(node, LOOK_ASKED, msgpack.packb([VERSION, partition, segment]), TIMEOUT_MS)

    # -- taking -----------------------------------------------------------------------------------------

    async def _mended(self, partition: int, segment: int, leaf: int | None, *, before: bool) -> RepairResult:
        """From the first source that has something; `before`: something was mended, and only damage counts now."""
        try:
            ours = await self._read(partition, segment)
        except IsthmusError as error:
            return RepairResult(reason=f"its rows cannot be read: {error}")
        if not ours.damaged and (before or leaf in (None, fold(ours.rows))):
            return RepairResult()
        reasons = []
        for node in self._others(partition):
            try:
                keys = await self._taken(node, partition, segment, ours, leaf)
            except IsthmusError as error:
                reasons.append(f"node {node}: {error}")
                continue
            if keys:
                return RepairResult(keys, f"node {node}")
        try:
            keys = await self._made(partition, ours, leaf)
            if keys:
                return RepairResult(keys, "their own objects")
            keys = await self._with_changes(partition, ours)
            if keys:
                return RepairResult(keys, "their own key rows")
            for cluster, objects in (await self._elsewhere(partition, segment)).items():
                keys = await self._made(partition, ours, leaf, objects)
                if keys:
                    return RepairResult(keys, f"cluster {cluster}")
        except IsthmusError as error:
            reasons.append(str(error))
        return RepairResult(reason="; ".join(reasons) or NO_PROOF)

    async def _taken(
        self, node: str, partition: int, segment: int, ours: _Seen, leaf: int | None
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Take from `node` what is proven to be damaged here; the keys. One that cannot be had keeps back no other."""
        applied, rows = await self._asked(node, partition, segment, None, ours.applied)
        theirs = dict(rows)
        other = {tail for tail, row in theirs.items() if ours.rows.get(tail) != row}
        wanted = {tail for tail in theirs if tail in ours.damaged}
        if leaf is not None and fold({**ours.rows, **theirs}) == leaf != fold(ours.rows):
            wanted |= other
        taken: list[tuple[bytes, bytes]] = []
        trouble: IsthmusError | None = None
        for tail in sorted(wanted):
            try:
                upto, items = await self._asked(node, partition, segment, tail, ours.applied)
                row = row_codec.decode_one(items[0][0] if items else b"")
                if row.key_row != theirs[tail] or not says_so(row) or tail_of(row) != tail:
                    raise Corruption("its row is not what its object says either, or has changed meanwhile")
                if await self._mend(partition, items[0][0], ours.rows.get(tail), min(applied, upto)):
                    taken.append(split_tail(tail))
            except IsthmusError as error:
                trouble = error
        if trouble is not None and not taken:
            raise trouble
        return tuple(taken)

    async def _made(
        self, partition: int, ours: _Seen, leaf: int | None, objects: Mapping[bytes, bytes] | None = None
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Make damaged rows anew from their objects, or from `objects` of elsewhere: if the tree says that these are
        right, or the key row does, or both objects are the same; or if there is no tree and nothing to be read of the
        row. The keys."""
        wanted = ours.damaged
        if objects is not None:
            wanted &= objects.keys()
        elif leaf is None:
            wanted = frozenset(tail for tail in wanted if row_codec.offset_seen(ours.rows[tail]) is None)
        if not wanted:
            return ()
        loop = asyncio.get_running_loop()
        rows, same = await loop.run_in_executor(self._pool, self._rows_of_objects, partition, wanted, objects)
        made = {**ours.rows, **{tail: row.key_row for tail, row in rows.items()}}
        fits = leaf is not None and fold(made) == leaf
        if not fits and (leaf is not None or objects is not None):  # then each must prove itself
            rows = {tail: row for tail, row in rows.items() if row.key_row == ours.rows[tail] or tail in same}
        done = []
        for tail, row in rows.items():
            if await self._mend(partition, row_codec.encode([row]), ours.rows[tail], ours.applied):
                done.append(split_tail(tail))
        return tuple(done)

    async def _with_changes(self, partition: int, ours: _Seen) -> tuple[tuple[bytes, bytes], ...]:
        """Make anew the change rows that cannot be decoded, of keys that are whole otherwise, from their key rows. The
        keys."""
        loop = asyncio.get_running_loop()
        done = []
        for tail, row in (await loop.run_in_executor(self._pool, self._rows_without_change, partition, ours)).items():
            if await self._mend(partition, row_codec.encode([row]), row.key_row, ours.applied):
                done.append(split_tail(tail))
        return tuple(done)

    def _rows_without_change(self, partition: int, ours: _Seen) -> dict[bytes, row_codec.TransferRow]:
        """In a thread: what a change row says beyond its key row is not known any more. So it becomes a change of our
        own: every queue offers it, and a reference too many changes nothing; a tombstone that leaves leaves again."""
        found: dict[bytes, row_codec.TransferRow] = {}
        with closing(self._store.far.snapshot(partition)) as snapshot:
            for tail in ours.damaged:
                offset, data = row_codec.offset_seen(ours.rows[tail]), snapshot.named_object(tail)
                if offset is None or data is None or not _change_is_damaged(snapshot, offset):
                    continue
                time_ms = max(0, decode_key_row(ours.rows[tail]).last_modified_ms)
                head = CHANGE_HEAD.pack(EntryKind.DATA, key_hash(*split_tail(tail)), time_ms) + self._own
                row = row_codec.TransferRow(offset, head + tail, ours.rows[tail], data)
                if says_so(row):
                    found[tail] = row
        return found

    def _rows_of_objects(
        self, partition: int, tails: Iterable[bytes], objects: Mapping[bytes, bytes] | None
    ) -> tuple[dict[bytes, row_codec.TransferRow], set[bytes]]:
        """In a thread: the rows of keys as their objects say that they should be; a key whose object says nothing, or
        that has no change, is left out. And those of which `objects` has what is here."""
        found: dict[bytes, row_codec.TransferRow] = {}
        same: set[bytes] = set()
        with closing(self._store.far.snapshot(partition)) as snapshot:
            for tail, change in newest_changes(self._store, partition, tails).items():
                ours = snapshot.named_object(tail)
                data = ours if objects is None else objects[tail]
                if data is None:
                    continue
                try:
                    row = made_of(data, change.offset)
                except CodecError:
                    continue
                head = CHANGE_HEAD.pack(change.kind, change.key_hash, change.time_ms) + change.origin
                found[tail] = row_codec.TransferRow(change.offset, head + tail, row, data)
                if objects is not None and data == ours:
                    same.add(tail)
        return found, same

    async def _asked(
        self, node: str, partition: int, segment: int, tail: bytes | None, applied: int
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """(applied offset there, [(name, key row)]) of a segment, or of one key [(rows as a chunk, b"")]."""
        body: bytes = msgpack.packb([VERSION, partition, segment, tail, applied])
        match _unpacked(await self._request(node, ROWS_ASKED, body, TIMEOUT_MS)):
            case [int(version), int(offset), list(items)] if version == VERSION and offset >= applied:
                if all(isinstance(i, list) and len(i) == 2 and all(isinstance(b, bytes) for b in i) for i in items):
                    return offset, [(first, second) for first, second in items]
        raise CodecError("its answer is no list of rows, or of another version")

    # -- giving -----------------------------------------------------------------------------------------

    async def _answer_rows(self, _node: str, body: bytes) -> bytes:
        match _unpacked(body):
            case [int(version), int(partition), int(segment), tail, int(applied)] if version == VERSION and (
                tail is None or isinstance(tail, bytes)
            ):
                pass
            case _:
                raise CodecError("not a question for the rows of a segment, or of another version")
        loop = asyncio.get_running_loop()
        end_s = loop.time() + APPLIED_S
        while self._store.applied(partition).offset < applied:
            if loop.time() > end_s:
                raise NotReady(f"partition {partition} is not applied to {applied} there")
            await asyncio.sleep(POLL_S)
        if not self._others(partition):
            raise NotReady(f"the copy of partition {partition} is not in sync there")
        offset, items = await loop.run_in_executor(self._pool, self._given, partition, segment, tail)
        packed: bytes = msgpack.packb([VERSION, offset, items])
        return packed

    def _given(self, partition: int, segment: int, tail: bytes | None) -> tuple[int, list[tuple[bytes, bytes]]]:
        """In a thread: what `_asked` wants."""
        with closing(self._store.far.snapshot(partition)) as snapshot:
            rows = rows_of(snapshot, segment)
            if tail is None:
                return snapshot.end.offset, list(rows.items())
            if tail not in rows:
                raise NotReady("the key has gone meanwhile")
            return snapshot.end.offset, [(snapshot.rows(decode_key_row(rows[tail]).offset, 1).rows, b"")]

    async def _answer_look(self, _node: str, body: bytes) -> bytes:
        match _unpacked(body):
            case [int(version), int(partition), int(segment)] if version == VERSION:
                await self.segment(partition, segment)
                return b""
        raise CodecError("not a segment to be looked at, or of another version")

    # -- reading ----------------------------------------------------------------------------------------

    async def _read(self, partition: int, segment: int) -> _Seen:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._seen, partition, segment)

    def _seen(self, partition: int, segment: int) -> _Seen:
        with closing(self._store.far.snapshot(partition)) as snapshot:
            rows = rows_of(snapshot, segment)
            damaged = frozenset(tail for tail, row in rows.items() if not is_complete(snapshot, tail, row))
            return _Seen(snapshot.end.offset, rows, damaged)

    def _contradicting(self, partition: int, segments: Sequence[int]) -> list[int]:
        """In a thread: those of `segments` with a row that contradicts itself, as far as LOOKED_MAX rows reach."""
        found: list[int] = []
        looked = 0
        with closing(self._store.far.snapshot(partition)) as snapshot:
            for segment in segments:
                rows = rows_of(snapshot, segment)
                looked += len(rows)
                if looked > LOOKED_MAX:
                    break
                if not all(is_complete(snapshot, tail, row) for tail, row in rows.items()):
                    found.append(segment)
        return found

    async def unreadable(self, partition: int, most: int) -> list[int]:
        """Up to `most` segments with a key row that cannot be decoded, or whose change row cannot; change rows that
        cannot and stand for nothing go. Raises Corruption when the store cannot read them at all."""
        loop = asyncio.get_running_loop()
        segments, void = await loop.run_in_executor(self._pool, self._undecodable, partition, most)
        for offset, seen in void.items():
            if await self._drop_change(partition, offset, seen):
                log.warning("trees.change_row_dropped", partition=partition, offset=offset)
        return segments

    def _undecodable(self, partition: int, most: int) -> tuple[list[int], dict[int, bytes]]:
        """In a thread: what `unreadable` wants, and the change rows, up to `most`, that cannot be decoded and to whose
        offsets no key row points. While a key row cannot be decoded, any of them may be that key's, and stays."""
        found: list[int] = []
        with (
            closing(self._store.far.snapshot(partition)) as snapshot,
            closing(snapshot.key_pages(segment_name(0), SEGMENT_COUNT, UNREADABLE_ROWS, UNREADABLE_BYTES)) as pages,
        ):
            damaged = _damaged_changes(snapshot, most)
            void, blind = dict(damaged), False
            for names, rows in pages:
                began_s = clock.monotonic()
                for name, row in zip(names, rows, strict=True):
                    offset = row_codec.offset_seen(row)
                    if offset is not None and offset not in damaged:
                        continue
                    if offset is None:
                        blind = True
                    else:
                        void.pop(offset, None)
                    segment = int.from_bytes(name[:SEGMENT_BYTES], "big")
                    if segment not in found[-1:]:
                        found.append(segment)
                        if len(found) == most:
                            return found, {}
                clock.sleep((clock.monotonic() - began_s) * REST_SHARE)
        return found, {} if blind else void

    def metrics(self) -> list[Sample]:
        """For Prometheus."""
        return [("isthmus_tree_rows_mended_total", {}, self.mended_total)]


def _change_is_damaged(snapshot: Snapshot, offset: int) -> bool:
    try:
        snapshot.rows(offset, 1)
    except DamagedChange as error:
        return error.offset == offset
    except Corruption:
        return False
    return False


def _damaged_changes(snapshot: Snapshot, most: int) -> dict[int, bytes]:
    """In a thread: the first `most` change rows, or some more, that cannot be decoded, by their offsets."""
    found: dict[int, bytes] = {}
    offset: int | None = 0
    while offset is not None and len(found) < most:
        began_s = clock.monotonic()
        rows, offset = snapshot.damaged_changes(offset, UNREADABLE_ROWS)
        found.update(rows)
        clock.sleep((clock.monotonic() - began_s) * REST_SHARE)
    return found


def _names(keys: Sequence[tuple[bytes, bytes]]) -> list[str]:
    return [f"{bucket!r}/{key!r}" for bucket, key in islice(keys, 5)]


def _unpacked(body: bytes) -> object:
    try:
        found: object = msgpack.unpackb(body, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not about rows to be mended: {error}") from error
    return found
