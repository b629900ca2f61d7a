"""Claims about the sink's pure rooms: delays, who fetches next, lag, what a suspension covers."""

from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.queues.rate_limit import Rates, Throttle
from isthmus.queues.wire import UnknownFetchVersion
from isthmus.repl.model.errors import BadInput, CodecError, Overloaded
from isthmus.sink.backoff import Backoff, CycleResult, Delays
from isthmus.sink.discovery import LinkTarget, PeerNodes, dialled, parse, passed_over, wanted
from isthmus.sink.lag_histogram import SLICE_MS, SLICES, Lag, LagHistogram
from isthmus.sink.limits import ALL_NODES, EffectiveLimits, SinkLimits, limits_for
from isthmus.sink.limits import DOCUMENT as LIMITS
from isthmus.sink.limits import changed as with_limits
from isthmus.sink.limits import decode as decode_limits
from isthmus.sink.scheduler import FetchScheduler, LinkName, Turn
from isthmus.sink.service import overloaded_when_away
from isthmus.sink.suspensions import DOCUMENT as SUSPENSIONS
from isthmus.sink.suspensions import SUSPENSIONS_MAX, SinkSuspension, added, decode, without
from tests.support.memory_metastore import MemoryMetastore, WriteFault

A, B, C = LinkName("q", "http://east"), LinkName("q", "http://north"), LinkName("r", "http://east")
_results = st.sampled_from(list(CycleResult))


# ---------------------------------------------------------------- back-off

DELAYS = Delays(10, 8_000, 5, 250, 2)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.builds(
        Delays, st.integers(1, 50), st.integers(50, 9_000), st.integers(1, 50), st.integers(50, 900), st.integers(1, 10)
    ),
    st.lists(st.tuples(_results, st.integers(0, 5_000)), max_size=30),
)
def test_the_first_success_ends_any_delay_and_errors_cost_more_than_empties(
    delays: Delays, history: list[tuple[CycleResult, int]]
) -> None:
    """Whatever came before: results bring the delay to 0, empties keep it small, errors multiply it up to the bound."""
    backoff = Backoff(delays)
    for result, waited_ms in history:
        before, backoff = backoff, backoff.after(result, waited_ms)
        match result:
            case CycleResult.ITEMS:
                assert (backoff.delay_ms, backoff.errors) == (0, 0)
            case CycleResult.EMPTY:
                assert backoff.errors == 0
                assert backoff.delay_ms <= delays.empty_max_ms
                assert waited_ms < delays.empty_max_ms or backoff.delay_ms == 0, "a held fetch needs no pause"
                assert waited_ms >= delays.empty_max_ms or backoff.delay_ms >= delays.empty_min_ms
            case CycleResult.ERROR | CycleResult.FAILED:
                assert backoff.errors == before.errors + 1
                assert delays.min_ms <= backoff.delay_ms <= delays.max_ms
                wanted = max(delays.min_ms, before.delay_ms * delays.factor)
                assert not before.errors or backoff.delay_ms == min(delays.max_ms, wanted)
    assert backoff.after(CycleResult.ITEMS, 0).delay_ms == 0


def test_the_first_error_waits_no_shorter_than_the_empty_answer_before_it() -> None:
    """A link that had come to rest between empty answers is not asked sooner because its source fails."""
    resting = Backoff(Delays(), delay_ms=250)
    assert resting.after(CycleResult.EMPTY, 0).delay_ms == 250
    assert resting.after(CycleResult.ERROR, 0).delay_ms == 500


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 8_000), st.integers(0, 99))
def test_pauses_are_spread(delay_ms: int, seed: int) -> None:
    """The pause lies between half the delay and the whole, so that many sinks do not march in step."""
    pause = Backoff(DELAYS, delay_ms).pause_ms(Random(seed))
    assert delay_ms // 2 <= pause <= delay_ms


# ---------------------------------------------------------------- roster


