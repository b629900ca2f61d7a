"""The changes of the ISRs that are led on this node: a log event and a count of each, with the reason.

A leader takes out who stalls or lags, takes in who has caught up, and removes who is moved away; the controller takes
out who is gone. Decides nothing.
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

TELLING: Final = (ev.WriteConfirmed, ev.RecordSeen, ev.WriteRefused, ev.RecordSynced)
"""The events by which a replica learns of a record: its own write without an answer may come by any of them."""

LEADING: Final = (ReplicaRole.LEADER, ReplicaRole.RESIGNING)

STALLED: Final = "stalled"
LAGS: Final = "lags"
REMOVED: Final = "removed"
GONE: Final = "gone"
"""Taken out by the controller: its session is over, or it is leaving."""


class IsrChanges:
    """Counts since the start of this process."""

    def __init__(self) -> None:
        self._shrunk = Counter({STALLED: 0, LAGS: 0, REMOVED: 0, GONE: 0})
        self._expanded = 0

    def saw(self, before: PartitionRecord | None, replica: Replica) -> None:
        """A replica was told of a record; `before` is the one that it knew until then."""
        after = replica.record
        if before is None or after is None or after is before or replica.role not in LEADING:
            return
        if after.epoch != before.epoch or after.isr == before.isr:
            return
        now = {"partition": after.partition, "epoch": after.epoch, "isr": sorted(member.node for member in after.isr)}
        for member in sorted(before.isr - after.isr):
            reason = replica.taken_out(member.node) or (GONE if member.node in after.replicas else REMOVED)
            self._shrunk[reason] += 1
            log.warning("isr.shrunk", member=member.node, reason=reason, min_isr=after.effective_min_isr, **now)
        for member in sorted(after.isr - before.isr):
            self._expanded += 1
            log.info("isr.expanded", member=member.node, reason="caught up", **now)

    def metrics(self) -> Iterator[Sample]:
        """Members that left and joined, by reason."""
        for reason, count in self._shrunk.items():
            yield "isthmus_isr_shrunk_total", {"reason": reason}, count
        yield "isthmus_isr_expanded_total", {}, self._expanded
