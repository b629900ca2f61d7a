"""Do a leader and its followers have the same tree? Asked of one partition after the other, at one and the same offset.

The leader notes its tree as it is now; a follower, which is behind or level, answers with its own when it has applied
just as much. A branch that differs is asked for again leaf by leaf; each segment that differs is an alarm with its
keys, since replicas that applied the same log have the same rows, or something is broken; and whose row is damaged
mends it (`aae.scrub.row_repair`). An answer that does not come
is no alarm: the partition is asked for again in its next turn. Rules: docs/protocol.md I-TREE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Final

import msgpack
import structlog

from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.aae.trees.tree import (
    BRANCH_COUNT,
    LEAF_BITS,
    LEAF_COUNT,
    Hashes,
    differing,
    hashes_from_wire,
    hashes_to_wire,
)
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady
from isthmus.repl.store.port import Store

log = structlog.get_logger(__name__)

TREE_AT: Final = "aae.tree_at"

ROUND_S: Final = 600.0
"""Every led partition is compared once in this time; a comparison costs 8 KB a follower."""

TIMEOUT_MS: Final = 10_000
"""How long a follower may take to apply as much; one that is slower is asked next time."""

BRANCHES_MAX: Final = 8
"""Branches of one comparison that are looked at leaf by leaf; one is enough for an alarm."""

KEYS_NAMED: Final = 5
"""Keys of a segment that are named in the log."""

VERSION: Final = 1

Handler = Callable[[str, bytes], Awaitable[bytes]]


class ReplicaTreeCheck:
    """Asks and answers. `led()` names the partitions that this node leads, each with the nodes that follow."""

    def __init__(
        self,
        trees: TreeCache,
        store: Store,
        *,
        mending: RowRepair,
        led: Callable[[], Iterable[tuple[int, tuple[str, ...]]]],
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
    ) -> None:
        self._trees = trees
        self._store = store
        self._mending = mending
        self._led = led
        self._request = request
        self._task: asyncio.Task[None] | None = None
        self.compared_total = 0
        """Comparisons with a follower that came to an end."""

    def request_handlers(self) -> dict[str, Handler]:
        """What other nodes may ask of this one, by method."""
        return {TREE_AT: self._answer}

    def start(self) -> None:
        """Begin to compare, round after round."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Compare no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            led = list(self._led())
            for partition, followers in led:
                await asyncio.sleep(ROUND_S / len(led))
                for node in followers:
                    try:
                        await self.compare(partition, node)
                    except Exception:
                        log.exception(
                            "trees.agreement_bug", partition=partition
                        )  # the others are compared all the same
            if not led:
                await asyncio.sleep(ROUND_S)

    async def compare(self, partition: int, node: str) -> bool | None:
        """Compare one partition with one follower: True when both are the same, False after alarms, None when it could
        not be compared."""
        try:
            branches = await self._differing(partition, node, None)
            if branches is None:
                return None
            self.compared_total += 1
            if not branches:
                return True
            for branch in branches[:BRANCHES_MAX]:
                leaves = await self._differing(partition, node, branch)
                segments = [(branch << LEAF_BITS) + leaf for leaf in leaves or ()]
                self._alarm(partition, node, segments)
                for segment in segments[:BRANCHES_MAX]:  # each mends what is damaged of its own
                    await self._mending.segment(partition, segment)
                    await self._looked_at(node, partition, segment)
        except IsthmusError as error:
            log.debug("trees.not_compared", partition=partition, with_node=node, error=str(error))
            return None
        return False

    async def _looked_at(self, node: str, partition: int, segment: int) -> None:
        """A follower that does not look now will be asked again in the next round; the other segments are looked at."""
        try:
            await self._mending.look_at(node, partition, segment)
        except IsthmusError as error:
            log.info("trees.not_looked_at", partition=partition, by=node, segment=segment, error=str(error))

    async def _differing(self, partition: int, node: str, branch: int | None) -> list[int] | None:
        """Which branches, or leaves of a branch, differ at the offset that is applied now; None when nobody knows."""
        kept = self._trees.kept.get(partition)
        if kept is None or kept.tree is None:
            return None
        offset = kept.offset
        mine = kept.tree.branch_hashes() if branch is None else kept.tree.leaves(branch)
        body: bytes = msgpack.packb([VERSION, partition, offset, branch])
        answer = await self._request(node, TREE_AT, body, TIMEOUT_MS)
        if not answer:
            return None
        return list(differing(mine, hashes_from_wire(answer, len(mine))))

    def _alarm(self, partition: int, node: str, segments: list[int]) -> None:
        kept = self._trees.kept.get(partition)
        for segment in segments[:BRANCHES_MAX]:
            try:
                rows = self._store.key_rows(partition, segment, segment + 1)
                names = [f"{bucket!r}/{key!r}" for _, bucket, key, _ in islice(rows, KEYS_NAMED)]
            except IsthmusError as error:  # damaged here: an alarm all the more
                names = [f"cannot be read: {error}"]
            log.error("trees.replicas_differ", partition=partition, follower=node, segment=segment, keys=names)
        self._trees.alarm(partition, segments, 0 if kept is None else kept.offset, node)

    async def _answer(self, _node: str, body: bytes) -> bytes:
        """The hashes at the offset asked for, or nothing when that has passed or does not come."""
        match _unpacked(body):
            case [int(version), int(partition), int(offset), branch] if version == VERSION and (
                branch is None or (type(branch) is int and 0 <= branch < BRANCH_COUNT)
            ):
                pass
            case _:
                raise CodecError("not a question for a tree at an offset, or of another version")
        future = self._trees.capture(partition, offset, branch)
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                found: Hashes | None = await future
        except TimeoutError:
            raise NotReady(f"partition {partition} was not applied to {offset} in {TIMEOUT_MS} ms") from None
        assert found is None or len(found) in (BRANCH_COUNT, LEAF_COUNT)
        return b"" if found is None else hashes_to_wire(found)


def _unpacked(body: bytes) -> object:
    try:
        found: object = msgpack.unpackb(body, max_array_len=8, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CodecError(f"not a question for a tree: {error}") from error
    return found