def roster_of(*names: LinkName, workers: int = 8, peer_limit: int = 0, seed: int = 1) -> FetchScheduler:
    roster = FetchScheduler(2, Delays(10, 1_000), Random(seed), workers=workers, peer_limit=peer_limit)
    for name in names:
        roster.add(name)
    return roster


@pytest.mark.parametrize("seed", range(150))
def test_the_scheduler_keeps_its_invariants_under_any_order_of_results(seed: int) -> None:
    """At most the workers run, of a peer at most its share, of a link its slots; none of a suspended or leaving one
    begins, a failing source is probed by one slot, one slot waits for an idle link, and when nobody may go the roster
    says when somebody may."""
    rng = Random(seed)
    workers, now = rng.randint(1, 6), 0
    links = [A, B, C]
    roster = roster_of(*links, workers=workers, peer_limit=rng.choice([0, 1, 3]))
    running: list[tuple[LinkName, int]] = []
    pushing: set[tuple[LinkName, int]] = set()
    failing, busy = dict.fromkeys(links, False), dict.fromkeys(links, False)
    steps = ["take"] * 3 + ["report"] * 2 + ["fetched", "time", "suspend", "resume", "leave", "add", "workers"]
    for _ in range(rng.randint(1, 50)):
        match rng.choice(steps):
            case "take":
                taken = roster.take(now)
                if taken is None:
                    due = roster.next_due_ms()
                    assert due is None or due > now
                    continue
                name, slot, _ = taken
                mine = [run for run in running if run[0] == name]
                assert (name, slot) not in running
                assert not roster.suspended(name)
                assert not roster.leaving(name)
                assert not (failing[name] and mine)
                assert busy[name] or all(run in pushing for run in mine), "one slot waits for all"
                running.append((name, slot))
                assert len(running) <= roster.workers
                assert len([run for run in running if run[0].peer == name.peer]) <= roster.peer_limit()
            case "fetched" if [run for run in running if run not in pushing]:
                run = rng.choice([run for run in running if run not in pushing])
                roster.fetched(*run)
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
                roster.report(*run, result, now, rng.choice([0, 5_000]))
                for gone in roster.gone():
                    assert all(r[0] != gone for r in running)
                    roster.add(gone)
                    failing[gone] = busy[gone] = False
            case "time":
                now += rng.choice([1, 100, 10_000])
            case "suspend" | "resume" as act:
                roster.suspend(rng.choice(links), act == "suspend")
            case "leave":
                roster.leave(rng.choice(links))
            case "add":
                roster.add(rng.choice(links))
            case "workers":
                roster.workers = rng.randint(max(1, len(running)), 6 + len(running))
    for name, slot in running:
        roster.report(name, slot, CycleResult.ITEMS, now, 0)
    for name in links:
        roster.add(name)
        roster.suspend(name, False)
    assert roster.take(now + 1_000) is not None, "everything is taken up again"


def test_a_busy_link_does_not_starve_the_others() -> None:
    """One worker serves links in turn, however eager one of them is."""
    roster = roster_of(A, B, workers=1)
    order = []
    for _ in range(8):
        taken = roster.take(0)
        assert taken is not None
        order.append(taken.name)
        roster.fetched(*taken[:2])
        roster.report(*taken[:2], CycleResult.ITEMS, 0, 0)
    assert order.count(A) == order.count(B) == 4


def test_a_peer_that_hangs_holds_its_share_and_no_more() -> None:
    """Of three peers with two queues each and six workers, one that never answers holds two; the others go on."""
    slow, fast, third = "http://slow", "http://fast", "http://third"
    names = [LinkName(queue, peer) for peer in (slow, fast, third) for queue in ("q", "r")]
    roster = roster_of(*names, workers=6)
    hanging, served = 0, 0
    for step in range(200):
        taken = roster.take(step)
        if taken is None:
            continue
        roster.fetched(*taken[:2])
        if taken.name.peer == slow:
            hanging += 1
            continue
        served += 1
        roster.report(*taken[:2], CycleResult.ITEMS, step, 0)
    assert hanging == roster.peer_limit() == 2
    assert served >= 190


