"""The oracle about what queues take for delivered: full-sync, which repairs all in the end, must not hide what was not.

At each look it notes the changes that a queue offers to its owner. One that later neither waits nor is in flight was
delivered: the other cluster has it, has something newer of its key, or has reaped it; or something names it: a gap, a
dead letter, or a declared loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from isthmus.queues.window import Window
from isthmus.repl.model.entry import NO_OFFSET, decode_key_row
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.vclock import decode_clock, descends
from isthmus.repl.store.port import Change
from isthmus.repl.store.rows import CHANGE_TAG, U32, U64, decode_change, decode_u64
from tests.simulation.world.history import Scope
from tests.simulation.world.node_state import Led, leaders_of, reaped_of, rows_of, running, shown, uuid_of
from tests.simulation.world.oracles_told import unsettled_of

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.world import World

Place = tuple[str, str, int]
"""(cluster, queue, partition)"""


class Offered(NamedTuple):
    """A version of a key that a queue offers."""

    offset: int
    clock: bytes
    tombstone: bool


class Delivered:
    """What a queue takes for delivered is at the cluster that owns it, or is named."""

    name = "delivered"

    def __init__(self) -> None:
        self._offered: dict[Place, dict[Key, Offered]] = {}
        """What was to be delivered at the last look."""
        self._ends: dict[Place, tuple[bytes, int]] = {}
        """(owner, end of what was applied) at the last look."""
        self._losses: dict[Place, int] = {}
        """How many losses that concern a queue were declared until the last look."""
        self.judged = 0

    def look(self, world: World) -> list[str]:
        failures: list[str] = []
        by_uuid = {uuid_of(cluster): cluster for cluster in world.clusters.values()}
        for name, cluster in world.clusters.items():
            for number, led in leaders_of(cluster).items():
                for queue, machine in led.services.queues.machines().items():
                    window = machine.windows.get(number)
                    sink = by_uuid.get(machine.owner)
                    place = name, queue, number
                    if window is None or sink is None or window.owner_version != machine.owner_version:
                        continue
                    if self._is_lossy(world, place, sink):
                        self._offered.pop(place, None)
                        self._ends.pop(place, None)
                        continue
                    failures += self._judge(place, led, window, sink, machine.owner)
        return failures

    def judge(self, world: World) -> list[str]:
        return self.look(world)

    def _is_lossy(self, world: World, place: Place, sink: WorldCluster) -> bool:
        """Whether a loss that was declared since the last look, or is going on, concerns the queue."""
        cluster, queue, _ = place
        losses = [
            loss
            for loss in world.history.losses
            if (loss.scope is Scope.CLUSTER and loss.cluster in (cluster, sink.name))
            or (loss.cluster == cluster and loss.queue in ("", queue))
        ]
        before, self._losses[place] = self._losses.get(place, 0), len(losses)
        return len(losses) != before or any(loss.until_ns > world.kernel.now_ns for loss in losses)

    def _judge(self, place: Place, led: Led, window: Window, sink: WorldCluster, owner: bytes) -> Iterator[str]:
        waits = {_key(window, row): row.offset for row in unsettled_of(rows_of(led.services), window)}
        offered = self._offered.setdefault(place, {})
        was_owner, end = self._ends.get(place, (b"", 0))
        if was_owner != owner:
            offered.clear()
            end = window.applied
        self._ends[place] = owner, window.applied
        for row in _rows(led, end, window.applied):
            if window.offers_row(row):
                _note(led, offered, _key(window, row))
        for key in waits:
            _note(led, offered, key)
        for key, one in list(offered.items()):
            if waits.get(key) == one.offset:
                continue
            found = _missing(place, led, window, sink, key, one)
            if found is None:
                continue
            del offered[key]
            self.judged += 1
            if found:
                yield f"{place[0]}: queue {place[1]}, partition {place[2]}: {found}"


def _note(led: Led, offered: dict[Key, Offered], key: Key) -> None:
    row = led.services.store.key_row(led.partition.id, key_hash(key.bucket, key.key), key.bucket, key.key)
    if row is not None:
        found = decode_key_row(row)
        offered[key] = Offered(found.offset, found.clock, found.tombstone)


def _missing(place: Place, led: Led, window: Window, sink: WorldCluster, key: Key, one: Offered) -> str | None:
    """Why a version that is settled is not at the sink; "" if it is, or that is named; None: not known yet."""
    rules = led.services.queues.named(place[1]).filter
    gaps = (*window.state.gaps, *window.unrecorded_gaps())
    if not rules.includes(key.bucket_type, key.bucket) or any(gap.start <= one.offset < gap.end for gap in gaps):
        return ""
    hash64 = key_hash(key.bucket, key.key)
    row = led.services.store.key_row(led.partition.id, hash64, key.bucket, key.key)
    if row is None:  # reaped
        gone = led.services.store.reaped_clocks(led.partition.id).get((key.bucket, key.key))
        one = Offered(NO_OFFSET, one.clock if gone is None else gone, True)
    elif decode_key_row(row).offset != one.offset:
        return ""
    leaders = [each for each in leaders_of(sink).values() if each.partition.bucket_type == key.bucket_type]
    count = max((each.partition.partition_count for each in leaders), default=1)
    if len(running(sink)) < len(sink.nodes) or len(leaders) < count:
        return None
    there = None
    for each in leaders:
        there = there or each.services.store.key_row(each.partition.id, hash64, key.bucket, key.key)
    if _has(there, one, reaped_of(sink).get(key.bucket_type.decode(), {}).get((key.bucket, key.key))):
        return ""
    if any(services.sink._letters.of_key(key) for services in running(sink).values()):
        return ""
    what = "is reaped" if row is None else f"at {one.offset} is settled"
    return f"{shown(key)} {what}, cursor {window.cursor}, and {sink.name} lacks it"


def _has(row: bytes | None, one: Offered, reaped: bytes | None) -> bool:
    """Whether a cluster with this row of the key, or the clock of its reaped tombstone, has a version, or a newer."""
    ours = decode_clock(one.clock)
    if row is None:
        return one.tombstone or (reaped is not None and descends(decode_clock(reaped), ours))
    theirs = decode_key_row(row)
    return (one.tombstone and theirs.tombstone) or descends(decode_clock(theirs.clock), ours)


def _key(window: Window, row: Change) -> Key:
    return Key(window.bucket_type, row.bucket, row.key)


def _rows(led: Led, start: int, end: int) -> Iterator[Change]:
    """The change rows at [start, end)."""
    rows, head = rows_of(led.services), CHANGE_TAG + U32.pack(led.partition.id)
    for name in rows.irange(head + U64.pack(start), head + U64.pack(end), (True, False)):
        yield decode_change(decode_u64(name[len(head) :]), rows[name])
