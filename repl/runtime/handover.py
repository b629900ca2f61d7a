"""Hand-over of leadership on request of the controller (RPC method `hand-over`).

The controller plans from the metastore; only the leader knows how far the target is behind, so it refuses a hand-over
that would make its writers wait. The core carries out an accepted one: it drains, has itself removed from the record,
or leads on (`ResigningLeader` in `repl.isr.leader`). The caller is `repl.controller.leader_balancer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.errors import BadInput, Fenced, NotLeader, NotReady
from isthmus.repl.runtime.runtime import Runtime

METHOD: Final = "hand-over"

TIMEOUT_MS_MAX: Final = 3_600_000
"""Longest drain that is accepted, as for `replication.handover_timeout`."""

LAG_MAX: Final = 1_000
"""Most entries that the target may lack: those under way in a busy partition, acknowledged within some 10 ms. A target
further behind would make writers wait; the controller asks again when it has caught up."""


Number = Annotated[int, Meta(ge=0)]


class HandOverRequest(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The leader of `epoch` is to hand over to `target`, and to lead on after `timeout_ms`."""

    partition: Number
    epoch: Number
    target: str
    timeout_ms: Annotated[int, Meta(gt=0, le=TIMEOUT_MS_MAX)]


def encode(partition: int, epoch: int, target: str, timeout_ms: int) -> bytes:
    """The body of a request."""
    return msgspec.msgpack.encode(HandOverRequest(partition, epoch, target, timeout_ms))


class LeadershipTransfer:
    """Serves hand-over requests for the partitions of one node."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """RPC method -> its handler."""
        return {METHOD: self.answer}

    async def answer(self, node: str, body: bytes) -> bytes:
        """Begin to hand over; the record shows how it ended. Raises BadInput, and a Retryable when nothing was begun:
        NotLeader, Fenced (another epoch), NotReady (with the reason why this leader must not or should not)."""
        request = _decoded(node, body)
        partition_id, epoch, target = request.partition, request.epoch, request.target
        partition = self._runtime.partitions.get(partition_id)
        if partition is None or partition.replica.role not in (ReplicaRole.LEADER, ReplicaRole.RESIGNING):
            raise NotLeader(f"node {self._runtime.node} does not lead partition {partition_id}")
        replica = partition.replica
        if replica.epoch != epoch:
            raise Fenced(f"partition {partition_id} is led in epoch {replica.epoch}, not {epoch}")
        if not replica.ready or replica.role is ReplicaRole.RESIGNING:
            raise NotReady(f"partition {partition_id}: {replica.reason}")
        record = replica.record
        assert record is not None, "a leader has a record"
        if record.elr:
            raise NotReady(
                f"partition {partition_id} is still safe only with members outside the ISR: {replica.reason}"
            )
        if target in record.removing:
            raise NotReady(f"{target} is to be removed from the replicas of partition {partition_id}")
        view = next((each for each in replica.followers() if each.node == target and each.in_sync), None)
        if view is None or not view.linked:
            raise NotReady(f"{target} is not in sync, or not connected")
        if not self._runtime.reaches(target):
            raise NotReady(f"{target} cannot be dialled from here: it would lead without this follower (R-REACHED)")
        lag = replica.leo - view.leo
        if lag > LAG_MAX:
            raise NotReady(f"{target} lacks {lag} entries, at most {LAG_MAX} may be drained")
        self._runtime.hand_over(partition, target, request.timeout_ms)
        return b""


def _decoded(node: str, body: bytes) -> HandOverRequest:
    try:
        return msgspec.msgpack.decode(body, type=HandOverRequest)
    except ValueError as error:
        raise BadInput(
            f"{METHOD} of {node}: {error}; [partition, epoch, target, timeout_ms] is right, of at most "
            f"{TIMEOUT_MS_MAX} ms"
        ) from error
