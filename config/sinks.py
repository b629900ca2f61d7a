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
    """The peer's `listen.http`."""

    queue: str
    """The queue's name there."""

    cluster: str = ""
    """The cluster that must answer there, and that the peer's certificate must name. Empty: it must name the URL's
    host, and whichever cluster answers first counts until the node's next start."""

    token_file: Path | None = None
    """Holds the token to show there: its first line that is one."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """[sink]: what this node fetches from other clusters. Without peers the sink is idle."""

    peers: tuple[PeerSettings, ...] = ()

    workers: int = 24
    """How many fetches and pushes may run at once; most of them wait for something to come. Riak has as many threads.
    `isthmus sink set-workers` changes it live."""

    peer_limit_count: int = 0
    """Workers that may be busy with one peer; 0: an equal share for each peer. A peer that hangs holds no more."""

    batch_count: int = 512
    """Changes asked for in one fetch."""

    batch_bytes: int = 4 * MB
    """Bytes asked for in one fetch; a single larger object still comes."""

    poll_ms: int = 5_000
    """How long a fetch waits at the source when there is nothing."""

    delay_min_ms: int = 10
    """First delay after an error; at most `delay_max`."""

    delay_max_ms: int = 8_000
    """Longest delay after errors; the first success ends it."""

    delay_factor: int = 2
    """By how much each further error or empty answer in a row lengthens the delay."""

    empty_delay_min_ms: int = 5
    """What an empty answer adds that the source did not hold; at most `empty_delay_max`."""

    empty_delay_max_ms: int = 250
    """Longest delay after empty answers. A suspended source is asked four times a second at most."""

    compression: str = "none"
    """Have sources compress what they send. For links that are narrower than the machines are fast."""

    rate_limit_bytes: int = 0
    """Bytes a second that the node fetches in all; 0: no limit. `isthmus sink throttle` changes it live."""

    object_rate_limit_count: int = 0
    """Changes a second that the node fetches in all; 0: no limit. `isthmus sink throttle` changes it live."""

    discover: bool = True
    """Fetch from every live node of a peer's cluster; `false`: only from those listed ([sinks](sinks.md)). The second
    is for nodes behind a load balancer or NAT."""

    discovery_interval_ms: int = 5_000
    """How often peers are asked which nodes live. A new node waits this long at most before it is fetched from."""

    conflicts_count: int = 1_000
    """Newest changes kept that were concurrent with ours, for `isthmus sink conflicts`; what goes is counted. 0: none
    is kept. Each takes about 500 bytes."""

    dead_letters_count: int = 1_000
    """Most dead letters kept: changes that were refused for good. A further one becomes a gap at its source."""

    dead_letters_bytes: int = 256 * MB
    """Disk for their objects; beyond it the oldest objects go, and their names stay."""

    request_timeout_ms: int = 30_000
    """How long a fetch may take beyond its `poll`."""


NO_SINK: Final = SinkSettings()
"""Without peers: the sink is idle."""
