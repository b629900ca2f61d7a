"""A simulation whose queues discard changes on purpose: by overflow, while publishing is suspended, and by clears.

Each becomes a gap by a CURSOR entry that is written some time later, applied later still, and notified after that;
restarts and new leaderships occur in between. In the end every change that a sink misses must lie in a gap, by offset
and by time, and comparing the gaps' ranges must be enough to make both sides equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from isthmus.queues.cursor_decisions import PublishingSuspended, dated_from_first, ends_a_gap
from isthmus.queues.gaps import QueueGap, without
from isthmus.queues.queue_documents import CLEARED, CursorCommand, execute
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.keys import key_hash
from isthmus.repl.model.objects import decode_object, encode_object
from isthmus.repl.model.vclock import descends
from isthmus.repl.store.port import Change
from tests.simulation.mesh.cluster import BUCKET, KEYS, Cluster, Link, P
from tests.simulation.mesh.simulator import MeshSimulation


class DiscardingSimulation(MeshSimulation):
    """`discard`: queues discard changes at their bound; `acts`: operators suspend publishing and clear."""

    def __init__(self, seed: int, links: list[Link], *, discard: bool, acts: bool, **options: Any) -> None:
        self.stopped: dict[tuple[str, str], bool] = {}
        self.decrees: Counter[tuple[str, str]] = Counter()
        self.seen: Counter[str] = Counter()
        """Gaps by their cause, at the end."""
        super().__init__(seed, links, discard=discard, **options)
        self.acts = acts

    def begin(self, name: str) -> None:
        """See Simulation: operators' settings are in the metastore."""
        super().begin(name)
        for (source, queue), stopped in self.stopped.items():
            self.clusters[source].queues[queue].publishing_suspended = (
                PublishingSuspended("ann", "") if stopped else None
            )

    def reads(self) -> None:
        """Rows are read, and CURSOR entries written for discarded changes and operators' acts."""
        super().reads()
        self.claims()
        if self.acts and self.rng.random() < 0.05:
            self.rng.choice(self.kinds_of_acts())()

    def kinds_of_acts(self) -> list[Callable[[], None]]:
        """The acts that operators may carry out."""
        return [self.suspends, self.clears]

    def claims(self) -> None:
        """Append a CURSOR entry for gaps that no entry has yet, unless one of that queue is under way."""
        cluster = self.any_cluster()
        for sink, queue in cluster.queues.items():
            for _, state in queue.wanted_cursors(self.now):
                if sink not in cluster.claiming:
                    grew = ends_a_gap(queue.windows[P].state, state)
                    rows = [] if grew is None else cluster.store.changes(P, grew.start, 1_000)
                    cluster.claim(sink, state if grew is None else dated_from_first(state, grew, rows))

    def suspends(self) -> None:
        """Publishing is suspended, or resumed."""
        link = self.rng.choice(self.links)
        at = link.source, link.queue
        self.stopped[at] = not self.stopped.get(at)
        self.clusters[link.source].queues[link.queue].publishing_suspended = (
            PublishingSuspended("ann", "") if self.stopped[at] else None
        )

    def clears(self) -> None:
        """Discard everything that waits."""
        link = self.rng.choice(self.links)
        cluster = self.clusters[link.source]
        if link.queue not in cluster.claiming:
            self.obeys(link, CLEARED, cluster.queues[link.queue].windows[P].applied)

    def obeys(self, link: Link, what: str, start: int) -> None:
        """The CURSOR entry of an act is on its way: as `queues.cursor_keeper` obeys a decree."""
        cluster, at = self.clusters[link.source], (link.source, link.queue)
        window = cluster.queues[link.queue].windows[P]
        self.decrees[at] = version = max(self.decrees[at], window.state.command_version) + 1
        decree = CursorCommand(version, what, self.now, "ann", self.now, "")
        cursor = window.advance()
        rows = cluster.store.changes(P, cursor, 1_000)
        since_ms = min((row.time_ms for row in rows if row.offset < start), default=0)
        state = replace(window.state, command_version=version - 1)
        cluster.claim(link.queue, execute(state, cursor, decree, start, self.now, since_ms))

    def drain(self) -> None:
        """See Simulation; publishing is resumed everywhere, and operators act no more."""
        self.acts = False
        for source, queue in self.stopped:
            self.stopped[source, queue] = False
            self.clusters[source].queues[queue].publishing_suspended = None
        for _ in range(100):
            super().drain()
            clusters = self.clusters.values()
            if not any(
                cluster.claiming or any(q.wanted_cursors(self.now) for q in cluster.queues.values())
                for cluster in clusters
            ):
                return
        raise AssertionError("something is decided again and again")

    def gaps(self, link: Link) -> tuple[QueueGap, ...]:
        """The gaps of the link's queue."""
        return self.clusters[link.source].queues[link.queue].windows[P].state.gaps

    def only_gaps_are_missing(self) -> None:
        """A change that a source offers and its sink lacks lies in a gap of the queue, by offset and by time; a ledger
        that closes counts them."""
        for link in self.links:
            cluster, sink = self.clusters[link.source], self.clusters[link.sink]
            window = cluster.queues[link.queue].windows[P]
            assert not window.unrecorded_gaps()
            assert window.ledger_error() in (0, None)
            assert not window.ledger.unbalanced
            for gap in self.gaps(link):
                assert not gap.is_open
                self.seen.update(gap.what.split(" and "))
            for change in self.changes(cluster):
                if not window.offers_row(change) and not any(g.start <= change.offset < g.end for g in self.gaps(link)):
                    continue
                ours, theirs = cluster.get(change.key), sink.get(change.key)
                assert ours is not None
                if theirs is None or not descends(theirs.clock, ours.clock):
                    assert self.given_up(link, change), (
                        f"{link}: {change} is missing, and no gap says so: {self.gaps(link)}"
                    )

    def given_up(self, link: Link, change: Change) -> bool:
        """Whether a change lies in a gap of the link's queue, by offset and by time."""
        return any(
            gap.start <= change.offset < gap.end and gap.from_ms <= change.time_ms <= gap.upto_ms
            for gap in self.gaps(link)
        )

    def changes(self, cluster: Cluster) -> list[Change]:
        """The newest change of each key."""
        found = []
        for key in KEYS:
            row = cluster.store.key_row(P, key_hash(BUCKET, key), BUCKET, key)
            if row is not None:
                found += cluster.store.changes(P, decode_key_row(row).offset, 1)
        return found

    def full_sync(self) -> None:
        """Keys whose newest change lies in a gap's time range are compared and pushed; then the gap is closed. The
        resulting changes do not overflow any queue."""
        for cluster in self.clusters.values():
            for queue in cluster.queues.values():
                queue.budget.discard = False
        for link in self.links:
            cluster, sink, gaps = self.clusters[link.source], self.clusters[link.sink], self.gaps(link)
            for change in self.changes(cluster):
                if any(gap.from_ms <= change.time_ms <= gap.upto_ms for gap in gaps):
                    ours = cluster.get(change.key)
                    assert ours is not None
                    sink.push([(change.key, encode_object(ours), False)], cluster.uuid)
            window = cluster.queues[link.queue].windows[P]
            left = without(window.state.gaps, gaps)
            cluster.claim(link.queue, replace(window.state, cursor=window.advance(), gaps=left))
        self.drain()
        assert not any(self.gaps(link) for link in self.links)
        assert all(decode_object(payload) for cluster in self.clusters.values() for _, payload in cluster.shown())
