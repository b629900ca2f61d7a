"""Runs seeds of Riaks on this node.

By the queue: the Riak is asked to put the keys of a bucket into its queue, a slice of last-modified times after the
other, so that no node's queue overflows; the links of all nodes fetch them. A slice is done when the queues are empty
again and the Riak's clocks of its keys are those of this cluster, or newer here; what is missing is sent once more. By
lists of keys, for Riaks without queues: each object is fetched by its key and pushed from here.

A seed ends when its record names another run, or another state, than this one's: an operator stopped it, or another
node goes on with it. `sink.riak_seeds` has the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import structlog
from msgspec.structs import replace

from isthmus.config.settings import ALL_TYPES, RiakPeerSettings, RiakSettings
from isthmus.queues.rate_limit import Rates, Throttle
from isthmus.queues.riak_origin import RIAK_CLUSTER, riak_source
from isthmus.repl.http.client import HttpRefused, PeerCredentials
from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.metastore.watched_document import DocumentEvents, WatchedDocument
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError, NotReady, OutcomeUnknown, PeerFault, Retryable
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import encode_object, summarize_encoded
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.requests import PushItem, PushOutcome
from isthmus.repl.model.vclock import decode_clock, descends
from isthmus.repl.unforeseen import unforeseen
from isthmus.sink.dead_letters import DeadLetter, DeadLetters
from isthmus.sink.riak_answers import DotlessSiblings
from isthmus.sink.riak_client import KEYS_SENT_MAX, KeyClock, RiakClient
from isthmus.sink.riak_seeds import DOCUMENT, SeedRecord, Seeds, names_of, place_of, refuse_unreadable

log = structlog.get_logger(__name__)

T = TypeVar("T")

EVENTS: Final = DocumentEvents("sink.riak_seeds_malformed", "sink.riak_seeds_unread")

FOLD_TIMEOUT_MS: Final = 600_000
"""How long a Riak may take for a fold over one bucket: its own limit is an hour, and it sends nothing meanwhile. A
guess for ten million keys."""

NOTE_MS: Final = 2_000
"""Time between two notes of progress while objects are fetched by their keys: each is a write of the metastore."""

POLL_S: Final = 1.0
"""Pause between two looks at the queues' lengths, and at keys that have not arrived."""

ARRIVALS: Final = 10
"""Looks in a row at keys that a queue has given out and that are not here, of which none brings one more, before they
are sent once more: pushes of other nodes may be under way."""

TRIES: Final = 10
"""Requests in a row that may fail, with growing pauses of RETRY_S on, before a seed fails: a minute of a Riak's
restart."""

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 10.0

LOOKED_AT: Final = 256
"""Keys that are read here at once to compare their clocks."""

LOOKED_AT_BYTES: Final = 64_000_000
"""Bytes of objects that are read at once; keys beyond it are read one by one."""

FETCHED_AT_ONCE: Final = 8
"""Objects that are fetched by their keys at once: each takes a thread."""

PUSHED_AT_ONCE: Final = 64
"""Objects that are pushed together."""


class SeedEnded(Exception):
    """The record names another run or state: an operator stopped it, or another node goes on with it."""


class SeedNodes(Protocol):
    """This node's cluster, as seeds need it."""

    def live_nodes(self) -> Iterable[str]:
        """Names of the nodes that live."""

    def known_types(self) -> frozenset[bytes] | None:
        """The bucket types; None where there may be others."""


class SeederPorts(NamedTuple):
    """What seeds use."""

    kv: KeyValue
    metastore: Metastore
    letters: DeadLetters
    cluster: SeedNodes
    time: TimeSource
    access_to: Callable[[RiakPeerSettings], PeerCredentials]


class Slice(NamedTuple):
    """Keys of a bucket that were last modified from `start_s` to `end_s`; both 0: all of them."""

    start_s: int
    end_s: int
    keys: int

    @property
    def filter(self) -> dict[str, Any]:
        """The filter of folds."""
        return {"date_range": {"start": self.start_s, "end": self.end_s}} if self.end_s else {}


