"""The shares of a source queue: a node of the sink's cluster gets the changes of the partitions it leads there."""

from __future__ import annotations

from isthmus.queues.cursors import CursorPosition, CursorState
from isthmus.queues.leases import Session
from isthmus.queues.pacing import GATHER_COUNT, GATHER_MOST_MS
from isthmus.queues.sink_shares import SHARE_PATIENCE_MS, KeyRange, TypeShare
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.window_rules import BULK_PRIORITIES, Budget
from isthmus.repl.model.keys import Key
from tests.support.damage_reports import raising_listeners
from tests.support.queue_source import BUCKET, OURS, SINK, EntryFactory, FakeStore

PARTITIONS = (3, 8, 11)
WAIT_MS = 10_000


class SharedQueue:
    """A queue over three partitions, number 0 to 2 of their bucket type, and the fetches of nodes w1 to w3."""

    def __init__(self) -> None:
        self.fake_store = FakeStore()
        self.factory = EntryFactory(self.fake_store)
        self.queue = SourceQueue(
            "q", OURS, False, 60_000, Budget(10_000, 1_000, 10_000), b"lifelife", raising_listeners()
        )
        self.queue.set_owner(SINK, 1)
        self.now = 1_000
        for position, partition in enumerate(PARTITIONS):
            start = CursorPosition(0, CursorState(0, 1, SINK), 0)
            self.queue.lead(partition, b"default", start, 0, KeyRange(position, len(PARTITIONS)))
        self.fetch("w1", 0b001)
        self.fetch("w2", 0b010)
        self.fetch("w3", 0b100)

    @staticmethod
    def session(node: str) -> Session:
        return Session(SINK, node, b"incarnat", 0)

    def fetch(self, node: str, led: int | None, *, total: int = len(PARTITIONS), wait_ms: int = WAIT_MS) -> None:
        """A fetch arrives, with a share of `led`; None: without one."""
        share = None if led is None else {b"default": TypeShare(total, led)}
        self.queue.report_share(node, share, wait_ms, self.now)
        self.queue.on_fetch(self.session(node), None, self.now)

    def write(self, position: int, *keys: bytes) -> None:
        partition = PARTITIONS[position]
        for key in keys:
            entry = self.factory.data(partition, key)
            self.fake_store.put(partition, entry)
            self.queue.add(partition, [entry], self.now)

    def due(self, node: str) -> int | None:
        return self.queue.due_in_ms(self.now, self.session(node))

    def take(self, node: str, count: int = 100) -> list[bytes]:
        batch = self.queue.take(self.session(node), count, 1_000_000, self.now)
        return [] if batch is None else [item[5] for item in batch.items()]


def test_each_node_takes_the_changes_of_the_partitions_that_it_leads() -> None:
    """The order of the nodes' fetches, and their sizes, do not matter."""
    queue = SharedQueue()
    queue.write(0, b"a", b"b")
    queue.write(1, b"c")
    queue.write(2, b"d")
    assert queue.take("w2") == [b"c"]
    assert queue.take("w2") == []
    assert queue.take("w3") == [b"d"]
    assert queue.take("w1") == [b"a", b"b"]


def test_changes_that_their_own_node_does_not_take_go_to_any_node_after_a_patience() -> None:
    """The wait begins when a fetch first skips them; the fetch that may have them then is due at that moment."""
    queue = SharedQueue()
    queue.write(0, b"a")
    assert queue.due("w2") == SHARE_PATIENCE_MS
    queue.now += SHARE_PATIENCE_MS - 1
    assert (queue.due("w2"), queue.take("w2")) == (1, [])
    assert queue.due("w1") == 0
    queue.now += 1
    assert queue.due("w2") == 0
    assert queue.take("w2") == [b"a"]
    queue.write(0, b"b")
    assert queue.due("w2") == SHARE_PATIENCE_MS, "the next change waits anew"


def test_a_node_with_changes_of_its_own_takes_no_others_however_old() -> None:
    """Nodes that all catch up with a backlog each take their own changes; a node without any helps."""
    queue = SharedQueue()
    for position in range(3):
        queue.write(position, *[b"%d-%d" % (position, number) for number in range(100)])
    assert queue.due("w1") == 0
    queue.now += 10 * SHARE_PATIENCE_MS
    for _ in range(5):
        assert all(key.startswith(b"0-") for key in queue.take("w1", 20))
    helped = queue.take("w1", 20)
    assert {key[:2] for key in helped} == {b"1-", b"2-"}


