"""One node, peer, bucket type, row or item fails alone: those who gather the answers of many have all the others
(R-ALONE).

Each test makes one of many raise what nobody foresaw, and names the event under which the node's log has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest
import structlog

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.exchange import cluster as cluster_trees
from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.exchange.run import ExchangeScope
from isthmus.aae.exchange.wire import RootsRequest
from isthmus.aae.folds import folds
from isthmus.aae.folds.folds import FoldKind, FoldRequest, FoldScope
from isthmus.aae.scheduling.gap_healing import GapHealer
from isthmus.aae.scheduling.schedule import CheckKind
from isthmus.aae.scrub import replica_agreement
from isthmus.aae.scrub.row_audit import Scrubber
from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.aae.trees import tree_cache
from isthmus.node.admin_api.findings import _answer_of
from isthmus.node.admin_api.live import LiveAdmin
from isthmus.node.services.cluster_query import ClusterQuery, JsonBody, Query
from isthmus.node.services.history import History
from isthmus.node.services.history_sampler import HistorySampler
from isthmus.node.services.repairs import FoldActionsImpl
from isthmus.queues.wire import FetchReply
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.coordinator import forwarded_requests, forwarding
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.model.errors import InternalError, NotReady, OutcomeUnknown
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import MergedWith, PushItem, PushOutcome, PushResult
from isthmus.repl.model.vclock import encode_clock
from isthmus.repl.runtime.actor_renewal import ActorRenewal
from isthmus.repl.runtime.held_counters import HeldCounters
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.transport import rpc
from isthmus.repl.unforeseen import unforeseen
from isthmus.sink import push as pushing
from isthmus.sink import service as sink_service
from isthmus.sink.backoff import CycleResult
from isthmus.sink.discovery import LinkTarget
from isthmus.sink.fetch import FetchOptions
from isthmus.sink.push import SourceCounters
from isthmus.sink.scheduler import LinkName
from isthmus.sink.worker import Link, SinkContext, Slot
from tests.support.queue_source import OURS
from tests.unit.aae.exchange.test_cluster import TYPE, FakeCluster
from tests.unit.aae.exchange.test_run import FakeEnd, outcome, row
from tests.unit.aae.folds.test_folds import FoldFixture
from tests.unit.aae.folds.test_folds import fixture as folds_of_keys
from tests.unit.aae.scheduling.scheduler.test_checks import WEST, FakeChecker, SchedulerFixture, ended
from tests.unit.node.services.test_clock_watch import Nodes
from tests.unit.sink.test_worker import ITEM, LEASE_MS, Clock


class Injected(RuntimeError):
    """Raised by the tests alone."""


def fails(*_args: Any, **_kwargs: Any) -> Any:
    """What nobody foresaw."""
    raise Injected


async def fails_later(*_args: Any, **_kwargs: Any) -> Any:
    """As `fails`, of something that is awaited."""
    raise Injected


class Caught:
    """What was logged since the test began."""

    def __init__(self, lines: list[Any]) -> None:
        self._lines = lines

    @property
    def events(self) -> set[str]:
        """The events of the exceptions that were caught. Each is counted, and a finding."""
        errors = [line for line in self._lines if "exc_info" in line]
        assert all(isinstance(line["exc_info"], Injected) for line in errors), errors
        events = {line["event"] for line in errors}
        assert events <= {each.event for each in unforeseen.recent() if each.kind == "Injected"}
        assert events <= {labels["event"] for _, labels, count in unforeseen.samples() if count}
        return events


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[Caught]:
    """No earlier test has used up the limit of log lines, and none has left a finding."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)
    monkeypatch.setattr(unforeseen, "_defects", {})
    monkeypatch.setattr(unforeseen, "_counts", {})
    with structlog.testing.capture_logs() as lines:
        yield Caught(lines)


# -- questions to all nodes ---------------------------------------------------------------------------------


