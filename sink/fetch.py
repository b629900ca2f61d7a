"""One fetch of a slot: request, answer, and checks of the answer.

A slot acknowledges its last batch with its next fetch. It also sends which batches it still holds (none, when it
fetches): a batch that the source has leased to this slot and the slot does not hold was lost on the way, and is sent
again at once instead of after its lease. An answer of another cluster than the link's is refused, so that a reused
address brings no foreign changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from isthmus.config.settings import SinkSettings
from isthmus.queues.counters_wire import BYTES_MAX as COUNTERS_BYTES_MAX
from isthmus.queues.counters_wire import HeldCountersMessage, decode_counters, encode_counters
from isthmus.queues.leases import Session
from isthmus.queues.sink_shares import Share
from isthmus.queues.wire import (
    BYTES_MAX,
    MEDIA_TYPE,
    OFF_LOOP_FROM_BYTES,
    SHARE_TYPES_MAX,
    TYPES_MAX,
    ZSTD,
    BatchAck,
    FetchReply,
    FetchRequest,
    decode_reply,
    encode_request,
)
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.model.errors import IsthmusError, PeerFault
from isthmus.repl.property_digests import ScopeDigests

ANSWER_OVERHEAD_BYTES: Final = 200_000_000
"""How much an answer may exceed the batch bytes asked for: a single larger object is still sent (50 MB and its
siblings, within the source's own limits), and each change has up to 10 KB of names."""


COUNTERS_TIMEOUT_MS: Final = 5_000
"""How long a fetch is held up by a source that does not answer the exchange of counters before it: a second would do
over any link, and a busy source may take some."""


class WrongSourceCluster(PeerFault):
    """Another cluster answers than the link's."""

    reason = "other-cluster"


class SelfReplication(PeerFault):
    """The cluster of this sink answers: the peer points at its own cluster."""

    reason = "own-cluster"


class FetchOptions(NamedTuple):
    """Parameters of a fetch: most changes and bytes, and how long the source may hold it; and facts that it sends: the
    digests of this cluster's properties by bucket type, and its bucket types (None: not known)."""

    changes: int
    size: int
    wait_ms: int
    properties: Mapping[bytes, bytes] = MappingProxyType({})
    types: frozenset[bytes] | None = None
    scopes: ScopeDigests | None = None
    """Digests of this cluster's properties by bucket and bucket type; None: not sent."""
    share: Share | None = None
    """The partitions that this node leads, so that it can push what it fetches without forwarding it; None: not
    sent."""


class LocalCluster(NamedTuple):
    """This node's cluster: uuid and name."""

    cluster: bytes
    cluster_name: str


class ChangeFetcher(Protocol):
    """Fetches changes for one slot: from a queue of another cluster (`Fetcher`), or of a Riak
    (`sink.riak_fetch.RiakFetcher`)."""

    answer_bytes: int
    """Size of the last answers' bodies."""

    @property
    def ack(self) -> BatchAck | None:
        """Acknowledgement that is still to be sent."""

    @property
    def hand(self) -> bool:
        """Whether it has changes that were fetched, are not stored yet, and come from nowhere else again."""

    @property
    def refused(self) -> Mapping[int, IsthmusError]:
        """Changes of the last batch that cannot be right, by index, with the reason."""

    @property
    def more(self) -> bool:
        """Whether the last fetch ended before the source was known to be empty."""

    async def fetch(self, options: FetchOptions, expected: bytes | None, expected_name: str, /) -> FetchReply:
        """The next batch. Raises IsthmusError."""

    def settled(self, ack: BatchAck, /) -> None:
        """What became of the last batch."""

    async def acknowledge(self) -> None:
        """Send the acknowledgement without a fetch. Raises IsthmusError."""

    async def exchange(self, held: HeldCountersMessage, /) -> HeldCountersMessage:
        """Exchange counters with the source. Raises IsthmusError."""


class Fetcher:
    """Fetches one queue from one peer, for one slot. `peer` may be shared by slots."""

    hand: Final = False
    """A change that is not acknowledged comes again from the source."""

    refused: Final[Mapping[int, IsthmusError]] = MappingProxyType({})

    more: Final = False
    """A long poll ends an answer that is not full."""

    def __init__(
        self, peer: AsyncHttpPeer, queue: str, session: Session, local: LocalCluster, settings: SinkSettings
    ) -> None:
        self._peer = peer
        self._path = f"/queues/{quote(queue, safe='')}/fetch"
        self._counters_path = f"/queues/{quote(queue, safe='')}/counters"
        self._session = session
        self._local = local
        self._timeout_ms = settings.request_timeout_ms
        self._compress = ZSTD if settings.compression == ZSTD else ""
        self.answer_bytes = 0
        """Size of the last answer's body."""
        self.ack: BatchAck | None = None
        """Acknowledgement of the last batch; sent with the next fetch, and kept until that is answered."""

    async def fetch(self, options: FetchOptions, expected: bytes | None, expected_name: str) -> FetchReply:
        """Fetch the next batch, after a long poll if there is none. `expected` is the uuid of the cluster that must
        answer, `expected_name` its name; None and "" for any. Raises PeerFault, WrongSourceCluster, SelfReplication,
        CodecError."""
        reply = await self._post(options)
        if reply.cluster == self._local.cluster:
            raise SelfReplication(
                f"{self._peer.url} is a node of this cluster, {self._local.cluster_name}: it points at home"
            )
        if expected is not None and reply.cluster != expected:
            raise WrongSourceCluster(
                f"{self._peer.url} answers for cluster {reply.cluster_name} ({reply.cluster.hex()}); this link belongs "
                f"to {expected.hex()}: if the cluster was created again, restart this node"
            )
        if expected_name and reply.cluster_name != expected_name:
            raise WrongSourceCluster(
                f"{self._peer.url} answers for cluster {reply.cluster_name}, sink.peers names {expected_name}"
            )
        self.ack = None
        return reply

    def settled(self, ack: BatchAck) -> None:
        """Keep the acknowledgement of the last batch for the next request."""
        self.ack = ack

    async def acknowledge(self) -> None:
        """Send the acknowledgement without a fetch. Raises PeerFault, CodecError."""
        if self.ack is not None:
            await self._post(FetchOptions(0, 0, 0))
            self.ack = None

    async def exchange(self, held: HeldCountersMessage) -> HeldCountersMessage:
        """Tell the source what this cluster holds of its actors; what it holds of ours. Raises PeerFault,
        CodecError."""
        body = await self._peer.post(
            self._counters_path,
            encode_counters(held),
            media_type=MEDIA_TYPE,
            timeout_ms=min(self._timeout_ms, COUNTERS_TIMEOUT_MS),
            limit_bytes=COUNTERS_BYTES_MAX,
        )
        return decode_counters(body)

    async def _post(self, options: FetchOptions) -> FetchReply:
        request = FetchRequest(
            self._session,
            self._local.cluster_name,
            () if self.ack is None else (self.ack,),
            (),
            options.changes,
            options.size,
            options.wait_ms,
            self._compress,
            dict(options.properties),
            options.types if options.types is not None and len(options.types) <= TYPES_MAX else None,
            options.scopes,
            options.share if options.share is not None and len(options.share) <= SHARE_TYPES_MAX else None,
        )
        body = await self._peer.post(
            self._path,
            encode_request(request),
            media_type=MEDIA_TYPE,
            timeout_ms=self._timeout_ms + options.wait_ms,
            limit_bytes=min(options.size, BYTES_MAX) + ANSWER_OVERHEAD_BYTES,
        )
        self.answer_bytes = len(body)
        if self._compress and len(body) >= OFF_LOOP_FROM_BYTES:
            return await asyncio.to_thread(decode_reply, body)  # unpacking releases the interpreter lock
        return decode_reply(body)
