"""The protocol's invariants, one named check each (docs/protocol.md, Invariants).

Pure functions over what can be observed of one partition and over its `PartitionHistory`: everything that any node ever
appended, committed and promised. A check raises Violation with its name and the observed values. The seeded simulator
(`tests/simulation/cluster`) calls them after every event; a test of each name shows which violations it catches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.membership import guard, maximal_isr, too_few_in_sync
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord
from tests.support.replica_builders import table_of


class Violation(AssertionError):
    """An invariant does not hold; the text begins with its name."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


@dataclass(slots=True)
class PartitionHistory:
    """One partition's whole past, which no single node can see."""

    leaders: dict[int, Incarnation] = field(default_factory=dict)
    """epoch -> the (node, inc) that appended in it."""

    appended: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(epoch, offset) -> the entry's bytes, as its leader made it."""

    below: dict[tuple[int, int], int] = field(default_factory=dict)
    """(epoch, offset) -> epoch of the entry before it, in the first log that had it."""

    committed: list[Entry] = field(default_factory=list)
    """offset -> the entry that was decided."""

    acked: dict[bytes, int] = field(default_factory=dict)
    """request id -> offset, of every request that was acknowledged."""

    acked_end: int = 0
    """All acknowledged entries lie below this offset."""

    read_end: int = 0
    """All entries shown by committed reads lie below this offset."""

    refused: set[bytes] = field(default_factory=set)
    """Request ids that got a definite error."""


def epoch_one(history: PartitionHistory, epoch: int, who: Incarnation) -> None:
    """I-EPOCH-ONE: at most one (node, inc) ever acts in an epoch. Records `who` as that one."""
    before = history.leaders.setdefault(epoch, who)
    if before != who:
        raise Violation("I-EPOCH-ONE", f"{who} acts in epoch {epoch} of {before}")


def epoch_mono(before: PartitionRecord, after: PartitionRecord) -> None:
    """I-EPOCH-MONO, of the metastore's record or of a replica's view of it: version and epoch never fall, and
    another leader has a higher epoch."""
    if after.version < before.version:
        raise Violation("I-EPOCH-MONO", f"version {before.version} -> {after.version}")
    if after.epoch < before.epoch:
        raise Violation("I-EPOCH-MONO", f"epoch {before.epoch} -> {after.epoch}")
    if after.epoch == before.epoch and after.leader is not None:
        known = before.leader or before.candidate
        if known != after.leader:
            raise Violation("I-EPOCH-MONO", f"{known} -> {after.leader} within {after.epoch}")


def epoch_seen_mono(before: int, after: int, log_epoch: int) -> None:
    """I-EPOCH-MONO, of one data directory: the highest epoch noted never falls, and is noted before the log has an
    entry of it (`log_epoch`: the log's newest)."""
    if after < before:
        raise Violation("I-EPOCH-MONO", f"epoch seen fell from {before} to {after}")
    if after < log_epoch:
        raise Violation("I-EPOCH-MONO", f"the log has epoch {log_epoch}, but seen is only {after}")


def leader_in_isr(record: PartitionRecord) -> None:
    """I-LEADER-IN-ISR: the record's leader is in its ISR."""
    leader = record.leader
    if leader is not None and all(m.node != leader.node for m in record.isr):
        raise Violation("I-LEADER-IN-ISR", f"{leader} leads, in sync are {sorted(record.isr)}")


def some_guard(record: PartitionRecord, log_ids: Mapping[str, int]) -> None:
    """I-SOME-GUARD: at least one electable replica still has the log that the record names. `gens` are the log ids in
    the nodes' data directories."""
    if all(log_ids.get(m.node) != m.log_id for m in guard(record)):
        raise Violation("I-SOME-GUARD", f"guard {sorted(guard(record))}, but the logs there are {dict(log_ids)}")


def min_guard(before: PartitionRecord, after: PartitionRecord) -> None:
    """I-MIN-GUARD: no member ceases to be electable while fewer than min-ISR would stay; raising min-ISR changes no
    membership."""
    stay = guard(after)
    if len(stay) < after.effective_min_isr and len(stay) < len(guard(before)):
        gone = sorted(guard(before) - stay)
        raise Violation(
            "I-MIN-GUARD", f"{gone} may not be elected any more, of {after.effective_min_isr} {sorted(stay)}"
        )


