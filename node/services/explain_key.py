"""One key explained: where and when it was accepted, its leader, its state in each queue and in the other clusters.

`KeyExplainer` answers for one node; the node that was asked joins the answers (`joined`) and looks the key up in the
clusters that full-sync compares with (`node.services.remote_lookup`). Reads only. `queues.explain` has the queues'
part; `node.admin_api.replication` shows the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Final

import msgspec
import structlog

from isthmus.node.nouns.rows import dot_of
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.node.services.remote_lookup import ALL_SENT, NOT_HERE, NOTHING, REAPED
from isthmus.node.services.sink_listing import letter_row
from isthmus.queues.admin import QueueActs
from isthmus.repl.coordinator.routing import RoutingTable
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import IsthmusError, LocalFault
from isthmus.repl.model.keys import Key, key_hash, segment_of
from isthmus.repl.model.objects import decode_object
from isthmus.repl.model.vclock import (
    EPOCH_BITS,
    OFFSET_BITS,
    decode_clock,
    of_partition,
    offset_of,
    partition_prefix,
)
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.store.port import Change, DamagedChange
from isthmus.sink.service import Sink

log = structlog.get_logger(__name__)

CONFIRMED_S: Final = 1.0
"""How long a leader waits for its followers to confirm it; the node that asks waits for 2 s
(`node.services.cluster_query`)."""

assert EPOCH_BITS + OFFSET_BITS == 64


class KeyExplainer:
    """One node's knowledge of a key."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        routes: RoutingTable,
        acts: QueueActs,
        reaper: Reaper,
        pool: Executor,
        fullsync: FullSyncStatus,
        sink: Sink,
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._routes = routes
        self._acts = acts
        self._reaper = reaper
        self._pool = pool
        self._fullsync = fullsync
        self._sink = sink

    async def own(self, key: Key) -> dict[str, Any]:
        """{"leads", "partition", "segment", "leader", "object", "reaped_clock", "queues", "lower", "reap", "compared",
        "dead_letters"}. Only the partition's leader has "object", "reaped_clock" (that of a removed tombstone, in hex,
        where it is remembered) and "queues". Raises UnknownBucketType, NotReady."""
        hash64 = key_hash(key.bucket, key.key)
        partition = self._routes.partition_of(key.bucket_type, hash64)
        place = self._runtime.partitions.get(partition)
        leads = place is not None and place.replica.ready and await self._is_confirmed(place)
        shown: dict[str, Any] = {
            "leads": leads,
            "partition": partition,
            "segment": segment_of(hash64),
            "leader": self._routes.leader(partition),
            "object": None,
            "reaped_clock": None,
            "reap": None,
            "compared": self._fullsync.comparisons_of(key),
            "dead_letters": await self._refused(key),
        }
        change = None
        if leads:
            loop = asyncio.get_running_loop()
            shown["object"], change = await loop.run_in_executor(self._pool, self._object, partition, hash64, key)
            if shown["object"] is None:
                reaped = self._store.reaped_clocks(partition).get((key.bucket, key.key))
                shown["reaped_clock"] = None if reaped is None else reaped.hex()
            elif shown["object"]["tombstone"]:
                shown["reap"] = self._reaper.explain(partition, key)
        return {**shown, **self._acts.explain(key, partition if leads else None, change)}

    async def _is_confirmed(self, place: Partition) -> bool:
        """Whether what this leader has applied is committed; a leader that is cut off may have been replaced, and what
        it has is old."""
        try:
            async with asyncio.timeout(CONFIRMED_S):
                await self._runtime.committed(place)
        except (IsthmusError, TimeoutError):
            return False
        return place.replica.ready

    async def _refused(self, key: Key) -> list[dict[str, Any]] | None:
        """The dead letters of the key; None when their file cannot be read."""
        try:
            letters = await self._sink.dead_letters_of(key)
        except LocalFault as error:
            log.warning("explain.dead_letters_unread", error=str(error))
            return None
        return [msgspec.to_builtins(letter_row(one)) for one in letters]

    def _object(self, partition: int, hash64: int, key: Key) -> tuple[dict[str, Any] | None, Change | None]:
        """The object and its change; runs in a thread."""
        found = self._store.key_row(partition, hash64, key.bucket, key.key)
        if found is None:
            return None, None
        row = decode_key_row(found)
        try:
            changes = self._store.changes(partition, row.offset, 1)
        except DamagedChange:  # until it is repaired
            changes = []
        change = changes[0] if changes and changes[0].offset == row.offset else None
        payload = self._store.object(partition, key.bucket, key.key)
        siblings = () if payload is None else decode_object(payload).siblings
        return {
            "tombstone": row.tombstone,
            "bytes": row.size_bytes,
            "offset": row.offset,
            "epoch": place_of(row.clock, self._runtime.cluster_uuid, partition, row.offset),
            "applied_ms": None if change is None else change.time_ms,
            "origin": None if change is None else change.origin.hex(),
            "last_modified_ms": row.last_modified_ms,
            "clock": row.clock.hex(),
            "seen": [msgspec.to_builtins(dot_of(actor, counter)) for actor, counter, _ in decode_clock(row.clock)],
            "siblings": [
                {
                    **msgspec.to_builtins(dot_of(*one.dot)),
                    "tombstone": one.tombstone,
                    "last_modified_ms": one.last_modified_ms,
                }
                for one in siblings
            ],
        }, change


