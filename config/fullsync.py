"""Settings of full-sync: the clusters that this node compares its own with.

Frozen values with the reason of every default, like those of `config.settings`, which has them as [[fullsync]].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ALL_TYPES = "*"
"""`bucket_types` that names all of them."""

SECOND = 1_000
HOUR = 3_600 * SECOND


@dataclass(frozen=True, slots=True)
class FullSyncSettings:
    """[[fullsync]]: one other cluster to compare with, and how often. Several nodes may have the same one: they share
    nothing, and their checks fall on different moments of a slot."""

    name: str
    """What operators call it; unique in the file."""

    urls: str
    """Base URLs of the HTTP listeners of some of its nodes, separated by commas: when one fails, the next is asked."""

    queue: str
    """The queue of this cluster that repairs go into, at full-sync's priority; its filter says what is compared."""

    cluster: str = ""
    """The cluster that must answer there and that its certificates must name. Empty: as for [[sink.peers]]."""

    token_file: Path | None = None
    """Holds the token to show there: its first line that is one."""

    bucket_types: str = ALL_TYPES
    """Bucket types that are compared, separated by commas. `"*"`: all of this cluster that the queue's filter lets out,
    those made later included; one that the other cluster lacks is skipped with a warning until it is made there."""

    all_count: int = 0
    """Checks a day that look at everything. All counts 0: nothing is done by itself."""

    day_count: int = 0
    """Checks a day of what changed in the last 24 hours."""

    hour_count: int = 0
    """Checks a day of what changed in the last hour."""

    range_count: int = 0
    """Checks a day of the learned range, or else of what changed since the last check that ended in sync."""

    auto_count: int = 24
    """Checks a day that choose by what the last ones found. In sync they cost some hundredths of a second."""

    none_count: int = 0
    """Slots a day in which nothing is done."""

    all_window: str = "0-6"
    """Hours (UTC) in which `auto` may check everything: "FIRST-END", "always" or "never"."""

    cluster_slice: int = 0
    """Which quarter of each slot the checks begin in, 1 to 4, of clusters that compare with each other each another
    one; 0: anywhere in it. With as many checks a day on both sides, their checks do not begin at the same time."""

    pause_ms: int = 1 * SECOND
    """Between two looks at what differs, half to one and a half of it: must be longer than the usual lag, or changes on
    their way are looked at in vain."""

    timeout_ms: int = 60 * SECOND
    """How long the other cluster may take for one answer."""

    run_timeout_ms: int = 4 * HOUR
    """How long a check may take in all; then it ends as timed-out, and says how far it came."""

    repair_rate_limit_count: int = 5_000
    """Repairs a second that a check queues, so that users' reads and writes keep their pace; 0: no limit."""

    segment_limit_count: int = 0
    """Segments that differ of which a check reads and compares the keys, at most; the next one goes on. It bounds the
    work of one check, where much differs; 0: no limit."""

    auto_suppress_count: int = 2
    """Checks of kind `auto` that are left out after one that found only what cannot be repaired from here."""

    compress: bool = False
    """Ask for answers compressed with zstd: hashes hardly shrink, keys and clocks to about a half; costs CPU there."""

    bidirectional: bool = False
    """Tell the other cluster to queue what is ahead there. Without it that is counted and left alone."""

    peer_queue: str = ""
    """The other cluster's queue for that; needed with `bidirectional`."""

    repair_log: bool = False
    """Write every key that is queued for repair to the node's log."""
