"""[sink] and [[sink.peers]]: what a node fetches from other clusters. Typed values and their defaults, nothing else.

`config.settings` holds them with all other sections, and gives their names on; docs/sinks.md tells what they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """[[sink.peers]]: one queue at one node of another cluster."""

    url: str
    """Base URL of the peer's HTTP listener."""

    queue: str
    """The queue's name there."""

    cluster: str = ""
    """The cluster that must answer there and that the peer's certificate must name. Empty: the certificate must name
    the URL's host, and whichever cluster answers first counts until this node's next start."""

    token_file: Path | None = None
    """Holds the token to show there: its first line that is one."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """[sink]: what this node fetches from other clusters. Without peers the sink is idle."""

    peers: tuple[PeerSettings, ...] = ()

    workers: int = 24
    """Fetches and pushes at once, as many as Riak has threads; most wait in a long poll. `isthmus sink set-workers`
    changes it while the node runs."""

    peer_limit_count: int = 0
    """Workers that may be busy with one peer at once. 0: an equal share of all workers for each peer, so that one
    that hangs holds no more."""

    batch_count: int = 512
    """Changes asked for in one fetch."""

    batch_bytes: int = 4 * MB
    """Bytes asked for in one fetch (a single larger object still comes)."""

    poll_ms: int = 5_000
    """How long a fetch waits at the source when there is nothing."""

    delay_min_ms: int = 10
    """First delay after an error."""

    delay_max_ms: int = 8_000
    """Longest delay after errors; the first success ends it."""

    delay_factor: int = 2
    """By how much each further error or empty answer in a row lengthens the delay."""

    empty_delay_min_ms: int = 5
    """What one empty answer adds to the delay, when the source did not hold it."""

    empty_delay_max_ms: int = 250
    """Longest delay after empty answers: what a source that is suspended, or that many others keep from being polled
    at leisure, is asked at most (four times a second)."""

    compression: str = "none"
    """"zstd": sources are asked to compress what they send: for links that are narrower than the machines are fast."""

    rate_limit_bytes: int = 0
    """Bytes a second that this node fetches, in all; 0: no limit. `isthmus sink throttle` changes it."""

    object_rate_limit_count: int = 0
    """Changes a second that this node fetches, in all; 0: no limit. `isthmus sink throttle` changes it."""

    discover: bool = True
    """Fetch from every live node of a peer's cluster, as its nodes come and go; without it only from those listed
    here (behind a load balancer or NAT)."""

    discovery_interval_ms: int = 5_000
    """How often peers are asked which nodes live: what a node that came waits at most before it is fetched from. One
    small request to each listed peer."""

    conflicts_count: int = 1_000
    """Concurrent writes of other clusters that are kept in a list for people, the newest, about 500 bytes each; what
    goes is counted. 0: none is kept."""

    dead_letters_count: int = 1_000
    """Changes that were refused for good and are kept for people; beyond it the oldest goes and is counted."""

    dead_letters_bytes: int = 256 * MB
    """Disk that their objects may take; beyond it the oldest objects go, and their names stay."""

    request_timeout_ms: int = 30_000
    """Connect and read time-out of one fetch, beyond its long poll."""


NO_SINK: Final = SinkSettings()
"""Without peers: the sink is idle."""
