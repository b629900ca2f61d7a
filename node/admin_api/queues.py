"""The admin face's source queues: what there is, and what operators may do with them. docs/queues.md tells the meaning.

Passes on what an operator wants and shows what `queues.admin` says; of the whole cluster, what
every node answered (`node.services.queue_query`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from isthmus.config.text import no_such
from isthmus.node.admin_api.body import acting_user, count, flag, read_body, text
from isthmus.node.admin_api.queue_plan import plan_of
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.queue_query import (
    CLOSE_GAPS,
    LAGS,
    LEDGER,
    OPEN_GAPS,
    QUEUE_LISTING,
    CloseGaps,
    ListGaps,
    ListQueues,
    ReadLags,
    ReadLedger,
    applied_offsets,
)
from isthmus.node.services.replication_lag import lag_rows
from isthmus.queues.filters import TYPE, parse_filter
from isthmus.queues.queue_documents import SERVING, AppliedOffsets, AuditInfo, Positions, checked_settings
from isthmus.queues.rate_limit import Rates
from isthmus.queues.window_rules import FOLD, FULL_SYNC
from isthmus.repl.model.keys import Key
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.vclock import MAX_OFFSET

ACT_KEYS: Final = frozenset({"by", "reason"})
PLANNED_KEYS: Final = ACT_KEYS | {"dry_run"}
RESUME_KEYS: Final = ACT_KEYS | {"what", "node"}
SUSPEND_KEYS: Final = RESUME_KEYS | {"dry_run"}
RELEASE_KEYS: Final = PLANNED_KEYS | {"from"}
REGISTER_KEYS: Final = ACT_KEYS | {
    "name", "from", "positions", "filter", "cascade", "overflow", "queue_limit", "object_limit", "object_size_limit",
    "riak_fetch",
}  # fmt: skip
SET_KEYS: Final = PLANNED_KEYS | {
    "filter", "cascade", "overflow", "queue_limit", "object_limit", "object_size_limit", "lease_ms", "riak_fetch",
    "default", "from",
}  # fmt: skip
PLACE_KEYS: Final = ACT_KEYS | {"positions"}
RATE_KEYS: Final = ACT_KEYS | {"bytes_per_second", "objects_per_second", "default"}
PUSH_KEYS: Final = ACT_KEYS | {"bucket_type", "bucket", "keys", "encoding", "fold", "wait_ms"}
CLOSE_KEYS: Final = ACT_KEYS | {"ids", "bucket_type", "from_ms", "upto_ms"}

RATE_MAX: Final = 1 << 40
"""Largest rate that is taken; above any disk's."""

PARTITION_DIGITS_MAX: Final = 10
"""Of a partition's id: 32 bits."""

PUSH_MAX: Final = 10_000
"""Most keys in one push."""

PUSH_WAIT_MS: Final = 5_000
"""How long a push waits for room when it does not say; below the time-out of the command line."""

PUSH_WAIT_MAX_MS: Final = 30_000

PEEK_MAX: Final = 1_000
"""Most references shown at once."""

PEEK: Final = 20
"""References shown when nobody says how many."""

CLOCKS_APART_MS: Final = 60_000
"""How far a time that an operator names may lie ahead of this node's clock: the clocks of two machines."""

TIME_MAX_MS: Final = 1 << 50
"""Largest wall-clock time that is taken: beyond the year 30,000 somebody has mistaken the unit."""


_NO_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)


