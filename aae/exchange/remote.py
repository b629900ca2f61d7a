"""The trees of another cluster, asked over HTTP: the sink of an exchange, with the face of `aae.exchange.cluster`.

Any node of the other cluster answers for all of it; when one does not, the next one is asked. An answer of another
cluster than the one that is meant is an error, as is one in another form. Requests run in threads; how bytes travel
is `repl.http.client`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.wire import ClocksAsked, LeavesAsked, RepairAsked, RootsAsked, RowsTold
from isthmus.aae.trees.tree import BRANCH_COUNT, Hashes
from isthmus.repl.http.client import OPEN, HttpPeer, HttpRefused, PeerCredentials
from isthmus.repl.model.errors import PeerFault

CONNECTIONS: Final = 2
"""Of one peer node; an exchange asks one thing at a time, and folds may run beside it."""

NAMES_BYTES: Final = wire.QUESTION_BYTES_MAX // 2
"""Names of keys in one question to repair, which are few where names are long: config allows 64 KB."""

NAME_HEAD_BYTES: Final = 16
"""More than a name takes besides itself."""

OF_A_NODE: Final = frozenset({401, 403, 408, 429})
"""Refusals that say something of the node, such as that its file of tokens is an old one: the next one is asked. With
the others the question is wrong, and would be for every node."""

Answer = TypeVar("Answer")


class TypeLacking(PeerFault):
    """The other cluster has no such bucket type."""

    reason = "unknown-bucket-type"


class WrongPeerCluster(PeerFault):
    """Another cluster answers than the one that is compared with."""

    reason = "other-cluster"


class PeerTrees:
    """One other cluster. `urls` are some of its nodes' HTTP listeners; `cluster_name`, if given, must be its name, and
    `own` must not be it. `cluster`: its uuid, known from the first answer on, and held to."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        own: bytes,
        cluster_name: str = "",
        timeout_ms: int,
        access: PeerCredentials = OPEN,
        compress: bool = False,
    ) -> None:
        self._peers = [HttpPeer(url, CONNECTIONS, access) for url in urls]
        self._first = 0
        self._own = own
        self._name = cluster_name
        self._timeout_ms = timeout_ms
        self._suffix = f"?compress={wire.ZSTD}" if compress else ""
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fullsync")
        self.cluster: bytes | None = None
        self.bytes_received = 0

    async def roots(self, asked: RootsAsked) -> Hashes:
        """See ClusterTrees. Raises PeerFault, CodecError; so do all."""
        return await self._ask(
            0, wire.encode_roots_asked(asked), lambda body: wire.decode_hashes(body, BRANCH_COUNT).hashes
        )

    async def leaves(self, asked: LeavesAsked) -> Hashes:
        """See ClusterTrees."""
        count = wire.leaf_count(asked)
        return await self._ask(1, wire.encode_leaves_asked(asked), lambda body: wire.decode_hashes(body, count).hashes)

    async def clocks(self, asked: ClocksAsked) -> RowsTold:
        """See ClusterTrees."""
        return await self._ask(2, wire.encode_clocks_asked(asked), lambda body: wire.decode_rows(body, asked))

    async def repair(self, queue: str, bucket_type: bytes, names: Sequence[tuple[bytes, bytes]]) -> int:
        """Let the other cluster put what is ahead there into its queue; how many keys it took."""
        taken = 0
        for part in _fitting(names):
            question = wire.encode_repair_asked(RepairAsked(queue, bucket_type, part))
            taken += await self._ask(3, question, wire.decode_repaired)
        return taken

    def close(self) -> None:
        """End what is under way; every further question fails."""
        for peer in self._peers:
            peer.abort()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, path: int, question: bytes, decode: Callable[[bytes], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._asked, wire.PATHS[path] + self._suffix, question, decode)

    def _asked(self, path: str, question: bytes, decode: Callable[[bytes], Answer]) -> Answer:
        """In a thread: from the node that answered last, or the next one that does."""
        trouble: PeerFault | None = None
        for turn in range(len(self._peers)):
            at = (self._first + turn) % len(self._peers)
            peer = self._peers[at]
            try:
                data = peer.post(
                    path,
                    question,
                    media_type=wire.MEDIA_TYPE,
                    timeout_ms=self._timeout_ms,
                    limit_bytes=wire.MESSAGE_BYTES_MAX,
                )
            except HttpRefused as error:
                told = error if str(error).startswith(peer.url) else _named(peer.url, error)
                if error.status < 500 and error.status not in OF_A_NODE:
                    raise (TypeLacking(str(told)) if error.reason == TypeLacking.reason else told) from error
                trouble = told
            except PeerFault as error:
                trouble = error
            else:
                self._first = at
                self.bytes_received += len(data)
                return decode(self._checked(peer.url, data))
        assert trouble is not None
        raise trouble

    def _checked(self, url: str, data: bytes) -> bytes:
        told = wire.decode_told(data)
        if told.cluster == self._own:
            raise WrongPeerCluster(f"{url} is a node of this cluster: full-sync points at home")
        if self._name and told.cluster_name != self._name:
            raise WrongPeerCluster(f"{url} answers for cluster {told.cluster_name}, the settings say {self._name}")
        if self.cluster is not None and told.cluster != self.cluster:
            raise WrongPeerCluster(f"{url} answers for cluster {told.cluster.hex()}, others for {self.cluster.hex()}")
        self.cluster = told.cluster
        return told.body


def _fitting(names: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[tuple[bytes, bytes], ...]]:
    """Parts of `names` that have room in a question."""
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


def _named(url: str, error: HttpRefused) -> HttpRefused:
    """What a node refused, with its name: who reads it does not know yet on which side to look."""
    return HttpRefused(f"{url}: {error}", error.status, error.reason)
