"""Logs and counts changes of the ISRs that are led on this node, with the reason.

A leader removes members that stall or lag, adds replicas that have caught up, and removes replicas that are moved away;
the controller removes members whose session is over. Nothing is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import structlog

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

RECORD_EVENTS: Final[frozenset[type[ev.Event]]] = frozenset(
    (ev.WriteConfirmed, ev.RecordSeen, ev.WriteRefused, ev.RecordSynced)
)
"""Events that bring a record: the outcome of an unanswered record write may come with any of them."""

LEADING: Final = (ReplicaRole.LEADER, ReplicaRole.RESIGNING)

STALLED: Final = "stalled"
LAGS: Final = "lags"
REMOVED: Final = "removed"
GONE: Final = "gone"
"""Removed by the controller: its session is over, or its node is stopping."""


class IsrChanges:
    """ISR changes since the start of this process."""

    def __init__(self) -> None:
        self._shrunk = Counter({STALLED: 0, LAGS: 0, REMOVED: 0, GONE: 0})
        self._expanded = 0

    def compare(self, before: PartitionRecord | None, replica: Replica) -> None:
        """Log and count what differs between the record `before` an event and the replica's record now."""
        after = replica.record
        if before is None or after is None or after is before or replica.role not in LEADING:
            return
        if after.epoch != before.epoch or after.isr == before.isr:
            return
        common = {
            "partition": after.partition,
            "epoch": after.epoch,
            "isr": sorted(member.node for member in after.isr),
        }
        for member in sorted(before.isr - after.isr):
            reason = replica.taken_out(member.node) or (GONE if member.node in after.replicas else REMOVED)
            self._shrunk[reason] += 1
            log.warning("isr.shrunk", peer=member.node, reason=reason, min_isr=after.effective_min_isr, **common)
        for member in sorted(after.isr - before.isr):
            self._expanded += 1
            log.info("isr.expanded", peer=member.node, reason="caught up", **common)

    def metrics(self) -> Iterator[Sample]:
        """Members removed, by reason, and added."""
        for reason, count in self._shrunk.items():
            yield "isthmus_isr_shrunk_total", {"reason": reason}, count
        yield "isthmus_isr_expanded_total", {}, self._expanded