def test_a_partition_that_is_in_no_share_is_served_to_any_node_at_once() -> None:
    """It has no leader, or its leader's link is suspended."""
    queue = SharedQueue()
    queue.fetch("w1", 0)
    queue.write(0, b"a")
    assert queue.due("w2") == 0
    assert queue.take("w2") == [b"a"]


def test_a_node_that_stops_fetching_leaves_its_share_to_the_others() -> None:
    """From then on nothing waits for it, not even for a moment; a fetch that was cut off counts at once."""
    queue = SharedQueue()
    queue.now += WAIT_MS + SHARE_PATIENCE_MS
    queue.fetch("w2", 0b010)
    queue.fetch("w3", 0b100)
    for number in range(3):
        queue.write(0, b"%d" % number)
        assert queue.take("w2") == [b"%d" % number]
    queue.queue.fetch_cut_off(queue.session("w3"))
    queue.write(2, b"z")
    assert queue.take("w2") == [b"z"]


def test_a_share_changes_with_the_leadership_over_there() -> None:
    """The newest fetch of a node counts, also for an older one that still waits."""
    queue = SharedQueue()
    queue.fetch("w1", 0)
    queue.fetch("w2", 0b011)
    queue.write(0, b"a")
    assert queue.take("w1") == []
    assert queue.take("w2") == [b"a"]


def test_nodes_without_shares_and_other_numbers_of_partitions_are_served_everything() -> None:
    """They get all changes, as in the previous version; a node with shares still leaves those of others alone."""
    queue = SharedQueue()
    queue.fetch("w1", None)
    queue.write(1, b"a")
    queue.write(2, b"b")
    assert sorted(queue.take("w1")) == [b"a", b"b"]
    queue.fetch("w1", 0b0001, total=4)
    queue.write(1, b"c")
    queue.write(2, b"d")
    assert sorted(queue.take("w1")) == [b"c", b"d"]
    queue.fetch("w1", 0b001)
    queue.write(1, b"e")
    assert queue.take("w1") == []


def test_another_owner_begins_without_shares() -> None:
    """Nodes of two clusters may have the same names."""
    queue = SharedQueue()
    queue.queue.set_owner(OURS[::-1], 2)
    assert queue.queue.sink_shares.allowed("w1", queue.now) is None


def test_bulk_references_go_to_any_node() -> None:
    """They have no partition here; as before, they are served only while nothing waits in real time, in any share."""
    queue = SharedQueue()
    keys = [Key(b"default", BUCKET, b"bulk%d" % number) for number in range(3)]
    for bulk in queue.queue.bulk_queues:
        bulk.offer(keys, 0)
    queue.write(0, b"a")
    assert queue.take("w2") == []
    assert queue.take("w1") == [b"a"]
    batch = queue.queue.take(queue.session("w2"), 100, 1_000_000, queue.now)
    assert batch is not None
    assert batch.priority in BULK_PRIORITIES
    assert len(batch) == len(keys)


def test_each_share_gathers_by_itself() -> None:
    """At a high rate, each share gathers for its own time: taking the changes of one does not end the gathering of
    another, and enough changes end only the gathering of their own share."""
    queue = SharedQueue()
    for number in range(3_000):
        queue.now += number % 10 == 0
        queue.write(number % 3, b"%d" % number)
    for node in ("w1", "w2", "w3"):
        queue.take(node, 10_000)
    queue.write(0, b"x")
    assert queue.due("w1") == GATHER_MOST_MS
    queue.now += GATHER_MOST_MS // 2
    queue.write(1, b"y")
    assert (queue.due("w1"), queue.due("w2")) == (GATHER_MOST_MS // 2, GATHER_MOST_MS)
    queue.now += GATHER_MOST_MS // 2
    assert queue.take("w1") == [b"x"]
    assert queue.due("w2") == GATHER_MOST_MS // 2
    queue.write(0, *[b"more%d" % number for number in range(GATHER_COUNT)])
    assert (queue.due("w1"), queue.due("w2")) == (0, GATHER_MOST_MS // 2)
