"""Handing over on demand: what a leader's node answers when the controller asks it to hand a partition to a follower.

The controller has its plan from the metastore; how far the target is only the leader knows, so it refuses here what
would make its writers wait. What is accepted is the core's to carry out: it drains, has itself taken out of the record,
or leads on (`ResigningLeader` in `repl.isr.leader`). Who asks, and what becomes of a refusal:
`repl.controller.leader_balancer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgpack

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.errors import BadInput, Fenced, NotLeader, NotReady
from isthmus.repl.runtime.runtime import Runtime

METHOD: Final = "hand-over"

TIMEOUT_MS_MAX: Final = 3_600_000
"""Longest drain that is taken, as of `replication.handover_timeout`; above it the request is refused."""

LAG_MAX: Final = 1_000
"""Entries that the target may lack: what is under way in a busy partition, acknowledged in some 10 ms. A target further
behind would make writers wait; it is asked for again when it has caught up."""


def encode(partition: int, epoch: int, target: str, timeout_ms: int) -> bytes:
    """The body of a request: the leader of `epoch` is to hand over to `target`, and to lead on after `timeout_ms`."""
    packed: bytes = msgpack.packb([partition, epoch, target, timeout_ms])
    return packed


class LeadershipTransfer:
    """Answers for the partitions of one node."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self.answer}

    async def answer(self, node: str, body: bytes) -> bytes:
        """Begin to hand over; the record tells how it ended. Raises BadInput, and a Retryable when nothing was begun:
        NotLeader, Fenced (another epoch), NotReady (it says why this leader must not or had better not)."""
        partition_id, epoch, target, timeout_ms = _decoded(node, body)
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
            raise NotReady(f"{target} is to be no replica of partition {partition_id} any more")
        view = next((each for each in replica.followers() if each.node == target and each.in_sync), None)
        if view is None or not view.linked:
            raise NotReady(f"{target} is not in sync, or not connected")
        lag = replica.leo - view.leo
        if lag > LAG_MAX:
            raise NotReady(f"{target} lacks {lag} entries, at most {LAG_MAX} may be drained")
        self._runtime.hand_over(partition, target, timeout_ms)
        return b""


def _decoded(node: str, body: bytes) -> tuple[int, int, str, int]:
    try:
        asked = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadInput(f"{METHOD} of {node}: not msgpack ({error})") from error
    if isinstance(asked, list) and len(asked) == 4:
        partition, epoch, target, timeout_ms = asked
        numbers = all(type(number) is int and number >= 0 for number in (partition, epoch, timeout_ms))
        if numbers and isinstance(target, str) and 0 < timeout_ms <= TIMEOUT_MS_MAX:
            return partition, epoch, target, timeout_ms
    raise BadInput(
        f"{METHOD} of {node}: [partition, epoch, target, timeout_ms] is right, of at most {TIMEOUT_MS_MAX} ms"
    )
