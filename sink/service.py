"""The sink of a node: which links there are, what an operator wants of them, its numbers.

Without peers there is no worker and it says `idle: not configured`. Links follow the seeds of the config and the live
nodes that peers tell of (`sink.discovery`); suspensions and limits are kept in the metastore, so every node follows
what was asked of any. The workers are `sink.worker_pool`'s. A stop lets a batch that is being pushed finish and
acknowledges it; a long poll is cut off, since what it would bring comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

import structlog

from isthmus.config.settings import PeerSettings, SinkSettings
from isthmus.config.text import clause, quantity
from isthmus.queues.rate_limit import Rates
from isthmus.queues.wire import UnknownFetchVersion
from isthmus.repl.http.client import HttpPeer, PeerCredentials
from isthmus.repl.metastore.port import Metastore, Unavailable
from isthmus.repl.model.errors import BadInput, IsthmusError, LocalFault, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.telemetry import Sample
from isthmus.sink import discovery, limits, peers, suspensions
from isthmus.sink import status as listing
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.dead_letter_retry import DeadLetterRetry
from isthmus.sink.dead_letters import DeadLetters
from isthmus.sink.discovery import LinkTarget, PassedOver
from isthmus.sink.fetch import LocalCluster
from isthmus.sink.limits import ALL_NODES, EffectiveLimits, SinkLimits
from isthmus.sink.peers import PeerEntry, QueueWorkers, SetPeers
from isthmus.sink.push import SourceCounters
from isthmus.sink.scheduler import LinkName
from isthmus.sink.suspensions import SinkSuspension
from isthmus.sink.worker import Link, SinkContext
from isthmus.sink.worker_pool import Places, Properties, Seed, Types, WorkerPool

log = structlog.get_logger(__name__)

Read = TypeVar("Read")

STOP_PUSH_S: Final = 10.0
"""How long a stop waits for batches that are being pushed; what is not done by then comes again."""

WATCH_INTERVAL_S: Final = 5.0
"""How often what was set at another node is read again, beside the metastore's hints."""

WORKERS_MAX: Final = 256
"""Most workers of a node, as in the config."""

ASKING_MAX: Final = 16
"""Seeds that are asked at once which nodes live, each in a thread: with more that say nothing a round takes longer. The
threads are its own, since one may wait for seconds, and what others do in the loop's must not wait for such a peer."""

TALLIES_MAX: Final = 1_024
"""Most (source cluster, queue) pairs that are counted apart; the links of one more count for the last of them."""


SETTLED_AT_ONCE: Final = 64
"""Dead letters that are looked at, each WATCH_INTERVAL_S, whether their keys were settled otherwise: all that there may
be by default within minutes, for few reads a second."""


