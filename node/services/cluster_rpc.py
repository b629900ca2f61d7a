"""What each node of the cluster knows of its own replicas, gathered by the node that was asked.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed. What is made of
it stands in `node.services.cluster_status`; who shows it, in `node.admin_api.application`.

What each node knows of its full-sync (checks and trees), gathered by the node that was asked; and acts upon all.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed. Which nodes
share a peer cluster is told from that: full-sync's work is not moved between nodes, so one alone is a risk.

What each node measured of its replication, gathered by the node that was asked.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed. What is
measured is `repl.runtime.metrics`' and `repl.runtime.metrics`'; what is made of it, `node.services.telemetry`'s.

What the sink of each node says of itself, gathered by the node that was asked.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from isthmus.aae.scheduling.manager import Manager
from isthmus.node.services.telemetry import KindFacts, NodeFacts, TypeFacts
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.runtime.metrics import PARTS, KindTimes, ReplogSizes, replog_sizes
from isthmus.repl.runtime.runtime import Runtime
from isthmus.sink.service import Sink

REPLICAS_METHOD: Final = "replicas"

TIMEOUT_MS: Final = 2_000
"""How long a node may take: operators wait for the slowest, and a loaded node answers in some 10 ms."""

REPLICAS_MAX: Final = 65_536
"""Replicas of one answer, many times what a node holds; a longer one is not believed."""

REASON_MAX: Final = 1_000
"""Characters of a reason that are passed on."""


class ReplicaFacts(NamedTuple):
    """One replica as its own node sees it. Offsets as in `repl.isr.replica`."""

    role: str
    epoch: int
    gen: int
    leo: int
    durable: int
    hw: int
    applied: int
    ready: bool
    reason: str
    log_epoch: int = 0
    """The last epoch in its log."""
    changing: str = ""
    """Of a leader: what a change of the partition's replicas waits for."""
    far: bool = False
    """It takes rows (docs/protocol.md R-FAR)."""
    out: Mapping[str, str] = {}
    """Of a leader: why it took replicas out of the ISR, and what they wait for, by node."""


Facts = Mapping[int, ReplicaFacts]
"""Partition -> what one node says of its replica."""


WORDS_BEFORE: Final = len(ReplicaFacts._fields) - 1
"""Fields of a replica that a node of the version before sends, and the only number that it accepts: all but `out`."""

WITH_OUT: Final = b"out"
"""The body of a request whose sender understands `out`. A node of the version before sends an empty body."""


def facts_of(replica: Replica, reason: str, now_ms: int) -> ReplicaFacts:
    """What this node knows of one of its replicas; `reason` may know more than the core, such as of a full disk."""
    return ReplicaFacts(
        role=replica.role.value,
        epoch=replica.epoch,
        gen=replica.member.gen,
        leo=replica.leo,
        durable=replica.durable,
        hw=replica.hw,
        applied=replica.applied,
        ready=replica.ready,
        reason=reason[:REASON_MAX],
        log_epoch=last_epoch(replica.epoch_table),
        changing=replica.reassigning[:REASON_MAX],
        far=replica.far_position is not None,
        out={node: why[:REASON_MAX] for node, why in replica.why_out(now_ms).items()},
    )


class Gathering:
    """Asks and answers. `request` is `Links.request`; `replicas` are this node's own, each with its
    reason."""

    def __init__(
        self,
        *,
        node: str,
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        replicas: Callable[[], Iterable[tuple[Replica, str]]],
        now_ms: Callable[[], int],
    ) -> None:
        self._now_ms = now_ms
        self._node = node
        self._request = request
        self._replicas = replicas

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {REPLICAS_METHOD: self.answer}

    def own(self) -> Facts:
        """What this node knows of its replicas."""
        now_ms = self._now_ms()
        return {replica.partition: facts_of(replica, reason, now_ms) for replica, reason in self._replicas()}

    async def answer(self, _node: str, body: bytes) -> bytes:
        """This node's replicas, in the form that the sender of the request understands."""
        words = len(ReplicaFacts._fields) if body == WITH_OUT else WORDS_BEFORE
        packed: bytes = msgpack.packb({partition: list(facts)[:words] for partition, facts in self.own().items()})
        return packed

    async def gather(self, nodes: Iterable[str], timeout_ms: int = TIMEOUT_MS) -> dict[str, Facts | None]:
        """What each of `nodes` says; None for who did not answer."""
        names = sorted(set(nodes))
        found = await asyncio.gather(*(self._ask(name, timeout_ms) for name in names))
        return dict(zip(names, found, strict=True))

    async def _ask(self, node: str, timeout_ms: int) -> Facts | None:
        if node == self._node:
            return self.own()
        try:
            return _unpacked(await self._request(node, REPLICAS_METHOD, WITH_OUT, timeout_ms))
        except IsthmusError:
            return None


