"""The scheduler when a check has no access, when several commands arrive at once, and when the node stops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.scheduling.history import FullSyncHistory
from isthmus.aae.scheduling.schedule import HOUR_MS, CheckKind, TimeRange
from isthmus.config.settings import FullSyncSettings
from isthmus.repl.model.errors import NotReady
from isthmus.repl.storage.slot_file import SlotFile
from tests.support.fullsync_listings import days_of
from tests.unit.aae.scheduling.scheduler.test_checks import START, WEST, SchedulerFixture, ended, operator_view

pytestmark = pytest.mark.virtual_time


async def test_acts_at_the_same_time_are_remembered_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several commands arrive beside the end of a check: saves never overlap, and the saved state at the end is the
    newest."""
    writing: list[int] = []
    most: list[int] = []
    write = SlotFile.write

    def slow(slots: SlotFile, value: Any) -> None:
        writing.append(1)
        most.append(len(writing))
        sleep(0.01 * (len(most) % 3))
        write(slots, value)
        writing.pop()

    monkeypatch.setattr(SlotFile, "write", slow)

    east = FullSyncSettings("east", "http://10.0.0.8:8098", "to-east", auto_count=0, all_count=2)
    fixture = SchedulerFixture(tmp_path, WEST, east)
    fixture.scheduler.begin("west", CheckKind.ALL, "tester")
    await asyncio.gather(
        *(fixture.scheduler.suspend(name, f"by {turn}", "") for turn in range(4) for name in ("west", "east"))
    )
    await ended(fixture)
    assert max(most) == 1
    again = FullSyncHistory(tmp_path, START)
    again.load()
    for name in ("west", "east"):
        assert again.peer(name).suspended == fixture.history.peer(name).suspended
    assert len(again.peer("west").results) == 1
    await fixture.scheduler.stop()


async def test_a_node_that_stops_begins_no_check(tmp_path: Path) -> None:
    """A caller that requests a check gets NotReady, and nothing is left running; a check that ends because of the stop
    starts no other."""

    fixture = SchedulerFixture(tmp_path, WEST)
    fixture.checkers["west"].gate = asyncio.Event()
    fixture.scheduler.begin("west", CheckKind.ALL, "ann")
    await asyncio.sleep(0)
    await fixture.scheduler.stop()
    with pytest.raises(NotReady, match="stopping"):
        fixture.scheduler.begin("west", CheckKind.ALL, "ann")
    with pytest.raises(NotReady, match="stopping"):
        await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    assert len(fixture.checkers["west"].checks) == 1


