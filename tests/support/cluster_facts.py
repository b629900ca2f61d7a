"""Facts of a cluster for source queues and sinks, as values that a test sets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from isthmus.config.settings import PeerSettings, RiakPeerSettings
from isthmus.queues.sink_shares import KeyRange, Share
from isthmus.repl.http.client import OPEN, PeerCredentials
from isthmus.repl.property_digests import ScopeDigests


@dataclass
class FakeClusterFacts:
    """`queues.service.QueueCluster` and `sink.service.SinkNodes`."""

    partitions: Mapping[int, bytes] = field(default_factory=dict)
    """Partition -> its bucket type."""
    digests: dict[bytes, bytes] = field(default_factory=dict)
    scopes: ScopeDigests | None = None
    live: Collection[str] = ()
    nodes: Collection[str] = ("w1",)
    key_ranges: Mapping[int, KeyRange] = field(default_factory=dict)
    """Partition -> which keys of its bucket type are in it."""
    share: Share | None = None
    """The partitions that the sink's node leads."""
    types: Callable[[], frozenset[bytes] | None] = lambda: None
    taken: bool = False

    def partition_types(self) -> Mapping[int, bytes]:
        return self.partitions

    def key_range(self, partition: int) -> KeyRange | None:
        return self.key_ranges.get(partition)

    def led_share(self) -> Share | None:
        return self.share

    def name_is_taken(self) -> bool:
        return self.taken

    def bucket_types(self) -> Collection[bytes]:
        return set(self.partitions.values())

    def known_types(self) -> frozenset[bytes] | None:
        return self.types()

    def property_digests(self) -> dict[bytes, bytes]:
        return self.digests

    def scope_digests(self) -> ScopeDigests | None:
        return self.scopes

    def live_nodes(self) -> Collection[str]:
        return self.live

    def known_nodes(self) -> Collection[str]:
        return self.nodes


class OpenPeers:
    """`sink.service.SourceAccess` without certificates and tokens."""

    def access_to(self, _peer: PeerSettings) -> PeerCredentials:
        return OPEN

    def access_to_riak(self, peer: RiakPeerSettings) -> PeerCredentials:
        return PeerCredentials(token=lambda: f"password of {peer.user}", user=peer.user) if peer.user else OPEN
