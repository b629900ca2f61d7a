"""What each node knows of its share of the source queues, gathered by the node that was asked; gaps closed on all.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed.

The gaps of queues on all nodes, as full-sync needs them (`aae.scheduling.gap_healing.Gaps`): asked for, and closed
once proven.

Joins packages that do not know each other. A node that does not answer has its gaps looked at the next time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from isthmus.aae.scheduling.gap_healing import GapToHeal
from isthmus.node.services.cluster_rpc import TIMEOUT_MS
from isthmus.node.services.explain_key import KeyExplainer
from isthmus.queues.admin import GapChoice, QueueActs
from isthmus.queues.queue_documents import AppliedOffsets, AuditInfo
from isthmus.queues.service import QueueService
from isthmus.repl.controller.controller import Controller
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import TimeSource

METHOD: Final = "queues"

WHAT: Final = frozenset({"listing", "gaps", "ledger", "ledgers", "close", "lags", "explain", "applied"})


class QueueGathering:
    """Asks and answers. `request` is `Links.request`."""

    def __init__(
        self,
        *,
        node: str,
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        acts: Callable[[], QueueActs],
        looks: Callable[[], KeyExplainer],
        proven: Callable[[], list[dict[str, Any]]],
    ) -> None:
        """`proven()`: what full-sync of this node has proven in sync, [{"queue", "bucket_type", "at_ms"}]."""
        self._node = node
        self._request = request
        self._acts = acts
        self._looks = looks
        self._proven = proven

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self.answer}

    async def answer(self, _node: str, body: bytes) -> bytes:
        """This node's answer to another one that gathers."""
        try:
            wish = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"{METHOD}: not JSON ({error})") from error
        if not isinstance(wish, dict) or wish.get("what") not in WHAT:
            raise CodecError(f"{METHOD}: asks for nothing that is known")
        return json.dumps(await self._own(wish)).encode()

    async def gather(self, nodes: Iterable[str], what: str, **wish: Any) -> dict[str, Any]:
        """What each of `nodes` says; None for who did not answer. `what`: listing, gaps, ledger (of `name`), ledgers
        (of all queues), lags, applied, explain (of the key [`bucket_type`, `bucket`, `key`] in hex), or close (gaps of
        `name`, as in `node.admin_api.queues`)."""
        names = sorted(set(nodes))
        found = await asyncio.gather(*(self._ask(name, {"what": what, **wish}) for name in names))
        return dict(zip(names, found, strict=True))

    async def applied(self, nodes: Iterable[str]) -> AppliedOffsets:
        """What the leaders among `nodes` have applied, and how far apart the clocks are, as far as nodes answer."""
        found = [one for one in (await self.gather(nodes, "applied")).values() if one is not None]
        upto: dict[int, int] = {}
        for one in found:
            for partition, offset in one["positions"]:
                # A deposed leader may answer, too: what it applied is committed all the same.
                upto[partition] = max(offset, upto.get(partition, 0))
        clocks = [one["wall_ms"] for one in found]
        return AppliedOffsets(tuple(sorted(upto.items())), min(clocks), max(clocks))

    async def _ask(self, node: str, wish: dict[str, Any]) -> Any:
        if node == self._node:
            return await self._own(wish)
        try:
            return json.loads(await self._request(node, METHOD, json.dumps(wish).encode(), TIMEOUT_MS))
        except (IsthmusError, ValueError, RecursionError):
            return None

    async def _own(self, wish: dict[str, Any]) -> Any:
        acts, name = self._acts(), wish.get("name")
        match wish["what"]:
            case "listing":
                return await acts.listing()
            case "gaps":
                return acts.gaps(name)
            case "ledger":
                return await acts.ledger(str(name))
            case "ledgers":
                return [await acts.ledger(one) for one in acts.names()]
            case "lags":
                return {"queues": await acts.lags(), "proven": self._proven()}
            case "explain":
                return await self._looks().own(_key(wish))
            case "applied":
                positions, wall_ms, _ = acts.applied()
                return {"positions": positions, "wall_ms": wall_ms}
            case _:
                ids, bucket_type = wish.get("ids"), wish.get("bucket_type")
                choice = GapChoice(
                    None if ids is None else tuple(map(str, ids)),
                    None if bucket_type is None else str(bucket_type).encode(),
                    int(wish.get("from_ms") or 0),
                    int(wish.get("upto_ms") or 1 << 62),
                )
                act = AuditInfo(str(wish["by"]), int(wish["at_ms"]), str(wish.get("reason") or ""))
                return await acts.close_gaps(str(name), choice, act)