@pytest.mark.parametrize("workers", [2, 4, 24])
def test_many_peers_that_hang_leave_half_of_the_workers_to_those_that_answer(workers: int) -> None:
    """Of sixty peers most are cut off: each fetch from one of them takes five seconds to fail. Those that answer go
    on at the pace of a few workers, and a peer that comes back is found."""
    live = [LinkName("q", f"http://live{n}") for n in range(2)]
    dead = [LinkName("q", f"http://dead{n}") for n in range(60)]
    roster = roster_of(*live, *dead, workers=workers)
    ends: list[tuple[int, Turn]] = []
    served, tried = 0, set()
    for now in range(0, 60_000, 50):
        for end in [one for one in ends if one[0] <= now]:
            ends.remove(end)
            name, slot, _ = end[1]
            if name in live:
                roster.fetched(name, slot)
            roster.report(name, slot, CycleResult.ITEMS if name in live else CycleResult.ERROR, now, 0)
        while (turn := roster.take(now)) is not None:
            ends.append((now + (50 if turn.name in live else 5_000), turn))
            served += turn.name in live
            assert turn.name in live or turn.name not in tried or not turn.may_wait, "a probe gives its worker back"
            tried.add(turn.name)
    assert served >= 1_080, "one cycle of 50 ms after the other, but for the first seconds"
    assert len(tried & {*dead}) >= 5 * (workers // 2), "each is tried in its turn"


def test_no_worker_long_polls_while_other_links_need_workers() -> None:
    """With as many workers as links every fetch may wait for long; with fewer none may, and busy peers get the turns
    of those that have nothing."""
    names = [LinkName("q", f"http://p{n}") for n in range(4)]
    roster = roster_of(*names, workers=4)
    turns = [roster.take(0) for _ in range(4)]
    assert all(turn is not None and turn.may_wait for turn in turns)
    roster = roster_of(*names, workers=2)
    served = dict.fromkeys(names, 0)
    for now in range(400):
        turn = roster.take(now)
        if turn is None:
            continue
        assert not turn.may_wait
        served[turn.name] += 1
        if turn.name == names[0]:
            roster.fetched(*turn[:2])
            roster.report(*turn[:2], CycleResult.ITEMS, now, 0)
        else:
            roster.report(*turn[:2], CycleResult.EMPTY, now, 0)
    assert served[names[0]] > 10 * served[names[1]] > 0


def test_a_slot_whose_changes_were_not_stored_need_not_wait_for_the_others() -> None:
    """Only a source that fails is probed by one slot; a failed push is told to the source after its delay, while
    another slot waits there in a long poll."""
    roster = roster_of(A)
    first = roster.take(0)
    assert first is not None
    assert roster.take(0) is None, "one slot waits for all"
    roster.fetched(*first[:2])
    second = roster.take(0)
    assert second is not None
    roster.report(*first[:2], CycleResult.FAILED, 0, 0)
    assert roster.take(0) is None
    again = roster.take(10)
    assert again is not None
    assert again[:2] == first[:2]
    roster.report(*first[:2], CycleResult.ERROR, 10, 0)
    assert roster.take(10_000) is None
    assert roster.next_due_ms() is None
    roster.report(*second[:2], CycleResult.EMPTY, 10_000, 5_000)
    assert roster.take(10_000) is not None


def test_a_slot_without_a_turn_acknowledges_and_rests_again() -> None:
    """It needs no worker of the pool and has no turn meanwhile; a source that fails is left alone for a while; a link
    that leaves is gone when it is told."""
    roster = roster_of(A, workers=2)
    first = roster.take(0)
    assert first is not None
    roster.fetched(*first[:2])
    second = roster.take(0)
    assert second is not None
    assert not roster.begin_ack(A, first.slot, 0), "it pushes"
    roster.report(*second[:2], CycleResult.EMPTY, 0, 5_000)
    second = roster.take(0)
    assert second is not None
    roster.report(*first[:2], CycleResult.ITEMS, 0, 0)
    assert roster.take(0) is None, "another one waits there for all"
    assert roster.begin_ack(A, first.slot, 0)
    assert not roster.begin_ack(A, first.slot, 0), "once"
    assert (roster.running_count(), roster.running_slots(A)) == (1, {first.slot, second.slot})
    roster.report(*second[:2], CycleResult.ITEMS, 0, 0)
    roster.ack_done(A, first.slot, False, 0)
    assert not roster.begin_ack(A, first.slot, 0)
    assert roster.errors(A) == 1
    assert roster.begin_ack(A, first.slot, 10)
    roster.leave(A)
    assert roster.gone() == []
    roster.ack_done(A, first.slot, True, 10)
    assert roster.gone() == [A]


def test_more_slots_work_while_answers_are_full_and_no_longer() -> None:
    """Small full batches come by more slots; once an answer is not full, the usual two go on."""
    roster = FetchScheduler(2, Delays(10, 1_000), Random(1), workers=8, extra=3)
    roster.add(A)
    slots = []
    for full in (False, True, True, True, True):
        turn = roster.take(0)
        assert turn is not None
        slots.append(turn.slot)
        roster.fetched(A, turn.slot, full=full)
        if not full:
            second = roster.take(0)
            assert second is not None
            assert roster.take(0) is None, "two of them as a rule"
            roster.report(A, second.slot, CycleResult.ITEMS, 0, 0)
    assert sorted(slots) == [0, 1, 2, 3, 4]
    assert roster.take(0) is None, "all it has"
    for slot in slots[:3]:
        roster.report(A, slot, CycleResult.ITEMS, 0, 0)
    last = roster.take(0)
    assert last is not None
    roster.fetched(A, last.slot, full=False)
    assert roster.take(0) is None
    for slot in (*slots[3:], last.slot):
        roster.report(A, slot, CycleResult.ITEMS, 0, 0)
    roster.take(0)
    assert roster.take(0) is not None
    assert roster.take(0) is None


# ---------------------------------------------------------------- throttle


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 50_000),
    st.integers(0, 5_000),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 600), st.integers(1, 90_000)), min_size=1, max_size=20),
)
def test_no_more_is_fetched_than_the_rates_allow(
    byte_rate: int, object_rate: int, fetches: list[tuple[int, int, int]]
) -> None:
    """Whatever comes when: before each fetch no more was taken than the rate gives, one second's worth saved up and
    one batch beyond; the time in which nothing may begin is what is told as throttled."""
    throttle = Throttle(Rates(byte_rate, object_rate), 0)
    now = took_bytes = took_objects = blocked = 0
    last = (0, 0)
    for pause, count, size in fetches:
        now += pause
        wait = throttle.wait_ms(now)
        blocked += wait
        now += wait
        assert took_bytes - last[0] <= byte_rate * (1 + now / 1000) + 1
        assert not object_rate or took_objects - last[1] <= object_rate * (1 + now / 1000) + 1
        room, space = throttle.allowance(count, 4_000_000, now)
        assert 1 <= room <= count
        assert space >= 1
        throttle.spend(room, size, now)
        took_bytes, took_objects, last = took_bytes + size, took_objects + room, (size, room)
    told = throttle.as_dict(now + 10**12)
    assert told["throttled_seconds"] * 1000 >= blocked
    assert told["binding"] is None
    assert told["achieved"] == {"bytes_per_second": 0, "objects_per_second": 0}