def moved(before: PartitionRecord, after: PartitionRecord) -> None:
    """I-REMOVE: replicas are removed by their leader's write alone, never the leader itself, and only those marked for
    removal; not before all joining replicas are in sync and no replica outside the ISR is electable; min-ISR members
    stay in sync (H21)."""
    gone = {*before.replicas} - {*after.replicas}
    if not gone:
        return
    in_sync = {member.node for member in before.isr}
    stay = frozenset(member for member in before.isr if member.node not in gone)
    if before.leader is None or after.leader != before.leader or before.leader.node in gone:
        raise Violation("I-REMOVE", f"{sorted(gone)} go without a leader, or with it")
    if gone != {*before.removing} or {*after.replicas} - {*before.replicas}:
        raise Violation("I-REMOVE", f"{sorted(gone)} go, {sorted(before.removing)} are to")
    if not {*before.adding} <= in_sync:
        raise Violation(
            "I-REMOVE", f"{sorted(gone)} go, and of {sorted(before.adding)} only {sorted(in_sync)} are in sync"
        )
    if before.elr:
        raise Violation("I-REMOVE", f"{sorted(gone)} go, and {sorted(before.elr)} may be elected")
    if after.isr != stay or len(stay) < after.effective_min_isr:
        raise Violation("I-REMOVE", f"in sync are {sorted(after.isr)} of {sorted(before.isr)} without {sorted(gone)}")


def factor_in_force(began: Collection[str], record: PartitionRecord) -> None:
    """I-FACTOR: while replicas change, effective min-ISR requires no more of them than existed when the change began
    (`began`), nor than there will be; and the change ends only when every newcomer that stays is in sync."""
    in_sync = {member.node for member in record.isr}
    if record.adding or record.removing:
        count = min(len(began), len(record.staying))
        if record.effective_min_isr > max(1, min(record.min_isr, count)):
            raise Violation(
                "I-FACTOR", f"effective min-ISR is {record.effective_min_isr}, of {sorted(began)} and {record.staying}"
            )
    elif not {*record.replicas} <= {*began} | in_sync:
        raise Violation("I-FACTOR", f"{sorted({*record.replicas} - {*began} - in_sync)} count and never were in sync")


def asked_before_removing(stay: Collection[Member], me: str, answered: Mapping[Member, int], floor: int) -> None:
    """I-REMOVE-ASKED: each remaining in-sync member has confirmed, since the leader knew the record that it changes,
    its log id and that it holds everything committed then (`floor`). `answered`: member -> the durable end that it
    reported."""
    for member in stay:
        if member.node != me and answered.get(member, 0) < floor:
            raise Violation("I-REMOVE-ASKED", f"{member} said {answered.get(member)}, committed was {floor}")


def cleared(record: PartitionRecord, member: Member) -> None:
    """I-CLEARED: a replica is deleted only when the record no longer names its node as a replica, and it is not
    electable."""
    if member.node in record.replicas and member in guard(record):
        raise Violation("I-CLEARED", f"{member} is deleted, and may be elected by {record}")


def dot_unique(history: PartitionHistory, entry: Entry) -> None:
    """I-DOT-UNIQUE: an (epoch, offset) denotes one entry for ever. Notes the entry as appended by its leader."""
    before = history.appended.setdefault((entry.epoch, entry.offset), entry.wire)
    if before != entry.wire:
        raise Violation("I-DOT-UNIQUE", f"{entry.epoch}.{entry.offset} was issued twice")


def log_leader(history: PartitionHistory, entries: Iterable[Entry]) -> None:
    """I-LOG-LEADER: every entry in a log is the one that the leader of its epoch appended there."""
    for entry in entries:
        made = history.appended.get((entry.epoch, entry.offset))
        if made != entry.wire:
            raise Violation("I-LOG-LEADER", f"{entry.epoch}.{entry.offset} is not what its leader made")


