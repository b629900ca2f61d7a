"""Builders for tests of the core: records, registrations, entries, and a replica that is led step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration

NODE = "n1"
INC = 100
GEN = 7
ME = Incarnation(NODE, INC)
MEMBER = Member(NODE, GEN)


def a_record(**changes: Any) -> PartitionRecord:
    """The record of partition 3, one replica, epoch 4, in election; `changes` over that."""
    base = PartitionRecord(3, "default", 3, 12, (NODE,), epoch=4, isr=frozenset({MEMBER}), version=10)
    return replace(base, **changes)


def nominated(epoch: int = 5, version: int = 11, **changes: Any) -> PartitionRecord:
    """`a_record` with this process as candidate of `epoch`."""
    status = PartitionStatus.CANDIDATE_FOUND
    return a_record(**{"epoch": epoch, "version": version, "status": status, "candidate": ME, **changes})


def online(epoch: int = 5, version: int = 12, **changes: Any) -> PartitionRecord:
    """`a_record` with this process as leader of `epoch`."""
    return a_record(**{"epoch": epoch, "version": version, "status": PartitionStatus.ONLINE, "leader": ME, **changes})


def some_entries(epoch: int, offset: int, count: int) -> tuple[Entry, ...]:
    """`count` DATA entries of `epoch` from `offset` on."""
    return tuple(
        make_entry(EntryKind.DATA, epoch, offset + step, request_id=b"r%d" % (offset + step), origin=b"", time_ms=0)
        for step in range(count)
    )


def registered(node: str, session_id: int = INC, log_id: int | None = GEN, active: bool = True) -> Registration:
    """A registration that holds partition 3 under the log id `gen`."""
    return Registration(node, session_id, active, log_ids={} if log_id is None else {3: log_id})


def a_replica(**changes: Any) -> Replica:
    """A replica with 20 recovered entries of epochs 2 and 4, 15 of them applied."""
    found = {
        "partition": 3,
        "node": NODE,
        "log_id": GEN,
        "leo": 20,
        "epoch_table": ((2, 0), (4, 8)),
        "applied": 15,
        "epoch_seen": 4,
        "options": ReplicaOptions(window_entries=10),
        "durable": 20,
    }
    return Replica(**{**found, **changes})


def a_candidate(**changes: Any) -> Replica:
    """A replica that is a candidate in epoch 5; its barrier is at 20 and not durable."""
    replica = a_replica(**changes)
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(nominated()), 0)
    replica.step(ev.EpochPersisted(5), 0)
    assert replica.role is ReplicaRole.CANDIDATE
    return replica


def a_leader(record: PartitionRecord | None = None, **changes: Any) -> Replica:
    """A leader of epoch 5 whose barrier is durable and not yet applied."""
    replica = a_candidate(**changes)
    replica.step(ev.Persisted(21), 0)
    replica.step(ev.RecordSeen(online() if record is None else record), 0)
    assert replica.role is ReplicaRole.LEADER
    return replica


def a_serving_leader(**changes: Any) -> Replica:
    """A leader of epoch 5 with everything below 21 applied."""
    replica = a_leader(**changes)
    replica.step(ev.AppliedTo(21), 0)
    assert replica.ready
    return replica


def kinds(effects: list[fx.Effect]) -> list[str]:
    """The names of the effects, in order."""
    return [type(effect).__name__ for effect in effects]


def table_of(entries: Iterable[Entry]) -> EpochTable:
    """The table of a log with `entries`, given in offset order."""
    table: list[tuple[int, int]] = []
    for entry in entries:
        if not table or table[-1][0] != entry.epoch:
            table.append((entry.epoch, entry.offset))
    return tuple(table)