def _unpacked(body: bytes) -> Facts:
    try:
        found = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"{REPLICAS_METHOD}: not msgpack ({error})") from error
    if not isinstance(found, dict) or len(found) > REPLICAS_MAX:
        raise CodecError(f"{REPLICAS_METHOD}: no map of partitions")
    return {_number(partition): _facts(row) for partition, row in found.items()}


def _facts(row: object) -> ReplicaFacts:
    if isinstance(row, list) and len(row) == WORDS_BEFORE:
        row = [*row, {}]
    if not isinstance(row, list) or len(row) != len(ReplicaFacts._fields):
        raise CodecError(f"{REPLICAS_METHOD}: {row!r:.80} is no replica")
    role, *numbers, ready, reason, log_epoch, changing, far, out = row
    if not (type(role) is type(reason) is type(changing) is str and type(ready) is type(far) is bool):
        raise CodecError(f"{REPLICAS_METHOD}: {row!r:.80} is no replica")
    if not isinstance(out, dict) or any(type(each) is not str for each in (*out.keys(), *out.values())):
        raise CodecError(f"{REPLICAS_METHOD}: {row!r:.80} is no replica")
    epoch, gen, leo, durable, hw, applied = map(_number, numbers)
    log_epoch = _number(log_epoch)
    shown = {node: why[:REASON_MAX] for node, why in out.items()}
    rest = (reason[:REASON_MAX], log_epoch, changing[:REASON_MAX], far, shown)
    return ReplicaFacts(role, epoch, gen, leo, durable, hw, applied, ready, *rest)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CodecError(f"{REPLICAS_METHOD}: {value!r:.40} is no whole number from 0")
    return value


FULLSYNC_METHOD: Final = "fullsync"

ACT: Final = "fullsync.act"

REFRESH: Final = "fullsync.refresh"

WHAT: Final = frozenset({"checks", "trees"})


class SuspendWish(NamedTuple):
    """Checks of a peer, or of all (None), are to be suspended or resumed."""

    suspended: bool
    peer: str | None
    by: str
    reason: str


