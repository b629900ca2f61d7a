"""The sink of a node: its links, operators' settings, dead letters, and status.

Links follow the seeds of the config and the live nodes that peers list (`sink.discovery`). Suspensions, limits and
peers are one document in the metastore, so a change made at any node counts on all. `sink.worker_pool` runs the
workers. A stop lets a batch that is being pushed finish and acknowledges it; a long poll is aborted, and its changes
come again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from isthmus.config.settings import (
    NO_RIAK,
    SINK_WORKERS_MAX,
    PeerSettings,
    RiakPeerSettings,
    RiakSettings,
    SinkSettings,
)
from isthmus.config.text import clause, quantity
from isthmus.queues.filters import Filter
from isthmus.queues.rate_limit import Rates
from isthmus.queues.wire import UnknownFetchVersion
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.http.client import HttpPeer, PeerCredentials
from isthmus.repl.machine import machine
from isthmus.repl.metastore.joined_document import WatchedJoinedDocument, changed_one
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.metastore.watched_document import Document, DocumentEvents, WatchedDocument
from isthmus.repl.model.errors import (
    BadInput,
    CodecError,
    IsthmusError,
    LocalFault,
    NotReady,
    OutcomeUnknown,
    Overloaded,
)
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import unforeseen
from isthmus.sink import discovery, limits, peers, riak_peers, suspensions
from isthmus.sink import status as listing
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.counter_exchange import CounterExchange
from isthmus.sink.dead_letter_retry import DeadLetterRetry
from isthmus.sink.dead_letters import DeadLetter, DeadLetters
from isthmus.sink.discovery import LinkTarget, PassedOver
from isthmus.sink.fetch import LocalCluster
from isthmus.sink.limits import ALL_NODES, EffectiveLimits, SinkLimits
from isthmus.sink.operator_settings import SETTINGS
from isthmus.sink.peers import PeerEntry, QueueWorkers, SetPeers
from isthmus.sink.push import SourceCounters
from isthmus.sink.riak_fetch import RiakLink, riak_link
from isthmus.sink.riak_peers import RiakPeerEntry, RiakPeers
from isthmus.sink.riak_seeder import RiakSeeder, SeederPorts
from isthmus.sink.scheduler import LinkName
from isthmus.sink.status import FetchedLag, LinkState, SinkState
from isthmus.sink.suspensions import SinkSuspension
from isthmus.sink.traces import SinkTraces
from isthmus.sink.worker import SinkContext
from isthmus.sink.worker_pool import Seed, SinkCluster, WorkerPool

log = structlog.get_logger(__name__)

F = TypeVar("F")

EVENTS: Final = DocumentEvents("sink.settings_malformed", "sink.settings_unread")
RIAK_EVENTS: Final = DocumentEvents("sink.riak_peers_malformed", "sink.riak_peers_unread")

STOP_PUSH_S: Final = 10.0
"""How long a stop waits for batches that are being pushed; the changes of others come again."""

LETTERS_INTERVAL_S: Final = 5.0
"""Interval at which dead letters are checked, and peers are added whose former link has ended."""

DISCOVERY_THREADS: Final = 16
"""Seeds that are asked for their live nodes at once, each in a thread: with more seeds that do not answer, a round
takes longer. The threads are separate because a request may wait for seconds, and the loop's own must not wait for
it."""

SOURCES_MAX: Final = 1_024
"""Most (source cluster, queue) pairs that are counted separately; further ones are counted with the last of them."""

LETTERS_CHECKED: Final = 64
"""Dead letters that are checked per LETTERS_INTERVAL_S: by default all within minutes, for few reads a second."""


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Raise NotReady where a write may have taken effect: every change here may be repeated."""
    try:
        yield
    except OutcomeUnknown as error:
        raise NotReady(str(error)) from error


@contextlib.contextmanager
def overloaded_when_away() -> Iterator[None]:
    """Raise Overloaded where the metastore cannot be reached: the error of suspend and resume."""
    try:
        yield
    except (NotReady, OutcomeUnknown) as error:
        raise Overloaded(str(error)) from error


class SinkNodes(SinkCluster, Protocol):
    """This node's cluster, as the sink needs it."""

    def known_nodes(self) -> Collection[str]:
        """Names of the nodes of this cluster, live or not."""

    def live_nodes(self) -> Collection[str]:
        """Those that live."""


class SourceAccess(Protocol):
    """Credentials for nodes of other clusters."""

    def access_to(self, peer: PeerSettings) -> PeerCredentials:
        """Certificates and token for a peer. Raises IsthmusError, OSError when they cannot be read."""

    def access_to_riak(self, peer: RiakPeerSettings) -> PeerCredentials:
        """Authorities and password for a Riak. Raises as `access_to`."""


