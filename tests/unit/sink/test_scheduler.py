"""The choice of the link that a worker fetches from next: shares of peers, slots of links, pauses and probes."""

from __future__ import annotations

from random import Random

import pytest

from isthmus.sink.backoff import CycleResult, Delays
from isthmus.sink.scheduler import FetchScheduler, LinkName, Turn

A, B, C = LinkName("q", "http://east"), LinkName("q", "http://north"), LinkName("r", "http://east")


def scheduler_of(*names: LinkName, workers: int = 8, peer_limit: int = 0, seed: int = 1) -> FetchScheduler:
    scheduler = FetchScheduler(2, Delays(10, 1_000), Random(seed), workers=workers, peer_limit=peer_limit)
    for name in names:
        scheduler.add(name)
    return scheduler


@pytest.mark.parametrize("seed", range(150))
def test_the_scheduler_keeps_its_invariants_under_any_order_of_results(seed: int) -> None:
    """No more workers run than there are, no more for a peer than its share, and no more for a link than its slots. No
    fetch begins on a suspended or removed link; one slot probes a failing source, and one slot waits at an idle link.
    If no fetch may begin, the scheduler knows when the next one may."""
    rng = Random(seed)
    workers, now = rng.randint(1, 6), 0
    links = [A, B, C]
    scheduler = scheduler_of(*links, workers=workers, peer_limit=rng.choice([0, 1, 3]))
    running: list[tuple[LinkName, int]] = []
    pushing: set[tuple[LinkName, int]] = set()
    failing, busy = dict.fromkeys(links, False), dict.fromkeys(links, False)
    steps = ["take"] * 3 + ["report"] * 2 + ["fetched", "time", "suspend", "resume", "leave", "add", "workers"]
    for _ in range(rng.randint(1, 50)):
        match rng.choice(steps):
            case "take":
                taken = scheduler.take(now)
                if taken is None:
                    due = scheduler.next_due_ms()
                    assert due is None or due > now
                    continue
                name, slot, _ = taken
                mine = [run for run in running if run[0] == name]
                assert (name, slot) not in running
                assert not scheduler.suspended(name)
                assert not scheduler.ending(name)
                assert not (failing[name] and mine)
                assert busy[name] or all(run in pushing for run in mine), "one slot waits for all"
                running.append((name, slot))
                assert len(running) <= scheduler.workers
                assert len([run for run in running if run[0].peer == name.peer]) <= scheduler.peer_limit()
            case "fetched" if [run for run in running if run not in pushing]:
                run = rng.choice([run for run in running if run not in pushing])
                scheduler.fetched(*run)
                pushing.add(run)
                busy[run[0]], failing[run[0]] = True, False
            case "report" if running:
                run = running.pop(rng.randint(0, len(running) - 1))
                result = rng.choice(
                    [CycleResult.ITEMS, CycleResult.FAILED]
                    if run in pushing
                    else [CycleResult.EMPTY, CycleResult.ERROR]
                )
                pushing.discard(run)
                failing[run[0]] = result is CycleResult.ERROR
                if result in (CycleResult.EMPTY, CycleResult.ERROR):
                    busy[run[0]] = False
                scheduler.report(*run, result, now, rng.choice([0, 5_000]))
                for gone in scheduler.gone():
                    assert all(r[0] != gone for r in running)
                    scheduler.add(gone)
                    failing[gone] = busy[gone] = False
            case "time":
                now += rng.choice([1, 100, 10_000])
            case "suspend" | "resume" as act:
                scheduler.suspend(rng.choice(links), act == "suspend")
            case "leave":
                scheduler.leave(rng.choice(links))
            case "add":
                scheduler.add(rng.choice(links))
            case "workers":
                scheduler.workers = rng.randint(max(1, len(running)), 6 + len(running))
    for name, slot in running:
        scheduler.report(name, slot, CycleResult.ITEMS, now, 0)
    for name in links:
        scheduler.add(name)
        scheduler.suspend(name, False)
    assert scheduler.take(now + 1_000) is not None, "everything is taken up again"