def test_the_limit_that_binds_is_named_and_a_new_one_counts_at_once() -> None:
    """Of two limits the one that holds fetches back longer is named; lifting it ends the wait and its count."""
    throttle = Throttle(Rates(bytes=1_000_000, objects=100), 0)
    assert throttle.wait_ms(0) == 0
    assert throttle.allowance(512, 4_000_000, 0) == (100, 1_000_000)
    throttle.spend(300, 500_000, 0)
    told = throttle.as_dict(0)
    assert told["binding"] == "objects"
    assert told["achieved"] == {"bytes_per_second": 500_000, "objects_per_second": 300}
    assert 1_900 <= throttle.wait_ms(100) <= 2_000
    throttle.change(Rates(bytes=1_000_000), 500)
    assert throttle.wait_ms(500) == 0
    assert throttle.as_dict(500)["throttled_seconds"] == 0.5
    throttle.spend(1, 3_000_000, 500)
    assert throttle.as_dict(500)["binding"] == "bytes"
    assert Throttle(Rates(), 0).allowance(512, 4_000_000, 0) == (512, 4_000_000)


# ---------------------------------------------------------------- limits


async def test_limits_of_a_node_count_before_those_of_all_and_those_before_the_file() -> None:
    """Field by field; what was set is kept in the metastore, and unsetting the last field takes the entry away."""

    metastore = MemoryMetastore()
    await metastore.start(lambda state: None)
    default = EffectiveLimits(24, 0, 0, 0, None)

    async def change(node: str, new: SinkLimits, *, unset: bool = False) -> dict[str, SinkLimits]:
        return (await LIMITS.change(metastore, lambda before: with_limits(before, node, new, unset=unset))).value

    await change(ALL_NODES, SinkLimits(workers=5, bytes_per_second=100, by="ann", at_ms=1))
    entries = await change("w1", SinkLimits(workers=7, by="bob", at_ms=2))
    assert entries == await LIMITS.read(metastore)
    mine, others = limits_for("w1", entries, default), limits_for("w2", entries, default)
    assert mine[:4] == (7, 0, 100, 0)
    assert others[:4] == (5, 0, 100, 0)
    assert mine.set_by is not None
    assert (mine.set_by.by, default.set_by) == ("bob", None)
    entries = await change("w1", SinkLimits(workers=1, by="bob"), unset=True)
    assert set(entries) == {ALL_NODES}
    for bad in (b"[]", b"x", b'{"*": 7}', b'{"*": {"workers": -1}}', b'{"*": {"workers": "7"}}'):
        with pytest.raises(CodecError):
            decode_limits(bad)