def _key(wish: dict[str, Any]) -> Key:
    try:
        return Key(*(bytes.fromhex(wish[word]) for word in ("bucket_type", "bucket", "key")))
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"{METHOD}: names no key ({error})") from error


class ClusterGaps:
    """Asks `gathering`; `controller` knows the nodes, and of which bucket type a partition is; `queues` the owners and
    filters. `waiting`: see Gaps."""

    def __init__(
        self,
        gathering: QueueGathering,
        controller: Controller,
        queues: QueueService,
        node: str,
        time: TimeSource,
        waiting: Callable[[str], int],
    ) -> None:
        self._gathering = gathering
        self._controller = controller
        self._queues = queues
        self._node = node
        self._time = time
        self.waiting = waiting
        self._types: tuple[object, int, list[str]] = (None, 0, [])

    def bucket_types(self, queue: str) -> list[str]:
        """Bucket types of this cluster of which changes or repairs may go into the queue. Raises UnknownQueue."""
        takes = self._queues.named(queue).filter.takes
        return sorted(name for name in self._known_types() if takes(name.encode()))

    def sent(self) -> list[dict[str, Any]]:
        """What goes out in real time: {"queue", "cluster", "uuid", "bucket_types"} of each queue that somebody owns."""
        found = []
        for name in self._queues.machines():
            queue = self._queues.named(name)
            owner = queue.word.owner
            if owner is None or not owner.cluster:
                continue
            types = sorted(one for one in self._known_types() if queue.filter.may_offer(one.encode()))
            found.append({"queue": name, "cluster": owner.name, "uuid": owner.cluster.hex(), "bucket_types": types})
        return found

    def compared(self, queue: str, cluster: bytes | None, bucket_types: Sequence[str]) -> dict[str, list[str]]:
        """Queue -> those of `bucket_types` of which comparisons with `cluster` (None: the owner of `queue`) prove that
        nothing is missing that the queue let out, when repairs go by `queue`: queues of that cluster, and as far as the
        filter of `queue` lets out as much. Nothing when there is no queue of this name."""
        machines = self._queues.machines()
        if queue not in machines:
            return {}
        repairs = self._queues.named(queue)
        wanted = cluster or self._owner(queue)
        found = {}
        for name in machines:
            owner = self._owner(name)
            if owner != wanted if owner is not None else name != queue:
                continue
            other = self._queues.named(name).filter
            types = [one for one in bucket_types if repairs.filter.covers(other, one.encode())]
            if types:
                found[name] = types
        return found

    async def seen(self, queue: str, cluster: bytes | None) -> Sequence[GapToHeal]:
        """See Gaps. Raises UnknownQueue."""
        self._queues.named(queue)
        compared = self.compared(queue, cluster, self._known_types())
        found = await self._gathering.gather(self._nodes(), "gaps")
        rows = {(row["queue"], row["id"]): row for one in found.values() for row in one or ()}
        gaps = [
            GapToHeal(row["id"], row["queue"], self._types_of(row), row["from_ms"], row["upto_ms"])
            for row in rows.values()
            if row["queue"] in compared and (row["partition"] is None or row["partition"] in self._controller.records)
        ]
        return [gap for gap in gaps if gap.bucket_types <= set(compared[gap.queue])]

    async def close(self, queue: str, ids: Sequence[str], upto_ms: int, by: str, reason: str) -> int:
        """See Gaps. Raises UnknownQueue, Retryable, OutcomeUnknown."""
        act = AuditInfo(by, self._time.wall_ms(), reason)
        found = await self._gathering.gather(
            self._nodes(), "close", name=queue, ids=list(ids), upto_ms=upto_ms, **act._asdict()
        )
        return sum(one or 0 for one in found.values())

    def _owner(self, queue: str) -> bytes | None:
        owner = self._queues.named(queue).word.owner
        return owner.cluster if owner is not None and owner.cluster else None

    def _known_types(self) -> list[str]:
        """Of this cluster, made from each reading of the records once: whoever reaps asks for every key."""
        records = self._controller.records
        read, count, found = self._types
        if read is not records or count != len(records):
            found = sorted({record.bucket_type for record in records.values()})
            self._types = (records, len(records), found)
        return found

    def _nodes(self) -> set[str]:
        return {self._node, *self._controller.registrations}

    def _types_of(self, row: dict[str, Any]) -> frozenset[str]:
        """Of which something may be missing: what was lost of a lower priority may be of any that the queue takes."""
        partition = row["partition"]
        if partition is not None:
            return frozenset({self._controller.records[partition].bucket_type})
        return frozenset(self.bucket_types(row["queue"]))
