"""The replicas of every node, as their own node sees them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Final

import msgspec
from msgspec import structs

from isthmus.node.services.cluster_query import MsgpackBody, Query
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.isr.replica import Replica
from isthmus.repl.runtime.runtime import Runtime

METHOD: Final = "replicas"

REPLICAS_MAX: Final = 65_536
"""Replicas of one answer, many times the number that a node has; a longer answer is refused."""

REASON_MAX: Final = 1_000
"""Characters of a reason in an answer; the answering node cuts longer ones."""

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_MAX)]


class ReplicaFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One replica as its own node sees it. Offsets as in `repl.isr.replica`. On the wire: an array of these fields."""

    role: str
    epoch: Number
    gen: Number
    leo: Number
    durable: Number
    hw: Number
    applied: Number
    ready: bool
    reason: Reason
    log_epoch: Number = 0
    """The last epoch in its log."""
    changing: Reason = ""
    """Only of a leader: the condition for which a reassignment of the partition waits."""
    transfers: bool = msgspec.field(default=False, name="far")
    """It receives a state transfer (docs/protocol.md R-FAR)."""
    out: dict[str, Reason] = {}
    """Only of a leader: node -> why its replica left the ISR and when it may return. Nodes of earlier versions do not
    send it."""


FIELDS_EARLIER: Final = len(ReplicaFacts.__struct_fields__) - 1
"""Fields of a replica that nodes of the version before send, and the only number that they accept: all but `out`."""


class ReplicaForm(Enum):
    """The form of the answer that the sender of a request understands; the value is the request's body."""

    EARLIER = b""
    WITH_OUT = b"out"


NodeReplicaFacts = Mapping[int, ReplicaFacts]
"""Partition -> the replica of one node."""


def facts_of(replica: Replica, reason: str, now_ms: int) -> ReplicaFacts:
    """The facts of one of this node's replicas. `reason` is the runtime's, which also knows of a full disk."""
    return ReplicaFacts(
        role=replica.role.value,
        epoch=replica.epoch,
        gen=replica.member.log_id,
        leo=replica.leo,
        durable=replica.durable,
        hw=replica.high_watermark,
        applied=replica.applied,
        ready=replica.ready,
        reason=reason[:REASON_MAX],
        log_epoch=last_epoch(replica.epoch_table),
        changing=replica.reassigning[:REASON_MAX],
        transfers=replica.transfer_position is not None,
        out={node: why[:REASON_MAX] for node, why in replica.why_out(now_ms).items()},
    )


class ReplicaFormBody:
    """The form's own bytes; other bytes mean the earlier form."""

    def encode(self, form: ReplicaForm) -> bytes:
        """See Codec."""
        return form.value

    def decode(self, body: bytes) -> ReplicaForm:
        """See Codec."""
        return ReplicaForm.WITH_OUT if body == ReplicaForm.WITH_OUT.value else ReplicaForm.EARLIER


class ReplicasQuery(Query[ReplicaForm, NodeReplicaFacts]):
    """Answers in the form that the sender of the request understands."""

    def encode_answer(self, request: ReplicaForm, answer: NodeReplicaFacts) -> bytes:
        """See Query."""
        if request is ReplicaForm.WITH_OUT:
            return self.answers.encode(answer)
        return msgspec.msgpack.encode({p: structs.astuple(facts)[:FIELDS_EARLIER] for p, facts in answer.items()})


_ANSWERS: Final = MsgpackBody[NodeReplicaFacts](
    METHOD, Annotated[dict[Number, ReplicaFacts], msgspec.Meta(max_length=REPLICAS_MAX)]
)
"""A map of partition to `ReplicaFacts`."""

REPLICAS: Final = ReplicasQuery(METHOD, ReplicaFormBody(), _ANSWERS)


class ReplicaResponder:
    """Answers REPLICAS from the runtime's partitions."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def respond(self, _form: ReplicaForm) -> NodeReplicaFacts:
        """See Responder."""
        now_ms = self._runtime.time.now_ms()
        partitions = self._runtime.partitions.values()
        return {each.replica.partition: facts_of(each.replica, each.reason, now_ms) for each in partitions}
