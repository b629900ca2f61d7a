"""The conditions, times and frequency of suspicions (docs/protocol.md R-SUSPECT)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from isthmus.repl.controller.suspicion import HOLD_HALF_MS, HOLD_MAX_MS, HOLD_MIN_MS, Suspect, Suspicions
from isthmus.repl.model.record import Registration

OLD_MS = 2 * HOLD_MIN_MS


def registered(owner: int = 7, **sessions: int) -> dict[str, Registration]:
    """Nodes, each registered and active in this session, by the process `owner`."""
    return {node: Registration(node, session_id, True, owner=owner) for node, session_id in sessions.items()}


def connected(*nodes: str, to: Iterable[str] = ("n2", "n3")) -> Suspicions:
    """n1's suspicions of a cluster of `nodes`, whose sessions are numbered from 1, after connections to the nodes in
    `to`."""
    suspicions = Suspicions("n1")
    suspicions.learn(registered(**{node: number for number, node in enumerate(nodes, 1)}), 0)
    for node in to:
        suspicions.link_changed(node, True)
    return suspicions


def held(suspicions: Suspicions) -> dict[str, float]:
    """Refused dials that led to no suspicion, by rule."""
    samples = [each for each in suspicions.samples() if each[0] == "isthmus_suspicions_held_total"]
    return {labels["rule"]: value for _, labels, value in samples if value}


def test_a_broken_connection_and_a_refused_dial_make_a_suspect() -> None:
    """Both are required; the suspicion names the session and ends with it."""
    suspicions = connected("n1", "n2", "n3")
    suspicions.link_changed("n2", False)
    assert suspicions.suspects() == []
    assert suspicions.refused("n2", OLD_MS)
    assert suspicions.suspects() == [Suspect("n2", 2)]
    suspicions.ended(Suspect("n2", 2), here=True)
    assert suspicions.suspects() == []
    assert suspicions.over == {"n2": 2}
    assert next(value for name, _, value in suspicions.samples() if name == "isthmus_nodes_suspected_total") == 1


def test_a_connection_that_stands_again_ends_the_suspicion() -> None:
    """A metastore that was unreachable meanwhile gets no request any more."""
    suspicions = connected("n1", "n2", "n3")
    suspicions.link_changed("n2", False)
    suspicions.refused("n2", OLD_MS)
    suspicions.link_changed("n2", True)
    assert suspicions.suspects() == []


@pytest.mark.parametrize("known", [True, False], ids=["another-session", "not-registered"])
def test_a_session_that_is_over_is_suspected_no_more(known: bool) -> None:
    """Another node ended it, or the process has returned with another session."""
    suspicions = connected("n1", "n2", "n3")
    suspicions.link_changed("n2", False)
    suspicions.refused("n2", OLD_MS)
    suspicions.learn(registered(n1=1, n3=3, **({"n2": 9} if known else {})), OLD_MS)
    assert suspicions.suspects() == []
    assert not suspicions.refused("n2", OLD_MS)


def test_what_was_never_reached_is_not_suspected() -> None:
    """A wrong address or a firewall refuses from the first dial on: this proves nothing, in any session of the node."""
    suspicions = connected("n1", "n2", "n3", to=("n3",))
    assert not suspicions.refused("n2", OLD_MS)
    suspicions.learn(registered(n1=1, n2=7, n3=3), OLD_MS)
    assert not suspicions.refused("n2", 2 * OLD_MS)
    assert not suspicions.refused("nobody", OLD_MS)
    assert held(suspicions) == {"unreached": 2}


def test_a_young_session_is_not_suspected() -> None:
    """Below the hold time the session must end by itself; from then on, it may be suspected."""
    suspicions = connected("n1", "n2", "n3")
    assert not suspicions.refused("n2", HOLD_MIN_MS - 1)
    assert held(suspicions) == {"young": 1}
    assert suspicions.refused("n2", HOLD_MIN_MS)


def test_a_node_that_is_stopping_is_not_suspected() -> None:
    """It has handed everything over, and closes its listener before its session."""
    suspicions = connected("n1", "n2", "n3")
    suspicions.learn({**registered(n1=1, n3=3), "n2": Registration("n2", 2, False)}, OLD_MS)
    assert not suspicions.refused("n2", OLD_MS)
    assert held(suspicions) == {"leaving": 1}


def test_a_node_without_connections_suspects_nobody_where_there_is_a_third() -> None:
    """Its own network may have failed; with only two nodes no third one can confirm."""
    suspicions = connected("n1", "n2", "n3")
    suspicions.link_changed("n2", False)
    suspicions.link_changed("n3", False)
    assert not suspicions.refused("n2", OLD_MS)
    assert held(suspicions) == {"isolated": 1}
    suspicions.link_changed("n3", True)
    assert suspicions.refused("n2", OLD_MS)
    two = connected("n1", "n2", to=("n2",))
    two.link_changed("n2", False)
    assert two.refused("n2", OLD_MS)


def suspected_again(suspicions: Suspicions, session_id: int, now_ms: int, owner: int) -> int:
    """n2's process `owner` registers as `session_id`, and is suspected as soon as possible; returns the time."""
    suspicions.learn(registered(n1=1, n3=3) | registered(owner, n2=session_id), now_ms)
    suspicions.link_changed("n2", True)
    hold_ms = suspicions.hold_ms("n2", now_ms)
    suspicions.link_changed("n2", False)
    assert not suspicions.refused("n2", now_ms + hold_ms // 2)
    while not suspicions.refused("n2", now_ms):
        now_ms += 1_000
    suspicions.ended(Suspect("n2", session_id), here=False)
    suspicions.learn(registered(n1=1, n3=3), now_ms)
    return now_ms


def test_the_hold_time_doubles_with_each_false_suspicion_and_halves_with_time() -> None:
    """A process that registers again after each suspicion was not dead: its sessions are left alone for longer and
    longer. After hours without a suspicion, the hold time is the initial one."""
    suspicions, now_ms, holds = connected("n1", "n2", "n3"), 0, []
    for session_id in range(10, 20):
        now_ms = suspected_again(suspicions, session_id, now_ms, owner=5)
        holds.append(suspicions.hold_ms("n2", now_ms))
    assert holds[:4] == [HOLD_MIN_MS * factor for factor in (1, 2, 4, 8)]
    assert max(holds) <= HOLD_MAX_MS
    assert suspicions.hold_ms("n2", now_ms + 10 * HOLD_HALF_MS) == HOLD_MIN_MS
    assert suspicions.hold_ms("n3", now_ms) == HOLD_MIN_MS
    false = next(value for name, _, value in suspicions.samples() if name == "isthmus_nodes_suspected_falsely_total")
    assert false == 9


def test_a_process_that_was_dead_indeed_costs_its_successor_nothing() -> None:
    """A node that is killed again and again is suspected each time once its session is as old as the shortest hold
    time."""
    suspicions, now_ms = connected("n1", "n2", "n3"), 0
    for session_id in range(10, 20):
        now_ms = suspected_again(suspicions, session_id, now_ms, owner=session_id)
        assert suspicions.hold_ms("n2", now_ms) == HOLD_MIN_MS