class FullSyncGathering:
    """Asks and answers. `request` is `Links.request`; `own(what)` is what this node says, of `checks` or of `trees`;
    `manager()` is its own."""

    def __init__(
        self,
        *,
        node: str,
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        own: Callable[[str], dict[str, Any]],
        manager: Callable[[], Manager],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._request = request
        self._own = own
        self._manager = manager
        self._refresh = refresh

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {FULLSYNC_METHOD: self.answer, ACT: self.answer_act, REFRESH: self.answer_refresh}

    async def answer(self, _node: str, body: bytes) -> bytes:
        """This node's answer to another one that gathers."""
        what = body.decode(errors="replace")
        if what not in WHAT:
            raise CodecError(f"{FULLSYNC_METHOD}: asks for {what!r:.40}, there are: {', '.join(sorted(WHAT))}")
        return json.dumps(self._own(what)).encode()

    async def gather(self, nodes: Iterable[str], what: str) -> dict[str, dict[str, Any] | None]:
        """What each of `nodes` and this one say; None for who did not answer."""
        names = sorted({self._node, *nodes})
        found = await asyncio.gather(*(self._ask(name, what) for name in names))
        return dict(zip(names, found, strict=True))

    async def answer_refresh(self, _node: str, body: bytes) -> bytes:
        """Read what operators want again, as another node wrote it; the names of the peers that this concerned."""
        try:
            peer, resumed = json.loads(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"{REFRESH}: {error}") from error
        return json.dumps(await self._refreshed(peer, resumed is True)).encode()

    async def refresh(self, nodes: Iterable[str], peer: str | None, *, resumed: bool) -> dict[str, list[str] | None]:
        """Let `nodes` read what operators want; of each the names of the peers that this concerned; None: it did not
        answer, and follows within seconds, or once it can read the metastore. `resumed`: what an earlier version
        suspended on a node alone ends, too."""
        names = sorted(nodes)
        found = await asyncio.gather(*(self._refresh_on(name, peer, resumed) for name in names))
        return dict(zip(names, found, strict=True))

    async def _refresh_on(self, node: str, peer: str | None, resumed: bool) -> list[str] | None:
        try:
            if node == self._node:
                return await self._refreshed(peer, resumed)
            body = json.dumps([peer, resumed]).encode()
            found = json.loads(await self._request(node, REFRESH, body, TIMEOUT_MS))
        except (IsthmusError, ValueError, RecursionError):
            return None
        return found if isinstance(found, list) else None

    async def _refreshed(self, peer: str | None, resumed: bool) -> list[str]:
        manager = self._manager()
        before = set(manager.peers)
        await self._refresh()
        names = sorted(name for name in before | manager.peers.keys() if peer in (None, name))
        for name in names if resumed else ():
            if name in manager.peers:
                await manager.resume(name)
        return names

    async def answer_act(self, _node: str, body: bytes) -> bytes:
        """Suspend or resume here alone, as a node of an earlier version passes it on; the names of the peers that this
        concerned."""
        try:
            wish = SuspendWish(*json.loads(body))
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"{ACT}: {error}") from error
        return json.dumps(await self._acted(wish)).encode()

    async def _acted(self, wish: SuspendWish) -> list[str]:
        manager = self._manager()
        names = [name for name in manager.peers if wish.peer in (None, name)]
        for name in names:
            if wish.suspended:
                await manager.suspend(name, wish.by, wish.reason)
            else:
                await manager.resume(name)
        return names

    async def _ask(self, node: str, what: str) -> dict[str, Any] | None:
        if node == self._node:
            return self._own(what)
        try:
            found = json.loads(await self._request(node, FULLSYNC_METHOD, what.encode(), TIMEOUT_MS))
        except (IsthmusError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def sharing(peer: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any] | None]) -> tuple[list[str], list[str]]:
    """(nodes that compare with the cluster of `peer`, nodes that did not say). Two peers are of one cluster when they
    name it, or one of its URLs, alike; `peer` and what `nodes` say are rows of `aae.status`."""
    found = [
        node
        for node, said in nodes.items()
        if said is not None and any(_same(peer, other) for other in said.get("peers", ()))
    ]
    return sorted(found), sorted(node for node, said in nodes.items() if said is None)


def warning(shared_by: list[str], silent: list[str], nodes: int) -> str | None:
    """What is to be said when one node of several compares with a cluster alone; None when not so, or unknown."""
    if len(shared_by) > 1 or nodes < 2 or silent:
        return None
    return f"only {shared_by[0]} compares with it, and nobody when that is gone: add the [[fullsync]] to another node"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    named = one["cluster"] is not None and one["cluster"] == other["cluster"]
    return named or bool(set(one["urls"]) & set(other["urls"]))


TELEMETRY_METHOD: Final = "telemetry"

ROWS_MAX: Final = 65_536
"""Rows of one answer: bucket types times kinds of entries and reasons, which are tens. More are not believed."""

NUMBER_MAX: Final = 1 << 63