def log_match(history: PartitionHistory, epoch_below: int | None, entries: Iterable[Entry]) -> None:
    """I-LOG-MATCH: two logs that have the same (epoch, offset) agree on everything below it, which follows from this:
    the entry before it is of the same epoch in each of them. `epoch_below` is that of the entry before the first one, 0
    at the log's beginning, None where it is not known."""
    for entry in entries:
        if epoch_below is not None:
            known = history.below.setdefault((entry.epoch, entry.offset), epoch_below)
            if known != epoch_below:
                raise Violation(
                    "I-LOG-MATCH", f"below {entry.epoch}.{entry.offset} stands epoch {epoch_below}, elsewhere {known}"
                )
        epoch_below = entry.epoch


def epoch_asc(start: int, entries: Iterable[Entry]) -> None:
    """I-EPOCH-ASC: offsets from `start` on have no gap and epochs do not fall."""
    offset, epoch = start, 0
    for entry in entries:
        if entry.offset != offset:
            raise Violation("I-EPOCH-ASC", f"offset {entry.offset} stands where {offset} belongs")
        if entry.epoch < epoch:
            raise Violation("I-EPOCH-ASC", f"epoch {entry.epoch} after {epoch} at offset {offset}")
        offset, epoch = offset + 1, entry.epoch


def table_derived(table: EpochTable, start: int, entries: Sequence[Entry]) -> None:
    """I-TABLE: the epoch table equals the result of a scan of the log, as far as the log still reaches back."""
    scanned = table_of(entries)
    kept = tuple(row for row in table if row[1] >= start)
    if scanned and (not kept or kept[0] != scanned[0]):
        scanned = scanned[1:]  # the first epoch began below the trimmed start
        if not any(row[0] == entries[0].epoch and row[1] < start for row in table):
            raise Violation("I-TABLE", f"epoch {entries[0].epoch} begins nowhere in {table}")
    if kept != scanned:
        raise Violation("I-TABLE", f"table {kept}, scan {scanned}")


def commit_agree(history: PartitionHistory, offset: int, entry: Entry) -> None:
    """I-COMMIT-AGREE: no two leaders decide different entries for one offset, and decisions leave no gap. Notes
    the decision."""
    decided = history.committed
    if offset > len(decided):
        raise Violation("I-COMMIT-AGREE", f"{offset} decided before {len(decided)}")
    if offset == len(decided):
        decided.append(entry)
    if decided[offset].wire != entry.wire:
        raise Violation(
            "I-COMMIT-AGREE",
            f"offset {offset} was decided as {decided[offset].epoch}.{offset}, now as {entry.epoch}.{offset}",
        )


def maximal(record: PartitionRecord, proposed: Collection[PartitionRecord]) -> frozenset[Member]:
    """The maximal ISR of R-MAX: the confirmed one, and all members that one of the undecided writes `proposed` may have
    added, refused ones on the same version included."""
    return maximal_isr(record, frozenset(m for write in proposed for m in write.isr))


def commit_rule(
    record: PartitionRecord,
    proposed: Collection[PartitionRecord],
    who: Incarnation,
    held: Mapping[Member, int],
    barrier: int,
    end: int,
) -> None:
    """I-COMMIT-RULE: when hw moves to `end`, the confirmed record names `who` as leader, min-ISR members are in sync,
    no other replica is electable, all of the maximal ISR hold it durably (`held`), and this epoch's barrier is
    within."""
    name = "I-COMMIT-RULE"
    if record.leader != who:
        raise Violation(name, f"{who} commits, but the leader is {record.leader}")
    if too_few_in_sync(record):
        raise Violation(name, f"{len(record.isr)} in sync of {record.effective_min_isr}")
    if record.elr:
        raise Violation(name, f"{sorted(record.elr)} may be elected and need not acknowledge")
    for member in sorted(maximal(record, proposed)):
        if held.get(member, 0) < end:
            raise Violation(name, f"{end} committed, {member} holds only {held.get(member, 0)} of this leader's")
    if end <= barrier:
        raise Violation(name, f"{end} committed before the barrier at {barrier}")


def guard_complete(history: PartitionHistory, start: int, durable: Sequence[Entry]) -> None:
    """I-GUARD-COMPLETE: a log of the guard holds durably all that is committed, from `start` (below it is applied
    and trimmed) on."""
    decided = history.committed
    end = start + len(durable)
    if end < len(decided):
        raise Violation("I-GUARD-COMPLETE", f"{len(decided)} committed, durable only up to {end}")
    for entry in durable[: max(0, len(decided) - start)]:
        if entry.wire != decided[entry.offset].wire:
            raise Violation(
                "I-GUARD-COMPLETE", f"offset {entry.offset} is {entry.epoch}.{entry.offset}, committed was another"
            )