# ---------------------------------------------------------------- discovery

EAST, NORTH = b"e" * 16, b"n" * 16
E1, E2, E3 = (f"http://10.0.0.{n}:8098" for n in (1, 2, 3))
N1 = "http://10.1.0.1:8098"


def test_links_follow_the_nodes_listed_by_peers() -> None:
    """Nodes that come are fetched from, nodes that go are not; what was known of a silent cluster stays, and a seed
    that is down stays to be tried."""
    first, other = LinkName("q", E1), LinkName("r", N1)
    told = {E1: PeerNodes(EAST, "east", (E1, E2)), N1: None}
    found = wanted([first, other], {}, told)
    assert found == {
        first: LinkTarget(EAST, first),
        LinkName("q", E2): LinkTarget(EAST, first),
        other: LinkTarget(None, other),
    }
    found = wanted([first, other], found, {E1: PeerNodes(EAST, "east", (E1, E3)), N1: None})
    assert set(found) == {first, LinkName("q", E3), other}
    silent = wanted([first, other], found, {E1: None, N1: None})
    assert silent == found
    without_seed = wanted([first, LinkName("q", E2)], found, {E1: None, E2: PeerNodes(EAST, "east", (E2, E3))})
    assert set(without_seed) == {first, LinkName("q", E2), LinkName("q", E3)}, "a seed that is down is still tried"


