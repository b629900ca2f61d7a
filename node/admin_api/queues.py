"""Source queues in the admin API: listings, and operators' changes. docs/replication.md explains the terms.

Operators' changes are made by `queues.admin`. Listings of the whole cluster are joined from the answers of all nodes
(`node.services.queue_query`); the others show this node's share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final
from urllib.parse import quote

import msgspec

from isthmus.config.text import no_such
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.admin_api.encoded_names import name_bytes
from isthmus.node.admin_api.history import GONE
from isthmus.node.admin_api.queue_plan import plan_of
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.queue import (
    CLEAR,
    CLOSE,
    DELIST,
    PLACE,
    PUSH,
    QUEUE,
    REGISTER,
    RELEASE,
    RESUME,
    SET,
    SUSPEND,
    THROTTLE,
    CloseGapsRequest,
    GapsClosed,
    PlaceQueueRequest,
    PlannedQueueRequest,
    PushReferencesRequest,
    Queues,
    QueuesOfNode,
    QueuesOfNodes,
    QueueValuesRequest,
    ReferencesPushed,
    RegisterQueueRequest,
    ReleaseQueueRequest,
    ResumeQueueRequest,
    SetQueueRequest,
    SuspendQueueRequest,
    ThrottleQueueRequest,
)
from isthmus.node.nouns.requests import AuditedRequest
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.queue_listing import shares_of
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
from isthmus.node.services.queue_summary import queue_rows
from isthmus.node.services.replication_lag import lag_rows
from isthmus.queues.filters import TYPE, parse_filter
from isthmus.queues.queue_documents import SERVING, AppliedOffsets, AuditInfo, Positions, checked_settings
from isthmus.queues.rate_limit import Rates
from isthmus.queues.window_rules import FOLD, FULL_SYNC
from isthmus.repl.model.keys import Key
from isthmus.repl.model.reference import ReferenceKind

PUSH_WAIT_MS: Final = 5_000
"""How long a push waits for free queue space by default; below the time-out of the command line."""

PEEK_MAX: Final = 1_000
"""Most references in one answer."""

PEEK: Final = 20
"""References in an answer by default."""

CLOCKS_APART_MS: Final = 60_000
"""How far an operator's time may lie ahead of this node's clock: the difference of two machines' clocks."""


