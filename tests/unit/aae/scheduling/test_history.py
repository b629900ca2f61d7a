"""Unreadable parts of full-sync's saved history are dropped; all other parts are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.scheduling.history import RESULTS_KEPT, CheckResult, FullSyncHistory, Suspended
from isthmus.aae.scheduling.schedule import CheckKind, PeerScheduleState
from isthmus.repl.storage.slot_file import SLOT_BYTES_MAX, SlotFile

BY_ANN = Suspended("ann", 7, "move")


def damaged(directory: Path, change: dict[str, Any]) -> FullSyncHistory:
    """Two peers that ann suspended, as they are read when parts of west are `change`."""
    directory.mkdir(exist_ok=True)
    history = FullSyncHistory(directory, 5)
    for name in ("west", "north"):
        history.peer(name).suspended = BY_ANN
        history.peer(name).proven_ms["default"] = 3
    history.prepare_save()()
    slots = SlotFile(directory, "fullsync")
    document = slots.read()
    document["peers"]["west"] |= change
    slots.write(document)
    again = FullSyncHistory(directory, 9)
    again.load()
    return again


@pytest.mark.parametrize(
    "change",
    [
        {"results": [{"bucket_type": "default", "verdict": "not yet known"}]},
        {"standing": {"succeeded_ms": 4}},
        {"proven": ["default"]},
        {"named": [[b"default", 4]]},
    ],
)
def test_an_unreadable_part_takes_nothing_else_with_it(tmp_path: Path, change: dict[str, Any]) -> None:
    """An unreadable part, such as a result of a later version, leaves suspensions of this peer and of others in
    force."""
    again = damaged(tmp_path, change)
    assert again.peer("west").suspended == again.peer("north").suspended == BY_ANN
    assert again.peer("north").proven_ms == {"default": 3}
    assert again.peer("west").schedule_state == (PeerScheduleState(9) if "standing" in change else PeerScheduleState(5))


def test_a_suspension_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    """It was set for a reason, so it holds until a resume; an entry without an author is not a suspension."""
    again = damaged(tmp_path, {"suspended": {"by": "ann", "until_ms": 8}})
    suspended = again.peer("west").suspended
    assert suspended is not None
    assert "cannot be read" in suspended.reason
    assert again.peer("north").suspended == BY_ANN
    assert damaged(tmp_path / "more", {"suspended": None, "results": 3}).peer("west").suspended is None


def test_what_an_earlier_version_proved_was_equal(tmp_path: Path) -> None:
    """Earlier versions called only equal clusters proven: their proofs are both. A later proof that the other side is
    up to date leaves the time at which both were equal as it is."""
    again = damaged(tmp_path, {})
    again.peer("west").proven_ms["default"] = 9
    again.prepare_save()()
    slots = SlotFile(tmp_path, "fullsync")
    document = slots.read()
    del document["peers"]["north"]["equal"]
    slots.write(document)
    once_more = FullSyncHistory(tmp_path, 9)
    once_more.load()
    west, north = once_more.peer("west"), once_more.peer("north")
    assert (west.proven_ms, west.equal_ms) == ({"default": 9}, {})
    assert (north.proven_ms, north.equal_ms) == ({"default": 3}, {"default": 3})


def test_the_history_of_many_peers_is_bounded(tmp_path: Path) -> None:
    """A history larger than a slot could never be saved again, nor could a suspension: the newest results of each peer
    are kept, and long texts are cut."""
    history = FullSyncHistory(tmp_path, 5)
    for number in range(100):
        one = history.peer(f"p{number}")
        one.suspended = Suspended("ann", 7, "w" * 500_000)
        for at in range(RESULTS_KEPT):
            said = "x" * 5_000
            result = CheckResult(
                "default", CheckKind.ALL, at, 1.0, ExchangeVerdict.ERROR, said, False, 0, 0, {}, 0, 0, 0, 0, "ann"
            )
            one.results.append(result)
    history.prepare_save()()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < SLOT_BYTES_MAX // 2
    again = FullSyncHistory(tmp_path, 9)
    again.load()
    assert len(again.peers) == 100
    for one in again.peers.values():
        assert one.suspended == Suspended("ann", 7, "w" * 1_000)
        assert [result.began_ms for result in one.results] == list(range(RESULTS_KEPT - 50, RESULTS_KEPT))
        assert {len(result.reason) for result in one.results} == {1_000}