class QueueAdmin:
    """Routes over the source queues of a running node."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/queues", self.queues)
        router.add("GET", "/admin/queues/nodes", self.nodes)
        router.add("GET", "/admin/gaps", self.gaps)
        router.add("POST", "/admin/queues/register", self.register)
        for what in ("suspend", "resume", "clear", "release", "place", "delist", "throttle", "push", "set"):
            router.add("POST", f"/admin/queues/{{queue}}/{what}", getattr(self, what))
        router.add("POST", "/admin/queues/{queue}/gaps/close", self.close_gaps)
        router.add("GET", "/admin/queues/{queue}/peek", self.peek)
        router.add("GET", "/admin/queues/{queue}/ledger", self.ledger)
        router.add("GET", "/admin/queues/{queue}/filter", self.filter)

    # ---------------------------------------------------------------- looking

    async def queues(self, _request: Request) -> Reply:
        """Every queue, as far as this node has a share of it."""
        return json_reply({"queues": await self._services.queues.listing()})

    async def nodes(self, _request: Request) -> Reply:
        """The same of every node; null for one that does not answer, or is gone."""
        asked = self._nodes()
        found = (await self._services.query.ask(QUEUE_LISTING, ListQueues(), asked)).by_node
        told = with_gone(self._services.controller.records, found).items()
        return json_reply({"nodes": [{"node": node, "queues": one, "gone": node not in asked} for node, one in told]})

    async def gaps(self, request: Request) -> Reply:
        """What was given up and no full-sync has closed, of all nodes."""
        name = request.query.get("queue")
        if name is not None:
            self._services.queues.named(name)
        query, nodes = self._services.query, self._nodes()
        # Lag is told of the same windows: where that is not known, nobody has told of gaps, and there may be some.
        lags, gaps = await asyncio.gather(
            query.ask(LAGS, ReadLags(), nodes), query.ask(OPEN_GAPS, ListGaps(name), nodes)
        )
        found = gaps.by_node
        rows = [row for one in found.values() for row in one or ()]
        # What a lower priority lost stands in the metastore, so that every node tells of it.
        kept = {(row["queue"], row["id"]): row for row in rows}
        silent = sorted(gaps.unknown)
        untold: dict[str, list[int]] = {}
        for row in lag_rows(lags.by_node, self._services.controller.records):
            if name in (None, row["queue"]) and row["unknown_partitions"]:
                untold.setdefault(row["queue"], []).extend(row["unknown_partitions"])
        answer = {
            "gaps": sorted(kept.values(), key=lambda r: (r["queue"], r["from_ms"])),
            "unknown": silent,
            "unknown_partitions": untold,
            "at_ms": self._services.time.wall_ms(),
        }
        return json_reply(answer)

    async def ledger(self, request: Request) -> Reply:
        """A queue's ledger, of every node."""
        name = request.text("queue")
        self._services.queues.named(name)
        answers = await self._services.query.ask(LEDGER, ReadLedger(name), self._nodes())
        return json_reply({"nodes": [{"node": node, "ledger": one} for node, one in answers.by_node.items()]})

    async def peek(self, request: Request) -> Reply:
        """The next references of this node's share."""
        asked = request.query.get("count", str(PEEK))
        if not (asked.isascii() and asked.isdigit() and 0 < int(asked[:9]) <= PEEK_MAX):
            raise RequestRefused(400, "bad-query", f"count={asked[:40]}: a whole number from 1 to {PEEK_MAX} is right")
        items = await self._services.queue_acts.peek(request.text("queue"), int(asked))
        return json_reply({"references": [reference_shown(item) for item in items]})

    async def filter(self, request: Request) -> Reply:
        """Which rule decides over a bucket: ?type=T&bucket=B. With a note when there is no such type."""
        bucket_type, bucket = request.query.get("type", "default"), request.query.get("bucket", "")
        if not bucket:
            raise RequestRefused(400, "bad-query", "say of which bucket: ?type=T&bucket=B")
        decision = self._services.queue_acts.test_filter(request.text("queue"), bucket_type.encode(), bucket.encode())
        known = sorted({record.bucket_type for record in self._services.controller.records.values()})
        note = "" if bucket_type in known else no_such("bucket type", bucket_type, known)
        return json_reply({**decision, "note": note})

    def _nodes(self) -> set[str]:
        return self._services.membership.live_nodes()

    # ---------------------------------------------------------------- acts

    async def register(self, request: Request) -> Reply:
        """A new queue, from now on on all nodes."""
        wish = await read_body(request, REGISTER_KEYS)
        name = text(wish, "name")
        if not name:
            raise RequestRefused(400, "bad-json", 'the body must name the queue: {"name": "to-west"}')
        known = _settings_of({**wish, "cascade": flag(wish, "cascade")})
        act = self._act(wish)
        positions = self._positions(wish)
        if positions and "from" in wish:
            raise RequestRefused(400, "bad-json", "a queue begins at from, or at positions: not both")
        start_ms = _start(wish, act, "now")
        now = await self._applied() if start_ms is None and not positions else None
        await self._services.queue_acts.register(name, known, start_ms or 0, act, positions, now=now)
        return await self._listed_with_notes(known.get("filter"))

    async def set(self, request: Request) -> Reply:
        """Another filter, cascading or limits of a queue that is there, whose cursors stay; with "dry_run" what would
        come of it."""
        wish, name = await read_body(request, SET_KEYS), request.text("queue")
        values, default, again = _settings_of(wish), flag(wish, "default"), wish.get("from") is not None
        if wish.get("from") not in (None, "0", 0) or wish.get("from") is False:
            raise RequestRefused(400, "bad-json", 'from must be "0" (everything once more), or null: the queue goes on')
        if default == bool(values) and not (again and not default):
            raise RequestRefused(
                400, "bad-json", f"say what: of {', '.join(sorted(SET_KEYS - PLANNED_KEYS))}; or default alone"
            )
        queue = self._services.queues.named(name)
        if flag(wish, "dry_run"):
            wanted = queue.defined if default else replace(queue.settings, **_checked(name, values))
            return await self._planned("set", name, settings=queue.settings, wanted=wanted, again=again)
        await self._services.queue_acts.change_settings(name, values, self._act(wish), default=default, again=again)
        return await self._listed_with_notes(values.get("filter"))

    async def place(self, request: Request) -> Reply:
        """Cursors go to the offsets that a seed has recorded."""
        wish = await read_body(request, PLACE_KEYS)
        positions = self._positions(wish)
        if not positions:
            raise RequestRefused(400, "bad-json", _POSITIONS_RIGHT)
        await self._services.queue_acts.place(request.text("queue"), positions, self._act(wish))
        return await self.queues(request)

    async def delist(self, request: Request) -> Reply:
        """No such queue any more, on all nodes; with "dry_run" only what would be lost."""
        wish = await read_body(request, PLANNED_KEYS)
        if flag(wish, "dry_run"):
            return await self._planned("delist", request.text("queue"))
        await self._services.queue_acts.delist(request.text("queue"), self._act(wish))
        return await self.queues(request)

    async def suspend(self, request: Request) -> Reply:
        """Give out no references (the cursor waits), or make none (a gap), on one node or on all."""
        wish = await read_body(request, SUSPEND_KEYS)
        what, name = _what(wish), request.text("queue")
        node = self._wanted_node(name, wish)
        if flag(wish, "dry_run"):
            return await self._planned("suspend", name, what=what, node=node)
        await self._services.queue_acts.suspend(name, what, node, self._act(wish))
        return await self.queues(request)

    async def resume(self, request: Request) -> Reply:
        """End that."""
        wish = await read_body(request, RESUME_KEYS)
        what, name = _what(wish), request.text("queue")
        await self._services.queue_acts.resume(name, what, self._wanted_node(name, wish), self._act(wish))
        return await self.queues(request)

    async def clear(self, request: Request) -> Reply:
        """Give up what waits, as far as the leaders that answer have applied it; with "dry_run" only how much."""
        wish, name = await read_body(request, PLANNED_KEYS), request.text("queue")
        if flag(wish, "dry_run"):
            return await self._planned("clear", name)
        self._services.queues.named(name)
        await self._services.queue_acts.clear(name, self._act(wish), await self._applied())
        return await self.queues(request)

    async def release(self, request: Request) -> Reply:
        """The queue belongs to nobody; the next owner begins where "from" says."""
        wish, name = await read_body(request, RELEASE_KEYS), request.text("queue")
        act = self._act(wish)
        start_ms = _start(wish, act, "0")
        if flag(wish, "dry_run"):
            return await self._planned("release", name, start=start_ms)
        self._services.queues.named(name)
        now = await self._applied() if start_ms is None else None
        await self._services.queue_acts.release(name, start_ms or 0, act, now)
        return await self.queues(request)

    async def throttle(self, request: Request) -> Reply:
        """What a second each node gives out at most; "default": what its config says."""
        wish = await read_body(request, RATE_KEYS)
        size, objects = (count(wish, f"{what}_per_second", 0, RATE_MAX) for what in ("bytes", "objects"))
        default, name = flag(wish, "default"), request.text("queue")
        if default != (size is None and objects is None):
            right = "bytes_per_second, objects_per_second, or both (0: no limit)"
            raise RequestRefused(400, "bad-json", f"say how much: {right}; or default alone, true")
        now = self._services.queue_acts.rates(name)  # what is not said stays as it is
        wanted = Rates(now.bytes if size is None else size, now.objects if objects is None else objects)
        await self._services.queue_acts.throttle(name, None if default else wanted, self._act(wish))
        return await self.queues(request)

    async def push(self, request: Request) -> Reply:
        """References at the full-sync priority, or the fold one."""
        wish = await read_body(request, PUSH_KEYS)
        bucket_type, bucket, names = text(wish, "bucket_type") or "default", text(wish, "bucket"), wish.get("keys")
        if not bucket or not isinstance(names, list) or len(names) > PUSH_MAX:
            right = '{"bucket": "b", "keys": ["k"]}'
            raise RequestRefused(
                400, "bad-json", f"bucket must be a text, keys a list of at most {PUSH_MAX} texts: {right}"
            )
        if not all(isinstance(key, str) and key for key in names):
            raise RequestRefused(400, "bad-json", "every key must be a text")
        wait_ms = count(wish, "wait_ms", 0, PUSH_WAIT_MAX_MS)
        if text(wish, "encoding") not in (None, "percent"):
            raise RequestRefused(
                400, "bad-json", 'encoding must be "percent" (names are percent-encoded bytes), or null'
            )
        read = str.encode if wish.get("encoding") is None else _percent_decoded
        self._services.coordinator.routes.check(bucket_type.encode())  # a bucket type that there is not is a slip
        keys = [Key(bucket_type.encode(), read(bucket), read(key)) for key in names]
        limit = self._services.settings.limits.key_bytes
        if any(max(len(key.bucket), len(key.key)) > limit for key in keys):
            raise RequestRefused(400, "bad-key", f"bucket and keys have 1 to {limit} bytes (limits.key_size)")
        priority = FOLD if flag(wish, "fold") else FULL_SYNC
        taken = await self._services.queue_acts.push(
            request.text("queue"), keys, priority, PUSH_WAIT_MS if wait_ms is None else wait_ms
        )
        reason = "" if taken == len(keys) else "the priority is full: offer the others again"
        return json_reply({"queued": taken, "refused": len(keys) - taken, "reason": reason})

    async def close_gaps(self, request: Request) -> Reply:
        """Gaps that a full-sync has closed, of all nodes: by ids, or by bucket type and times."""
        wish = await read_body(request, CLOSE_KEYS)
        ids = wish.get("ids")
        if ids is not None and not (isinstance(ids, list) and all(isinstance(one, str) for one in ids)):
            raise RequestRefused(400, "bad-json", "ids must be a list of texts, or null")
        times = {name: count(wish, name, 0, TIME_MAX_MS) for name in ("from_ms", "upto_ms")}
        if ids is None and None in times.values():
            raise RequestRefused(400, "bad-json", "say which: ids, or from_ms and upto_ms, and bucket_type if not all")
        name = request.text("queue")
        self._services.queues.named(name)
        act = self._act(wish)
        gaps = CloseGaps(name, act.by, act.at_ms, act.reason, ids=ids, bucket_type=text(wish, "bucket_type"), **times)
        answers = await self._services.query.ask(CLOSE_GAPS, gaps, self._nodes())
        closed = sum(one or 0 for one in answers.by_node.values())
        return json_reply({"closed": closed, "unknown": sorted(answers.unknown)})

    async def _applied(self) -> AppliedOffsets:
        return await applied_offsets(self._services.query, self._nodes())

    async def _planned(self, act: str, name: str, **wish: Any) -> Reply:
        self._services.queues.named(name)
        listings = (await self._services.query.ask(QUEUE_LISTING, ListQueues(), self._nodes())).by_node
        types = {record.bucket_type for record in self._services.controller.records.values()}
        return json_reply(plan_of(act, name, listings, bucket_types=types, **wish))

    async def _listed_with_notes(self, filter_: str | None) -> Reply:
        """The listing, with `notes` of bucket types that the filter names and that are not there."""
        known = sorted({record.bucket_type for record in self._services.controller.records.values()})
        named = [] if filter_ is None else [rule.value for rule in parse_filter(filter_).rules if rule.kind == TYPE]
        types = [bucket_type.decode(errors="backslashreplace") for bucket_type in named]
        notes = [no_such("bucket type", one, known) for one in types if known and one not in known]
        return json_reply({"queues": await self._services.queues.listing(), "notes": notes})

    def _act(self, wish: dict[str, Any]) -> AuditInfo:
        return AuditInfo(acting_user(wish), self._services.time.wall_ms(), text(wish, "reason") or "")

    def _positions(self, wish: dict[str, Any]) -> Positions:
        """What "positions" names, each partition one that there is."""
        positions, records = _positions(wish), self._services.controller.records
        strange = [partition for partition, _ in positions if partition not in records]
        if strange and records:
            raise RequestRefused(
                404,
                "unknown-partition",
                f"there is no partition {strange[0]} in this cluster: {len(records)} are there",
            )
        return positions

    def _wanted_node(self, queue: str, wish: dict[str, Any]) -> str | None:
        """One that is down may be meant, too, so that it comes back suspended; or one that is no more, and is named by
        a suspension."""
        node = text(wish, "node")
        known = self._services.membership.known_nodes()
        named = {one.node for one in self._services.queues.named(queue).word.suspensions}
        if node is not None and node not in known | named:
            listed = ", ".join(sorted(known))
            raise RequestRefused(400, "bad-input", f"there is no node {node!r} in this cluster; there are: {listed}")
        return node


