"""The plan of a bucket type: for each partition its segments, and its replicas with their applied offsets.

Any node serves it by requests to all others. A node that does not respond in time, or fails to list its replicas, is
left out, so a partition may have no replica in the plan. A plan is a hint of one moment; a stream's head has the facts
(`aae.row_stream.wire`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import msgspec

from isthmus.aae.ports import NodeRpc, RpcHandler
from isthmus.aae.row_stream.streams import RowStreams, StreamReplicas
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.unforeseen import unforeseen

METHOD: Final = "aae.rows_held"

TIMEOUT_MS: Final = 5_000
"""Time-out of a request to a node, which reads SAMPLE_ROWS rows of each of its replicas."""

VERSION: Final = 1

REPLICAS_MAX: Final = 65_536
"""Replicas in one response, many times what a node has."""


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class ReplicaStatus(NamedTuple):
    """A replica as its node reports it."""

    partition: _Natural
    leads: bool
    whole: bool
    epoch: _Natural
    offset: _Natural
    rows_estimate: int | None


_Response = tuple[Literal[1], Annotated[list[ReplicaStatus], msgspec.Meta(max_length=REPLICAS_MAX)]]
"""VERSION and the replicas of a node."""

_decode_response = msgspec.msgpack.Decoder(_Response).decode


class PartitionRange(NamedTuple):
    """A partition's segments [first, end), and which course its offsets belong to
    (`aae.exchange.wire.PartitionHistory`)."""

    segments: tuple[int, int]
    lineage: int
    incarnation: int


class ClusterLayout(Protocol):
    """The cluster's partitions and nodes as this node knows them."""

    def ranges(self, bucket_type: bytes) -> Mapping[int, PartitionRange]:
        """The partitions of a bucket type. Raises BadInput for an unknown one, NotReady."""

    def urls(self) -> Mapping[str, str]:
        """{live node: URL of its HTTP listener}."""


class RowPlan:
    """Makes plans."""

    def __init__(
        self,
        streams: RowStreams,
        *,
        node: str,
        replicas: StreamReplicas,
        layout: ClusterLayout,
        rpc: NodeRpc,
    ) -> None:
        self._streams = streams
        self._node = node
        self._replicas = replicas
        self._layout = layout
        self._rpc = rpc

    def request_handlers(self) -> dict[str, RpcHandler]:
        """Handlers of requests from other nodes, by method."""
        return {METHOD: self._serve_replicas}

    async def plan(self, bucket_type: bytes) -> list[dict[str, Any]]:
        """One row per partition, ordered by segments; the leader is the last of its replicas. Raises BadInput,
        NotReady."""
        ranges = self._layout.ranges(bucket_type)
        urls = self._layout.urls()
        nodes = sorted(urls)
        responses = await asyncio.gather(*(self._replicas_of(node, bucket_type) for node in nodes))
        plan = []
        for partition, found in sorted(ranges.items(), key=lambda one: one[1]):
            replicas = [
                (replica, {"node": node, "http": urls[node], **replica._asdict()})
                for node, statuses in zip(nodes, responses, strict=True)
                for replica in statuses
                if replica.partition == partition
            ]
            replicas.sort(key=lambda one: (one[0].leads, -one[0].offset))
            estimates = [one.rows_estimate for one, _ in replicas if one.whole and one.rows_estimate is not None]
            plan.append(
                {
                    "partition": partition,
                    "segments": list(found.segments),
                    "lineage": found.lineage,
                    "incarnation": found.incarnation,
                    "rows_estimate": max(estimates, default=None),
                    "copies": [document for _, document in replicas],
                }
            )
        return plan

    async def _own_replicas(self, bucket_type: bytes) -> list[ReplicaStatus]:
        held = list(self._replicas.stream_replicas(bucket_type))
        estimates = await self._streams.estimates(held)
        found = []
        for one, estimate in zip(held, estimates, strict=True):
            try:
                applied = self._streams.applied(one.partition)
            except Exception as error:  # the other replicas are in the plan
                unforeseen.exception("row_plan.replica_bug", error, partition=one.partition)
            else:
                found.append(ReplicaStatus(one.partition, one.leads, one.whole, *applied, estimate))
        return found

    async def _replicas_of(self, node: str, bucket_type: bytes) -> Sequence[ReplicaStatus]:
        try:
            if node == self._node:
                return await self._own_replicas(bucket_type)
            return _decode(await self._rpc.request(node, METHOD, bucket_type, TIMEOUT_MS))
        except IsthmusError:
            return ()
        except Exception as error:  # the plan has the other nodes' replicas
            unforeseen.exception("row_plan.node_bug", error, peer=node)
            return ()

    async def _serve_replicas(self, _node: str, body: bytes) -> bytes:
        return msgspec.msgpack.encode((VERSION, await self._own_replicas(body)))


def _decode(data: bytes) -> list[ReplicaStatus]:
    try:
        replicas: list[ReplicaStatus] = _decode_response(data)[1]
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a list of replicas, version {VERSION}: {error}") from error
    return replicas
