"""Leader balance for operators, at any node: how even it is, which moves are planned, and a command to move now.

The node that controls the cluster answers; other nodes forward the request to it. `repl.controller.leader_balancer`
balances; `node.admin_api.application` and `isthmus leader` are its callers.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from isthmus.repl.controller.controller import Controller
from isthmus.repl.controller.leader_balancer import LeaderBalancer
from isthmus.repl.model.errors import BadInput, CodecError, NotReady, OutcomeUnknown
from isthmus.repl.runtime.handover import LeadershipTransfer
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.telemetry import Sample

METHOD: Final = "leaderships"

TIMEOUT_MS: Final = 2_000
"""Limit of the controller's answer: it plans in some 60 ms for many partitions."""

BY_LENGTH_MAX: Final = 256
"""Characters of the operator's name that are kept."""


class LeaderBalanceApi:
    """Forwards requests to the controller, or answers as the controller."""

    def __init__(
        self, controller: Controller, runtime: Runtime, balancer: LeaderBalancer, handing_over: LeadershipTransfer
    ) -> None:
        """`balancer` is the controller's; `handing_over` carries out what balancers of other nodes ask for."""
        self._controller = controller
        self._node = runtime.node
        self._links = runtime.links
        self._time = runtime.time
        self._handing_over = handing_over
        self._balancing = balancer

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """Handlers of requests from other nodes, by method."""
        return {METHOD: self.answer, **self._handing_over.request_handlers(), **self._balancing.request_handlers()}

    def samples(self) -> Iterator[Sample]:
        """Samples of the balancer."""
        return self._balancing.samples()

    async def status(self, timeout_ms: int = TIMEOUT_MS) -> dict[str, Any]:
        """The balance, the planned moves, and the runs: see `LeaderBalancer.status`. Raises NotReady."""
        return await self._ask("", timeout_ms)

    async def balance(self, by: str) -> dict[str, Any]:
        """Begin a run for `by`; returns the status after that. Raises NotReady if nothing was begun, OutcomeUnknown."""
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
        """Answer another node: `body` names the operator who wants a run; empty: only the status. Raises NotReady if
        this node is not the controller, or cannot begin."""
        if not self._controller.decides:
            raise NotReady(f"node {self._node} does not control the cluster: ask again")
        try:
            by = body.decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{METHOD} of {node}: a name in UTF-8 is right") from error
        return json.dumps(self._decide(by[:BY_LENGTH_MAX])).encode()