async def test_a_node_whose_answer_breaks_its_reader_is_unknown_and_the_others_are_shown(caught: Caught) -> None:
    """A malformed answer, or a defect of its reader, costs that node's row alone."""

    async def request(node: str, _method: str, _body: bytes, _timeout_ms: int) -> bytes:
        return b'{"a": 1}' if node == "n2" else b"breaks"

    class Answers(JsonBody[Any]):
        def decode(self, body: bytes) -> Any:
            return fails() if body == b"breaks" else super().decode(body)

    query = ClusterQuery("n1", cast(Any, SimpleNamespace(request=request)))
    answers = await query.ask(Query("m", JsonBody("m", Any), Answers("m", Any)), 1, ["n2", "n3"])
    assert answers.by_node == {"n2": {"a": 1}, "n3": None}
    assert answers.unknown["n3"].startswith("internal: a defect of this program: Injected")
    assert caught.events == {"query.failed"}


async def test_a_document_that_fails_leaves_the_other_findings_theirs(caught: Caught) -> None:
    """Its reason stands where its findings would."""
    assert "a defect of this program" in str(await _answer_of(fails_later))
    assert caught.events == {"findings.document_failed"}


@pytest.mark.virtual_time
async def test_a_node_whose_clock_cannot_be_read_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    """The others' offsets are known."""
    nodes = Nodes(a=0, b=30_000, c=9_000)
    answered = nodes.watches["a"].nodes.answered
    request = nodes.request

    async def broken(node: str, method: str, body: bytes) -> bytes:
        if node == "b":
            raise Injected
        return await request(node, method, body)

    monkeypatch.setattr(nodes, "request", broken)
    await nodes.watches["a"].measure()
    assert [each["node"] for each in nodes.watches["a"].as_dict()["nodes"]] == ["c"]
    assert answered is not None
    assert caught.events == {"clock.bug"}


@pytest.mark.virtual_time
async def test_a_source_of_the_history_that_fails_leaves_the_others_theirs(caught: Caught) -> None:
    """It is noted once, until it works again."""
    read: list[str] = []

    class Fine:
        def readings(self) -> Iterator[None]:
            read.append("fine")
            yield None

    class Broken:
        readings = staticmethod(fails)

    sampler = HistorySampler("n1", History(), [Broken(), Fine()], Clock())
    await sampler.sample()
    await sampler.sample()
    assert read == ["fine", "fine"]
    assert caught.events == {"history.source_failed"}


# -- full-sync ----------------------------------------------------------------------------------------------


@pytest.fixture
def compared(tmp_path: Path) -> Iterator[FakeCluster]:
    """A cluster of three nodes."""
    with ThreadPoolExecutor(1) as pool:
        made = FakeCluster(tmp_path, pool)
        made.fill(60)
        yield made


async def test_a_node_whose_trees_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, compared: FakeCluster, caught: Caught
) -> None:
    """A sum without it is refused with its name, as of a node that is silent; offsets of the others are known."""
    monkeypatch.setattr(cluster_trees, "ATTEMPT_PAUSE_S", 0.0)
    request = compared.request

    async def broken(node: str, *given: Any) -> bytes:
        return fails() if node == "b" else await request(node, *given)

    monkeypatch.setattr(compared, "request", broken)
    trees = compared.cluster_trees()
    with pytest.raises(cluster_trees.Incomplete, match="b: a defect of this program"):
        await trees.roots(RootsRequest(TYPE))
    found = await trees.applied(TYPE)
    assert found.keys() == {partition for partition, leader in compared.leaders.items() if leader != "b"}
    assert caught.events == {"fullsync.answer_failed"}