class RiakSeeder:
    """The seeds of this node. Belongs to the event loop. `on_change` gets the names of the Riaks of which a seed runs
    anywhere in this cluster."""

    def __init__(
        self,
        node: str,
        settings: RiakSettings,
        ports: SeederPorts,
        *,
        peer_named: Callable[[str], RiakPeerSettings],
        on_change: Callable[[frozenset[str]], None],
        timeout_ms: int,
    ) -> None:
        self._node = node
        self._settings = settings
        self._ports = ports
        self._time = ports.time
        self._peer_named = peer_named
        self._on_change = on_change
        self._timeout_ms = timeout_ms
        self._records = WatchedDocument(ports.metastore, DOCUMENT, Seeds(), EVENTS, self._adopt)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By the Riak's name."""

    async def start(self) -> None:
        """Follow the records, and go on with the seeds that ran here."""
        await self._records.start()
        for record in self._records.value.seeds:
            if record.state == "running" and record.node == self._node:
                self._begin_task(record)

    async def stop(self) -> None:
        """End the tasks; the next start goes on with them."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._records.stop()

    def records(self) -> Sequence[SeedRecord]:
        """All seeds, as this node read them last."""
        return self._records.value.seeds

    def is_interrupted(self, record: SeedRecord) -> bool:
        """Whether the node that runs it does not live: the seed goes on when it starts again, or once it is ordered at
        another one."""
        return record.state == "running" and record.node not in {*self._ports.cluster.live_nodes(), self._node}

    def fault_of(self, riak: str) -> str:
        """Why the newest seed of a Riak does not go on by itself; empty: it does, has ended, or there is none."""
        found = self._records.value.of(riak)
        if found is None:
            return ""
        if self.is_interrupted(found):
            return f"interrupted: its node {found.node} is not live"
        return f"failed: {found.error}" if found.state == "failed" else ""

    def _adopt(self, seeds: Seeds) -> None:
        self._on_change(frozenset(one.riak for one in seeds.seeds if one.state == "running"))

    # ---------------------------------------------------------------- acts

    async def begin(
        self, riak: str, way: str, bucket_type: bytes | None, bucket: bytes | None, by: str, reason: str
    ) -> SeedRecord:
        """Begin a seed, or go on with the one of the same extent that did not end. Raises BadInput, NotReady."""
        self._peer_named(riak)
        if way not in ("queue", "keys"):
            raise BadInput(f"a seed goes by queue or by keys, not by {way[:64]!r}")
        if bucket is not None and bucket_type is None:
            bucket_type = b"default"
        now_ms = self._time.wall_ms()
        named = place_of(bucket_type or b"", bucket or b"")
        new = SeedRecord(
            riak=riak,
            run=machine().random_bytes(8).hex(),
            node=self._node,
            way="queue" if way == "queue" else "keys",
            bucket_type=named[0] if bucket_type is not None else None,
            bucket=named[1] if bucket is not None else None,
            began_ms=now_ms,
            changed_ms=now_ms,
            by=by,
            at_ms=now_ms,
            reason=reason,
        )

        def begun(before: Seeds) -> Seeds:
            found = before.of(riak)
            if found is None or found.run == new.run:
                return before.with_record(found or new)
            if (
                found.state == "running"
                and not self.is_interrupted(found)
                and not (found.node == self._node and found.riak not in self._tasks)
            ):
                raise BadInput(f"a seed of {riak} runs on node {found.node} (isthmus riak status)")
            same = (found.way, found.bucket_type, found.bucket) == (new.way, new.bucket_type, new.bucket)
            if found.state == "done" or not same:
                return before.with_record(new)
            went_on = replace(
                found, run=new.run, node=new.node, state="running", error="", ended_ms=None, by=by, at_ms=now_ms,
                reason=reason, changed_ms=now_ms,
            )  # fmt: skip
            return before.with_record(went_on)

        record = (await self._change(begun)).of(riak)
        assert record is not None
        log.info("sink.riak_seed_begun", riak=riak, way=record.way, after=record.after, by=by, reason=reason)
        self._begin_task(record)
        return record

    async def halt(self, riak: str, by: str, reason: str) -> SeedRecord:
        """Stop a seed, wherever it runs; it can go on later. Raises BadInput, NotReady."""

        def halted(before: Seeds) -> Seeds:
            found = before.of(riak)
            if found is None or (found.state not in ("running", "failed") and found.reason != reason):
                raise BadInput(f"no seed of {riak} runs (isthmus riak status)")
            now_ms = self._time.wall_ms()
            ended = found.ended_ms or now_ms
            return before.with_record(replace(found, state="stopped", ended_ms=ended, by=by, reason=reason))

        record = (await self._change(halted)).of(riak)
        assert record is not None
        log.info("sink.riak_seed_stopped", riak=riak, by=by, reason=reason)
        return record

    async def _change(self, change: Callable[[Seeds], Seeds]) -> Seeds:
        try:
            return (await self._records.change(change, unreadable=refuse_unreadable)).value
        except OutcomeUnknown as error:
            raise NotReady(str(error)) from error

    # ---------------------------------------------------------------- a run

    def _begin_task(self, record: SeedRecord) -> None:
        before = self._tasks.get(record.riak)
        if before is not None and not before.done():
            before.cancel()
        task = asyncio.get_running_loop().create_task(self._run(record))
        self._tasks[record.riak] = task
        task.add_done_callback(lambda _: self._tasks.pop(record.riak, None) if self._is(record, task) else None)

    def _is(self, record: SeedRecord, task: asyncio.Task[None]) -> bool:
        return self._tasks.get(record.riak) is task

    async def _run(self, record: SeedRecord) -> None:
        run: _Run | None = None
        try:
            run = _Run(self, record, self._peer_named(record.riak))
            await run.all_buckets()
            await run.note(state="done", ended_ms=self._time.wall_ms(), error="")
            log.info("sink.riak_seed_done", riak=record.riak, keys=run.record.keys, missing=run.record.missing)
        except SeedEnded:
            log.info("sink.riak_seed_left", riak=record.riak)
        except IsthmusError as error:
            await self._failed(run, record, error)
        except Exception as error:  # noqa: BLE001 -- a seed that fails says so, and its node goes on
            await self._failed(run, record, unforeseen.exception("sink.riak_seed_bug", error, riak=record.riak))
        finally:
            if run is not None:
                run.close()

    async def _failed(self, run: _Run | None, record: SeedRecord, error: IsthmusError) -> None:
        log.warning("sink.riak_seed_failed", riak=record.riak, error=str(error))
        with suppress(IsthmusError, SeedEnded):
            await self.write(
                record if run is None else run.record,
                state="failed", error=str(error)[:500], ended_ms=self._time.wall_ms(),
            )  # fmt: skip

    async def write(self, record: SeedRecord, **changed: Any) -> SeedRecord:
        """Write what changed of the record of a run. Raises SeedEnded, NotReady, BadInput."""
        new = replace(record, changed_ms=self._time.wall_ms(), **changed)

        def written(before: Seeds) -> Seeds:
            found = before.of(record.riak)
            if found is None or found.run != record.run or found.state != "running":
                if found == new:
                    return before
                raise SeedEnded
            return before.with_record(new)

        await self._change(written)
        return new


class _Run:
    """One run of a seed."""

    def __init__(self, seeder: RiakSeeder, record: SeedRecord, peer: RiakPeerSettings) -> None:
        ports, settings = seeder._ports, seeder._settings
        self._seeder = seeder
        self._ports = ports
        self._settings = settings
        self._peer = peer
        self.record = record
        access = ports.access_to(peer)
        timeouts = {"timeout_ms": seeder._timeout_ms, "fold_timeout_ms": FOLD_TIMEOUT_MS}
        self._clients = [
            RiakClient(url, access, connections=FETCHED_AT_ONCE, **timeouts) for url in peer.urls.split(",")
        ]
        self._noted_ms = 0
        self._at = 0
        """The client that is asked first."""
        now_ms = ports.time.now_ms()
        self._throttle = Throttle(Rates(peer.rate_limit_bytes, peer.object_rate_limit_count), now_ms)
        self._types = None if peer.bucket_types == ALL_TYPES else set(peer.bucket_types.encode().split(b","))

    def close(self) -> None:
        """End requests of threads that are still under way."""
        for client in self._clients:
            client.abort()

    async def note(self, **changed: Any) -> None:
        """Write progress. Raises SeedEnded."""
        self._noted_ms = self._ports.time.now_ms()
        for number in range(TRIES):
            try:
                self.record = await self._seeder.write(self.record, **changed)
                return
            except Retryable:
                if number == TRIES - 1:
                    raise
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_S * 2**number))

    async def _ask(self, request: Callable[[RiakClient], T]) -> T:
        """The answer of one of the Riak's nodes, in a thread. Raises PeerFault when TRIES failed."""
        for number in range(TRIES):
            client = self._clients[self._at % len(self._clients)]
            try:
                return await asyncio.to_thread(request, client)
            except DotlessSiblings:
                raise
            except (PeerFault, CodecError) as error:
                refused = isinstance(error, HttpRefused) and error.status not in (500, 502, 503, 504)
                if refused or number == TRIES - 1:
                    raise
                self._at += 1
                log.info("sink.riak_seed_again", riak=self._peer.name, error=str(error))
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_S * 2**number))
        raise AssertionError("the last try raises")

    # ---------------------------------------------------------------- buckets

    async def all_buckets(self) -> None:
        """Seed every bucket that is left. Raises IsthmusError, SeedEnded."""
        buckets = await self._buckets()
        await self.note(buckets=len(buckets), error="")
        after = None if self.record.after is None else names_of(self.record.after)
        for at in buckets:
            if after is not None and at <= after:
                continue
            place = place_of(*at)
            if self.record.current != place:
                await self.note(current=place, current_keys=None, current_done=0, current_upto_s=0)
            if self.record.way == "queue":
                await self._by_queue(*at)
            else:
                await self._by_keys(*at)
            done = self.record.buckets_done + 1
            await self.note(after=place, buckets_done=done, current=None, current_keys=None, current_done=0)

    async def _buckets(self) -> list[tuple[bytes, bytes]]:
        """The buckets of the seed, in order."""
        names = names_of((self.record.bucket_type or "", self.record.bucket or ""))
        if self.record.bucket is not None:
            return [names]
        if self.record.way == "queue":
            found = await self._ask(lambda client: client.buckets())
        else:
            found = []
            for bucket_type in [names[0]] if self.record.bucket_type is not None else self._wanted_types():
                listed = await self._ask(lambda client, kind=bucket_type: client.listed_buckets(kind))  # type: ignore[misc]
                found += [(bucket_type, bucket) for bucket in listed]
        if self.record.bucket_type is not None:
            found = [at for at in found if at[0] == names[0]]
        return sorted(at for at in found if self._types is None or at[0] in self._types)

    def _wanted_types(self) -> list[bytes]:
        return sorted(self._types if self._types is not None else self._ports.cluster.known_types() or {b"default"})

    # ---------------------------------------------------------------- by the queue

    async def _by_queue(self, bucket_type: bytes, bucket: bytes) -> None:
        total = await self._ask(lambda client: client.count(bucket_type, bucket, {}))
        await self.note(current_keys=total)
        async for part in self._slices(bucket_type, bucket, total):
            sent = await self._ask(
                lambda client, found=part.filter: client.send_range(  # type: ignore[misc]
                    bucket_type, bucket, self._peer.queue, found
                )
            )
            await self.note(keys=self.record.keys + sent)
            await self._drained()
            await self._compare(bucket_type, bucket, part)
            done = min(self.record.current_done + part.keys, total)
            upto_s = part.end_s + 1 if part.end_s else 0
            await self.note(current_done=done, current_upto_s=upto_s, error="")

    async def _slices(self, bucket_type: bytes, bucket: bytes, total: int) -> AsyncIterator[Slice]:
        """Slices of a bucket that are left, in the order of time, of `seed_slice_count` keys at most unless more were
        modified in one second."""
        most, begin_s = self._settings.seed_slice_count, self.record.current_upto_s
        if total <= most and not begin_s:
            yield Slice(0, 0, total)
            return
        end_s = self._ports.time.wall_ms() // 1000 + DAY_S
        left = [(begin_s, end_s)]
        while left:
            start_s, end_s = left.pop()
            wanted = Slice(start_s, end_s, 0).filter
            keys = await self._ask(lambda client, found=wanted: client.count(bucket_type, bucket, found))  # type: ignore[misc]
            if keys > most and start_s < end_s:
                middle_s = (start_s + end_s) // 2
                left += [(middle_s + 1, end_s), (start_s, middle_s)]
            elif keys:
                yield Slice(start_s, end_s, keys)

    async def _drained(self) -> None:
        """Wait until no node's queue has changes of a fold, or keys that were sent again. Raises BadInput where a node
        has no such queue."""
        told = ""
        while True:
            waiting, silent = 0, ""
            for client in self._clients:
                try:
                    lengths = await asyncio.to_thread(client.queue_lengths, self._peer.queue)
                except PeerFault as error:
                    silent = str(error)
                    continue
                if lengths is None:
                    raise BadInput(f"{client.url} has no queue {self._peer.queue} (replrtq_srcqueue there)")
                waiting += lengths.fold + lengths.fullsync
            if not waiting and not silent:
                return
            words = f"{waiting} changes wait in the Riak's queues" if waiting else f"not all queues are known: {silent}"
            if words != told:
                told = words
                await self.note(error=words[:500])
            await asyncio.sleep(POLL_S)

    async def _compare(self, bucket_type: bytes, bucket: bytes, part: Slice) -> None:
        """Compare the clocks of a slice's keys with those here; what is missing is sent once more."""
        try:
            rows = await self._ask(lambda client: client.clocks(bucket_type, bucket, part.filter))
        except PeerFault as error:
            shown = "/".join(place_of(bucket_type, bucket))
            self.record = self.record.noted(f"{shown}: clocks were not compared: {error}"[:300])
            return
        missing = await self._arrived(rows)
        if missing:
            for at in range(0, len(missing), KEYS_SENT_MAX):
                piece = missing[at : at + KEYS_SENT_MAX]
                await self._ask(lambda client, keys=piece: client.send_keys(self._peer.queue, keys))  # type: ignore[misc]
            await self._drained()
            missing = await self._arrived(missing)
        gone = [one for one in missing if await self._is_deleted(one)]
        lacking = len(missing) - len(gone)
        await self.note(compared=self.record.compared + len(rows), missing=self.record.missing + lacking)
        if lacking:
            lost = next(one for one in missing if one not in gone)
            name = "/".join((*place_of(bucket_type, bucket), repr(lost.key.key)))
            self.record = self.record.noted(f"{lacking} keys are not here as in the Riak, the first is {name}"[:300])

    async def _arrived(self, rows: Sequence[KeyClock]) -> list[KeyClock]:
        """Those that are not here, once ARRIVALS looks have found none more."""
        missing, idle = await self._missing(rows), 0
        while missing and idle < ARRIVALS:
            await asyncio.sleep(POLL_S)
            before, missing = len(missing), await self._missing(missing)
            idle = 0 if len(missing) < before else idle + 1
        return missing

    async def _missing(self, rows: Sequence[KeyClock]) -> list[KeyClock]:
        found: list[KeyClock] = []
        for at in range(0, len(rows), LOOKED_AT):
            piece = rows[at : at + LOOKED_AT]
            answers = await self._ports.kv.get_batch([one.key for one in piece], None, LOOKED_AT_BYTES)
            for row, answer in zip(piece, answers, strict=True):
                here: object = answer
                if isinstance(answer, Retryable):
                    with suppress(IsthmusError):
                        here = await self._ports.kv.get(row.key)
                if not isinstance(here, bytes) or not _has_seen(here, row):
                    found.append(row)
        return found

    async def _is_deleted(self, row: KeyClock) -> bool:
        """Whether the Riak has a tombstone: this cluster may have reaped it."""
        with suppress(IsthmusError):
            found = await self._ask(lambda client: client.object(row.key, self._settings.answer_bytes))
            return found is None or found.deleted
        return False

    # ---------------------------------------------------------------- by lists of keys

    async def _by_keys(self, bucket_type: bytes, bucket: bytes) -> None:
        client = self._clients[self._at % len(self._clients)]
        pieces = client.listed_keys(bucket_type, bucket)
        keys: list[bytes] = []
        while (piece := await asyncio.to_thread(_next_piece, pieces)) is not None:
            keys += piece
            while len(keys) >= PUSHED_AT_ONCE:
                await self._fetch_and_push(bucket_type, bucket, keys[:PUSHED_AT_ONCE])
                keys = keys[PUSHED_AT_ONCE:]
        if keys:
            await self._fetch_and_push(bucket_type, bucket, keys)

    async def _fetch_and_push(self, bucket_type: bytes, bucket: bytes, names: Sequence[bytes]) -> None:
        items: list[PushItem] = []
        letters: list[DeadLetter] = []
        for at in range(0, len(names), FETCHED_AT_ONCE):
            keys = [Key(bucket_type, bucket, name) for name in names[at : at + FETCHED_AT_ONCE]]
            for key, found in zip(keys, await asyncio.gather(*map(self._fetched, keys)), strict=True):
                if isinstance(found, IsthmusError):
                    letters.append(self._letter(key, found, None))
                elif found is not None:
                    items.append(PushItem(key, RIAK_CLUSTER, found))
        size = sum(len(item.payload) for item in items)
        self._throttle.spend(len(items), size, self._ports.time.now_ms())
        pushed = await self._push(items)
        letters += [self._letter(item.key, error, item.payload) for item, error in pushed]
        if letters:
            left_out = await asyncio.to_thread(self._ports.letters.add, letters)
            if left_out:
                raise BadInput(
                    f"{len(left_out)} refused objects are more than the dead letters that are kept "
                    "(sink.dead_letters): settle them, then go on"
                )
        self.record = replace(
            self.record,
            keys=self.record.keys + len(names),
            current_done=self.record.current_done + len(names),
            refused=self.record.refused + len(letters),
            error="",
        )
        if self._ports.time.now_ms() >= self._noted_ms + NOTE_MS:
            await self.note()
        wait_ms = self._throttle.wait_ms(self._ports.time.now_ms())
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)

    async def _fetched(self, key: Key) -> bytes | IsthmusError | None:
        """The object as bytes; the error that makes it a dead letter; None: it is gone."""
        try:
            found = await self._ask(lambda client: client.object(key, self._settings.answer_bytes))
        except DotlessSiblings as error:
            return error
        return None if found is None else encode_object(found)

    async def _push(self, items: Sequence[PushItem]) -> list[tuple[PushItem, IsthmusError]]:
        """Push until each is stored or refused; those that are refused."""
        refused: list[tuple[PushItem, IsthmusError]] = []
        left, number = list(items), 0
        while left:
            results = await self._ports.kv.push(left)
            both = list(zip(left, results, strict=True))
            refused += [
                (item, result.error)
                for item, result in both
                if result.outcome is PushOutcome.REJECTED and result.error is not None
            ]
            left = [item for item, result in both if result.outcome is PushOutcome.FAILED]
            if left:
                why = next(result.error for _, result in both if result.outcome is PushOutcome.FAILED)
                number += 1
                await self.note(error=f"{len(left)} objects are not stored yet: {why}"[:500])
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_S * 2 ** min(number, TRIES)))
        return refused

    def _letter(self, key: Key, error: IsthmusError, payload: bytes | None) -> DeadLetter:
        return DeadLetter(
            self._ports.time.wall_ms(),
            self._peer.queue,
            self._clients[self._at % len(self._clients)].url,
            riak_source(self._peer.name),
            self._peer.name,
            key,
            error.reason,
            str(error),
            len(payload or b""),
            payload,
        )


DAY_S: Final = 86_400
"""How far a Riak's clock may be ahead, so that its newest keys are within the last slice."""


def _next_piece(pieces: Iterator[list[bytes]]) -> list[bytes] | None:
    return next(pieces, None)


def _has_seen(here: bytes, row: KeyClock) -> bool:
    try:
        return descends(decode_clock(summarize_encoded(here).clock), row.clock)
    except CodecError:
        return False
