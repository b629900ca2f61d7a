"""Damaged and suspect rows of this node's store: reported by all who read rows, repaired by `aae.scrub.row_audit`.

Made before everything that reads rows, so that each reader gets it at its construction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

SUSPECTS_MAX: Final = 256
"""Segments that may wait for an early check; an exchange's further segments are left to the rounds."""


class DamagedRows:
    """Segments that wait for a check or a repair; a `repl.model.ports.DamageListener`. Belongs to the event loop."""

    def __init__(self) -> None:
        self._suspects: dict[tuple[int, int], None] = {}
        self._to_repair: dict[int, dict[int, int]] = {}
        self._reported = asyncio.Event()

    def on_damaged_row(self, partition: int, segment: int | None) -> None:
        """See DamageListener. Repairs the row soon; without a segment all unreadable rows of the partition."""
        if segment is None:
            self.repair_soon(partition, {})
        else:
            self.check_soon(partition, [segment])

    def check_soon(self, partition: int, segments: Iterable[int]) -> None:
        """Check these segments soon: an exchange reads their rows because they may differ."""
        for segment in islice(segments, SUSPECTS_MAX - len(self._suspects)):
            self._suspects[partition, segment] = None
            self._reported.set()

    def repair_soon(self, partition: int, leaves: Mapping[int, int]) -> None:
        """Repair the segments of {segment: correct leaf} soon; with an empty mapping all rows that cannot be read."""
        self._to_repair.setdefault(partition, {}).update(leaves)
        self._reported.set()

    async def reported(self) -> None:
        """Return once something was reported since the last return."""
        await self._reported.wait()
        self._reported.clear()

    def take_repair(self) -> tuple[int, Mapping[int, int]] | None:
        """A partition to repair, with its {segment: correct leaf}; None when there is none."""
        return self._to_repair.popitem() if self._to_repair else None

    def take_suspects(self) -> dict[int, list[int]]:
        """Partition -> the segments to check."""
        suspects, self._suspects = self._suspects, {}
        found: dict[int, list[int]] = {}
        for partition, segment in sorted(suspects):
            found.setdefault(partition, []).append(segment)
        return found