async def test_a_comparison_that_fails_ends_as_an_error(caught: Caught) -> None:
    """It proves nothing, and whoever runs several goes on with the next."""
    source, sink = FakeEnd(row(b"b", b"k", 5)), FakeEnd()
    source.failures["leaves"] = cast(Any, Injected())
    result, _ = await outcome(source, sink, ExchangeScope(b"default"))
    assert result.verdict is ExchangeVerdict.ERROR
    assert result.retryable
    assert "a defect of this program: Injected" in result.reason
    assert caught.events == {"fullsync.exchange_failed"}


class BreakingChecker(FakeChecker):
    """Fails at one bucket type; `breaks` also when its check is over."""

    async def check(self, check: Any, findings: Any) -> Any:
        """See Checker."""
        if check.bucket_type == "bad":
            raise Injected
        return await super().check(check, findings)


@pytest.mark.virtual_time
async def test_a_bucket_type_whose_check_fails_leaves_the_others_proven(tmp_path: Path, caught: Caught) -> None:
    """Its result is an error with the reason, and the check is due again."""
    settings = replace(WEST, bucket_types="bad,default")
    fixture = SchedulerFixture(tmp_path, settings)
    checker = BreakingChecker()
    fixture.scheduler.peers[settings.name].checker = checker
    results = await fixture.scheduler.run(settings.name, CheckKind.ALL, "ann")
    assert [(one.bucket_type, one.verdict) for one in results] == [
        ("bad", ExchangeVerdict.ERROR),
        ("default", ExchangeVerdict.IN_SYNC),
    ]
    assert "a defect of this program" in results[0].reason
    assert fixture.scheduler.peers[settings.name].incomplete_reason
    assert caught.events == {"fullsync.bug"}
    await fixture.scheduler.stop()


@pytest.mark.virtual_time
async def test_a_peer_whose_check_fails_leaves_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caught: Caught
) -> None:
    """Of a check of all peers; an operator who asked for that peer alone is told."""
    fixture = SchedulerFixture(tmp_path, WEST, replace(WEST, name="other"))
    scheduler, check_types = fixture.scheduler, fixture.scheduler._check_types

    async def broken(peer: Any, *given: Any) -> Any:
        return fails() if peer.settings.name == WEST.name else await check_types(peer, *given)

    monkeypatch.setattr(scheduler, "_check_types", broken)
    assert scheduler.begin(None, CheckKind.ALL, "ann") == [WEST.name, "other"]
    await ended(fixture)
    assert len(fixture.checkers["other"].checks) == 1
    with pytest.raises(InternalError, match="Injected"):
        await scheduler.run(WEST.name, CheckKind.ALL, "ann")
    await scheduler.run("other", CheckKind.ALL, "ann")
    assert caught.events == {"fullsync.bug"}
    await scheduler.stop()


async def test_gaps_of_a_peer_that_fail_leave_the_others_theirs(caught: Caught) -> None:
    """Both are looked at again a minute later."""
    seen: list[str] = []

    async def act(name: str) -> None:
        if name == "bad":
            raise Injected
        seen.append(name)

    healer: Any = SimpleNamespace(_scheduler=SimpleNamespace(peers={"bad": 1, "west": 2}))
    await GapHealer._for_each_peer(healer, act)
    assert seen == ["west"]
    assert caught.events == {"fullsync.gaps_bug"}


async def test_replicas_that_cannot_be_checked_leave_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    """Comparisons with followers, and checks of rows that an exchange has read."""
    compared: list[tuple[int, str]] = []

    async def compare(partition: int, node: str) -> None:
        compared.append((partition, node))
        if node == "bad":
            raise Injected
        if len(compared) >= 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(replica_agreement, "ROUND_S", 0.0)
    agreement: Any = SimpleNamespace(
        _replicas=SimpleNamespace(followers=lambda: [(1, ("bad", "n2")), (2, ("n3",))]), compare=compare
    )
    with pytest.raises(asyncio.CancelledError):
        await replica_agreement.ReplicaTreeCheck._run(agreement)
    assert compared[:3] == [(1, "bad"), (1, "n2"), (2, "n3")]

    async def confirmed(partition: int, segments: list[int]) -> list[int]:
        return fails() if partition == 1 else segments

    async def repaired(*_given: Any) -> None:
        pass

    damaged = DamagedRows()
    for partition, segment in ((1, 5), (2, 6)):
        damaged.check_soon(partition, [segment])
    audit: Any = SimpleNamespace(
        _damaged=damaged,
        _confirmed=confirmed,
        _repair=SimpleNamespace(repair_contradicting=repaired),
    )
    assert await Scrubber.check_suspects(audit) == [6]
    assert caught.events == {"trees.agreement_bug", "trees.audit_bug"}