def place_of(clock: bytes, own: bytes, partition: int, offset: int) -> int | None:
    """The epoch of our write at `offset`, by the clock; None when the newest change is no write of ours."""
    for _, counter, _ in of_partition(decode_clock(clock), partition_prefix(own, partition)):
        if offset_of(counter) == offset:
            return counter >> OFFSET_BITS
    return None


STEPS_TOLD: Final = 3
"""Queues whose next step appears in the sentence about a key; first those that do not proceed by themselves."""


def joined(answers: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """All nodes' answers as one (None: no answer). `names`: uuid of a cluster -> its name, as far as known."""
    known = {node: one for node, one in answers.items() if one is not None}
    led_by = next((node for node, one in known.items() if one["leads"]), None)
    first: dict[str, Any] = known[led_by] if led_by is not None else next(iter(known.values()))
    found = first["object"] if led_by is not None else None
    if found is not None:
        found["origin_cluster"] = names.get(found.get("origin") or "")
        for dot in (*found["seen"], *found["siblings"]):
            dot["cluster"] = names.get(dot["uuid"] or "")
    queues = first["queues"] if led_by is not None else None
    promised = [row for one in known.values() for row in one.get("compared", ()) if not row.get("suspended")]
    for queue in queues or ():
        compares = any(queue["queue"] in row.get("queues", [queue["queue"]]) for row in promised)
        if queue["state"] in ("gap", "not-offered") and not compares and len(known) == len(answers):
            queue["next"] = f"isthmus queue push {queue['queue']} sends it: no full-sync that runs compares it"
    bulk = [{"node": node, **row} for node, one in known.items() for row in one["lower"]]
    changed_ms = (found or {}).get("applied_ms") or -1
    compared = [
        {"node": node, **row, "changed_since": (row.get("at_ms") or changed_ms + 1) <= changed_ms}
        for node, one in known.items()
        for row in one.get("compared", ())
    ]
    letters = [{"node": node, **row} for node, one in known.items() for row in one.get("dead_letters") or ()]
    silent = sorted(answers.keys() - known.keys())
    return {
        "partition": first["partition"],
        "segment": first["segment"],
        "leader": led_by or first["leader"],
        "known": led_by is not None,
        "reason": "" if led_by is not None else _why_unknown(first["leader"], known),
        "object": found,
        "reaped_clock": first.get("reaped_clock") if led_by is not None else None,
        "queues": queues,
        "lower": bulk,
        "lower_unknown_at": silent,
        "reap": first["reap"],
        "compared": sorted(compared, key=lambda row: (row["fullsync"], row["node"])),
        "dead_letters": letters,
        "dead_letters_unknown_at": sorted(node for node, one in known.items() if one.get("dead_letters", ()) is None),
        "next": _next(
            led_by,
            found,
            queues,
            bulk,
            first["reap"],
            [r for r in letters if r["at_ms"] > changed_ms],
            reaped=bool(first.get("reaped_clock")),
        ),
    }


def _why_unknown(leader: str | None, known: Mapping[str, Any]) -> str:
    """Why no answer is the leader's."""
    if leader in known:
        return f"node {leader}, the leader as far as is known, cannot confirm that it still leads"
    return f"the leader, {leader or 'none'}, does not answer"


def _next(
    led_by: str | None,
    found: Any,
    queues: list[dict[str, Any]] | None,
    bulk: list[dict[str, Any]],
    reap: Any,
    refused: list[dict[str, Any]],
    *,
    reaped: bool,
) -> str:
    """The next step, in a sentence. `refused`: dead letters that are newer than the object here. `reaped`: there is
    none here, and it is remembered that it was deleted."""
    if led_by is None:
        return "ask again once the partition has a leader that answers"
    for row in bulk:
        if row.get("next"):
            return f"queue {row['queue']}: {row['next']}"
        return (
            f"queue {row['queue']} sends it at the {row['priority'].replace('_', '-')} priority from node {row['node']}"
        )
    if refused:
        one = max(refused, key=lambda row: int(row["at_ms"]))
        return (
            f"node {one['node']} refused what {one['source_cluster']} sent ({one['error']}): once that would be taken, "
            f"isthmus sink dead-letters retry {one['id']} there"
        )
    if found is None:
        return REAPED if reaped else NOT_HERE
    steps = [
        f"queue {one['queue']}: {one['next']}"
        for state in ("gap", "not-offered", "unknown", "in-flight", "waiting", "not-read")
        for one in queues or ()
        if one["state"] == state
    ]
    if steps:
        more = len(steps) - STEPS_TOLD
        return "; ".join(steps[:STEPS_TOLD] + ([f"and {more} more queues"] if more > 0 else []))
    if reap is not None and reap["waits"]:
        return f"the tombstone stays: {reap['waits']}"
    if not queues:
        return "nothing: this cluster has no queue"
    if any(one["state"] == "acknowledged" for one in queues):
        return ALL_SENT
    for one in queues:
        if one["state"] == "before":
            return str(one["next"])
    return f"{NOTHING}: no queue offers it"
