"""Deliberate defects of what operators are told, and of one item's failure that others pay for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from isthmus.node.services import findings
from isthmus.queues.gaps import QueueGap
from isthmus.queues.lag import LagMemory
from isthmus.queues.window import Window
from isthmus.sink import worker

Patch = pytest.MonkeyPatch


def takes_what_waits_for_acknowledged(patch: Patch) -> None:
    """`explain` says of a change that waits, or is in flight, that it was acknowledged."""
    patch.setattr(Window, "locate", lambda self, row: ("acknowledged", None))


def is_never_behind(patch: Patch) -> None:
    """`lag` is 0 whatever waits."""
    sound = LagMemory.read

    async def read(self: LagMemory, *args: Any) -> Any:
        found = await sound(self, *args)
        return {
            name: one._replace(partitions=[structs.replace(row, seconds=0.0, objects=0) for row in one.partitions])
            for name, one in found.items()
        }

    patch.setattr(LagMemory, "read", read)


def tells_gaps_of_another_offset(patch: Patch) -> None:
    """`gaps` tells where a gap ends in place of where it begins."""
    sound = QueueGap.as_dict

    def shown(self: QueueGap, partition: int) -> dict[str, Any]:
        return {**sound(self, partition), "from_offset": self.start + 1}

    patch.setattr(QueueGap, "as_dict", shown)


def a_note_of_conflicts_raises(patch: Patch) -> None:
    """What notes the conflicts of a batch raises into the cycle that pushed it."""

    def noted(*_: Any) -> Any:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a key that is no text")

    patch.setattr(worker, "conflicts_of", noted)


def finds_no_gaps(patch: Patch) -> None:
    """What is amiss is not found: `status` and `check` know nothing of open gaps."""
    patch.setattr(findings, "gap_facts", lambda answer, limits: [])


def finds_replicas_out_of_sync(patch: Patch) -> None:
    """All is well, and `status` and `check` say that partitions lack replicas in sync."""
    sound = findings.isr_facts

    def facts(cluster: Any, limits: Any) -> Any:
        return sound({**cluster, "under_replicated": cluster["under_replicated"] or [0]}, limits)

    patch.setattr(findings, "isr_facts", facts)