def _settings_of(wish: dict[str, Any]) -> dict[str, Any]:
    """Fields of QueueSettings that a body names, as values."""
    values: dict[str, Any] = {"filter": text(wish, "filter"), "overflow": text(wish, "overflow")}
    if values["overflow"] not in (None, "replay", "discard"):
        raise RequestRefused(400, "bad-json", 'overflow must be "replay" or "discard"')
    for name in ("cascade", "riak_fetch"):
        values[name] = None if wish.get(name) is None else flag(wish, name)
    values["queue_limit_count"] = count(wish, "queue_limit", 1, 10_000_000)
    values["object_limit_count"] = count(wish, "object_limit", 0, 10_000_000)
    values["object_size_limit_bytes"] = count(wish, "object_size_limit", 0, 1_000_000_000)
    values["lease_ms"] = count(wish, "lease_ms", 100, 3_600_000)
    return {key: value for key, value in values.items() if value is not None}


def _checked(name: str, values: dict[str, Any]) -> dict[str, Any]:
    checked_settings(name, values)
    return values


def _what(wish: dict[str, Any]) -> list[str]:
    """What is to be suspended or resumed, a text or a list of texts; serving, unless it is named."""
    what = wish.get("what")
    found = [SERVING] if what is None else [what] if isinstance(what, str) else what
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise RequestRefused(400, "bad-json", 'what must be "serving", "publishing", a list of both, or null')
    return found