def test_a_busy_link_does_not_starve_the_others() -> None:
    """One worker serves links in turn, even if one of them always has changes."""
    scheduler = scheduler_of(A, B, workers=1)
    order = []
    for _ in range(8):
        taken = scheduler.take(0)
        assert taken is not None
        order.append(taken.name)
        scheduler.fetched(*taken[:2])
        scheduler.report(*taken[:2], CycleResult.ITEMS, 0, 0)
    assert order.count(A) == order.count(B) == 4


def test_a_peer_that_hangs_holds_its_share_and_no_more() -> None:
    """With three peers of two queues each and six workers, a peer that never answers holds two workers; the others
    continue."""
    slow, fast, third = "http://slow", "http://fast", "http://third"
    names = [LinkName(queue, peer) for peer in (slow, fast, third) for queue in ("q", "r")]
    scheduler = scheduler_of(*names, workers=6)
    hanging, served = 0, 0
    for step in range(200):
        taken = scheduler.take(step)
        if taken is None:
            continue
        scheduler.fetched(*taken[:2])
        if taken.name.peer == slow:
            hanging += 1
            continue
        served += 1
        scheduler.report(*taken[:2], CycleResult.ITEMS, step, 0)
    assert hanging == scheduler.peer_limit() == 2
    assert served >= 190


