"""A batch of references under lease, and who holds it (pure).

The story goes on in `queues.source_queue`, which makes and settles batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from queues.rules import Item
from queues.window import Window


class Session(NamedTuple):
    """Who holds a batch: a sink process (`node`, `incarnation`) and which of its links; all of the owner's
    cluster."""

    cluster: bytes
    node: str
    incarnation: bytes
    link: int


class Part(NamedTuple):
    """One window's share of a batch; `start` is the index of its first item in the batch."""

    window: Window
    start: int
    places: list[int]
    items: list[Item]


@dataclass(slots=True)
class Batch:
    """References given to a sink under a lease. `size_bytes` counts payloads."""

    id: bytes
    session: Session
    owner_version: int
    expires_ms: int
    parts: list[Part]
    size_bytes: int

    def items(self) -> list[Item]:
        """All references, in the order in which they are sent."""
        return [item for part in self.parts for item in part.items]

    def __len__(self) -> int:
        last = self.parts[-1]
        return last.start + len(last.items)


@dataclass(slots=True)
class Counts:
    """Counters since the node began, in changes: `served` includes repeats; `redelivered` came back and wait again;
    `late` counts acknowledgements of batches that were no longer under lease, `refused` those of an older owner."""

    served: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    batches: int = 0
    late: int = 0
    refused: int = 0
