"""The document of orders: its encoding, its limits, and its changes."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.controller.reassignment_orders import (
    ENDED_MAX,
    ORDERS_MAX,
    FinishedOrder,
    Placement,
    change_placement,
    decode_placement,
    encode_placement,
    read_placement,
)
from isthmus.repl.controller.reassignment_plan import ReplicaMove
from isthmus.repl.controller.reassignment_progress import ReassignmentKind
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.model.errors import Corruption, TooLarge
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore

pytestmark = pytest.mark.virtual_time

NAMES = st.lists(st.sampled_from(["n1", "n2", "ü-3", "a b"]), min_size=1, max_size=4, unique=True).map(tuple)
MOVES = st.lists(st.builds(ReplicaMove, st.integers(0, 9_999), NAMES, NAMES), max_size=4)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    found = Placement(version=3)
    for _ in range(draw(st.integers(0, 3))):
        found = found.with_order(
            draw(st.sampled_from(ReassignmentKind)), draw(st.text(max_size=9)), "ann", 7, draw(MOVES)
        )
    found = found.with_drained(draw(st.lists(st.sampled_from(["n1", "n2"]), unique=True)), "bob", 9)
    return found.with_ended(FinishedOrder(77, ReassignmentKind.DRAIN, "t", "ann", 1, 2, "done", 3, 4))


@given(placements())
def test_orders_round_trip_and_equal_ones_have_equal_bytes(placement: Placement) -> None:
    """Orders, history and drained nodes survive their bytes."""
    encoded = encode_placement(placement)
    found = decode_placement(Versioned(encoded, 3))
    assert found == placement
    assert encode_placement(found) == encoded


def test_malformed_bytes_are_reported_with_their_path() -> None:
    """For any malformed value, a Corruption names the path; no part of it is used."""
    good = json.loads(
        encode_placement(
            Placement().with_order(ReassignmentKind.SPREAD, "t", "a", 1, [ReplicaMove(0, ("n1",), ("n2",))])
        )
    )
    for change in (
        {"v": 2},
        {"nodes": []},
        {"nodes": [1, 2]},
        {"orders": [{}]},
        {"orders": [{**good["orders"][0], "moves": [[0, [0, 0], [1]]]}]},
        {"orders": [{**good["orders"][0], "kind": "magic"}]},
        {"drained": {"n1": 5}},
        {"next": -1},
        {"ended": [[1]]},
    ):
        with pytest.raises(Corruption, match="/placement/orders"):
            decode_placement(Versioned(json.dumps({**good, **change}).encode(), 0))
    with pytest.raises(Corruption):
        decode_placement(Versioned(b"\xff", 0))


def test_the_document_is_bounded() -> None:
    """One order above the limit is refused, the oldest history is dropped, texts are cut; a thousand moves take few
    bytes."""
    placement = Placement()
    for _ in range(ORDERS_MAX):
        placement = placement.with_order(ReassignmentKind.SPREAD, "t" * 999, "a" * 999, 1, [])
    with pytest.raises(TooLarge, match=f"at most {ORDERS_MAX}"):
        placement.with_order(ReassignmentKind.SPREAD, "t", "a", 1, [])
    assert len(placement.orders[0].title) < 999 > len(placement.orders[0].by)
    for number in range(ENDED_MAX + 5):
        placement = placement.with_ended(FinishedOrder(number, ReassignmentKind.SPREAD, "t", "a", 1, 2, "done", 0, 0))
    assert [ended.number for ended in placement.ended] == list(range(5, ENDED_MAX + 5))
    moves = [ReplicaMove(p, ("node-1", "node-2", "node-3"), ("node-4", "node-5", "node-6")) for p in range(1_000)]
    assert len(encode_placement(Placement().with_order(ReassignmentKind.SPREAD, "t", "a", 1, moves))) < 50_000


async def test_changes_at_the_same_time_are_all_made() -> None:
    """Each is a conditional write that is retried on the other's result."""

    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _state: None)
    await asyncio.gather(
        *(change_placement(metastore, lambda p, n=n: p.with_drained([f"n{n}"], "a", n)) for n in range(4))
    )
    found = await read_placement(metastore)
    assert sorted(found.drained) == ["n0", "n1", "n2", "n3"]
    again = await change_placement(metastore, lambda p: p.with_drained(["n1"], "b", 9))
    assert (again.version, again.drained["n1"].by) == (found.version, "a")
    await metastore.stop()
