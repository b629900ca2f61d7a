"""Each named invariant catches its violations, and accepts correct states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord
from tests.simulation.cluster import invariants
from tests.simulation.cluster.invariants import PartitionHistory, Violation
from tests.support.replica_builders import GEN, ME, MEMBER, NODE, a_record, nominated, online, some_entries

OTHER = Member("n2", 9)
ENTRIES = some_entries(2, 0, 3) + some_entries(5, 3, 2)
TABLE = ((2, 0), (5, 3))


def a_history(committed: int = 5) -> PartitionHistory:
    """ENTRIES appended, the first `committed` decided."""
    history = PartitionHistory()
    for entry in ENTRIES:
        invariants.dot_unique(history, entry)
    for entry in ENTRIES[:committed]:
        invariants.commit_agree(history, entry.offset, entry)
    return history


def other(epoch: int, offset: int) -> Entry:
    """Another entry with the same dot."""
    return make_entry(EntryKind.DATA, epoch, offset, request_id=b"other", origin=b"", time_ms=1)


def broken(name: str) -> pytest.RaisesExc[Violation]:
    """A violation of exactly this name."""
    return pytest.RaisesExc(Violation, match=f"^{name}: ", check=lambda error: error.name == name)


def test_i_epoch_one() -> None:
    """I-EPOCH-ONE: two processes in one epoch; the same one again is fine."""
    history = PartitionHistory()
    invariants.epoch_one(history, 5, ME)
    invariants.epoch_one(history, 5, ME)
    invariants.epoch_one(history, 6, Incarnation(NODE, 101))
    with broken("I-EPOCH-ONE"):
        invariants.epoch_one(history, 5, Incarnation(NODE, 101))


def test_i_epoch_mono() -> None:
    """I-EPOCH-MONO: falling version, falling epoch, another leader within an epoch, an epoch not noted in time."""
    invariants.epoch_mono(nominated(), online())
    invariants.epoch_mono(online(), a_record(epoch=5, version=13))
    for before, after in (
        (online(), online(version=11)),
        (online(), a_record(epoch=4, version=13)),
        (online(), online(leader=Incarnation(NODE, 101), version=13)),
        (a_record(epoch=5, version=11), online()),
    ):
        with broken("I-EPOCH-MONO"):
            invariants.epoch_mono(before, after)
    invariants.epoch_seen_mono(4, 5, 5)
    for before_seen, after_seen, log_epoch in ((5, 4, 0), (4, 4, 5)):
        with broken("I-EPOCH-MONO"):
            invariants.epoch_seen_mono(before_seen, after_seen, log_epoch)


def test_i_leader_in_isr() -> None:
    """I-LEADER-IN-ISR: the leader dropped itself."""
    invariants.leader_in_isr(online())
    invariants.leader_in_isr(a_record(isr=frozenset()))
    with broken("I-LEADER-IN-ISR"):
        invariants.leader_in_isr(online(isr=frozenset({OTHER})))


def test_i_some_guard() -> None:
    """I-SOME-GUARD: catches that the logs of all electable replicas are gone; ELR members count."""
    invariants.some_guard(online(), {NODE: GEN})
    invariants.some_guard(online(elr=frozenset({OTHER})), {NODE: 1, "n2": 9})
    with broken("I-SOME-GUARD"):
        invariants.some_guard(online(), {NODE: GEN + 1})


def test_i_dot_unique() -> None:
    """I-DOT-UNIQUE: the same (epoch, offset) for other contents."""
    history = a_history()
    invariants.dot_unique(history, ENTRIES[4])
    with broken("I-DOT-UNIQUE"):
        invariants.dot_unique(history, other(5, 4))


def test_i_log_leader() -> None:
    """I-LOG-LEADER: an entry that no leader made."""
    invariants.log_leader(a_history(), ENTRIES)
    with broken("I-LOG-LEADER"):
        invariants.log_leader(a_history(), (*ENTRIES, other(5, 5)))


def test_i_epoch_asc() -> None:
    """I-EPOCH-ASC: a falling epoch, a hole, a wrong start."""
    invariants.epoch_asc(0, ENTRIES)
    invariants.epoch_asc(3, ENTRIES[3:])
    for start, entries in ((0, (*ENTRIES, other(4, 5))), (0, (*ENTRIES, other(5, 6))), (1, ENTRIES)):
        with broken("I-EPOCH-ASC"):
            invariants.epoch_asc(start, entries)


def test_i_table() -> None:
    """I-TABLE: a missing, an invented, a moved row; a trimmed log keeps the row of its first epoch."""
    invariants.table_derived(TABLE, 0, ENTRIES)
    invariants.table_derived(TABLE, 1, ENTRIES[1:])
    invariants.table_derived(TABLE, 4, ENTRIES[4:])
    invariants.table_derived(TABLE[:1], 3, ())
    for table, start, entries in (
        (TABLE[:1], 0, ENTRIES),
        ((*TABLE, (6, 5)), 0, ENTRIES),
        (((2, 0), (5, 4)), 0, ENTRIES),
        (((2, 0),), 4, ENTRIES[4:]),
    ):
        with broken("I-TABLE"):
            invariants.table_derived(table, start, entries)


def test_i_commit_agree() -> None:
    """I-COMMIT-AGREE: another entry for a decided offset, or a decision beyond a gap."""
    history = a_history(3)
    invariants.commit_agree(history, 2, ENTRIES[2])
    with broken("I-COMMIT-AGREE"):
        invariants.commit_agree(history, 4, ENTRIES[4])
    with broken("I-COMMIT-AGREE"):
        invariants.commit_agree(history, 2, some_entries(5, 2, 1)[0])


def test_i_commit_rule() -> None:
    """I-COMMIT-RULE: each condition by itself."""
    two = {"replicas": (NODE, "n2")}
    invariants.commit_rule(online(), (), ME, {MEMBER: 21}, 20, 21)
    for record, proposed, who, held, end in (
        (online(), (), Incarnation(NODE, 101), {MEMBER: 21}, 21),
        (a_record(epoch=5), (), ME, {MEMBER: 21}, 21),
        (online(min_isr=2, **two), (), ME, {MEMBER: 21}, 21),
        (online(elr=frozenset({OTHER}), **two), (), ME, {MEMBER: 21}, 21),
        (online(), (), ME, {MEMBER: 20}, 21),
        (online(isr=frozenset({MEMBER, OTHER}), **two), (), ME, {MEMBER: 21}, 21),
        (online(**two), (online(**two), online(isr=frozenset({MEMBER, OTHER}), **two)), ME, {MEMBER: 21}, 21),
        (online(), (), ME, {MEMBER: 21}, 20),
    ):
        with broken("I-COMMIT-RULE"):
            invariants.commit_rule(record, proposed, who, held, 20, end)


def test_i_guard_complete() -> None:
    """I-GUARD-COMPLETE: catches a committed entry that is missing, or differs; a trimmed log is complete from its
    start."""
    history = a_history(4)
    invariants.guard_complete(history, 0, ENTRIES)
    invariants.guard_complete(history, 2, ENTRIES[2:4])
    with broken("I-GUARD-COMPLETE"):
        invariants.guard_complete(history, 0, ENTRIES[:3])
    with broken("I-GUARD-COMPLETE"):
        invariants.guard_complete(history, 0, (*ENTRIES[:3], other(5, 3)))


@pytest.mark.parametrize(
    "offsets", [(4, 3, 5, 5, 5), (0, 4, 3, 5, 5), (0, 3, 5, 4, 5), (0, 3, 4, 6, 5), (0, 5, 6, 6, 6)]
)
def test_i_apply(offsets: tuple[int, int, int, int, int]) -> None:
    """I-APPLY: start <= applied <= hw <= durable <= leo, and hw not above the committed entries."""
    history = a_history()
    invariants.apply_order(history, 0, 3, 4, 5, 6)
    with broken("I-APPLY"):
        invariants.apply_order(history, *offsets)
    invariants.applied_rows(history, 3, ENTRIES[3])
    with broken("I-APPLY"):
        invariants.applied_rows(history, 3, other(5, 3))
    with broken("I-APPLY"):
        invariants.applied_rows(a_history(3), 3, ENTRIES[3])


def test_i_ack() -> None:
    """I-ACK: acknowledged without being committed or applied; lost or doubled afterwards."""
    history = a_history(4)
    invariants.ack(history, b"r2", 2, 3)
    assert (history.acked, history.acked_end) == ({b"r2": 2}, 3)
    for request_id, offset, applied in ((b"r4", 4, 5), (b"rx", 1, 5), (b"r3", 3, 3)):
        with broken("I-ACK"):
            invariants.ack(history, request_id, offset, applied)
    invariants.acks_kept(history, ENTRIES)
    doubled = replace_request(ENTRIES[4], b"r2")
    for applied_entries in (ENTRIES[:2], (*ENTRIES[:4], doubled)):
        with broken("I-ACK"):
            invariants.acks_kept(history, applied_entries)


def replace_request(entry: Entry, request_id: bytes) -> Entry:
    """The entry, made for another request."""
    return entry._replace(request_id=request_id)


def test_i_no_false_nack() -> None:
    """I-NO-FALSE-NACK: a refused request is in a log."""
    history = a_history()
    invariants.no_false_nack(history, ENTRIES)
    history.refused.add(b"r3")
    with broken("I-NO-FALSE-NACK"):
        invariants.no_false_nack(history, ENTRIES)


def test_i_read_lin() -> None:
    """I-READ-LIN: catches a read that misses an entry acknowledged or shown before it."""
    history = a_history()
    invariants.read_lin(history, 3, 3)
    assert history.read_end == 3
    invariants.read_lin(history, 0, 2)
    assert history.read_end == 3
    with broken("I-READ-LIN"):
        invariants.read_lin(history, 4, 3)


def test_i_write_one() -> None:
    """I-WRITE-ONE: two different undecided writes on one base; repeating the same one is allowed, and after a refusal
    that left the version unchanged, writing the unchanged record."""
    known = a_record()
    first = a_record(reason="x")
    invariants.write_one([first], first, None)
    invariants.write_one([first], replace(first, version=11, reason="y"), None)
    invariants.write_one([first], known, known)
    for record, refused_on in ((replace(first, reason="y"), None), (replace(first, reason="y"), known), (known, None)):
        with broken("I-WRITE-ONE"):
            invariants.write_one([first], record, refused_on)


def test_i_min_guard() -> None:
    """I-MIN-GUARD: catches members that cease to be electable although too few stay; a higher min-ISR alone changes no
    membership, and a member may come back with another log id."""
    two = {"replicas": (NODE, "n2"), "min_isr": 2}
    both = online(isr=frozenset({MEMBER, OTHER}), **two)
    invariants.min_guard(both, online(elr=frozenset({OTHER}), **two))
    invariants.min_guard(online(), online(**two))
    invariants.min_guard(both, online(isr=frozenset({MEMBER, Member("n2", 10)}), **two))
    with broken("I-MIN-GUARD"):
        invariants.min_guard(both, online(**two))


def test_i_log_match() -> None:
    """I-LOG-MATCH: the same entry on another prefix; entries below a trimmed start are unknown."""
    history = a_history()
    invariants.log_match(history, 0, ENTRIES)
    invariants.log_match(history, None, ENTRIES[3:])
    invariants.log_match(history, 2, ENTRIES[3:])
    for below, entries in ((4, ENTRIES[3:]), (0, (*some_entries(3, 0, 3), *ENTRIES[3:]))):
        with broken("I-LOG-MATCH"):
            invariants.log_match(history, below, entries)


def test_i_trunc_safe() -> None:
    """I-TRUNC-SAFE: catches a truncation below hw, below the applied offset, or below the log's start."""
    invariants.trunc_safe(5, 5, 4, 3)
    for hw, applied, start in ((6, 4, 3), (4, 6, 3), (4, 4, 6)):
        with broken("I-TRUNC-SAFE"):
            invariants.trunc_safe(5, hw, applied, start)


