"""The trees of another cluster, over HTTP: the other end of an exchange.

Any node of the other cluster serves all of it; after a failure the next node is tried. A response from an unexpected
cluster, or in another format, is an error. Requests run in threads; `repl.http.client` transports them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.wire import ClocksRequest, LeavesRequest, RepairRequest, RootsRequest, RowsResponse
from isthmus.aae.trees.tree import BRANCH_COUNT, Hashes
from isthmus.repl.http.client import OPEN, HttpPeer, HttpRefused, PeerCredentials
from isthmus.repl.model.errors import PeerFault

CONNECTIONS: Final = 2
"""Connections per peer node: an exchange sends one request at a time, folds may run beside it."""

NAMES_BYTES: Final = wire.REQUEST_BYTES_MAX // 2
"""Size of the names in one repair request; config allows names of 64 KB."""

NAME_HEAD_BYTES: Final = 16
"""Upper bound of what a name takes in a request besides its own bytes."""

NODE_FAULTS: Final = frozenset({401, 403, 408, 429})
"""HTTP statuses that concern the node alone, such as one with an outdated token file: the next node is tried. Other
refusals would be the same at every node."""

Response = TypeVar("Response")


class PeerClocks(Protocol):
    """What is known of the clocks of other clusters (`repl.clock_offsets.ClockOffsets`). For any thread."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""

    def answered(self, name: str, wall_ms: int, round_trip_ms: float) -> None:
        """Note the wall clock of an answer that has just come, by the address of the peer."""


class TypeLacking(PeerFault):
    """The other cluster does not have the bucket type."""

    reason = "unknown-bucket-type"


class WrongPeerCluster(PeerFault):
    """The response is from another cluster than the expected one."""

    reason = "other-cluster"


class PeerTrees:
    """One other cluster. `urls`: HTTP listeners of some of its nodes. `cluster_name`, unless empty, must match; `own`
    must not be its uuid. `cluster`: its uuid, set by the first response; later responses must have the same."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        own: bytes,
        cluster_name: str = "",
        timeout_ms: int,
        access: PeerCredentials = OPEN,
        compress: bool = False,
        clocks: PeerClocks,
    ) -> None:
        self._peers = [HttpPeer(url, CONNECTIONS, access) for url in urls]
        self._first = 0
        self._own = own
        self._name = cluster_name
        self._timeout_ms = timeout_ms
        self._clocks = clocks
        self._suffix = f"?{wire.CLOCK}=1" + (f"&compress={wire.ZSTD}" if compress else "")
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fullsync")
        self.cluster: bytes | None = None
        self.bytes_received = 0

    async def roots(self, request: RootsRequest) -> Hashes:
        """See ClusterTrees. Raises PeerFault, CodecError; so do all."""
        return await self._request(
            0, wire.encode_roots_request(request), lambda body: wire.decode_hashes(body, BRANCH_COUNT).hashes
        )

    async def leaves(self, request: LeavesRequest) -> Hashes:
        """See ClusterTrees."""
        count = wire.leaf_count(request)
        return await self._request(
            1, wire.encode_leaves_request(request), lambda body: wire.decode_hashes(body, count).hashes
        )

    async def clocks(self, request: ClocksRequest) -> RowsResponse:
        """See ClusterTrees."""
        return await self._request(2, wire.encode_clocks_request(request), lambda body: wire.decode_rows(body, request))

    async def repair(self, queue: str, bucket_type: bytes, names: Sequence[tuple[bytes, bytes]]) -> int:
        """Have the other cluster enqueue keys that are ahead there; returns how many it took."""
        taken = 0
        for part in _batches(names):
            body = wire.encode_repair_request(RepairRequest(queue, bucket_type, part))
            taken += await self._request(3, body, wire.decode_repair_response)
        return taken

    def close(self) -> None:
        """Abort running requests; all further requests fail."""
        for peer in self._peers:
            peer.abort()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _request(self, path: int, body: bytes, decode: Callable[[bytes], Response]) -> Response:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._post, wire.PATHS[path] + self._suffix, body, decode)

    def _post(self, path: str, body: bytes, decode: Callable[[bytes], Response]) -> Response:
        """In a thread: the response of the node that responded last, or of the next one that does."""
        failure: PeerFault | None = None
        for turn in range(len(self._peers)):
            at = (self._first + turn) % len(self._peers)
            peer = self._peers[at]
            asked_ms = self._clocks.now_ms()
            try:
                data = peer.post(
                    path,
                    body,
                    media_type=wire.MEDIA_TYPE,
                    timeout_ms=self._timeout_ms,
                    limit_bytes=wire.MESSAGE_BYTES_MAX,
                )
            except HttpRefused as error:
                refusal = error if str(error).startswith(peer.url) else _with_url(peer.url, error)
                if error.status < 500 and error.status not in NODE_FAULTS:
                    raise (TypeLacking(str(refusal)) if error.reason == TypeLacking.reason else refusal) from error
                failure = refusal
            except PeerFault as error:
                failure = error
            else:
                self._first = at
                took_ms = self._clocks.now_ms() - asked_ms
                self.bytes_received += len(data)
                response = self._checked(peer.url, data)
                if response.wall_ms is not None:
                    self._clocks.answered(peer.url, response.wall_ms, took_ms)
                return decode(response.body)
        assert failure is not None
        raise failure

    def _checked(self, url: str, data: bytes) -> wire.PeerResponse:
        response = wire.decode_peer_response(data)
        if response.cluster == self._own:
            raise WrongPeerCluster(f"{url} is a node of this cluster: full-sync compares with another one")
        if self._name and response.cluster_name != self._name:
            raise WrongPeerCluster(f"{url} answers for cluster {response.cluster_name}, the settings name {self._name}")
        if self.cluster is not None and response.cluster != self.cluster:
            raise WrongPeerCluster(
                f"{url} answers for cluster {response.cluster.hex()}, others for {self.cluster.hex()}"
            )
        self.cluster = response.cluster
        return response


def _batches(names: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[tuple[bytes, bytes], ...]]:
    """Parts of `names` whose size fits into a request."""
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for bucket, key in names:
        length = len(bucket) + len(key) + NAME_HEAD_BYTES
        if part and size + length > NAMES_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append((bucket, key))
        size += length
    if part:
        yield tuple(part)


def _with_url(url: str, error: HttpRefused) -> HttpRefused:
    """The refusal with the node's URL in its message, so that the operator knows on which side to look."""
    return HttpRefused(f"{url}: {error}", error.status, error.reason)