def test_an_implausible_node_list_is_ignored() -> None:
    """Loopback addresses of a far peer, other schemes, and another cluster behind a known address change nothing; a
    balancer is replaced by the nodes that it leads to."""
    seed = LinkName("q", E1)
    for urls in (("http://127.0.0.1:8098",), ("http://0.0.0.0:8098", "http://localhost:1"), ("https://10.0.0.1:8098",)):
        assert wanted([seed], {}, {E1: PeerNodes(EAST, "east", urls)}) == {seed: LinkTarget(None, seed)}
    here = LinkName("q", "http://localhost:1")
    near = wanted([here], {}, {here.peer: PeerNodes(EAST, "east", ("http://127.0.0.1:1",))})
    assert set(near) == {LinkName("q", "http://127.0.0.1:1")}
    known = {seed: LinkTarget(EAST, seed)}
    assert wanted([seed], known, {E1: PeerNodes(NORTH, "north", (E2,))}) == known
    balancer = LinkName("q", "http://lb:80")
    assert set(wanted([balancer], {}, {balancer.peer: PeerNodes(EAST, "east", (E1, E2))})) == {
        LinkName("q", E1),
        LinkName("q", E2),
    }


S1, S2, S3 = (url.replace("http", "https") for url in (E1, E2, E3))


@pytest.mark.parametrize("tls", ["allow", None])
def test_nodes_of_a_cluster_that_takes_both_are_dialled_as_their_seed_is(tls: str | None) -> None:
    """A cluster with `tls.http = "allow"` lists its nodes with http://. A seed that is dialled with TLS leads to all of
    them with TLS: to those of a program that says "allow", and to those of an older one that lists the seed itself."""
    seeds = [LinkName("q", S1), LinkName("q", S2)]
    told: dict[str, PeerNodes | None] = {s.peer: PeerNodes(EAST, "east", (E1, E2, E3), tls) for s in seeds}
    found = wanted(seeds, {}, told)
    assert {name.peer: aim.cluster for name, aim in found.items()} == {S1: EAST, S2: EAST, S3: EAST}
    assert passed_over(seeds, found, told) == {}


def test_a_seed_with_tls_never_leads_to_an_address_in_plain_text() -> None:
    """Where nothing proves that the listed nodes take TLS they are passed over, with a reason, and the seed stays: a
    balancer that ends TLS, a listener of the mode "off". A listed https:// is not dialled for a seed of http://."""
    for name, told in (
        ("https://lb:443", PeerNodes(EAST, "east", (E1, E2))),
        (S1, PeerNodes(EAST, "east", (E1, E2), "off")),
    ):
        seed = LinkName("q", name)
        found = wanted([seed], {}, {name: told})
        assert found == {seed: LinkTarget(None, seed)}
        passed = passed_over([seed], found, {name: told})
        assert {each.peer for each in passed} == {E1, E2}
        assert {each.reason for each in passed.values()} == {
            f"it is listed with another scheme than the peer {name} has in the config"
        }
    seed = LinkName("q", E1)
    some = {E1: PeerNodes(EAST, "east", (E1, S2), "allow")}
    found = wanted([seed], {}, some)
    assert list(found) == [seed]
    assert list(passed_over([seed], found, some)) == [LinkName("q", S2)]


def test_seeds_of_both_schemes_lead_to_each_node_once() -> None:
    """While peers go over to TLS one by one, a node has one link: as the config names it, else with TLS."""
    seeds = [LinkName("q", E1), LinkName("q", S2)]
    told: dict[str, PeerNodes | None] = {s.peer: PeerNodes(EAST, "east", (E1, E2, E3), "allow") for s in seeds}
    assert {name.peer for name in wanted(seeds, {}, told)} == {E1, S2, S3}