def a_change(**changes: Any) -> PartitionRecord:
    """n1 leads with n2 and n3 in sync; n3 is to go."""
    isr = frozenset(Member(node, GEN) for node in ("n1", "n2", "n3"))
    return online(**{"replicas": ("n1", "n2", "n3"), "isr": isr, "min_isr": 2, "removing": ("n3",), **changes})


def test_i_remove() -> None:
    """I-REMOVE: removals by the leader alone, never of itself, only of marked replicas, with newcomers in sync, no ELR,
    and min-ISR left."""
    two = frozenset(Member(node, GEN) for node in ("n1", "n2"))
    done = a_change(replicas=("n1", "n2"), isr=two, removing=(), version=13)
    invariants.moved(a_change(), done)
    invariants.moved(done, replace(done, replicas=("n1", "n2", "n3"), adding=("n3",)))
    for before, after in (
        (a_change(leader=None), done),
        (a_change(), replace(done, leader=Incarnation("n2", 1))),
        (a_change(removing=("n1",)), replace(done, replicas=("n2", "n3"), isr=two)),
        (a_change(removing=()), done),
        (a_change(adding=("n4",), replicas=("n1", "n2", "n3", "n4")), replace(done, replicas=("n1", "n2", "n4"))),
        (a_change(elr=frozenset({OTHER})), done),
        (a_change(), replace(done, isr=frozenset({MEMBER}))),
        (a_change(isr=frozenset({MEMBER, Member("n3", GEN)})), replace(done, isr=frozenset({MEMBER}))),
    ):
        with broken("I-REMOVE"):
            invariants.moved(before, after)


