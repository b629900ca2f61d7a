"""Promotions: reports of candidates whose barrier is durable, sent to the node that controls the cluster.

A candidate's core repeats its report until the record is Online, so a lost one comes again. Only a promotion of exactly
the nominated epoch, session and log counts (`repl.controller.election`), so an old one is harmless. Every node also
keeps its own promotions, since it may become the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgpack

from isthmus.repl.controller.log_positions import RequestLinks
from isthmus.repl.isr.effects import Promoted
from isthmus.repl.model.errors import BadInput, IsthmusError
from isthmus.repl.unforeseen import unforeseen

METHOD: Final = "promoted"

TIMEOUT_MS: Final = 1_000
"""Limit of the controller's acknowledgement; the core repeats its report meanwhile."""

SEND_AGAIN_MS: Final = 100
"""Pause after the controller could not be reached: another node is about to take over."""

PROMOTIONS_MAX: Final = 65_536
"""Promotions of one request, many times the partitions of a cluster; above it the request is refused."""

Promotion = tuple[int, str, int, int]
"""(epoch, node, session id, log id), as `elect` takes them."""


class Promotions:
    """The newest promotion of each partition, and those not yet sent."""

    def __init__(self, *, node: str, links: RequestLinks, on_received: Callable[[], None]) -> None:
        self._node = node
        self._links = links
        self._on_received = on_received
        self._known: Collection[int] = ()
        self._received: dict[int, Promotion] = {}
        self._unsent: dict[int, Promotion] = {}
        self._controller: str | None = None
        self._task: asyncio.Task[None] | None = None

    def newest(self, partition: int) -> tuple[Promotion, ...]:
        """The newest promotion of a partition, or none."""
        found = self._received.get(partition)
        return () if found is None else (found,)

    def learn(self, controller: str | None, partitions: Collection[int]) -> None:
        """Take over who controls, and which partitions exist: promotions of others are dropped."""
        self._known = partitions
        for partition in [each for each in self._received if each not in partitions]:
            del self._received[partition]
        self._controller = controller
        if controller == self._node:
            self._unsent.clear()
        self._send()

    def announce(self, partition: int, promoted: Promoted) -> None:
        """Record that a candidate of this node is promoted, and report it."""
        promotion = (promoted.epoch, promoted.node, promoted.session_id, promoted.log_id)
        self._note(partition, promotion)
        if self._controller == self._node:
            self._on_received()
        else:
            self._unsent[partition] = promotion
            self._send()

    async def receive(self, node: str, body: bytes) -> bytes:
        """Handle promotions of candidates of `node`: `body` lists [partition, epoch, node, session id, log id]. Raises
        BadInput."""
        try:
            items = msgpack.unpackb(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise BadInput(f"{METHOD} of {node}: not msgpack ({error})") from error
        if (
            not isinstance(items, list)
            or len(items) > PROMOTIONS_MAX
            or not all(_well_formed(item, node) for item in items)
        ):
            form = f"[partition, epoch, {node!r}, inc, gen]"
            raise BadInput(f"{METHOD} of {node}: a list of at most {PROMOTIONS_MAX} of {form} is right")
        for partition, *promotion in items:
            if partition in self._known:
                self._note(partition, (promotion[0], promotion[1], promotion[2], promotion[3]))
        self._on_received()
        return b""

    def _note(self, partition: int, promotion: Promotion) -> None:
        before = self._received.get(partition)
        if before is None or before[0] <= promotion[0]:
            self._received[partition] = promotion

    def _send(self) -> None:
        if self._unsent and self._controller is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._unsent and self._controller not in (None, self._node):
            assert self._controller is not None
            unsent, self._unsent = self._unsent, {}
            body = msgpack.packb([[partition, *promotion] for partition, promotion in unsent.items()])
            try:
                await self._links.request(self._controller, METHOD, body, TIMEOUT_MS)
            except IsthmusError:
                self._unsent = unsent | self._unsent
                await asyncio.sleep(SEND_AGAIN_MS / 1000)
            except Exception as error:  # the candidates' reports are sent again: their partitions wait for them
                unforeseen.exception("controller.promotion_unsent", error)
                self._unsent = unsent | self._unsent
                await asyncio.sleep(SEND_AGAIN_MS / 1000)

    async def stop(self) -> None:
        """Cancel the report under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _well_formed(item: object, node: str) -> bool:
    if not isinstance(item, list) or len(item) != 5 or item[2] != node:
        return False
    return all(type(item[place]) is int and 0 <= item[place] < 1 << 63 for place in (0, 1, 3, 4))