async def test_a_source_or_segment_at_which_a_repair_fails_keeps_nothing_else_damaged(caught: Caught) -> None:
    """The next source is asked, and the other segments are repaired; a segment that is not has the reason."""
    key = (b"b", b"k")

    async def rows(_partition: int, segment: int) -> Any:
        return fails() if segment == 1 else SimpleNamespace(damaged={b"tail"}, rows={})

    async def take(node: str, *_given: Any) -> Any:
        return fails() if node == "bad" else (key,)

    repair: Any = SimpleNamespace(
        _segment_rows=rows,
        _take_from_replica=take,
        _replicas=SimpleNamespace(in_sync=lambda _partition: ["bad", "n2"]),
        _trees=SimpleNamespace(leaf=lambda *_: None, invalidate=lambda _partition: None),
        _one_at_a_time=asyncio.Lock(),
        repaired_total=0,
    )
    repair._repair_from_first_source = lambda *given, **named: RowRepair._repair_from_first_source(
        repair, *given, **named
    )
    assert "a defect of this program" in (await RowRepair.repair_segment(repair, 3, 1)).reason
    found = await RowRepair.repair_segment(repair, 3, 2)
    assert (key in found.keys, found.by) == (True, "node n2")
    assert caught.events == {"trees.repair_bug"}


@pytest.mark.virtual_time
async def test_a_tree_that_cannot_be_saved_or_built_leaves_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    """It is built again later."""
    saved: list[int] = []

    def save(_directory: Any, partition: int, *_given: Any) -> None:
        if partition == 1:
            raise Injected
        saved.append(partition)

    async def nothing() -> None:
        pass

    monkeypatch.setattr(tree_cache, "save_tree", save)
    cached = SimpleNamespace(tree=object(), offset=3, log_id=1, build=object())
    with ThreadPoolExecutor(1) as pool:
        trees: Any = SimpleNamespace(
            cached={1: cached, 2: cached}, stop_builds=nothing, _pool=pool, _directory=Path("unused")
        )
        await tree_cache.TreeCache.stop(trees, save=True)
    assert saved == [2]

    built: list[int] = []
    waiting = [1, 2]

    async def build(partition: int) -> None:
        if partition == 1:
            raise Injected
        built.append(partition)

    def following() -> int | None:
        if not waiting:
            builder._stopping = True
            return None
        return waiting.pop(0)

    failed: list[int] = []
    builder: Any = SimpleNamespace(
        _stopping=False,
        _wake=asyncio.Event(),
        _next=following,
        _build=build,
        cached={1: cached},
        _failed=lambda partition, *_: failed.append(partition),
    )
    await tree_cache.TreeCache._run(builder)
    assert (built, failed) == ([2], [1])
    assert caught.events == {"trees.save_bug", "trees.bug"}


folds_fixture = folds_of_keys


# -- folds --------------------------------------------------------------------------------------------------