def test_i_factor() -> None:
    """I-FACTOR: a newcomer that is replaced raises min-ISR; a change ends before its newcomer was in sync."""
    one = online(isr=frozenset({MEMBER}), min_isr=2)
    invariants.factor_in_force((NODE,), one)
    changing = replace(one, replicas=(NODE, "n2", "n3"), adding=("n3",), removing=("n2",))
    invariants.factor_in_force((NODE,), replace(changing, before=(NODE,)))
    invariants.factor_in_force((NODE, "n2"), changing)
    ended = replace(one, replicas=(NODE, "n2"))
    invariants.factor_in_force((NODE,), replace(ended, isr=frozenset({MEMBER, OTHER})))
    for wrong in (changing, ended):
        with broken("I-FACTOR"):
            invariants.factor_in_force((NODE,), wrong)


def test_i_remove_asked() -> None:
    """I-REMOVE-ASKED: catches a remaining member that was not asked, or holds less than was committed."""
    stay = (MEMBER, OTHER)
    invariants.asked_before_removing(stay, NODE, {OTHER: 7}, 7)
    for answered in ({}, {OTHER: 6}, {Member("n2", 8): 7}):
        with broken("I-REMOVE-ASKED"):
            invariants.asked_before_removing(stay, NODE, answered, 7)


def test_i_cleared() -> None:
    """I-CLEARED: catches the deletion of a replica that its record counts on; one with another log id, or on a node
    without a replica, may go."""
    invariants.cleared(online(), Member("n2", 1))
    invariants.cleared(online(), Member(NODE, GEN + 1))
    with broken("I-CLEARED"):
        invariants.cleared(online(), MEMBER)