def test_a_node_that_is_fetched_from_by_another_address_is_not_passed_over() -> None:
    """With as many links to a cluster as it lists nodes nothing is missing, whatever the addresses."""
    seed = LinkName("q", E1)
    told: dict[str, PeerNodes | None] = {E1: PeerNodes(EAST, "east", ("http://127.0.0.1:8098",)), E2: None}
    assert passed_over([seed], wanted([seed], {}, told), told) == {}
    told = {E1: PeerNodes(EAST, "east", ("http://127.0.0.1:8098", E2, E3)), E2: None}
    assert len(passed_over([seed], wanted([seed], {}, told), told)) == 1, "the list replaced the seed"
    told = {E1: PeerNodes(EAST, "east", ("http://127.0.0.1:1", "http://127.0.0.1:2")), E2: None}
    assert len(passed_over([seed], wanted([seed], {}, told), told)) == 2


def test_a_valid_mode_of_a_node_list_is_used() -> None:
    """`tls` is optional; what is none of the modes counts as not said."""
    fields = {"cluster": "east", "cluster_uuid": EAST.hex(), "nodes": [{"http": E1}]}
    for said, understood in (("allow", "allow"), ("off", "off"), ("require", "require"), ("later", None), ([], None)):
        assert parse(json.dumps({**fields, "tls": said}).encode()).tls == understood
    assert parse(json.dumps(fields).encode()).tls is None
    assert dialled(PeerNodes(EAST, "east", (E1,), "off"), S1) == [E1]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"\xff", b'{"cluster":"e","cluster_uuid":"00","nodes":[]}',
        b'{"cluster":7,"cluster_uuid":"65656565656565656565656565656565","nodes":[]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[{"http":"ftp://x"}]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[7]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[{"http":7}]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[{"http":null}]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":['
        + b",".join([b'{"http":"http://a:1"}'] * 257) + b"]}",
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_malformed_node_list_is_reported(body: bytes) -> None:
    """What a peer answers wrongly is a CodecError, whatever it is, and long lists are not believed."""
    with pytest.raises(CodecError):
        parse(body)


def test_a_list_of_another_version_is_refused_by_name() -> None:
    """A list without a version is of the first one, as nodes of before wrote it."""
    fields = {"cluster": "east", "cluster_uuid": EAST.hex(), "nodes": [{"http": E1}]}
    assert parse(json.dumps(fields).encode()) == parse(json.dumps({"v": 1, **fields}).encode())
    with pytest.raises(UnknownFetchVersion, match="version 2, this program speaks 1"):
        parse(json.dumps({**fields, "v": 2, "nodes": "in another form"}).encode())


# ---------------------------------------------------------------- lag


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(1, 5)), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantiles_are_right_within_five_percent(lags: list[tuple[int, int]], quantile: float) -> None:
    """A quantile is never below the true one and at most 5 % above it, exact below 128 ms."""
    histogram = LagHistogram()
    values = []
    for lag_ms, count in lags:
        histogram.add(lag_ms, count)
        values += [lag_ms] * count
    true = sorted(values)[max(1, math.ceil(quantile * len(values))) - 1]
    told = histogram.quantile_ms(quantile)
    assert told is not None
    assert true <= told <= (true if true < 128 else true * 1.05 + 1)


def test_recent_lag_is_windowed_and_lag_since_the_start_is_not() -> None:
    """After a minute without changes the recent lag is unknown; clocks that disagree never give a lag below zero."""
    lag = Lag()
    assert lag.all.quantile_ms(0.5) is lag.recent(0).quantile_ms(0.5) is None
    lag.note([500, 990, 2_000], 1_000)
    assert lag.all.quantile_ms(1.0) == lag.recent(1_000).quantile_ms(1.0)
    assert lag.recent(1_000).quantile_ms(0.0) == 0
    assert lag.recent(SLICES * SLICE_MS).quantile_ms(0.5) is None
    assert lag.all.total == 3
    for n in range(100):
        lag.note([0], n * SLICE_MS)
    assert lag.recent(99 * SLICE_MS).total == SLICES
    assert len(lag._slices) <= SLICES, "old slices are let go"
    back_ms = 50 * SLICE_MS
    assert lag.recent(back_ms).total == 0, "a clock that was set back: nothing is of its minute"
    lag.note([back_ms - 7], back_ms)
    assert lag.recent(back_ms).total == 1
    assert lag.recent(back_ms).quantile_ms(1.0) == 7