def _percent_decoded(name: str) -> bytes:
    if (wrong := _NO_PERCENT.search(name)) is not None:
        raise RequestRefused(400, "bad-percent-encoding", f"{wrong[0]!r} in {name[:64]!r} is not % and two hex digits")
    return unquote_to_bytes(name)


def _start(wish: dict[str, Any], act: AuditInfo, default: str) -> int | None:
    """The wall-clock time that "from" names: "now" (None, since clocks differ), "0", or milliseconds since 1970."""
    wanted = wish.get("from", default)
    if wanted == "now":
        return None
    if wanted == "0" or (type(wanted) is int and wanted == 0):
        return 0
    if type(wanted) is int and 0 < wanted <= TIME_MAX_MS:
        if wanted > act.at_ms + CLOCKS_APART_MS:
            ahead_s = (wanted - act.at_ms) // 1_000
            told = f"from must not lie ahead, as it does by {ahead_s} s of this node's clock"
            raise RequestRefused(400, "bad-json", f"{told}: a queue begins at 0, now, or a time that is past")
        return wanted
    raise RequestRefused(400, "bad-json", 'from must be "now", "0", or a time in milliseconds since 1970')


_POSITIONS_RIGHT: Final = 'positions must be an object of partition and offset: {"positions": {"3": 1200}}'