async def test_a_row_at_which_a_fold_fails_is_counted_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
    folds_fixture: FoldFixture,
    caught: Caught,
) -> None:
    """The page says how many rows it lacks, and why."""
    process = folds.Folds._process
    bucket, key = folds_fixture.names[7]

    def broken(self: Any, request: Any, page: Any, acts: Any, snapshot: Any, *named: Any) -> None:
        if named[:2] == (bucket, key):
            raise Injected
        process(self, request, page, acts, snapshot, *named)

    monkeypatch.setattr(folds.Folds, "_process", broken)
    pages = await folds_fixture.all_pages(FoldRequest(FoldKind.OBJECT_STATS, FoldScope()))
    assert sum(page.matched for page in pages) == len(folds_fixture.names) - 1
    ((reason, count),) = [each for page in pages for each in page.refused.items()]
    assert (reason.partition(":")[0], count) == ("internal", 1)
    assert caught.events == {"fold.row_failed"}


async def test_a_clock_that_cannot_be_read_keeps_no_other_key_from_being_erased() -> None:
    """The key is refused by its reason."""
    written: list[Any] = []

    async def write_batch(requests: list[Any]) -> list[Any]:
        written.extend(requests)
        return [None] * len(requests)

    actions = FoldActionsImpl(
        cast(Any, None), cast(Any, None), cast(Any, SimpleNamespace(write_batch=write_batch)), cast(Any, None)
    )
    good, bad = Key(b"t", b"b", b"good"), Key(b"t", b"b", b"bad")
    done, refused = await actions.erase([(bad, b"\xc1"), (good, encode_clock(()))])
    assert (done, [request.key for request in written]) == (1, [good])
    assert [reason.partition(":")[0] for reason in refused] == ["malformed"]


# -- sinks --------------------------------------------------------------------------------------------------


class BreakingCluster:
    """A cluster whose pushes fail as a whole where they contain b"bad"."""

    def __init__(self, outcome: PushResult) -> None:
        self.outcome = outcome
        self.pushed: list[bytes] = []

    async def push(self, items: list[PushItem]) -> list[PushResult]:
        if any(item.key.key == b"bad" for item in items):
            raise Injected
        self.pushed += [item.key.key for item in items]
        return [self.outcome] * len(items)


async def cycle(kv: Any, names: list[bytes], letters: Any = None, conflicts: Any = None) -> tuple[Slot, CycleResult]:
    """One cycle that fetches these changes."""
    clock = Clock()
    items = tuple((*ITEM[:5], name, *ITEM[6:]) for name in names)

    async def fetch(*_asked: Any) -> FetchReply:
        return FetchReply(OURS, "east", 1, b"id", LEASE_MS, clock.wall_ms(), "serving", cast(Any, items), waited_ms=0)

    name = LinkName("q", "http://e1")
    link = Link(name, LinkTarget(None, name), "", 0)
    sources = SimpleNamespace(counters_of=lambda *_: SourceCounters(OURS, "east", "q"))
    context = SinkContext(
        kv, clock, letters, conflicts, cast(Any, sources), asyncio.Event(), ClockOffsets("peer", cast(Any, clock))
    )
    fetcher: Any = SimpleNamespace(fetch=fetch, answer_bytes=100, ack=None, hand=False, refused={}, more=False)
    fetcher.settled = lambda ack: setattr(fetcher, "ack", ack)
    slot = Slot(link, fetcher, context)
    result, _ = await slot.cycle(FetchOptions(10, 1_000, 20_000), lambda *_: None)
    return slot, result


@pytest.mark.virtual_time
@pytest.mark.parametrize("at", [0, 3, 6])
async def test_a_change_whose_push_fails_comes_again_alone(at: int, caught: Caught) -> None:
    """The others of its batch are stored and acknowledged."""
    names = [b"k%d" % n for n in range(7)]
    names[at] = b"bad"
    kv = BreakingCluster(PushResult(PushOutcome.APPLIED))
    slot, result = await cycle(kv, names)
    assert result is CycleResult.FAILED
    assert slot.fetcher.ack is not None
    assert slot.fetcher.ack.failed == (at,)
    assert sorted(kv.pushed) == sorted(set(names) - {b"bad"})
    assert "a defect of this program" in slot.link.last_error
    assert caught.events == {"sink.push_bug"}