# ---------------------------------------------------------------- suspensions

_names = st.sampled_from([None, "q", "r"])
_peers = st.sampled_from([None, "http://east", "http://north"])
_nodes = st.sampled_from([None, "n1", "n2"])
_LINKS = [LinkName(queue, peer) for queue in ("q", "r") for peer in ("http://east", "http://north")]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(_names, _peers, _nodes), max_size=4), _names, _peers, _nodes)
def test_a_resume_that_is_not_refused_frees_what_it_covers(
    acts: list[tuple[str | None, str | None, str | None]], queue: str | None, peer: str | None, node: str | None
) -> None:
    """After suspensions every link they name is held; a resume frees at least one of those it names, or says who
    holds them, or there was none."""
    held: tuple[SinkSuspension, ...] = ()
    for at_ms, act in enumerate(acts):
        held = added(held, SinkSuspension(*act[:2], "ann", at_ms, "", act[2]))
        assert len({(s.queue, s.peer, s.node) for s in held}) == len(held)
    assert decode(SUSPENSIONS.encode(held)) == held
    places = [(link, at) for link in _LINKS for at in ("n1", "n2")]
    named = [
        (link, at)
        for link, at in places
        if queue in (None, link.queue) and peer in (None, link.peer) and node in (None, at)
    ]
    before = [place for place in named if any(s.matches(*place) for s in held)]
    try:
        after = without(held, queue, peer, node)
    except BadInput:
        assert before, "refused though nothing that was named is held"
        return
    freed = [place for place in before if not any(s.matches(*place) for s in after)]
    assert freed or not before or len(after) < len(held)
    if queue is None and peer is None and node is None:
        assert after == ()


def test_suspensions_are_bounded() -> None:
    """Beyond the limit one more is refused; replacing one is not one more."""
    held: tuple[SinkSuspension, ...] = ()
    for n in range(SUSPENSIONS_MAX):
        held = added(held, SinkSuspension(f"q{n}", None, "ann", 0, ""))
    with pytest.raises(BadInput, match=str(SUSPENSIONS_MAX)):
        added(held, SinkSuspension("one more", None, "ann", 0, ""))
    assert len(added(held, SinkSuspension("q0", None, "bob", 1, ""))) == SUSPENSIONS_MAX


@pytest.mark.parametrize("value", [b"", b"{}x", b"7", b'["x"]', b'[{"queue": null}]', b'[{"queue":1,"peer":2,"by":3}]'])
def test_malformed_suspensions_are_reported(value: bytes) -> None:
    """What somebody else wrote into the metastore is a CodecError, not a crash."""
    with pytest.raises(CodecError):
        decode(value)


async def test_a_suspension_is_written_through_conflicts_and_lost_answers() -> None:
    """Whatever becomes of single writes, an act is kept once or refused in words."""

    metastore = MemoryMetastore()
    await metastore.start(lambda state: None)
    for number, fault in enumerate(WriteFault):
        metastore.spoil(fault)
        act = SinkSuspension(f"q{number}", None, "ann", 5, "why")
        held = (await SUSPENSIONS.change(metastore, lambda before, act=act: added(before, act))).value
        assert held.count(act) == 1
        metastore.deliver_late()
        assert await SUSPENSIONS.read(metastore) == held
    assert (await SUSPENSIONS.change(metastore, lambda before: without(before, None, None))).value == ()
    assert await SUSPENSIONS.read(metastore) == ()
    metastore.disconnect()
    with pytest.raises(Overloaded, match="metastore"), overloaded_when_away():
        await SUSPENSIONS.change(metastore, lambda before: without(before, None, None))
