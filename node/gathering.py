"""What each node of the cluster knows of its own replicas, gathered by the node that was asked.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed. What is made of
it stands in `node.cluster_view`; who shows it, in `node.http.admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgpack

from repl.isr.epochs import last_epoch
from repl.isr.replica import Replica
from repl.model.errors import CodecError, IsthmusError

METHOD: Final = "replicas"

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
"""What a node of the version before says of a replica: all but `out`."""


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
        return {METHOD: self.answer}

    def own(self) -> Facts:
        """What this node knows of its replicas."""
        now_ms = self._now_ms()
        return {replica.partition: facts_of(replica, reason, now_ms) for replica, reason in self._replicas()}

    async def answer(self, _node: str, _body: bytes) -> bytes:
        """This node's replicas, for another one that gathers."""
        packed: bytes = msgpack.packb({partition: list(facts) for partition, facts in self.own().items()})
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
            return _unpacked(await self._request(node, METHOD, b"", timeout_ms))
        except IsthmusError:
            return None


def _unpacked(body: bytes) -> Facts:
    try:
        found = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"{METHOD}: not msgpack ({error})") from error
    if not isinstance(found, dict) or len(found) > REPLICAS_MAX:
        raise CodecError(f"{METHOD}: no map of partitions")
    return {_number(partition): _facts(row) for partition, row in found.items()}


def _facts(row: object) -> ReplicaFacts:
    if isinstance(row, list) and len(row) == WORDS_BEFORE:
        row = [*row, {}]
    if not isinstance(row, list) or len(row) != len(ReplicaFacts._fields):
        raise CodecError(f"{METHOD}: {row!r:.80} is no replica")
    role, *numbers, ready, reason, log_epoch, changing, far, out = row
    if not (type(role) is type(reason) is type(changing) is str and type(ready) is type(far) is bool):
        raise CodecError(f"{METHOD}: {row!r:.80} is no replica")
    if not isinstance(out, dict) or any(type(each) is not str for each in (*out.keys(), *out.values())):
        raise CodecError(f"{METHOD}: {row!r:.80} is no replica")
    epoch, gen, leo, durable, hw, applied = map(_number, numbers)
    log_epoch = _number(log_epoch)
    shown = {node: why[:REASON_MAX] for node, why in out.items()}
    rest = (reason[:REASON_MAX], log_epoch, changing[:REASON_MAX], far, shown)
    return ReplicaFacts(role, epoch, gen, leo, durable, hw, applied, ready, *rest)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CodecError(f"{METHOD}: {value!r:.40} is no whole number from 0")
    return value