async def test_a_check_that_could_not_look_is_tried_again_soon(tmp_path: Path) -> None:
    """It is retried after 30 s, 1, 2, 4 and 8 minutes, with the reason, and then not before the next slot; the state of
    `auto` is as if it had not run. The first try with access ends the retries."""

    fixture = SchedulerFixture(tmp_path, replace(WEST, hour_count=0, auto_count=24))
    checker = fixture.checkers["west"]
    checker.outcomes = [ExchangeVerdict.ERROR] * 20
    checker.unseen = "roots: no connection"
    fixture.alarm.call()
    await ended(fixture)
    (row,) = operator_view(fixture)["peers"]
    assert (row["next_ms"], row["next_kind"]) == (START + 30_000, "auto")
    assert row["retry"] == {"tries": 1, "reason": "roots: no connection"}
    assert days_of(fixture.scheduler)[0]["retry"] == {"at_ms": START + 30_000, "kind": "auto", "tries": 1}
    assert row["reason"] == "could not look, tried again (1 of 5): roots: no connection"
    await fixture.pass_until(START + HOUR_MS - 1)
    began = [(check.began_ms - START) // 1000 for check in checker.checks]
    assert began == [0, 30, 90, 210, 450, 930]
    assert {check.kind for check in checker.checks} == {CheckKind.RANGE}
    assert (operator_view(fixture)["peers"][0]["retry"], fixture.alarm.at_ms) == (None, START + HOUR_MS)
    checker.outcomes = [ExchangeVerdict.INCOMPLETE]
    await fixture.pass_until(START + HOUR_MS)
    checker.unseen = ""
    await fixture.pass_until(START + 2 * HOUR_MS - 1)
    assert len(checker.checks) == 8
    assert checker.checks[-1].times == TimeRange(START, START + HOUR_MS + 30_000 + 5_000)


async def test_a_check_waits_until_there_is_something_to_compare(tmp_path: Path) -> None:
    """While the bucket type is not placed, as in a new cluster, a due slot waits, checks each second, and shows the
    reason; no result is recorded. A slot that waits too long is skipped as late, and a manual check begins at once."""

    fixture = SchedulerFixture(tmp_path, replace(WEST, hour_count=0, auto_count=24))
    checker = fixture.checkers["west"]
    fixture.members.unplaced = "bucket type 'default' waits for 2 more nodes"
    await fixture.pass_until(START + 2_500)
    (row,) = operator_view(fixture)["peers"]
    assert (checker.checks, row["results"], row["retry"]) == ([], [], None)
    assert row["reason"] == "waits: bucket type 'default' waits for 2 more nodes"
    assert fixture.alarm.at_ms == START + 3_000
    fixture.members.unplaced = ""
    await fixture.pass_until(START + 3_000)
    assert [check.began_ms for check in checker.checks] == [START + 3_000]
    assert operator_view(fixture)["peers"][0]["reason"] == "24 checks a day"
    fixture.members.unplaced = "gone again"
    await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    assert len(checker.checks) == 2
    await fixture.pass_until(START + 2 * HOUR_MS - 1)
    assert [one.reason for one in fixture.scheduler.peers["west"].skipped] == ["late"]
    fixture.members.unplaced = ""
    await fixture.pass_until(START + 2 * HOUR_MS)
    assert len(checker.checks) == 3
    await fixture.scheduler.stop()


async def test_only_a_peer_whose_check_is_due_waits_to_be_placed(tmp_path: Path) -> None:
    """With two peers, the second one's slot comes later: the reason that delays the first is not shown for the second,
    during the wait or after it."""

    west = replace(WEST, hour_count=0, auto_count=24)
    fixture = SchedulerFixture(tmp_path, west, replace(west, name="north"))
    fixture.members.unplaced = "waits for 2 more nodes"
    for unplaced, seconds in (("waits for 2 more nodes", 2), ("", 3)):
        fixture.members.unplaced = unplaced
        await fixture.pass_until(START + seconds * 1_000)
        told = {row["name"]: row["reason"] for row in operator_view(fixture)["peers"]}
        assert told == {"west": f"waits: {unplaced}" if unplaced else "24 checks a day", "north": "24 checks a day"}
    await fixture.scheduler.stop()


async def test_a_slot_in_which_nothing_is_done_is_not_tried_again(tmp_path: Path) -> None:
    """Slots that `auto` skips after a failure that this side cannot repair stay skipped, even if a manual check had no
    access meanwhile."""

    fixture = SchedulerFixture(tmp_path, replace(WEST, hour_count=0, auto_count=24))
    checker, peer = fixture.checkers["west"], fixture.scheduler.peers["west"]
    checker.outcomes = [ExchangeVerdict.DIFFERING, ExchangeVerdict.ERROR]
    await fixture.pass_until(START + 1_000)
    checker.unseen = "not ready"
    await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    checker.unseen = ""
    for hour in (1, 2):
        await fixture.pass_until(START + hour * HOUR_MS + 1_000)
        assert peer.retry is None
        assert len(checker.checks) == 2
    await fixture.pass_until(START + 3 * HOUR_MS + 1_000)
    assert len(checker.checks) == 3


async def test_a_try_again_follows_the_rules_of_every_check(tmp_path: Path) -> None:
    """A late retry is skipped and shown; a suspended peer has none; a manual check is not retried; a check with access
    ends the retries of the slot. No retry comes so close to the next slot that a check is due anyway."""

    fixture = SchedulerFixture(tmp_path, WEST)
    checker, peer = fixture.checkers["west"], fixture.scheduler.peers["west"]
    checker.outcomes, checker.unseen = [ExchangeVerdict.ERROR], "not ready"
    await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    assert peer.retry is None
    checker.outcomes = [ExchangeVerdict.ERROR]
    fixture.alarm.call()
    await ended(fixture)
    assert peer.retry is not None
    fixture.clock.ms = START + HOUR_MS // 2 + 40_000
    fixture.alarm.call()
    await ended(fixture)
    assert [(one.kind, one.reason) for one in peer.skipped] == [(CheckKind.HOUR, "late")]
    assert (len(checker.checks), peer.retry) == (2, None)
    for hour, end in ((1, "suspend"), (2, "run")):
        checker.outcomes, checker.unseen = [ExchangeVerdict.ERROR], "not ready"
        await fixture.pass_until(START + hour * HOUR_MS)
        assert peer.retry is not None
        checker.unseen = ""
        if end == "suspend":
            await fixture.scheduler.suspend("west", "ann", "")
            await fixture.scheduler.resume("west")
        else:
            await fixture.scheduler.run("west", CheckKind.ALL, "ann")
        assert peer.retry is None
    crowd = SchedulerFixture(tmp_path / "crowd", replace(WEST, hour_count=1_440))
    crowd.checkers["west"].outcomes, crowd.checkers["west"].unseen = [ExchangeVerdict.ERROR] * 9, "not ready"
    await crowd.pass_until(START + 150_000)
    assert [check.began_ms - START for check in crowd.checkers["west"].checks] == [
        0, 30_000, 60_000, 90_000, 120_000, 150_000,
    ]  # fmt: skip
