"""The followers to which a leader sends rows, and those that must begin with an empty store (R-FAR, R-REAP)."""

from __future__ import annotations

from typing import cast

import pytest

from isthmus.repl.isr.messages import TransferRequest
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.runtime.port import EventSink
from isthmus.repl.runtime.transfer_sender import TransferSender, _Round
from isthmus.repl.store.port import PartitionStep, TransferChunk
from isthmus.repl.transport.port import Links
from tests.contract.test_store_reaps import barrier, deleted, reap
from tests.support.damage_reports import DamageReports
from tests.support.memory_store import MemoryStore

REAPED_AT = 2
"""The offset of the only REAP entry."""


@pytest.mark.parametrize(
    ("position", "given"),
    [
        (0, True),  # an empty replica has no tombstone that it would have to remove
        (1, False),
        (REAPED_AT, False),  # it has everything below the reap, but not the reap
        (REAPED_AT + 1, True),
    ],
)
async def test_a_replica_that_ends_below_a_reap_gets_no_incremental_rows(position: int, given: bool) -> None:
    """No row records that a tombstone was reaped, so a replica that lacks the reap would keep its tombstone for
    ever."""

    store = MemoryStore()
    store.write([PartitionStep(0, [barrier(0), deleted(1), reap(REAPED_AT, 1), deleted(3)])])
    clock = cast(TimeSource, None)
    links = cast(Links, None)
    serving = TransferSender(links, store, clock, cast(EventSink, None), DamageReports())
    try:
        asked = TransferRequest(1, 1, 1, position, 1 if position else 0, 1, 0, b"")
        chunk = serving._read(0, _Round(), asked)
        assert isinstance(chunk, TransferChunk) if given else chunk is None
    finally:
        serving._pool.shutdown()
