"""One fetch: what a slot tells the source, and what it makes of the answer.

A slot acknowledges its last batch with its next fetch. It also says which batches it still works on (none, when it
fetches): what the source believes to be with this slot and is not, was lost on the way and comes again
at once instead of after its lease. An answer of another cluster than the one that the link belongs to is refused, so
that a reused address brings nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote

from isthmus.config.settings import SinkSettings
from isthmus.queues.leases import Session
from isthmus.queues.wire import (
    BYTES_MAX,
    MEDIA_TYPE,
    OFF_LOOP_FROM_BYTES,
    TYPES_MAX,
    ZSTD,
    BatchAck,
    FetchReply,
    FetchRequest,
    decode_reply,
    encode_request,
)
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.model.errors import PeerFault
from isthmus.repl.property_digests import PlaceDigests

ANSWER_OVERHEAD_BYTES: Final = 200_000_000
"""How much an answer may exceed the batch bytes asked for: a single larger object still comes (50 MB and its
siblings, as far as the source's own limits let it), and each change costs up to 10 KB of names."""


class WrongSourceCluster(PeerFault):
    """Another cluster answers than the one that this link belongs to."""

    reason = "other-cluster"


class SelfReplication(PeerFault):
    """The cluster of this sink answers: the peer points at home."""

    reason = "own-cluster"


class FetchOptions(NamedTuple):
    """What a fetch asks for: changes, bytes, and how long the source may hold it; and the digests of this cluster's
    properties by bucket type, and which types it has (None: not known), which it tells."""

    changes: int
    size: int
    wait_ms: int
    properties: Mapping[bytes, bytes] = MappingProxyType({})
    types: frozenset[bytes] | None = None
    places: PlaceDigests | None = None
    """Digests of this cluster's properties by bucket and bucket type; None: not told."""


class LocalCluster(NamedTuple):
    """Who fetches: this node's cluster."""

    cluster: bytes
    cluster_name: str


class Fetcher:
    """One slot's side of one queue at one peer; for one task at a time. `peer` may be shared by slots."""

    def __init__(
        self, peer: AsyncHttpPeer, queue: str, session: Session, home: LocalCluster, settings: SinkSettings
    ) -> None:
        self._peer = peer
        self._path = f"/queues/{quote(queue, safe='')}/fetch"
        self._session = session
        self._home = home
        self._timeout_ms = settings.request_timeout_ms
        self._compress = ZSTD if settings.compression == ZSTD else ""
        self.answer_bytes = 0
        """Size of the last answer's body."""
        self.ack: BatchAck | None = None
        """What became of the last batch; goes with the next fetch and stays until that was answered."""

    async def fetch(self, asked: FetchOptions, expected: bytes | None, expected_name: str) -> FetchReply:
        """The next batch, after a long poll if there is none. `expected` is the uuid of the cluster that must
        answer, `expected_name` its name; None and "" for any. Raises PeerFault, WrongSourceCluster, SelfReplication,
        CodecError."""
        reply = await self._post(asked)
        if reply.cluster == self._home.cluster:
            raise SelfReplication(
                f"{self._peer.url} is a node of this cluster, {self._home.cluster_name}: it points at home"
            )
        if expected is not None and reply.cluster != expected:
            raise WrongSourceCluster(
                f"{self._peer.url} answers for cluster {reply.cluster_name} ({reply.cluster.hex()}); this link belongs "
                f"to {expected.hex()}: if the cluster was made anew, restart this node"
            )
        if expected_name and reply.cluster_name != expected_name:
            raise WrongSourceCluster(
                f"{self._peer.url} answers for cluster {reply.cluster_name}, sink.peers says {expected_name}"
            )
        self.ack = None
        return reply

    async def acknowledge(self) -> None:
        """Send a waiting acknowledgement by itself, when the next fetch may be far. Raises PeerFault, CodecError."""
        if self.ack is not None:
            await self._post(FetchOptions(0, 0, 0))
            self.ack = None

    async def _post(self, asked: FetchOptions) -> FetchReply:
        request = FetchRequest(
            self._session,
            self._home.cluster_name,
            () if self.ack is None else (self.ack,),
            (),
            asked.changes,
            asked.size,
            asked.wait_ms,
            self._compress,
            dict(asked.properties),
            asked.types if asked.types is not None and len(asked.types) <= TYPES_MAX else None,
            asked.places,
        )
        body = await self._peer.post(
            self._path,
            encode_request(request),
            media_type=MEDIA_TYPE,
            timeout_ms=self._timeout_ms + asked.wait_ms,
            limit_bytes=min(asked.size, BYTES_MAX) + ANSWER_OVERHEAD_BYTES,
        )
        self.answer_bytes = len(body)
        if self._compress and len(body) >= OFF_LOOP_FROM_BYTES:
            return await asyncio.to_thread(decode_reply, body)  # unpacking lets go of the interpreter
        return decode_reply(body)