class QueueAdmin:
    """Routes over the source queues."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        add_noun(
            router,
            QUEUE,
            self.queues,
            None,
            {
                REGISTER: self.register,
                SUSPEND: self.suspend,
                RESUME: self.resume,
                CLEAR: self.clear,
                RELEASE: self.release,
                PLACE: self.place,
                DELIST: self.delist,
                THROTTLE: self.throttle,
                PUSH: self.push,
                SET: self.set,
                CLOSE: self.close_gaps,
            },
            {"nodes": self.nodes, "cluster": self.cluster},
        )
        router.add("GET", "/admin/gaps", self.gaps)
        router.add("GET", "/admin/queues/{queue}/peek", self.peek)
        router.add("GET", "/admin/queues/{queue}/ledger", self.ledger)
        router.add("GET", "/admin/queues/{queue}/filter", self.test_filter)

    # ---------------------------------------------------------------- looking

    async def queues(self, _request: Request) -> Reply:
        """Every queue, with this node's share of it.

        Owner, what waits and is in flight, the nodes that fetch (`consumers`); rates of the file (`throttle.file`) and
        in force (`throttle.configured`).
        """
        return await self._listed()

    async def nodes(self, _request: Request) -> Reply:
        """Every queue on every node; null for a node that does not answer, or is gone (`"gone": true`)."""
        asked = self._nodes()
        found = (await self._services.query.ask(QUEUE_LISTING, ListQueues(failures=True), asked)).by_node
        answers = with_gone(self._services.controller.records, found).items()
        rows = [
            QueuesOfNode(node, None, node not in asked)
            if one is None
            else QueuesOfNode(node, one.queues, node not in asked, one.failed)
            for node, one in answers
        ]
        return struct_reply(QueuesOfNodes(rows))

    async def cluster(self, _request: Request) -> Reply:
        """Every queue of the whole cluster, joined from all nodes; a number that is not known is null, with the reason.

        `publishing` and `serving` are `running`, `suspended`, `off`, or `mixed` where nodes differ. `priorities`:
        `waiting`, `in_flight`, and `at_least`, the sum of the nodes that answer. `oldest_age_ms` is of real time, 0 if
        nothing waits. `consumers`: nodes of the other cluster with their newest fetch (`last_fetch_ms`, `at` a node),
        `waits_at`, `given`, `in_flight`. `rates`: achieved together. `nodes`: each node's part, as in `/admin/queues`.
        A number is null if it needs a node that does not answer, a partition without leader or cursor, or too large a
        count; `unknown` of the queue has the reason. `lacking`: nodes without the queue; `differs`: facts that are not
        the same on all nodes.
        """
        asked, records = self._nodes(), self._services.controller.records
        answers = await self._services.query.ask(QUEUE_LISTING, ListQueues(failures=True), asked)
        gone = sorted(with_gone(records, answers.by_node).keys() - asked)
        unknown = {**answers.unknown, **dict.fromkeys(gone, GONE)}
        return struct_reply(Queues(queue_rows(answers.by_node, records), unknown, self._services.time.wall_ms()))

    async def gaps(self, request: Request) -> Reply:
        """Open gaps of all nodes: changes that were given up and that no full-sync has proven yet.

        A gap's `bucket_types`: those that may miss changes, null for all that its queue accepts. `unknown`: nodes that
        do not answer; `unknown_partitions`: by queue, partitions whose cursor is unknown at the moment.
        """
        name = request.query.get("queue")
        if name is not None:
            self._services.queues.named(name)
        return json_reply(await self.gaps_document(name))

    async def gaps_document(self, name: str | None = None) -> dict[str, Any]:
        """The answer to `GET /admin/gaps`. `name`: only this queue."""
        query, nodes = self._services.query, self._nodes()
        # Lag is computed from the same windows: where it is unknown, gaps may be unreported.
        lags, gaps = await asyncio.gather(
            query.ask(LAGS, ReadLags(), nodes), query.ask(OPEN_GAPS, ListGaps(name), nodes)
        )
        found = gaps.by_node
        rows = [row for one in found.values() for row in one or ()]
        # Gaps of bulk references are in the metastore, so that every node reports them.
        kept = {(row["queue"], row["id"]): row for row in rows}
        silent = sorted(gaps.unknown)
        untold: dict[str, list[int]] = {}
        for row in lag_rows(lags.by_node, self._services.controller.records):
            if name in (None, row.queue) and row.unknown_partitions:
                untold.setdefault(row.queue, []).extend(row.unknown_partitions)
        return {
            "gaps": sorted(kept.values(), key=lambda r: (r["queue"], r["from_ms"])),
            "unknown": silent,
            "unknown_partitions": untold,
            "at_ms": self._services.time.wall_ms(),
            "skew_ms": self._services.clocks.cluster_skew_ms(),
        }

    async def ledger(self, request: Request) -> Reply:
        """The ledger of a queue on every node.

        `nodes`: by `node` its `ledger`, null for a node that does not answer. The numbers count real-time changes since
        the node started; `outcomes`: what the sinks reported of the acknowledged ones. `closes`: whether the sums match
        (`off_by`: by how many they do not); null while `partitions_not_known` do not know all that waits.
        """
        name = request.text("queue")
        self._services.queues.named(name)
        answers = await self._services.query.ask(LEDGER, ReadLedger(name), self._nodes())
        return json_reply({"nodes": [{"node": node, "ledger": one} for node, one in answers.by_node.items()]})

    async def peek(self, request: Request) -> Reply:
        """The next references of this node's share.

        `bucket_encoded` and `key_encoded` are exact: percent-encoded bytes.
        """
        count = request.number("count", PEEK, 1, PEEK_MAX)
        items = await self._services.queue_acts.peek(request.text("queue"), count)
        return json_reply({"references": [reference_shown(item) for item in items]})

    async def test_filter(self, request: Request) -> Reply:
        """The rule of the filter that applies to a bucket: ?type=T&bucket=B, and &encoding=percent where B is encoded;
        with a note when the bucket type does not exist.

        `offered`: whether the queue offers changes of the bucket; `rule`: the rule that decides, null for none;
        `reason`: the decision in words; `filter`: the whole filter.
        """
        bucket_type, bucket = request.query.get("type", "default"), request.query.get("bucket", "")
        if not bucket:
            raise RequestRefused(400, "bad-query", "name the bucket: ?type=T&bucket=B")
        name = name_bytes(bucket, request.query.get("encoding"))
        decision = self._services.queue_acts.test_filter(request.text("queue"), bucket_type.encode(), name)
        known = sorted({record.bucket_type for record in self._services.controller.records.values()})
        note = "" if bucket_type in known else no_such("bucket type", bucket_type, known)
        return json_reply({**decision, "note": note})

    def _nodes(self) -> set[str]:
        return self._services.membership.live_nodes()

    # ---------------------------------------------------------------- acts

    async def register(self, request: Request, body: RegisterQueueRequest) -> Reply:
        """Create a queue on all nodes.

        `from` is `now`, `0` or ms; `positions`, `{PARTITION: OFFSET}`, replaces it. `notes` in the answer: bucket types
        that the filter names and that do not exist.
        """
        known = {**_settings_of(body), "cascade": body.cascade}
        act = self._audit_info(body)
        positions = self._positions(body.positions)
        if positions and body.from_ is not msgspec.UNSET:
            raise RequestRefused(400, "bad-json", "a queue begins at from, or at positions: not both")
        start_ms = _start("now" if body.from_ is msgspec.UNSET else body.from_, act)
        now = await self._applied() if start_ms is None and not positions else None
        with request.changing(lambda: self._state(body.name)):
            await self._services.queue_acts.register(body.name, known, start_ms or 0, act, positions, now=now)
        return await self._listed_with_notes(known.get("filter"))

    async def set(self, request: Request, body: SetQueueRequest) -> Reply:
        """Change filter, cascading or limits of a queue, whose cursors stay; with "dry_run" show the effect.

        Only the given fields change. `"from": "0"` offers everything again; `"default": true` applies the registration
        or the files again. A dry run answers as that of `clear`.
        """
        name, default, again = request.text("queue"), body.default, body.from_ is not None
        values = _settings_of(body)
        values |= {} if body.cascade is None else {"cascade": body.cascade}
        values |= {} if body.lease_ms is None else {"lease_ms": body.lease_ms}
        if default == bool(values) and not (again and not default):
            keys = sorted({*SetQueueRequest.__struct_encode_fields__} - {"by", "reason", "dry_run"})
            raise RequestRefused(400, "bad-json", f"give at least one of {', '.join(keys)}; or default alone")
        queue = self._services.queues.named(name)
        if body.dry_run:
            wanted = queue.defined if default else replace(queue.settings, **_checked(name, values))
            return await self._planned("set", name, settings=queue.settings, wanted=wanted, again=again)
        with request.changing(lambda: self._state(name)):
            await self._services.queue_acts.change_settings(
                name, values, self._audit_info(body), default=default, again=again
            )
        return await self._listed_with_notes(values.get("filter"))

    async def place(self, request: Request, body: PlaceQueueRequest) -> Reply:
        """Move cursors to the offsets that a seed has recorded.

        `positions`: `{PARTITION: OFFSET}`.
        """
        positions = self._positions(body.positions)
        await self._services.queue_acts.place(request.text("queue"), positions, self._audit_info(body))
        return await self.queues(request)

    async def delist(self, request: Request, body: PlannedQueueRequest) -> Reply:
        """Remove a queue on all nodes; with "dry_run" show what would be lost.

        A dry run answers as that of `clear`.
        """
        if body.dry_run:
            return await self._planned("delist", request.text("queue"))
        with request.changing(lambda: self._state(request.text("queue"))):
            await self._services.queue_acts.delist(request.text("queue"), self._audit_info(body))
        return await self.queues(request)

    async def suspend(self, request: Request, body: SuspendQueueRequest) -> Reply:
        """Suspend serving (the cursor waits) or publishing (a gap), on one node or on all."""
        what, name = _targets(body), request.text("queue")
        node = self._wanted_node(name, body.node)
        if body.dry_run:
            return await self._planned("suspend", name, what=what, node=node)
        with request.changing(lambda: self._state(name)):
            await self._services.queue_acts.suspend(name, what, node, self._audit_info(body))
        return await self.queues(request)

    async def resume(self, request: Request, body: ResumeQueueRequest) -> Reply:
        """End a suspension."""
        what, name = _targets(body), request.text("queue")
        node = self._wanted_node(name, body.node)
        with request.changing(lambda: self._state(name)):
            await self._services.queue_acts.resume(name, what, node, self._audit_info(body))
        return await self.queues(request)

    async def clear(self, request: Request, body: PlannedQueueRequest) -> Reply:
        """Give up what waits, up to the applied offsets of the leaders that answer; with "dry_run" show how much.

        A dry run answers `waiting` by priority (null: unknown), `gaps`, `owner`, `silent` nodes, and `effect`, a
        sentence.
        """
        name = request.text("queue")
        if body.dry_run:
            return await self._planned("clear", name)
        self._services.queues.named(name)
        await self._services.queue_acts.clear(name, self._audit_info(body), await self._applied())
        return await self.queues(request)

    async def release(self, request: Request, body: ReleaseQueueRequest) -> Reply:
        """Release the queue from its owner; the next owner begins where "from" says.

        A dry run answers as that of `clear`.
        """
        name = request.text("queue")
        act = self._audit_info(body)
        start_ms = _start(body.from_, act)
        if body.dry_run:
            return await self._planned("release", name, start=start_ms)
        self._services.queues.named(name)
        now = await self._applied() if start_ms is None else None
        with request.changing(lambda: self._state(name)):
            await self._services.queue_acts.release(name, start_ms or 0, act, now)
        return await self.queues(request)

    async def throttle(self, request: Request, body: ThrottleQueueRequest) -> Reply:
        """Limit the rate at which each node serves the queue; "default": the rates of the config.

        0 is no limit; a rate that is not given stays.
        """
        size, objects, default = body.bytes_per_second, body.objects_per_second, body.default
        name = request.text("queue")
        if default != (size is None and objects is None):
            right = "bytes_per_second, objects_per_second, or both (0: no limit)"
            raise RequestRefused(400, "bad-json", f"give {right}; or default alone, true")
        now = self._services.queue_acts.rates(name)  # a rate that the body leaves out stays
        wanted = Rates(now.bytes if size is None else size, now.objects if objects is None else objects)
        with request.changing(lambda: self._state(name)):
            await self._services.queue_acts.throttle(name, None if default else wanted, self._audit_info(body))
        lifted = [word for word, rate in (("bytes", size), ("objects", objects)) if rate == 0]
        if len(lifted) != 1:  # with both at 0 no limit is what was meant
            return await self._listed()
        return await self._listed([f"0 is no limit: {name} is not limited in {lifted[0]}; to stop it, suspend it"])

    async def push(self, request: Request, body: PushReferencesRequest) -> Reply:
        """Enqueue references at the priority of full-sync, or of folds.

        Answers `queued`, `refused`, `reason`.
        """
        bucket_type = (body.bucket_type or "default").encode()
        self._services.coordinator.routes.check(bucket_type)
        bucket = name_bytes(body.bucket, body.encoding)
        keys = [Key(bucket_type, bucket, name_bytes(key, body.encoding)) for key in body.keys]
        limit = self._services.settings.limits.key_bytes
        if any(max(len(key.bucket), len(key.key)) > limit for key in keys):
            raise RequestRefused(400, "bad-key", f"bucket and keys have 1 to {limit} bytes (limits.key_size)")
        priority = FOLD if body.fold else FULL_SYNC
        await self._services.repairs.recall(keys)  # of a key that was deleted and reaped the tombstone is sent
        taken = await self._services.queue_acts.push(
            request.text("queue"), keys, priority, PUSH_WAIT_MS if body.wait_ms is None else body.wait_ms
        )
        request.changed(None, {"queued": taken})
        reason = "" if taken == len(keys) else "the priority is full: offer the others again"
        return struct_reply(ReferencesPushed(taken, len(keys) - taken, reason))

    async def close_gaps(self, request: Request, body: CloseGapsRequest) -> Reply:
        """Close gaps on all nodes that a full-sync has proven: by ids, or by bucket type and times."""
        if body.ids is None and None in (body.from_ms, body.upto_ms):
            raise RequestRefused(
                400, "bad-json", "name the gaps: ids, or from_ms and upto_ms, and bucket_type if not all"
            )
        name = request.text("queue")
        self._services.queues.named(name)
        act = self._audit_info(body)
        gaps = CloseGaps(
            name,
            act.by,
            act.at_ms,
            act.reason,
            ids=body.ids,
            bucket_type=body.bucket_type,
            from_ms=body.from_ms,
            upto_ms=body.upto_ms,
        )
        answers = await self._services.query.ask(CLOSE_GAPS, gaps, self._nodes())
        closed = sum(one or 0 for one in answers.by_node.values())
        request.changed(None, {"closed": closed, "unknown": sorted(answers.unknown)})
        return struct_reply(GapsClosed(closed, sorted(answers.unknown)))

    def _state(self, name: str) -> dict[str, Any] | None:
        """The state of a queue that operators change, for the audit log; None: there is no such queue."""
        queues = self._services.queues
        if name not in queues.machines():
            return None
        queue = queues.named(name)
        stored = queue.stored
        return {
            "settings": asdict(queue.settings),
            "owner": None if stored.owner is None else stored.owner.name,
            "suspensions": [{"what": one.what, "node": one.node} for one in stored.suspensions],
            "rates": queue.throttle.rates._asdict(),
        }

    async def _applied(self) -> AppliedOffsets:
        clocks, wall_ms = self._services.clocks, self._services.time.wall_ms()
        return await applied_offsets(self._services.query, self._nodes(), wall_ms, clocks.cluster_skew_ms())

    async def _planned(self, act: str, name: str, **wish: Any) -> Reply:
        self._services.queues.named(name)
        listings = (await self._services.query.ask(QUEUE_LISTING, ListQueues(failures=True), self._nodes())).by_node
        types = {record.bucket_type for record in self._services.controller.records.values()}
        return struct_reply(plan_of(act, name, listings, bucket_types=types, **wish))

    async def _listed_with_notes(self, filter_: str | None) -> Reply:
        """The listing, with `notes` about bucket types of the filter that do not exist."""
        known = sorted({record.bucket_type for record in self._services.controller.records.values()})
        named = [] if filter_ is None else [rule.value for rule in parse_filter(filter_).rules if rule.kind == TYPE]
        types = [bucket_type.decode(errors="backslashreplace") for bucket_type in named]
        notes = [no_such("bucket type", one, known) for one in types if known and one not in known]
        return await self._listed(notes)

    async def _listed(self, notes: list[str] | msgspec.UnsetType = msgspec.UNSET) -> Reply:
        return struct_reply(msgspec.structs.replace(await shares_of(self._services.queues), notes=notes))

    def _audit_info(self, body: AuditedRequest) -> AuditInfo:
        return AuditInfo(acting_user(body.by), self._services.time.wall_ms(), body.reason or "")

    def _positions(self, offsets: dict[str, int] | None) -> Positions:
        """The offsets of a body, by partitions that exist. Raises RequestRefused."""
        positions, records = _distinct(offsets or {}), self._services.controller.records
        strange = [partition for partition, _ in positions if partition not in records]
        if strange and records:
            raise RequestRefused(
                404,
                "unknown-partition",
                f"there is no partition {strange[0]} in this cluster: {len(records)} are there",
            )
        return positions

    def _wanted_node(self, queue: str, node: str | None) -> str | None:
        """The node of a body. It may be down, so that it comes back suspended, or removed, when a suspension names
        it. Raises RequestRefused."""
        known = self._services.membership.known_nodes()
        named = {one.node for one in self._services.queues.named(queue).stored.suspensions}
        if node is not None and node not in known | named:
            listed = ", ".join(sorted(known))
            raise RequestRefused(400, "bad-input", f"there is no node {node!r} in this cluster; there are: {listed}")
        return node


def _settings_of(body: QueueValuesRequest) -> dict[str, Any]:
    """Fields of QueueSettings that a body names, with their values."""
    values = {
        "filter": body.filter,
        "overflow": body.overflow,
        "riak_fetch": body.riak_fetch,
        "queue_limit_count": body.queue_limit,
        "object_limit_count": body.object_limit,
        "object_size_limit_bytes": body.object_size_limit,
    }
    return {key: value for key, value in values.items() if value is not None}


def _checked(name: str, values: dict[str, Any]) -> dict[str, Any]:
    checked_settings(name, values)
    return values


def _targets(body: ResumeQueueRequest) -> list[str]:
    """The targets to suspend or resume; serving by default."""
    what = SERVING if body.what is None else body.what
    return [what] if isinstance(what, str) else what


def _start(wanted: str | int, act: AuditInfo) -> int | None:
    """The wall-clock time at which a queue begins; None: now, which each node's clock gives differently."""
    if wanted == "now":
        return None
    start_ms = int(wanted)
    if start_ms > act.at_ms + CLOCKS_APART_MS:
        ahead_s = (start_ms - act.at_ms) // 1_000
        raise RequestRefused(
            400,
            "bad-json",
            f"from must not lie ahead, as it does by {ahead_s} s of this node's clock: a queue begins at 0, now, or a "
            "time that is past",
        )
    return start_ms


def _distinct(offsets: dict[str, int]) -> Positions:
    """Offsets by partition number. Raises RequestRefused when two keys are one number."""
    positions = {int(key): at for key, at in offsets.items()}
    if len(positions) < len(offsets):
        raise RequestRefused(400, "bad-json", "positions names a partition twice")
    return tuple(sorted(positions.items()))


def reference_shown(item: tuple[Any, ...]) -> dict[str, Any]:
    """A reference of any kind, as `peek` shows it: names for people, in which different bytes may look alike, and
    bucket and key percent-encoded."""
    kind, partition, offset, bucket_type, bucket, key, origin, time_ms, payload = item
    names = {"bucket_type": bucket_type, "bucket": bucket, "key": key}
    return {
        **{name: value.decode(errors="backslashreplace") for name, value in names.items()},
        "bucket_encoded": quote(bucket, safe=""),
        "key_encoded": quote(key, safe=""),
        "partition": partition,
        "offset": offset,
        "kind": ReferenceKind(kind).name.lower(),
        "origin": origin.hex(),
        "time_ms": time_ms,
        "bytes": len(payload),
    }