def trunc_safe(to_offset: int, hw: int, applied: int, start: int) -> None:
    """I-TRUNC-SAFE: a log is truncated only above all that this replica knows to be committed, has applied, or has
    trimmed."""
    if to_offset < max(hw, applied, start):
        raise Violation("I-TRUNC-SAFE", f"cut to {to_offset}: hw {hw}, applied {applied}, the log begins at {start}")


def apply_order(history: PartitionHistory, start: int, applied: int, hw: int, durable: int, leo: int) -> None:
    """I-APPLY: start <= applied <= hw <= durable <= leo, and nothing is applied that was not committed."""
    if not start <= applied <= hw <= durable <= leo:
        raise Violation("I-APPLY", f"start {start}, applied {applied}, hw {hw}, durable {durable}, leo {leo}")
    if hw > len(history.committed):
        raise Violation("I-APPLY", f"hw {hw}, but committed are {len(history.committed)}")


def applied_rows(history: PartitionHistory, offset: int, entry: Entry) -> None:
    """I-APPLY: an entry that goes into the store is the committed one of its offset."""
    decided = history.committed
    if offset >= len(decided) or decided[offset].wire != entry.wire:
        raise Violation("I-APPLY", f"applied {entry.epoch}.{offset}, which is not what was committed")


def ack(history: PartitionHistory, request_id: bytes, offset: int, applied: int) -> None:
    """I-ACK: an acknowledged entry is committed at its offset and applied. Records the acknowledgement."""
    decided = history.committed
    if offset >= len(decided) or decided[offset].request_id != request_id:
        raise Violation("I-ACK", f"offset {offset} acknowledged, which is not committed as such")
    if offset >= applied:
        raise Violation("I-ACK", f"offset {offset} acknowledged, applied is only {applied}")
    history.acked[request_id] = offset
    history.acked_end = max(history.acked_end, offset + 1)


def acks_kept(history: PartitionHistory, applied: Sequence[Entry]) -> None:
    """I-ACK: every acknowledged request is in the state, exactly once."""
    seen: dict[bytes, int] = {}
    for offset, entry in enumerate(applied):
        if entry.request_id in history.acked:
            if entry.request_id in seen:
                raise Violation("I-ACK", f"offset {offset} repeats an acknowledged request")
            seen[entry.request_id] = offset
    lost = [offset for request_id, offset in history.acked.items() if seen.get(request_id) != offset]
    if lost:
        raise Violation("I-ACK", f"acknowledged and lost: offsets {lost[:5]}")


def no_false_nack(history: PartitionHistory, entries: Iterable[Entry]) -> None:
    """I-NO-FALSE-NACK: a definitely refused entry is in no log."""
    for entry in entries:
        if entry.request_id in history.refused:
            raise Violation(
                "I-NO-FALSE-NACK", f"{entry.epoch}.{entry.offset} is in a log, its client was told it never will be"
            )


def read_lin(history: PartitionHistory, least: int, applied: int) -> None:
    """I-READ-LIN: a committed read, served from what is `applied`, sees every write acknowledged before it began and
    everything that earlier reads had shown (`least`). Records the entries that it shows."""
    if applied < least:
        raise Violation(
            "I-READ-LIN", f"read at {applied}, shown or promised before it {least}, committed {len(history.committed)}"
        )
    history.read_end = max(history.read_end, applied)


def write_one(
    undecided: Collection[PartitionRecord], record: PartitionRecord, refused_on: PartitionRecord | None
) -> None:
    """I-WRITE-ONE (R-AMBIG): while a conditional write of a process is undecided, it sends no other on the same base
    version. If one was refused although the version had not moved, a duplicate may still be under way: then the
    unchanged record (`refused_on`) may be written again to settle the version."""
    if refused_on is not None and record == refused_on:
        return
    for other in undecided:
        if other.version == record.version and other != record:
            raise Violation("I-WRITE-ONE", f"two different writes on version {record.version}")