class Sink:
    """The actor. All of it belongs to the event loop.

    `nodes()` names the nodes of this cluster that an operator may mean; `properties()` and `places()`, digests of
    properties, are told to sources, and theirs compared with them.
    """

    def __init__(
        self,
        settings: SinkSettings,
        *,
        kv: KeyValue,
        cluster_uuid: bytes,
        cluster_name: str,
        node_name: str,
        metastore: Metastore,
        time: TimeSource,
        letters: DeadLetters,
        conflicts: Conflicts,
        access_to: Callable[[PeerSettings], PeerCredentials],
        nodes: Callable[[], Collection[str]],
        properties: Properties = dict,
        types: Types = lambda: None,
        places: Places = lambda: None,
    ) -> None:
        self._settings = settings
        self._kv = kv
        self._metastore = metastore
        self._time = time
        self._letters = letters
        self._conflicts = conflicts
        self._node = node_name
        self._nodes = nodes
        self._access_to = access_to
        self._seeds = {LinkName(p.queue, p.url): Seed(p.cluster, access_to(p)) for p in settings.peers}
        self._seed_entries: dict[LinkName, PeerEntry] = {}
        """Those of the seeds that an operator has added."""
        self._unusable: dict[LinkName, str] = {}
        """Peers that an operator has added and this node cannot fetch from, with the reason."""
        self._set_peers = SetPeers()
        self._tallies: dict[tuple[bytes, str], SourceCounters] = {}
        self._stopping = asyncio.Event()
        self._home = LocalCluster(cluster_uuid, cluster_name)
        shop = SinkContext(kv, time, letters, conflicts, self._tally, self._stopping)
        default = (
            settings.workers,
            settings.peer_limit_count,
            settings.rate_limit_bytes,
            settings.object_rate_limit_count,
        )
        self._default = EffectiveLimits(*default, None)
        self._in_force = self._default
        rates = Rates(settings.rate_limit_bytes, settings.object_rate_limit_count)
        self._crew = WorkerPool(
            settings,
            shop,
            self._home,
            seeds=self._seeds,
            node=node_name,
            incarnation=secrets.token_bytes(8),
            rates=rates,
            properties=properties,
            types=types,
            places=places,
        )
        self._retrying = DeadLetterRetry(
            letters,
            kv=kv,
            time=time,
            home=self._home,
            peers=self._crew.peers_of,
            timeout_ms=settings.request_timeout_ms,
        )
        self._askers = {name.peer: HttpPeer(name.peer, 1, seed.access) for name, seed in self._seeds.items()}
        self._asking = ThreadPoolExecutor(ASKING_MAX, thread_name_prefix="discovery")  # as many as there are seeds
        self._suspensions: tuple[SinkSuspension, ...] = (suspensions.unread(time.wall_ms()),)
        now_ms = time.wall_ms()
        self._unread = {limits.PATH: limits.unread(now_ms), peers.PATH: peers.unread(now_ms)}
        """Suspend all links while nobody could read what operators have set there."""
        self._told_last: dict[str, discovery.PeerNodes | None] = {}
        self._listed: set[str] = set()
        """URLs that peers told of when they were last asked."""
        self._passed: dict[LinkName, PassedOver] = {}
        """Listed nodes from which nothing is fetched."""
        self._tasks: list[asyncio.Task[None]] = []
        self._hinted = asyncio.Event()
        self._started = False
        self._settled_upto = 0
        """The letter up to which it was looked whether they are settled."""

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Read what operators have set and start the workers."""
        self._started = True
        await self._look_at_letters()
        await self._read_all()
        self._metastore.watch(self._hint)
        self._crew.set_links({name: LinkTarget(None, name) for name in self._seeds}, self._held)
        self._crew.start()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._watch()))
        if self._settings.discover:
            self._tasks.append(loop.create_task(self._discover()))

    async def stop(self) -> None:
        """Start no new fetch, let pushes finish (bounded), send their acknowledgements."""
        self._crew.stop_taking()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._started:
            await self._crew.pushed(STOP_PUSH_S)
            await self._crew.end()
        for asker in self._askers.values():
            asker.abort()
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._letters.close()
        await self._conflicts.stop()

    def _tally(self, cluster: bytes, cluster_name: str, queue: str) -> SourceCounters:
        """The count of a source cluster's queue."""
        found = self._tallies.get((cluster, queue))
        if found is None:
            if len(self._tallies) >= TALLIES_MAX:
                return next(reversed(self._tallies.values()))
            found = self._tallies[cluster, queue] = SourceCounters(cluster, cluster_name, queue)
        return found

    # ---------------------------------------------------------------- the nodes of other clusters

    async def _discover(self) -> None:
        while True:
            try:
                await self._look_around()
            except Exception:
                # One bad answer must not end the looking; links stay as they are meanwhile.
                log.exception("sink.discovery_bug")
            await asyncio.sleep(self._settings.discovery_interval_ms / 1000)

    async def _look_around(self) -> None:
        """Ask the seeds which nodes live, and have links to those."""
        loop = asyncio.get_running_loop()
        urls = list(self._askers)
        answers = await asyncio.gather(*(loop.run_in_executor(self._asking, self._told, url) for url in urls))
        told = self._told_last = {url: answer for url, answer in zip(urls, answers, strict=True) if url in self._askers}
        listed = {url for teller, answer in told.items() if answer for url in discovery.dialled(answer, teller)}
        self._crew.retry_now(listed - self._listed)
        self._listed = listed
        known = dict(self._crew.each(lambda name, link: (name, LinkTarget(link.cluster, link.seed))))
        wanted = discovery.wanted(self._seeds, known, told)
        passed = discovery.passed_over(self._seeds, wanted, told)
        for name in passed.keys() - self._passed.keys():
            log.warning("sink.peer_passed_over", queue=name.queue, peer=name.peer, reason=passed[name].reason)
        self._passed = passed
        if {name: aim.cluster for name, aim in wanted.items()} != {name: aim.cluster for name, aim in known.items()}:
            self._crew.set_links(wanted, self._held)

    def _told(self, url: str) -> discovery.PeerNodes | None:
        asker = self._askers.get(url)
        if asker is None:
            return None
        try:
            told = discovery.ask(asker)
        except UnknownFetchVersion as error:
            log.warning("sink.discovery_refused", peer=url, reason=error.reason, error=str(error))
            return None
        except IsthmusError as error:
            log.debug("sink.discovery_unanswered", peer=url, error=str(error))
            return None
        seeds = list(self._seeds.items())  # this runs in a thread
        expected = {seed.cluster_name for name, seed in seeds if name.peer == url and seed.cluster_name}
        if told.cluster == self._home.cluster or (expected and told.cluster_name not in expected):
            return None  # its fetches say what is wrong
        return told

    # ---------------------------------------------------------------- what operators want

    async def suspend(self, queue: str | None, peer: str | None, by: str, reason: str, node: str | None = None) -> None:
        """Start no new fetch of what is named (None: every); running ones finish. Raises BadInput, Overloaded."""
        self._check_named(queue, peer, node)
        new = SinkSuspension(queue, peer, by, self._time.wall_ms(), reason, node)
        self._adopt(await suspensions.change(self._metastore, new, queue, peer, node))
        log.info("sink.suspended", queue=queue, peer=peer, only_node=node, by=by, reason=reason)

    async def resume(self, queue: str | None, peer: str | None, node: str | None = None) -> None:
        """End suspensions of what is named. Raises BadInput, Overloaded."""
        self._check_named(queue, peer, node)
        self._adopt(await suspensions.change(self._metastore, None, queue, peer, node))
        log.info("sink.resumed", queue=queue, peer=peer, only_node=node)

    async def set_limits(self, wish: SinkLimits, node: str | None, forget: bool = False) -> None:
        """Set what `wish` names on `node` (None: on all), or with `forget` let the config count again. Raises BadInput,
        NotReady."""
        self._check_named(None, None, node)
        if wish.workers is not None and not 1 <= wish.workers <= WORKERS_MAX and not forget:
            raise BadInput(f"{wish.workers} workers: from 1 to {WORKERS_MAX} are possible")
        self._adopt_limits(await limits.change(self._metastore, node or ALL_NODES, wish, forget))
        log.info("sink.limits_set", only_node=node, by=wish.by, reason=wish.reason, in_force=self._in_force[:4])

    # ---------------------------------------------------------------- peers

    async def add_peer(self, peer: PeerSettings, by: str, reason: str) -> None:
        """Fetch from a peer, on all nodes and over restarts, that no file need list. Raises BadInput, NotReady, and
        what its token or certificates meet."""
        name = LinkName(peer.queue, peer.url)
        if name in self._seeds:
            raise BadInput(f"queue {name.queue} of {name.peer} is fetched from already (isthmus sink list)")
        self._access_to(peer)
        token_file = None if peer.token_file is None else str(peer.token_file)
        entry = PeerEntry(peer.queue, peer.url, peer.cluster, token_file, False, by, self._time.wall_ms(), reason)
        self._adopt_peers(await peers.change_peer(self._metastore, entry, in_file=self._in_file(name)))
        log.info("sink.peer_added", queue=name.queue, peer=name.peer, by=by, reason=reason)

    async def remove_peer(self, name: LinkName, by: str, reason: str) -> None:
        """Fetch from a peer no more, on all nodes and over restarts; running cycles are finished. Raises BadInput,
        NotReady."""
        known = {*self._seeds, *self._unusable}
        if name not in known:
            listed = ", ".join(sorted(f"{one.queue} {one.peer}" for one in known)) or "none"
            via = self._crew.links.get(name)
            hint = f"; it is fetched from since {via.seed.peer} lists it" if via is not None else ""
            raise BadInput(f"queue {name.queue} of {name.peer} is no peer that was set{hint}; there are: {listed}")
        entry = PeerEntry(name.queue, name.peer, "", None, True, by, self._time.wall_ms(), reason)
        self._adopt_peers(await peers.change_peer(self._metastore, entry, in_file=self._in_file(name)))
        log.info("sink.peer_removed", queue=name.queue, peer=name.peer, by=by, reason=reason)

    async def set_queue_workers(self, queue: str, node: str | None, workers: int | None, by: str, reason: str) -> None:
        """At most so many workers are busy with a queue at once (None: no limit of its own), on one node or on all.
        Raises BadInput, NotReady."""
        named = {one.queue for one in self._set_peers.workers}
        self._check_named(None if workers is None and queue in named else queue, None, node)
        wish = None if workers is None else QueueWorkers(queue, node, workers, by, self._time.wall_ms(), reason)
        self._adopt_peers(await peers.change_workers(self._metastore, queue, node, wish))
        log.info("sink.queue_workers_set", queue=queue, only_node=node, workers=workers, by=by, reason=reason)

    def _in_file(self, name: LinkName) -> bool:
        return any((one.queue, one.url) == name for one in self._settings.peers)

    def _adopt_peers(self, found: SetPeers) -> None:
        """Have the seeds that are wanted now, and links to them. A seed whose settings changed goes first, and comes
        back with a later look, once its link is gone."""
        self._end_unread(peers.PATH)
        self._set_peers = found
        wanted = {
            LinkName(p.queue, p.url): (p, entry) for p, entry in peers.in_force(self._settings.peers, found.peers)
        }
        self._unusable = {}
        replaced: set[LinkName] = set()
        added = False
        for name in list(self._seeds):
            entry = self._seed_entries.get(name)
            if name not in wanted or _of_peer(wanted[name][1]) != _of_peer(entry):
                del self._seeds[name]
                self._seed_entries.pop(name, None)
                replaced.add(name)
        for name, (peer, entry) in wanted.items():
            going = name in self._crew.links and (name in replaced or self._crew.roster.leaving(name))
            if name in self._seeds or going:
                continue
            try:
                self._seeds[name] = Seed(peer.cluster, self._access_to(peer))
            except (IsthmusError, OSError) as error:
                self._unusable[name] = str(error)
                log.error("sink.peer_unusable", queue=name.queue, peer=name.peer, error=str(error))
                continue
            if entry is not None:
                self._seed_entries[name] = entry
            added = True
        if replaced or added:
            self._follow_seeds()
        self._crew.limit_queues(peers.workers_of(self._node, found.workers))

    def _follow_seeds(self) -> None:
        """Have links as the seeds that there are say, and nobody else to ask."""
        urls = {name.peer: seed.access for name, seed in self._seeds.items()}
        for url in self._askers.keys() - urls.keys():
            self._askers.pop(url).abort()
            self._told_last.pop(url, None)
        for url in urls.keys() - self._askers.keys():
            self._askers[url] = HttpPeer(url, 1, urls[url])
        known = dict(self._crew.each(lambda name, link: (name, LinkTarget(link.cluster, link.seed))))
        kept = {name: aim for name, aim in known.items() if aim.seed in self._seeds}
        self._crew.set_links(discovery.wanted(self._seeds, kept, self._told_last), self._held)

    def _check_named(self, queue: str | None, peer: str | None, node: str | None) -> None:
        """What is named must be there, or have been suspended when it was."""
        names, standing = [*self._crew.links, *self._seeds], self._suspensions
        for what, value, known, named in (
            ("queue", queue, {name.queue for name in names}, {one.queue for one in standing}),
            ("peer", peer, {name.peer for name in names}, {one.peer for one in standing}),
        ):
            if value is not None and value not in known | named:
                listed = ", ".join(sorted(known)) or "none"
                raise BadInput(f"this node fetches from no {what} {value!r}; known: {listed}")
        if node is not None and node not in {*self._nodes(), *(one.node for one in standing)}:
            listed = ", ".join(sorted(self._nodes())) or "none"
            raise BadInput(f"there is no node {node!r} in this cluster; there are: {listed}")

    def _held(self, name: LinkName) -> bool:
        return self._suspension_of(name) is not None

    def _suspension_of(self, name: LinkName) -> SinkSuspension | None:
        found = next((s for s in self._suspensions if s.fits(name, self._node)), None)
        return found or next(iter(self._unread.values()), None)

    def _end_unread(self, path: str) -> None:
        if self._unread.pop(path, None) is not None:
            self._crew.suspend(self._held)

    def _adopt(self, found: tuple[SinkSuspension, ...]) -> None:
        self._suspensions = found
        self._crew.suspend(self._held)

    def _adopt_limits(self, entries: Mapping[str, SinkLimits]) -> None:
        self._end_unread(limits.PATH)
        self._in_force = now = limits.settings_for(self._node, entries, self._default)
        workers = max(1, min(WORKERS_MAX, now.workers))
        self._crew.limit(workers, now.peer_limit, Rates(now.bytes_per_second, now.objects_per_second))

    def _hint(self, path: str) -> None:
        if path in (suspensions.PATH, limits.PATH, peers.PATH):
            self._hinted.set()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_INTERVAL_S):  # `wait_for` swallows a stop that comes with a hint
                    await self._hinted.wait()
            self._hinted.clear()
            await self._read_all()
            await self._look_at_letters()
            await self._settle_letters()

    async def _read_all(self) -> None:
        await self._read_settings(suspensions.PATH, suspensions.read, self._adopt)
        await self._read_settings(limits.PATH, limits.read, self._adopt_limits)
        await self._read_settings(peers.PATH, peers.read, self._adopt_peers)

    async def _read_settings(
        self, path: str, read: Callable[[Metastore], Awaitable[Read]], adopt: Callable[[Read], None]
    ) -> None:
        """Each by itself; what cannot be read is as it was."""
        try:
            adopt(await read(self._metastore))
        except (Unavailable, NotReady) as error:
            log.warning("sink.settings_unread", path=path, error=str(error))
        except IsthmusError as error:
            log.error("sink.settings_malformed", path=path, error=str(error))

    # ---------------------------------------------------------------- dead letters

    async def dead_letters(self) -> list[dict[str, Any]]:
        """What was refused for good, the oldest first. Raises LocalFault."""
        loop = asyncio.get_running_loop()
        return [letter.shown() for letter in await loop.run_in_executor(None, self._letters.letters)]

    async def dead_letters_of(self, key: Key) -> list[dict[str, Any]]:
        """Those of one key. Raises LocalFault."""
        loop = asyncio.get_running_loop()
        return [letter.shown() for letter in await loop.run_in_executor(None, self._letters.of_key, key)]

    async def conflicts(self, count: int) -> dict[str, Any]:
        """The newest writes that were concurrent with ours, newest first: {"conflicts", "noted", "dropped", "limit"};
        the numbers are since the node began, `dropped` of those that were too many."""
        kept = self._conflicts
        return {"conflicts": await kept.listed(count), "noted": kept.noted, "dropped": kept.dropped,
                "limit": kept.limit_count}  # fmt: skip

    async def drop_dead_letters(self, numbers: Sequence[int] | None) -> int:
        """Forget these (None: all); returns how many there were. Raises LocalFault."""
        chosen = await self._chosen(numbers)
        dropped = await asyncio.get_running_loop().run_in_executor(None, self._letters.drop, chosen)
        log.info("sink.dead_letters_dropped", count=dropped)
        return dropped

    async def retry_dead_letters(self, numbers: Sequence[int] | None) -> list[dict[str, Any]]:
        """Push these (None: all) again, one by one: {"id", "outcome", "reason", "error"} of each; see
        `sink.dead_letter_retry`. Raises LocalFault."""
        return [await self._retrying.retry(number) for number in await self._chosen(numbers)]

    async def _look_at_letters(self) -> None:
        """Know how many there are, if nobody does yet."""
        if self._letters.counts() is None:
            try:
                await asyncio.to_thread(self._letters.look)
            except LocalFault as error:
                log.error("sink.dead_letters_unread", error=str(error))

    async def _settle_letters(self) -> None:
        """Forget some letters whose keys were settled otherwise."""
        if not (self._letters.counts() or (0,))[0]:
            return
        try:
            _, self._settled_upto = await self._retrying.settled(self._settled_upto, SETTLED_AT_ONCE)
        except IsthmusError as error:
            log.info("sink.dead_letters_not_settled", reason=error.reason)
        except Exception:
            log.exception("sink.dead_letters_bug")  # the settings must go on being read

    async def _chosen(self, numbers: Sequence[int] | None) -> list[int]:
        if numbers is not None:
            return list(dict.fromkeys(numbers))
        letters = await asyncio.get_running_loop().run_in_executor(None, self._letters.letters)
        return [letter.id for letter in letters]

    # ---------------------------------------------------------------- numbers

    def status(self) -> dict[str, str]:
        """What this actor does: {"actor", "state", "reason"}."""
        if not self._seeds:
            return {"actor": "sink", "state": "idle", "reason": "not configured"}
        if not self._started:
            return {"actor": "sink", "state": "idle", "reason": "not started"}
        links = list(self._crew.links) or list(self._seeds)
        suspended = sum(map(self._held, links))
        if suspended == len(links):
            held = self._suspension_of(links[0])
            assert held is not None
            return {"actor": "sink", "state": "suspended", "reason": listing.by_whom(held)}
        troubles = [sentence for sentence in (self.failing(), self.passed_over()) if sentence]
        letters, _ = self._letters.counts() or (0, 0)
        told = [f"{quantity(suspended, 'link')} suspended"] * (suspended > 0)
        told += troubles
        told += [f"dead letters: {letters} (isthmus sink dead-letters list)"] * (letters > 0)
        return {"actor": "sink", "state": "running", "reason": "; ".join(told)}

    def failing(self) -> str:
        """How many links fail, and why the first does; "" when none."""
        errors = {name: self._crew.roster.errors(name) for name in self._crew.links}
        failing = [link.last_error or listing.in_a_row(errors[n]) for n, link in self._crew.links.items() if errors[n]]
        return f"{len(failing)} of {clause(len(errors), 'link', 'fails', 'fail')}: {failing[0]}" if failing else ""

    def passed_over(self) -> str:
        """How many listed nodes nothing is fetched from, and why from the first; "" when there are none."""
        if not self._passed:
            return ""
        urls = sorted({name.peer for name in self._passed})
        first = next(one for _, one in sorted(self._passed.items()))
        nodes = f"{len(urls)} nodes" if len(urls) > 1 else "a node"
        return f"nothing is fetched from {nodes} of {first.cluster_name} ({listing.some(urls)}): {first.reason}"

    def listing(self) -> list[dict[str, Any]]:
        """One row a link, and one a node that is passed over."""
        now_ms, binding = self._time.wall_ms(), self._crew.shown()["throttle"]["binding"] or ""

        def row(name: LinkName, link: Link) -> dict[str, Any]:
            held = self._suspension_of(name)
            return listing.row(link, self._crew.roster, held, now_ms, origin=self._origin_of(name), binding=binding)

        return [*self._crew.each(row), *(listing.passed_row(one) for _, one in sorted(self._passed.items()))]

    def _origin_of(self, name: LinkName) -> dict[str, Any]:
        """Where a link comes from: "config", "operator" (who, when and why) or "discovery"."""
        entry = self._seed_entries.get(name)
        if entry is not None:
            return {"from": "operator", "set": {"by": entry.by, "at_ms": entry.at_ms, "reason": entry.reason}}
        return {"from": "config" if name in self._seeds else "discovery", "set": None}

    def overview(self) -> dict[str, Any]:
        """The node's sink as a whole: workers, throttle, what came from each source cluster, dead letters."""
        set_by = self._in_force.set_by
        kept, overflowed = self._letters.counts() or (None, None)
        return {
            "node": self._node,
            **self.status(),
            **self._crew.shown(),
            "limits_set": None if set_by is None else {"by": set_by.by, "at_ms": set_by.at_ms, "reason": set_by.reason},
            "sources": [tally.shown() for tally in list(self._tallies.values())],
            "dead_letters": {"kept": kept, "given_up": overflowed},
            "suspensions": [s.shown() for s in self._suspensions],
            "peers_set": [asdict(one) for one in self._set_peers.peers],
            "queue_workers_set": [asdict(one) for one in self._set_peers.workers],
            "peers_unusable": [{"queue": n.queue, "url": n.peer, "reason": why} for n, why in self._unusable.items()],
        }

    def metrics(self) -> list[Sample]:
        """Samples of every link; their help lines are `sink.status.HELP`."""
        if not self._seeds:
            return []
        now_ms = self._time.wall_ms()
        roster = self._crew.roster
        links = self._crew.each(lambda name, link: listing.samples(link, roster, self._held(name), now_ms))
        whole = listing.overall(self._crew.shown(), self._letters.counts())
        whole.append(("isthmus_sink_peers_passed_over", {}, len({name.peer for name in self._passed})))
        return [sample for samples in links for sample in samples] + whole


def _of_peer(entry: PeerEntry | None) -> PeerEntry | None:
    """What of an entry decides how its peer is reached."""
    return None if entry is None else replace(entry, by="", at_ms=0, reason="")