@dataclass(frozen=True)
class SinkPorts:
    """The ports by which the sink uses its node, and what it keeps there."""

    kv: KeyValue
    metastore: Metastore
    letters: DeadLetters
    conflicts: Conflicts
    credentials: SourceAccess
    cluster: SinkNodes
    time: TimeSource
    clocks: ClockOffsets
    """Those of peers, by address."""


class Sink:
    """The sink of one node. Belongs to the event loop."""

    def __init__(
        self,
        settings: SinkSettings,
        this: ThisNode,
        ports: SinkPorts,
        *,
        traces: SinkTraces | None,
        counters: CounterExchange | None,
        riak: RiakSettings = NO_RIAK,
    ) -> None:
        """`traces` None: traces are off. `counters` None: no counters are exchanged."""
        kv, time, letters, conflicts = ports.kv, ports.time, ports.letters, ports.conflicts
        credentials, cluster, metastore = ports.credentials, ports.cluster, ports.metastore
        self._settings = settings
        self._kv = kv
        self._time = time
        self._letters = letters
        self._conflicts = conflicts
        self._node = this.name
        self._cluster = cluster
        self._credentials = credentials
        self._seeds = {LinkName(p.queue, p.url): Seed(p.cluster, credentials.access_to(p)) for p in settings.peers}
        self._riak = riak
        self._seed_entries: dict[LinkName, PeerEntry | RiakPeerEntry] = {}
        """Entries of those seeds that an operator has added."""
        self._unusable: dict[LinkName, str] = {}
        """Peers that an operator has added and this node cannot fetch from, with the reason."""
        self._sources: dict[tuple[bytes, str], SourceCounters] = {}
        self._stopping = asyncio.Event()
        self._local = LocalCluster(this.cluster_uuid, this.cluster)
        default = (
            settings.workers,
            settings.peer_limit_count,
            settings.rate_limit_bytes,
            settings.object_rate_limit_count,
        )
        self._default_limits = EffectiveLimits(*default, None)
        self._effective_limits = self._default_limits
        self._pool = WorkerPool(
            settings,
            SinkContext(kv, time, letters, conflicts, self, self._stopping, ports.clocks, traces, counters),
            self._local,
            seeds=self._seeds,
            node=this.name,
            incarnation=machine().random_bytes(8),
            rates=Rates(settings.rate_limit_bytes, settings.object_rate_limit_count),
            cluster=cluster,
        )
        self._retry = DeadLetterRetry(
            letters,
            kv=kv,
            time=time,
            local=self._local,
            peers=self._pool,
            timeout_ms=settings.request_timeout_ms,
        )
        self._seeded: frozenset[str] = frozenset()
        """Riaks of which a seed runs, anywhere in this cluster."""
        self._riak_links: dict[str, RiakLink] = {}
        """By name, what the links to a Riak share."""
        self._seeds |= {name: self._seed_of(one) for one in riak.peers for name in riak_peers.links_of(one)}
        self._discovery_peers = {
            name.peer: HttpPeer(name.peer, 1, seed.access) for name, seed in self._seeds.items() if seed.riak is None
        }
        self._discovery_threads = ThreadPoolExecutor(DISCOVERY_THREADS, thread_name_prefix="discovery")
        now_ms = time.wall_ms()
        unread = (suspensions.unread(now_ms),)
        self._operator_settings = WatchedJoinedDocument(
            metastore, SETTINGS, EVENTS, [(suspensions.DOCUMENT, unread)], self._apply
        )
        self._suspensions = self._operator_settings.part(suspensions.DOCUMENT)
        self._limits = self._operator_settings.part(limits.DOCUMENT)
        self._peers = self._operator_settings.part(peers.DOCUMENT)
        self._riak_peers = WatchedDocument(
            metastore, riak_peers.DOCUMENT, RiakPeers(), RIAK_EVENTS, lambda _value: self._apply()
        )
        self.seeds = RiakSeeder(
            this.name,
            riak,
            SeederPorts(kv, metastore, letters, cluster, time, credentials.access_to_riak),
            peer_named=self.riak_named,
            on_change=self._seeding,
            timeout_ms=settings.request_timeout_ms,
        )
        """Seeds of Riaks."""
        self._unread_limits, self._unread_peers = limits.unread(now_ms), peers.unread(now_ms)
        self._unread_riaks = riak_peers.unread(now_ms)
        """Suspend all links, or those to Riaks, while their document has not been read."""
        self._peer_nodes: dict[str, discovery.PeerNodes | None] = {}
        """URL -> its last answer to discovery."""
        self._listed: set[str] = set()
        """URLs that peers listed when they were last asked."""
        self._passed: dict[LinkName, PassedOver] = {}
        """Listed nodes from which nothing is fetched."""
        self._tasks: list[asyncio.Task[None]] = []
        self._started = False
        self._letters_unfinished = True
        """Letters of changes that were in hand when this node stopped may be left."""
        self._letters_checked_upto = 0
        """The last dead letter that was checked."""

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Read what operators have set and start the workers."""
        self._started = True
        await self._count_letters()
        await self._operator_settings.start()
        await self._riak_peers.start()
        await self.seeds.start()
        self._pool.set_links({name: LinkTarget(None, name) for name in self._seeds}, self)
        self._pool.start()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._maintain()))
        if self._settings.discover:
            self._tasks.append(loop.create_task(self._discover()))

    async def stop(self) -> None:
        """Start no new fetch, let pushes finish (bounded), send their acknowledgements."""
        self._pool.stop_fetching()
        await self._operator_settings.stop()
        await self.seeds.stop()
        await self._riak_peers.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._started:
            await self._pool.wait_for_pushes(STOP_PUSH_S)
            await self._pool.stop()
        for peer in self._discovery_peers.values():
            peer.abort()
        self._discovery_threads.shutdown(wait=False, cancel_futures=True)
        self._letters.close()
        await self._conflicts.stop()

    def counters_of(self, cluster: bytes, cluster_name: str, queue: str) -> SourceCounters:
        """The counters of a source cluster's queue."""
        found = self._sources.get((cluster, queue))
        if found is None:
            if len(self._sources) >= SOURCES_MAX:
                return next(reversed(self._sources.values()))
            found = self._sources[cluster, queue] = SourceCounters(cluster, cluster_name, queue)
        return found

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(LETTERS_INTERVAL_S)
            try:
                self._apply_peers()
            except Exception as error:
                unforeseen.exception("sink.peers_bug", error)
            try:
                await self._count_letters()
            except Exception as error:
                unforeseen.exception("sink.dead_letters_bug", error)
            await self._settle_letters()
            await self._finish_letters()

    # ---------------------------------------------------------------- discovery

    async def _discover(self) -> None:
        while True:
            try:
                await self._discover_once()
            except Exception as error:
                # One bad answer must not end the discovery; links stay as they are meanwhile.
                unforeseen.exception("sink.discovery_bug", error)
            await asyncio.sleep(self._settings.discovery_interval_ms / 1000)

    async def _discover_once(self) -> None:
        """Ask the seeds for their live nodes, and set links to those."""
        loop = asyncio.get_running_loop()
        urls = list(self._discovery_peers)
        answers = await asyncio.gather(
            *(loop.run_in_executor(self._discovery_threads, self._ask_for_nodes, url) for url in urls)
        )
        found = {url: answer for url, answer in zip(urls, answers, strict=True) if url in self._discovery_peers}
        self._peer_nodes = found
        listed = {url for seed, answer in found.items() if answer for url in discovery.dialled(answer, seed)}
        self._pool.retry_now(listed - self._listed)
        self._listed = listed
        known = self._known_links()
        wanted = discovery.wanted(self._seeds, known, found)
        passed = discovery.passed_over(self._seeds, wanted, found)
        for name in sorted(passed.keys() - self._passed.keys()):
            log.warning("sink.peer_passed_over", queue=name.queue, peer=name.peer, reason=passed[name].reason)
        self._passed = passed
        if {name: t.cluster for name, t in wanted.items()} != {name: t.cluster for name, t in known.items()}:
            self._pool.set_links(wanted, self)

    def _known_links(self) -> dict[LinkName, LinkTarget]:
        return {name: LinkTarget(link.cluster, link.seed) for name, link in self._pool.links.items()}

    def _ask_for_nodes(self, url: str) -> discovery.PeerNodes | None:
        """The nodes that a seed lists; None for no good answer. Runs in a thread."""
        peer = self._discovery_peers.get(url)
        if peer is None:
            return None
        try:
            answer = discovery.ask(peer)
        except UnknownFetchVersion as error:
            log.warning("sink.discovery_refused", peer=url, reason=error.reason, error=str(error))
            return None
        except IsthmusError as error:
            log.debug("sink.discovery_unanswered", peer=url, error=str(error))
            return None
        except Exception as error:  # the other seeds' answers count all the same
            unforeseen.exception("sink.discovery_bug", error, peer=url)
            return None
        seeds = list(self._seeds.items())  # a copy: the loop may change it
        expected = {seed.cluster_name for name, seed in seeds if name.peer == url and seed.cluster_name}
        if answer.cluster == self._local.cluster or (expected and answer.cluster_name not in expected):
            return None  # fetches of its link report what is wrong
        return answer

    # ---------------------------------------------------------------- suspensions and limits

    async def suspend(self, queue: str | None, peer: str | None, by: str, reason: str, node: str | None = None) -> None:
        """Start no new fetch of what is named (None: every); running ones finish. Raises BadInput, Overloaded."""
        self._check_named(queue, peer, node)
        new = SinkSuspension(queue, peer, by, self._time.wall_ms(), reason, node)
        with overloaded_when_away():
            await self._change(
                suspensions.DOCUMENT,
                lambda before: suspensions.added(before, new),
                lambda error: suspensions.replace_unreadable(error, all_resumed=False),
            )
        log.info("sink.suspended", queue=queue, peer=peer, only_node=node, by=by, reason=reason)

    async def resume(self, queue: str | None, peer: str | None, node: str | None = None) -> None:
        """End suspensions of what is named. Raises BadInput, Overloaded."""
        self._check_named(queue, peer, node)
        every = (queue, peer, node) == (None, None, None)
        with overloaded_when_away():
            await self._change(
                suspensions.DOCUMENT,
                lambda before: suspensions.without(before, queue, peer, node),
                lambda error: suspensions.replace_unreadable(error, all_resumed=every),
            )
        log.info("sink.resumed", queue=queue, peer=peer, only_node=node)

    async def set_limits(self, new: SinkLimits, node: str | None, forget: bool = False) -> None:
        """Set the limits of `new` that are not None on `node` (None: on all), or with `forget` let the config
        count again. Raises BadInput, NotReady."""
        self._check_named(None, None, node)
        if new.workers is not None and not 1 <= new.workers <= SINK_WORKERS_MAX and not forget:
            raise BadInput(f"{new.workers} workers: from 1 to {SINK_WORKERS_MAX} are possible")
        where = node or ALL_NODES
        with repeatable():
            await self._change(
                limits.DOCUMENT,
                lambda before: limits.changed(before, where, new, unset=forget),
                lambda error: limits.replace_unreadable(error, all_unset=forget and where == ALL_NODES),
            )
        log.info("sink.limits_set", only_node=node, by=new.by, reason=new.reason, in_force=self._effective_limits[:4])

    async def _change(
        self, document: Document[F], change: Callable[[F], F], unreadable: Callable[[CodecError], F]
    ) -> None:
        await self._operator_settings.change(changed_one(document, change, unreadable))

    def _check_named(self, queue: str | None, peer: str | None, node: str | None) -> None:
        """Check that what is named exists, or is named by a suspension."""
        names, present = [*self._pool.links, *self._seeds], self._suspensions.value
        for what, value, known, named in (
            ("queue", queue, {name.queue for name in names}, {one.queue for one in present}),
            ("peer", peer, {name.peer for name in names}, {one.peer for one in present}),
        ):
            if value is not None and value not in known | named:
                listed = ", ".join(sorted(known)) or "none"
                raise BadInput(f"this node fetches from no {what} {value!r}; known: {listed}")
        if node is not None and node not in {*self._cluster.known_nodes(), *(one.node for one in present)}:
            listed = ", ".join(sorted(self._cluster.known_nodes())) or "none"
            raise BadInput(f"there is no node {node!r} in this cluster; there are: {listed}")

    def is_suspended(self, name: LinkName) -> bool:
        """Whether a link is suspended; see `sink.worker_pool.LinkSuspensions`."""
        return self._suspension_of(name) is not None

    def _suspension_of(self, name: LinkName) -> SinkSuspension | None:
        found = next((s for s in self._suspensions.value if s.matches(name, self._node)), None)
        if found is None and not self._limits.was_read:
            found = self._unread_limits
        seed = self._seeds.get(name)
        if found is None and not self._riak_peers.was_read and seed is not None and seed.riak is not None:
            found = self._unread_riaks
        return self._unread_peers if found is None and not self._peers.was_read else found

    def _apply(self) -> None:
        """Apply what is known of operators' settings."""
        self._pool.suspend(self)
        if self._limits.was_read:
            self._apply_limits(self._limits.value)
        self._apply_peers()

    def _apply_limits(self, entries: limits.Entries) -> None:
        self._effective_limits = now = limits.limits_for(self._node, entries, self._default_limits)
        workers = max(1, min(SINK_WORKERS_MAX, now.workers))
        self._pool.limit(workers, now.peer_limit, Rates(now.bytes_per_second, now.objects_per_second))

    # ---------------------------------------------------------------- peers

    async def add_peer(self, peer: PeerSettings, by: str, reason: str) -> None:
        """Fetch from a peer that need not be in any file, on all nodes and over restarts. Raises BadInput, NotReady,
        and the errors of its token or certificates."""
        name = LinkName(peer.queue, peer.url)
        if name in self._seeds:
            raise BadInput(f"queue {name.queue} of {name.peer} is fetched from already (isthmus sink list)")
        self._credentials.access_to(peer)
        token_file = None if peer.token_file is None else str(peer.token_file)
        entry = PeerEntry(peer.queue, peer.url, peer.cluster, token_file, False, by, self._time.wall_ms(), reason)
        await self._change_peers(lambda before: peers.with_peer(before, entry, in_file=self._in_file(name)))
        log.info("sink.peer_added", queue=name.queue, peer=name.peer, by=by, reason=reason)

    async def remove_peer(self, name: LinkName, by: str, reason: str) -> None:
        """Stop fetching from a peer, on all nodes and over restarts; running cycles finish. Raises BadInput,
        NotReady."""
        known = {*self._seeds, *self._unusable}
        if name not in known:
            listed = ", ".join(sorted(f"{one.queue} {one.peer}" for one in known)) or "none"
            via = self._pool.links.get(name)
            hint = f"; it is fetched from since {via.seed.peer} lists it" if via is not None else ""
            raise BadInput(f"queue {name.queue} of {name.peer} is not a peer that was set{hint}; there are: {listed}")
        riak = self._seeds[name].riak if name in self._seeds else None
        if riak is not None:
            raise BadInput(f"{name.peer} is a node of the Riak {riak.settings.name}: isthmus riak remove")
        entry = PeerEntry(name.queue, name.peer, "", None, True, by, self._time.wall_ms(), reason)
        await self._change_peers(lambda before: peers.with_peer(before, entry, in_file=self._in_file(name)))
        log.info("sink.peer_removed", queue=name.queue, peer=name.peer, by=by, reason=reason)

    def riaks(self) -> list[RiakPeerSettings]:
        """The Riaks that are fetched from, by files and operators."""
        return [peer for peer, _ in riak_peers.peers_in_effect(self._riak.peers, self._riak_peers.value)]

    def riak_entries(self) -> dict[str, RiakPeerEntry]:
        """What operators have set about Riaks, by name."""
        return {one.name: one for one in self._riak_peers.value.peers}

    def riak_named(self, name: str) -> RiakPeerSettings:
        """The Riak of that name. Raises BadInput."""
        found = next((one for one in self.riaks() if one.name == name), None)
        if found is None:
            listed = ", ".join(one.name for one in self.riaks()) or "none"
            raise BadInput(f"there is no Riak {name!r}; there are: {listed} (isthmus riak list)")
        return found

    def _seeding(self, riaks: frozenset[str]) -> None:
        self._seeded = riaks
        for name, shared in self._riak_links.items():
            shared.seeding = name in riaks

    async def add_riak(self, entry: RiakPeerEntry) -> None:
        """Fetch from a Riak that need not be in any file, on all nodes and over restarts. Raises BadInput, NotReady,
        and the errors of its password and authority."""
        if any(one.name == entry.name for one in self.riaks()):
            raise BadInput(f"a Riak {entry.name} is fetched from already (isthmus riak list)")
        for name in riak_peers.links_of(entry.settings()):
            if name in self._seeds:
                raise BadInput(f"queue {name.queue} of {name.peer} is fetched from already (isthmus sink list)")
        self._credentials.access_to_riak(entry.settings())
        await self._change_riaks(entry)
        log.info("sink.riak_added", riak=entry.name, urls=entry.urls, queue=entry.queue, by=entry.by)

    async def remove_riak(self, name: str, by: str, reason: str) -> None:
        """Stop fetching from a Riak, on all nodes and over restarts; what is in hand is pushed. Raises BadInput,
        NotReady."""
        self.riak_named(name)
        await self._change_riaks(
            RiakPeerEntry(name=name, removed=True, by=by, at_ms=self._time.wall_ms(), reason=reason)
        )
        log.info("sink.riak_removed", riak=name, by=by, reason=reason)

    async def _change_riaks(self, entry: RiakPeerEntry) -> None:
        in_file = any(one.name == entry.name for one in self._riak.peers)
        with repeatable():
            await self._riak_peers.change(
                lambda before: riak_peers.with_entry(before, entry, in_file=in_file),
                unreadable=riak_peers.refuse_unreadable,
            )

    async def set_queue_workers(self, queue: str, node: str | None, workers: int | None, by: str, reason: str) -> None:
        """Limit the workers that are busy with a queue at once (None: no limit of its own), on one node or on all.
        Raises BadInput, NotReady."""
        named = {one.queue for one in self._peers.value.workers}
        self._check_named(None if workers is None and queue in named else queue, None, node)
        new = None if workers is None else QueueWorkers(queue, node, workers, by, self._time.wall_ms(), reason)
        await self._change_peers(lambda before: peers.with_workers(before, queue, node, new))
        log.info("sink.queue_workers_set", queue=queue, only_node=node, workers=workers, by=by, reason=reason)

    async def _change_peers(self, change: Callable[[SetPeers], SetPeers]) -> None:
        with repeatable():
            await self._change(peers.DOCUMENT, change, peers.refuse_unreadable)

    def _in_file(self, name: LinkName) -> bool:
        return any((one.queue, one.url) == name for one in self._settings.peers)

    def _apply_peers(self) -> None:
        """Set the seeds that are wanted, and links to them. A seed whose settings changed is removed first, and added
        again by a later call, once its link has ended. A document that has not been read yet changes nothing: its links
        are suspended until then."""
        wanted = self._wanted_peers()
        self._unusable = {}
        replaced: set[LinkName] = set()
        added = False
        for name in list(self._seeds):
            if name not in wanted or self._differs(name, wanted[name]):
                del self._seeds[name]
                self._seed_entries.pop(name, None)
                replaced.add(name)
        for name, (peer, entry) in wanted.items():
            ending = name in self._pool.links and (name in replaced or self._pool.scheduler.ending(name))
            if name in self._seeds or ending:
                continue
            try:
                self._seeds[name] = self._seed_of(peer)
            except (IsthmusError, OSError) as error:
                self._unusable[name] = str(error)
                log.error("sink.peer_unusable", queue=name.queue, peer=name.peer, error=str(error))
                continue
            if entry is not None:
                self._seed_entries[name] = entry
            added = True
        if replaced or added:
            self._follow_seeds()
        limits_of_riaks = {one.queue: one.workers for one in self.riaks() if one.workers}
        self._pool.limit_queues(limits_of_riaks | peers.workers_of(self._node, self._peers.value.workers))

    def _wanted_peers(self) -> dict[LinkName, _WantedPeer]:
        """The links that files and operators want, those of clusters before those of Riaks."""
        plain = peers.peers_in_effect(self._settings.peers, self._peers.value.peers)
        found = {LinkName(peer.queue, peer.url): _WantedPeer(peer, entry) for peer, entry in plain}
        for peer, entry in riak_peers.peers_in_effect(self._riak.peers, self._riak_peers.value):
            for name in riak_peers.links_of(peer):
                found.setdefault(name, _WantedPeer(peer, entry))
        return found

    def _differs(self, name: LinkName, wanted: _WantedPeer) -> bool:
        """Whether the seed of a link has other settings than those that are wanted."""
        riak = self._seeds[name].riak
        if riak is not None or isinstance(wanted.peer, RiakPeerSettings):
            return riak is None or riak.settings != wanted.peer
        return _address_of(wanted.entry) != _address_of(self._seed_entries.get(name))

    def _seed_of(self, peer: PeerSettings | RiakPeerSettings) -> Seed:
        """Raises IsthmusError, OSError."""
        if isinstance(peer, PeerSettings):
            return Seed(peer.cluster, self._credentials.access_to(peer))
        access = self._credentials.access_to_riak(peer)
        shared = self._riak_links.get(peer.name)
        if shared is None or shared.settings != peer:
            shared = self._riak_links[peer.name] = riak_link(
                peer,
                answer_limit_bytes=self._riak.answer_bytes,
                gather_ms=self._riak.gather_ms,
                now_ms=self._time.now_ms(),
            )
            shared.seeding = peer.name in self._seeded
        return Seed(peer.name, access, shared)

    def _follow_seeds(self) -> None:
        """Set links, and peers for discovery, to those of the seeds."""
        urls = {name.peer: seed.access for name, seed in self._seeds.items() if seed.riak is None}
        for url in sorted(self._discovery_peers.keys() - urls.keys()):
            self._discovery_peers.pop(url).abort()
            self._peer_nodes.pop(url, None)
        for url in sorted(urls.keys() - self._discovery_peers.keys()):
            self._discovery_peers[url] = HttpPeer(url, 1, urls[url])
        kept = {name: target for name, target in self._known_links().items() if target.seed in self._seeds}
        self._pool.set_links(discovery.wanted(self._seeds, kept, self._peer_nodes), self)

    # ---------------------------------------------------------------- dead letters and conflicts

    async def dead_letters(self) -> list[DeadLetter]:
        """Changes that were refused permanently, the oldest first. Raises LocalFault."""
        return await asyncio.get_running_loop().run_in_executor(None, self._letters.letters)

    async def dead_letter_page(self, after: int, limit: int) -> tuple[list[DeadLetter], tuple[int, int]]:
        """The oldest dead letters with numbers above `after`, at most `limit`; how many are kept, and how many were
        given up. Raises LocalFault."""
        return await asyncio.get_running_loop().run_in_executor(None, self._letters.page, after, limit)

    async def dead_letters_of(self, key: Key) -> list[DeadLetter]:
        """The dead letters of one key. Raises LocalFault."""
        return await asyncio.get_running_loop().run_in_executor(None, self._letters.of_key, key)

    @property
    def conflicts(self) -> Conflicts:
        """Changes that were concurrent with what was here."""
        return self._conflicts

    async def drop_dead_letters(self, numbers: Sequence[int] | None) -> int:
        """Remove these (None: all); returns how many there were. Raises LocalFault."""
        chosen = await self._chosen(numbers)
        dropped = await asyncio.get_running_loop().run_in_executor(None, self._letters.drop, chosen)
        log.info("sink.dead_letters_dropped", count=dropped)
        return dropped

    async def retry_dead_letters(self, numbers: Sequence[int] | None) -> list[dict[str, Any]]:
        """Push these (None: all) again, one by one: {"id", "outcome", "reason", "error"} of each; see
        `sink.dead_letter_retry`. Raises LocalFault."""
        return [await self._retry.retry(number) for number in await self._chosen(numbers)]

    async def _count_letters(self) -> None:
        """Count the dead letters in the file, unless they have been counted."""
        if self._letters.counts() is None:
            try:
                await asyncio.to_thread(self._letters.count)
            except LocalFault as error:
                log.error("sink.dead_letters_unread", error=str(error))

    async def _settle_letters(self) -> None:
        """Remove dead letters whose keys were settled otherwise, some at a time."""
        if not (self._letters.counts() or (0,))[0]:
            return
        try:
            _, self._letters_checked_upto = await self._retry.settle(self._letters_checked_upto, LETTERS_CHECKED)
        except IsthmusError as error:
            log.info("sink.dead_letters_not_settled", reason=error.reason)
        except Exception as error:
            unforeseen.exception("sink.dead_letters_bug", error)  # the other maintenance must go on

    async def _finish_letters(self) -> None:
        """Push what was in hand when this node stopped; none is added while it runs."""
        if not self._letters_unfinished or not (self._letters.counts() or (0,))[0]:
            return
        try:
            self._letters_unfinished = await self._retry.unfinished()
        except IsthmusError as error:
            log.info("sink.dead_letters_not_settled", reason=error.reason)
        except Exception as error:
            self._letters_unfinished = False
            unforeseen.exception("sink.dead_letters_bug", error)

    async def _chosen(self, numbers: Sequence[int] | None) -> list[int]:
        if numbers is not None:
            return list(dict.fromkeys(numbers))
        letters = await asyncio.get_running_loop().run_in_executor(None, self._letters.letters)
        return [letter.id for letter in letters]

    # ---------------------------------------------------------------- status

    def status(self) -> dict[str, str]:
        """State of this component: {"actor", "state", "reason"}."""
        if not self._seeds:
            return {"actor": "sink", "state": "idle", "reason": "not configured"}
        if not self._started:
            return {"actor": "sink", "state": "idle", "reason": "not started"}
        links = list(self._pool.links) or list(self._seeds)
        suspended = sum(map(self.is_suspended, links))
        if suspended == len(links):
            first = self._suspension_of(links[0])
            assert first is not None
            return {"actor": "sink", "state": "suspended", "reason": listing.by_whom(first)}
        letters, _ = self._letters.counts() or (0, 0)
        sentences = [f"{quantity(suspended, 'link')} suspended"] * (suspended > 0)
        sentences += [sentence for sentence in (self.failing(), self.passed_over()) if sentence]
        sentences += [f"dead letters: {letters} (isthmus sink dead-letters list)"] * (letters > 0)
        errors = [self._pool.scheduler.errors(name) for name in self._pool.links if not self.is_suspended(name)]
        state = "failing" if errors and all(errors) else "running"
        return {"actor": "sink", "state": state, "reason": "; ".join(sentences)}

    def failing(self) -> str:
        """How many links fail, and why the first does; "" when none."""
        errors = {name: self._pool.scheduler.errors(name) for name in self._pool.links}
        failing = [link.last_error or listing.in_a_row(errors[n]) for n, link in self._pool.links.items() if errors[n]]
        return f"{len(failing)} of {clause(len(errors), 'link', 'fails', 'fail')}: {failing[0]}" if failing else ""

    def passed_over(self) -> str:
        """How many listed nodes are not fetched from, and why the first is not; "" when there are none."""
        if not self._passed:
            return ""
        urls = sorted({name.peer for name in self._passed})
        first = next(one for _, one in sorted(self._passed.items()))
        nodes = f"{len(urls)} nodes" if len(urls) > 1 else "a node"
        return f"nothing is fetched from {nodes} of {first.cluster_name} ({listing.some(urls)}): {first.reason}"

    def link_names(self) -> list[LinkName]:
        """The queue and the peer of each link."""
        return list(self._pool.links)

    def link_state(self, name: LinkName) -> LinkState:
        """The state of a link."""
        entry, binding = self._seed_entries.get(name), self._pool.throttled()["binding"] or ""
        seed = self._seeds.get(name)
        return listing.link_state(
            self._pool.links[name],
            self._pool.scheduler,
            self._suspension_of(name),
            self._time.wall_ms(),
            origin="operator" if entry is not None else "config" if name in self._seeds else "discovery",
            entry=entry,
            binding=binding,
            seed_fault="" if seed is None or seed.riak is None else self.seeds.fault_of(seed.riak.settings.name),
        )

    def state(self) -> SinkState:
        """Workers, limits, counters per source cluster, dead letters, and what operators have set."""
        status = self.status()
        return SinkState(
            status["state"],
            status["reason"],
            [one for _, one in sorted(self._passed.items())],
            self._pool.scheduler,
            self._pool.throttled(),
            self._effective_limits.set_by,
            self.sources(),
            self._letters.counts(),
            self._suspensions.value,
            self._peers.value.peers,
            self._peers.value.workers,
            self._unusable,
        )

    def sources(self) -> list[SourceCounters]:
        """The counters of each source cluster's queue."""
        return list(self._sources.values())

    def source_filters(self, cluster: bytes) -> list[Filter | None]:
        """The filters of the queues that this node's links fetch from the cluster of that uuid, as far as it has
        answered; None for a queue whose filter none of its nodes has sent."""
        sent: dict[str, list[Filter]] = {}
        for name, link in self._pool.links.items():
            if link.cluster == cluster:
                filters = sent.setdefault(name.queue, [])
                filters += [] if link.source_filter is None else [link.source_filter]
        return [one for filters in sent.values() for one in filters or (None,)]

    def fetched_lags(self) -> list[FetchedLag]:
        """Changes that were fetched and are not stored yet, by queue, source cluster and bucket type. Queues with an
        unknown number of waiting changes are left out."""
        now_ms, scheduler = self._time.wall_ms(), self._pool.scheduler
        links = [
            (link, self._pool.batches(name), listing.is_known(link, scheduler, self.is_suspended(name), now_ms))
            for name, link in self._pool.links.items()
        ]
        return listing.fetched_lags(links, sorted(self._cluster.known_types() or ()), now_ms)

    def metrics(self) -> list[Sample]:
        """Samples of every link; their help lines are `sink.status.HELP`."""
        if not self._seeds:
            return []
        now_ms, scheduler = self._time.wall_ms(), self._pool.scheduler
        whole = listing.overall(scheduler, self._pool.throttled(), self._letters.counts())
        whole.append(("isthmus_sink_peers_passed_over", {}, len({name.peer for name in self._passed})))
        return [
            sample
            for name, link in self._pool.links.items()
            for sample in listing.samples(link, scheduler, self.is_suspended(name), now_ms)
        ] + whole


class _WantedPeer(NamedTuple):
    """A peer that a link is wanted to, and the entry that it comes from; None: from the file."""

    peer: PeerSettings | RiakPeerSettings
    entry: PeerEntry | RiakPeerEntry | None


def _address_of(entry: PeerEntry | RiakPeerEntry | None) -> PeerEntry | RiakPeerEntry | None:
    """The part of an entry that decides how its peer is reached."""
    return None if entry is None else msgspec.structs.replace(entry, by="", at_ms=0, reason="")