class TelemetryGathering:
    """Asks and answers. `request` is `Links.request`."""

    def __init__(
        self, *, node: str, request: Callable[[str, str, bytes, int], Awaitable[bytes]], runtime: Runtime
    ) -> None:
        self._node = node
        self._request = request
        self._runtime = runtime

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {TELEMETRY_METHOD: self.answer}

    def own(self) -> NodeFacts:
        """What this node measured."""
        runtime = self._runtime
        now_ms, times = runtime.time.now_ms(), runtime.entry_times
        found: dict[str, TypeFacts] = {}

        def of(bucket_type: bytes) -> TypeFacts:
            return found.setdefault(bucket_type.decode(), TypeFacts())

        for (bucket_type, part), sizes in replog_sizes(runtime.partitions.values(), runtime.replog).items():
            of(bucket_type).replogs[part] = sizes
        for (bucket_type, kind), each in times.replicated_times(now_ms).items():
            of(bucket_type).replicate[kind] = _kind_facts(each)
        for (bucket_type, kind), each in times.applied_times(now_ms).items():
            of(bucket_type).apply[kind] = _kind_facts(each)
        for (bucket_type, kind, reason), count in times.failures().items():
            of(bucket_type).failures[kind, reason] = count
        for (bucket_type, kind, reason), recent in times.recent_failures(now_ms).items():
            of(bucket_type).recent_failures[kind, reason] = recent.things, recent.span_ms
        return found

    async def answer(self, _node: str, _body: bytes) -> bytes:
        """This node's numbers, for another one that gathers."""
        return packed(self.own())

    async def gather(self, nodes: Iterable[str]) -> dict[str, NodeFacts | None]:
        """What each of `nodes` says; None for who did not answer."""
        names = sorted(set(nodes))
        found = await asyncio.gather(*(self._ask(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _ask(self, node: str) -> NodeFacts | None:
        if node == self._node:
            return self.own()
        try:
            return unpacked(await self._request(node, TELEMETRY_METHOD, b"", TIMEOUT_MS))
        except IsthmusError:
            return None


def _kind_facts(times: KindTimes) -> KindFacts:
    recent = times.recent
    return KindFacts(times.entries, recent.things, recent.total_ms, recent.max_ms, recent.span_ms)


def packed(facts: NodeFacts) -> bytes:
    """For the wire: rows of (bucket type, what, kind or part, reason or "", numbers...)."""
    rows: list[tuple[Any, ...]] = []
    for bucket_type, of in facts.items():
        rows += [(bucket_type, "replogs", part, "", *sizes) for part, sizes in of.replogs.items()]
        rows += [(bucket_type, "replicate", kind, "", *times) for kind, times in of.replicate.items()]
        rows += [(bucket_type, "apply", kind, "", *times) for kind, times in of.apply.items()]
        rows += [(bucket_type, "failures", kind, reason, count) for (kind, reason), count in of.failures.items()]
        rows += [(bucket_type, "recent-failures", *key, *recent) for key, recent in of.recent_failures.items()]
    body: bytes = msgpack.packb(rows)
    return body


def unpacked(body: bytes) -> NodeFacts:
    """What `packed` packed. Rows of a kind that is not known here, of another version, are left out. Raises
    CodecError."""
    try:
        rows = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"{TELEMETRY_METHOD}: not msgpack ({error})") from error
    if not isinstance(rows, list) or len(rows) > ROWS_MAX:
        raise CodecError(f"{TELEMETRY_METHOD}: no list of rows")
    found: dict[str, TypeFacts] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) < 4 or not all(isinstance(text, str) for text in row[:4]):
            raise CodecError(f"{TELEMETRY_METHOD}: {row!r:.80} is no row")
        bucket_type, what, kind, reason, *numbers = row
        if not all(type(number) is int and 0 <= number < NUMBER_MAX for number in numbers):
            raise CodecError(f"{TELEMETRY_METHOD}: {row!r:.80} has what is no whole number from 0")
        of = found.setdefault(bucket_type, TypeFacts())
        try:
            if what == "replogs" and kind in PARTS:
                of.replogs[kind] = ReplogSizes._make(numbers)
            elif what in ("replicate", "apply"):
                (of.replicate if what == "replicate" else of.apply)[kind] = KindFacts._make(numbers)
            elif what == "failures":
                (of.failures[kind, reason],) = numbers
            elif what == "recent-failures":
                recent, span_ms = numbers
                of.recent_failures[kind, reason] = recent, span_ms
        except (TypeError, ValueError) as error:
            raise CodecError(f"{TELEMETRY_METHOD}: {row!r:.80} has too many or too few numbers") from error
    return found


SINK_METHOD: Final = "sink"


class SinkGathering:
    """Asks and answers. `request` is `Links.request`."""

    def __init__(
        self, *, node: str, request: Callable[[str, str, bytes, int], Awaitable[bytes]], sink: Callable[[], Sink]
    ) -> None:
        self._node = node
        self._request = request
        self._sink = sink

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {SINK_METHOD: self.answer}

    def own(self) -> dict[str, Any]:
        """This node's sink."""
        sink = self._sink()
        return {**sink.overview(), "sinks": sink.listing()}

    async def answer(self, _node: str, _body: bytes) -> bytes:
        """The same, for another node that gathers."""
        return json.dumps(self.own()).encode()

    async def gather(self, nodes: Iterable[str]) -> dict[str, dict[str, Any] | None]:
        """What each of `nodes` says; None for who did not answer."""
        names = sorted(set(nodes))
        found = await asyncio.gather(*(self._ask(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _ask(self, node: str) -> dict[str, Any] | None:
        if node == self._node:
            return self.own()
        try:
            return _unpacked_sinks(await self._request(node, SINK_METHOD, b"", TIMEOUT_MS))
        except IsthmusError:
            return None


def _unpacked_sinks(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"{SINK_METHOD}: not JSON ({error})") from error
    if not isinstance(found, dict) or not isinstance(found.get("sinks"), list):
        raise CodecError(f"{SINK_METHOD}: no sink")
    return found
