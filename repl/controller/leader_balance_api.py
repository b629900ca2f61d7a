"""What operators ask of leadership balancing, at any node: how even it is, what would be moved, and to move it now.

The node that controls the cluster answers; another one asks it. Balancing itself is `repl.controller.leader_balancer`,
its face `node.admin_api.application` and `isthmus leader`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from isthmus.repl.controller.controller import Controller
from isthmus.repl.controller.leader_balancer import BalanceOptions, LeaderBalancer
from isthmus.repl.model.errors import BadInput, CodecError, NotReady, OutcomeUnknown
from isthmus.repl.runtime.handover import LeadershipTransfer
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.telemetry import Sample

METHOD: Final = "leaderships"

TIMEOUT_MS: Final = 2_000
"""How long the controller may take: it plans in some 60 ms where partitions are many."""

BY_LENGTH_MAX: Final = 256
"""Characters of the name of who asks; the rest is cut off."""


class LeaderBalanceApi:
    """Asks the node that controls, or answers as it; brings balancing and the leaders' side of it."""

    def __init__(self, controller: Controller, runtime: Runtime, options: BalanceOptions) -> None:
        """Build before `controller.start`: it is given what it is to balance with."""
        self._controller = controller
        self._node = runtime.node
        self._links = runtime.links
        self._time = runtime.time
        self._handing_over = LeadershipTransfer(runtime)
        self._balancing = controller.balancing = LeaderBalancer(
            node=self._node,
            links=self._links,
            own=self._handing_over,
            options=options,
            wake=controller.wake,
        )

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self.answer, **self._handing_over.request_handlers()}

    def samples(self) -> Iterator[Sample]:
        """As samples of `repl.telemetry.HELP`."""
        return self._balancing.samples()

    async def status(self, timeout_ms: int = TIMEOUT_MS) -> dict[str, Any]:
        """How even leaderships are, what would be moved, what is and was: see `LeaderBalancer.status`. Raises
        NotReady."""
        return await self._ask("", timeout_ms)

    async def balance(self, by: str) -> dict[str, Any]:
        """Begin to move what has to be moved, for `by`; the status then. Raises NotReady when nothing was begun,
        OutcomeUnknown."""
        return await self._ask(by[:BY_LENGTH_MAX], TIMEOUT_MS)

    async def _ask(self, by: str, timeout_ms: int) -> dict[str, Any]:
        controller = self._controller
        if controller.decides:
            return self._decide(by)
        who = controller.controller
        if who is None or who == self._node:
            raise NotReady("no node controls the cluster at the moment: ask again")
        try:
            answer = json.loads(await self._links.request(who, METHOD, by.encode(), timeout_ms))
        except OutcomeUnknown as error:
            if not by:
                raise NotReady(f"node {who}, which controls the cluster, has not answered: {error}") from error
            raise
        except (ValueError, RecursionError) as error:
            raise CodecError(f"{METHOD} of node {who}: no JSON ({error})") from error
        if not isinstance(answer, dict):
            raise CodecError(f"{METHOD} of node {who}: no object")
        return answer

    def _decide(self, by: str) -> dict[str, Any]:
        now_ms = self._time.now_ms()
        if by:
            self._balancing.begin(by)
        return {"controller": self._node, **self._balancing.status(now_ms)}

    async def answer(self, node: str, body: bytes) -> bytes:
        """For another node: `body` names who wants leaderships moved now; empty: only the status is wanted. Raises
        NotReady where this node does not control, or cannot begin."""
        if not self._controller.decides:
            raise NotReady(f"node {self._node} does not control the cluster: ask again")
        try:
            by = body.decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{METHOD} of {node}: a name in UTF-8 is right") from error
        return json.dumps(self._decide(by[:BY_LENGTH_MAX])).encode()