@pytest.mark.virtual_time
async def test_dead_letters_and_conflicts_that_cannot_be_noted_hold_up_no_change(
    monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    """A change without its dead letter comes again; one whose conflict is not noted is stored all the same, and those
    of others are noted."""
    refused = PushResult(PushOutcome.REJECTED, NotReady("no"))
    slot, _ = await cycle(BreakingCluster(refused), [b"a"], letters=SimpleNamespace(add=fails))
    assert slot.fetcher.ack is not None
    assert slot.fetcher.ack.failed == (0,)
    summarize, calls = pushing.summarize_encoded, []

    def summarized(payload: bytes) -> Any:
        calls.append(payload)
        return fails() if len(calls) == 1 else summarize(payload)

    monkeypatch.setattr(pushing, "summarize_encoded", summarized)
    noted: list[Any] = []
    merged = PushResult(PushOutcome.MERGED, None, MergedWith((), 2))
    slot, result = await cycle(BreakingCluster(merged), [b"a", b"z"], conflicts=SimpleNamespace(add=noted.extend))
    assert result is CycleResult.ITEMS
    assert [one.key.key for one in noted] == [b"z"]
    assert caught.events == {"sink.dead_letters_bug", "sink.conflict_unnoted"}


def test_a_seed_whose_answer_breaks_discovery_leaves_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    """It counts as one that does not answer."""
    monkeypatch.setattr(sink_service.discovery, "ask", fails)
    sink: Any = SimpleNamespace(_discovery_peers={"http://w": object()})
    assert sink_service.Sink._ask_for_nodes(sink, "http://w") is None
    assert caught.events == {"sink.discovery_bug"}


# -- copies and connections ---------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_registration_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch, caught: Caught) -> None:
    """A node that nobody knows would serve nobody."""
    tries = 0

    async def register() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Injected

    look = asyncio.Event()
    look.set()
    keeper: Any = SimpleNamespace(_look=look, register=register, session_id=0, why="")
    keeping = asyncio.ensure_future(Registrar._keep(keeper))
    await asyncio.sleep(60)
    keeping.cancel()
    assert tries == 2
    assert caught.events == {"metastore.register_bug"}


async def test_rows_whose_counters_cannot_be_read_hide_no_others(caught: Caught) -> None:
    """The other segments' counters are held."""
    taken: list[Any] = []

    def read(partition: int, first: int, end: int) -> tuple[dict[bytes, int], int]:
        return fails() if partition == 1 and first < 5 < end else ({b"a": partition}, end)

    with ThreadPoolExecutor(1) as pool:
        held: Any = SimpleNamespace(
            _store=SimpleNamespace(applied_offsets=lambda: {1: 0, 2: 0}),
            _pool=pool,
            _read=read,
            _take=taken.append,
            passes=0,
        )
        await HeldCounters._pass(held)
    assert held.passes == 1
    assert {b"a": 1} in taken
    assert {b"a": 2} in taken
    assert caught.events == {"held_counters.pass_bug"}


async def test_an_answer_whose_taker_fails_costs_no_other_answer(caught: Caught) -> None:
    """Waiting requests are all answered when a connection breaks."""
    answered: list[Any] = []
    requests: Any = SimpleNamespace(
        _timer=None,
        _bytes=2,
        _node="n2",
        _waiting={1: SimpleNamespace(answered=fails), 2: SimpleNamespace(answered=answered.append)},
    )
    rpc.RpcClient.broke(requests, "it was cut")
    assert len(answered) == 1
    assert caught.events == {"transport.answer.failed"}


async def test_requests_of_another_node_that_fail_are_answered(caught: Caught) -> None:
    """With an error, by methods with and without a task; so is one whose answer cannot be made."""
    sent: list[Any] = []
    handled: Any = SimpleNamespace(put_call=lambda item: sent.append(msgpack.unpackb(b"".join(item))))
    tasks: set[asyncio.Task[None]] = set()
    served = rpc.RpcServer(
        "n2", fails_later, handled, body_limit=1_000, bytes_max=10_000, tasks=tasks, direct={"direct": fails}
    )
    served.asked((1, "direct", 1_000, b""))
    served.asked((2, "handled", 1_000, b""))
    await asyncio.gather(*tasks)
    assert [(answer[0], answer[2]) for answer in sent] == [(1, "outcome-unknown"), (2, "outcome-unknown")]
    submitted: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
    submitted.set_result([1])
    answers: list[Any] = []
    forwarded_requests._answer(fails, answers.append, submitted)
    assert [type(answer) for answer in answers] == [OutcomeUnknown]
    assert caught.events == {"transport.request.failed", "forwarded.request.failed"}


def test_items_whose_forwarding_fails_are_answered(monkeypatch: pytest.MonkeyPatch, caught: Caught) -> None:
    """As unknown: some of them may have been sent. Nobody waits for ever."""
    ended: list[list[object]] = []
    batch = forwarding.ForwardedBatch([b"1", b"2"], ended.append)
    monkeypatch.setattr(forwarding._Delivery, "_send_next", fails)
    delivery = object.__new__(forwarding._Delivery)
    for name, value in (("_waiting", [(batch, 0)]), ("_node", "n2"), ("_method", "kv.write"), ("_batches", [batch])):
        setattr(delivery, name, value)
    delivery.resume()
    assert [[type(answer) for answer in answers] for answers in ended] == [[OutcomeUnknown, OutcomeUnknown]]
    assert caught.events == {"forwarding.failed"}


@pytest.mark.virtual_time
async def test_partitions_whose_tombstones_or_actors_fail_leave_the_others_theirs(caught: Caught) -> None:
    """Tombstones of the others are reaped in the same turn; an actor that cannot be renewed is looked at again."""
    walked: list[int] = []

    async def walk(partition: Any, _led: Any) -> None:
        if partition.id == 1:
            raise Injected
        walked.append(partition.id)

    replica = SimpleNamespace(ready=True)
    partitions = {each: SimpleNamespace(id=each, replica=replica, bucket_type=b"t") for each in (1, 2)}
    kind = SimpleNamespace(reaps=True)
    reaper: Any = SimpleNamespace(
        _led={each: SimpleNamespace(follow=lambda _kind: None, properties=kind) for each in (1, 2)},
        _runtime=SimpleNamespace(partitions=partitions),
        _properties=SimpleNamespace(of_type=lambda _type: kind),
        _walk=walk,
        _reap_due=lambda *_: None,
    )
    reaping = asyncio.ensure_future(Reaper._run(reaper))
    await asyncio.sleep(1.2)
    reaping.cancel()
    assert walked == [2, 2]
    task = asyncio.ensure_future(fails_later())
    await asyncio.wait([task])
    renewal: Any = SimpleNamespace(_tasks={3: task})
    ActorRenewal._ended(renewal, 3, task)
    assert renewal._tasks == {}
    assert caught.events == {"reap.bug", "actor.renewal_bug"}


async def test_a_state_that_cannot_be_made_shows_viewers_that_it_is_unknown(caught: Caught) -> None:
    """In place of the last one, which may be wrong by now."""
    shown: list[bytes] = []
    viewer = SimpleNamespace(put=lambda _kind, event: shown.append(event))
    view = SimpleNamespace(cluster_document=fails_later)
    admin: Any = SimpleNamespace(_view=view, _viewers=[viewer], _cluster=b"old")
    admin._send_trouble = lambda error: LiveAdmin._send_trouble(admin, error)
    await LiveAdmin._send_cluster(admin)
    assert admin._cluster == b""
    assert len(shown) == 1
    assert b"internal" in shown[0]
    assert caught.events == {"live.bug"}