def _positions(wish: dict[str, Any]) -> Positions:
    """What "positions" names, () for none: an offset for each of some partitions."""
    raw = wish.get("positions")
    if raw is None:
        return ()
    if not isinstance(raw, dict) or not all(_is_partition(key) and _is_offset(at) for key, at in raw.items()):
        raise RequestRefused(400, "bad-json", _POSITIONS_RIGHT)
    positions = {int(key): at for key, at in raw.items()}
    if len(positions) < len(raw):
        raise RequestRefused(400, "bad-json", "positions names a partition twice")
    return tuple(sorted(positions.items()))


def _is_partition(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= PARTITION_DIGITS_MAX


def _is_offset(at: object) -> bool:
    return type(at) is int and 0 <= at <= MAX_OFFSET


def reference_shown(item: tuple[Any, ...]) -> dict[str, Any]:
    """A reference of any kind, as `peek` tells it."""
    kind, partition, offset, bucket_type, bucket, key, origin, time_ms, payload = item
    names = {"bucket_type": bucket_type, "bucket": bucket, "key": key}
    return {
        **{name: value.decode(errors="backslashreplace") for name, value in names.items()},
        "partition": partition,
        "offset": offset,
        "kind": ReferenceKind(kind).name.lower(),
        "origin": origin.hex(),
        "time_ms": time_ms,
        "bytes": len(payload),
    }
