"""Committed reads: which check confirms which read, and which members are asked (R-READ)."""

from __future__ import annotations

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.read_index import CHECK_REPEAT_MS
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.record import Member
from tests.support.replica_builders import MEMBER, NODE, a_serving_leader, online

TWO = Member("n2", 8)


def a_leader_of_two() -> Replica:
    """A serving leader of which n2 is an eligible member below min-ISR."""
    leader = a_serving_leader()
    record = online(version=13, replicas=(NODE, "n2"), isr=frozenset({MEMBER}), elr=frozenset({TWO}), min_isr=2)
    leader.step(ev.RecordSeen(record), 0)
    assert leader.ready
    return leader


def check_nonce(effects: list[fx.Effect]) -> int:
    """The nonce of the check that is sent to n2 alone; nothing is served yet."""
    (sent,) = effects
    assert isinstance(sent, fx.Send)
    assert isinstance(sent.message, ms.LeadershipCheck)
    assert sent.to == "n2"
    return sent.message.nonce


def effects_of_answer(leader: Replica, nonce: int) -> list[fx.Effect]:
    """The leader's effects when n2 answers a leadership check."""
    return leader.step(ev.Received("n2", ms.LeadershipCheckOk(5, TWO.log_id, nonce)), 2)


def test_an_eligible_member_outside_the_isr_is_asked() -> None:
    """It may be elected at any moment: without its answer a read could miss entries committed under its leadership."""
    leader = a_leader_of_two()
    nonce = check_nonce(leader.step(ev.ReadRequested(1), 1))
    assert effects_of_answer(leader, nonce) == [fx.ReadReady((1,))]


def test_a_read_that_arrives_during_a_round_waits_for_the_next_round() -> None:
    """An answer may have been given before the read came, and before another leader committed what it must see."""
    leader = a_leader_of_two()
    first = check_nonce(leader.step(ev.ReadRequested(1), 1))
    assert leader.step(ev.ReadRequested(2), 1) == []
    served, *rest = effects_of_answer(leader, first)
    assert served == fx.ReadReady((1,))
    second = check_nonce(rest)
    assert second != first
    assert effects_of_answer(leader, second) == [fx.ReadReady((2,))]


def test_an_answer_to_an_earlier_question_confirms_nothing() -> None:
    """It is late, or a duplicate: it was given before the read arrived."""
    leader = a_leader_of_two()
    first = check_nonce(leader.step(ev.ReadRequested(1), 1))
    effects_of_answer(leader, first)
    second = check_nonce(leader.step(ev.ReadRequested(2), 3))
    assert effects_of_answer(leader, first) == []
    assert effects_of_answer(leader, second) == [fx.ReadReady((2,))]


def test_a_synced_read_for_an_earlier_round_confirms_nothing() -> None:
    """The metastore stands in for a silent member by what it held after the round began. An answer to the request of an
    earlier round may be older than the reads of the present one: only the present round's own request ends it."""
    leader = a_leader_of_two()
    first = check_nonce(leader.step(ev.ReadRequested(1), 1))
    repeated = leader.step(ev.Tick(), 1 + CHECK_REPEAT_MS)
    assert fx.ReadRecordSync(first) in repeated
    assert fx.ReadReady((1,)) in effects_of_answer(leader, first)
    now_ms = 2 + CHECK_REPEAT_MS
    second = check_nonce(leader.step(ev.ReadRequested(2), now_ms))
    unchanged = leader.record
    assert unchanged is not None
    assert leader.step(ev.RecordSynced(first, unchanged), now_ms) == []
    assert fx.ReadReady((2,)) in leader.step(ev.RecordSynced(second, unchanged), now_ms)