@pytest.mark.parametrize("workers", [2, 4, 24])
def test_many_peers_that_hang_leave_half_of_the_workers_to_those_that_answer(workers: int) -> None:
    """Most of sixty-two peers are cut off, and each fetch from one of them takes five seconds to fail. The peers that
    answer are served at the rate of a few workers, and a peer that returns is found."""
    live = [LinkName("q", f"http://live{n}") for n in range(2)]
    dead = [LinkName("q", f"http://dead{n}") for n in range(60)]
    scheduler = scheduler_of(*live, *dead, workers=workers)
    ends: list[tuple[int, Turn]] = []
    served, tried = 0, set()
    for now in range(0, 60_000, 50):
        for end in [one for one in ends if one[0] <= now]:
            ends.remove(end)
            name, slot, _ = end[1]
            if name in live:
                scheduler.fetched(name, slot)
            scheduler.report(name, slot, CycleResult.ITEMS if name in live else CycleResult.ERROR, now, 0)
        while (turn := scheduler.take(now)) is not None:
            ends.append((now + (50 if turn.name in live else 5_000), turn))
            served += turn.name in live
            assert turn.name in live or turn.name not in tried or not turn.may_wait, "a probe gives its worker back"
            tried.add(turn.name)
    assert served >= 1_080, "one cycle of 50 ms after the other, but for the first seconds"
    assert len(tried & {*dead}) >= 5 * (workers // 2), "each is tried in its turn"


def test_no_worker_long_polls_while_other_links_need_workers() -> None:
    """With as many workers as links, every fetch may long-poll. With fewer none may, and busy peers get the turns of
    idle ones."""
    names = [LinkName("q", f"http://p{n}") for n in range(4)]
    scheduler = scheduler_of(*names, workers=4)
    turns = [scheduler.take(0) for _ in range(4)]
    assert all(turn is not None and turn.may_wait for turn in turns)
    scheduler = scheduler_of(*names, workers=2)
    served = dict.fromkeys(names, 0)
    for now in range(400):
        turn = scheduler.take(now)
        if turn is None:
            continue
        assert not turn.may_wait
        served[turn.name] += 1
        if turn.name == names[0]:
            scheduler.fetched(*turn[:2])
            scheduler.report(*turn[:2], CycleResult.ITEMS, now, 0)
        else:
            scheduler.report(*turn[:2], CycleResult.EMPTY, now, 0)
    assert served[names[0]] > 10 * served[names[1]] > 0


def test_a_slot_whose_changes_were_not_stored_need_not_wait_for_the_others() -> None:
    """Only a failing source is limited to one probing slot. A failed push is reported to the source after its delay,
    while another slot waits there in a long poll."""
    scheduler = scheduler_of(A)
    first = scheduler.take(0)
    assert first is not None
    assert scheduler.take(0) is None, "one slot waits for all"
    scheduler.fetched(*first[:2])
    second = scheduler.take(0)
    assert second is not None
    scheduler.report(*first[:2], CycleResult.FAILED, 0, 0)
    assert scheduler.take(0) is None
    again = scheduler.take(10)
    assert again is not None
    assert again[:2] == first[:2]
    scheduler.report(*first[:2], CycleResult.ERROR, 10, 0)
    assert scheduler.take(10_000) is None
    assert scheduler.next_due_ms() is None
    scheduler.report(*second[:2], CycleResult.EMPTY, 10_000, 5_000)
    assert scheduler.take(10_000) is not None


def test_a_slot_without_a_turn_acknowledges_and_rests_again() -> None:
    """The slot needs no worker of the pool and gets no turn meanwhile. A failing source is left alone for a while, and
    a removed link is gone after its acknowledgement."""
    scheduler = scheduler_of(A, workers=2)
    first = scheduler.take(0)
    assert first is not None
    scheduler.fetched(*first[:2])
    second = scheduler.take(0)
    assert second is not None
    assert not scheduler.begin_ack(A, first.slot, 0), "it pushes"
    scheduler.report(*second[:2], CycleResult.EMPTY, 0, 5_000)
    second = scheduler.take(0)
    assert second is not None
    scheduler.report(*first[:2], CycleResult.ITEMS, 0, 0)
    assert scheduler.take(0) is None, "another one waits there for all"
    assert scheduler.begin_ack(A, first.slot, 0)
    assert not scheduler.begin_ack(A, first.slot, 0), "once"
    assert (scheduler.running_count(), scheduler.running_slots(A)) == (1, {first.slot, second.slot})
    scheduler.report(*second[:2], CycleResult.ITEMS, 0, 0)
    scheduler.ack_done(A, first.slot, False, 0)
    assert not scheduler.begin_ack(A, first.slot, 0)
    assert scheduler.errors(A) == 1
    assert scheduler.begin_ack(A, first.slot, 10)
    scheduler.leave(A)
    assert scheduler.gone() == []
    scheduler.ack_done(A, first.slot, True, 10)
    assert scheduler.gone() == [A]


def test_more_slots_work_while_answers_are_full_and_no_longer() -> None:
    """Small full batches are fetched by more slots; once an answer is not full, only the usual two continue."""
    scheduler = FetchScheduler(2, Delays(10, 1_000), Random(1), workers=8, extra=3)
    scheduler.add(A)
    slots = []
    for full in (False, True, True, True, True):
        turn = scheduler.take(0)
        assert turn is not None
        slots.append(turn.slot)
        scheduler.fetched(A, turn.slot, full=full)
        if not full:
            second = scheduler.take(0)
            assert second is not None
            assert scheduler.take(0) is None, "two of them as a rule"
            scheduler.report(A, second.slot, CycleResult.ITEMS, 0, 0)
    assert sorted(slots) == [0, 1, 2, 3, 4]
    assert scheduler.take(0) is None, "all it has"
    for slot in slots[:3]:
        scheduler.report(A, slot, CycleResult.ITEMS, 0, 0)
    last = scheduler.take(0)
    assert last is not None
    scheduler.fetched(A, last.slot, full=False)
    assert scheduler.take(0) is None
    for slot in (*slots[3:], last.slot):
        scheduler.report(A, slot, CycleResult.ITEMS, 0, 0)
    scheduler.take(0)
    assert scheduler.take(0) is not None
    assert scheduler.take(0) is None
