"""What each node knows of its full-sync (checks and trees), gathered by the node that was asked; and acts upon all.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed. Which nodes
share a peer cluster is told from that: full-sync's work is not moved between nodes, so one alone is a risk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aae.manager import Manager
from node.gathering import TIMEOUT_MS
from repl.model.errors import CodecError, IsthmusError

METHOD: Final = "fullsync"

ACT: Final = "fullsync.act"

REFRESH: Final = "fullsync.refresh"

WHAT: Final = frozenset({"checks", "trees"})


class SuspendWish(NamedTuple):
    """Checks of a peer, or of all (None), are to be suspended or resumed."""

    suspended: bool
    peer: str | None
    by: str
    reason: str


class FullSyncGathering:
    """Asks and answers. `request` is `Links.request`; `own(what)` is what this node says, of `checks` or of `trees`;
    `manager()` is its own."""

    def __init__(
        self,
        *,
        node: str,
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        own: Callable[[str], dict[str, Any]],
        manager: Callable[[], Manager],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._request = request
        self._own = own
        self._manager = manager
        self._refresh = refresh

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self.answer, ACT: self.answer_act, REFRESH: self.answer_refresh}

    async def answer(self, _node: str, body: bytes) -> bytes:
        """This node's answer to another one that gathers."""
        what = body.decode(errors="replace")
        if what not in WHAT:
            raise CodecError(f"{METHOD}: asks for {what!r:.40}, there are: {', '.join(sorted(WHAT))}")
        return json.dumps(self._own(what)).encode()

    async def gather(self, nodes: Iterable[str], what: str) -> dict[str, dict[str, Any] | None]:
        """What each of `nodes` and this one say; None for who did not answer."""
        names = sorted({self._node, *nodes})
        found = await asyncio.gather(*(self._ask(name, what) for name in names))
        return dict(zip(names, found, strict=True))

    async def answer_refresh(self, _node: str, body: bytes) -> bytes:
        """Read what operators want again, as another node wrote it; the names of the peers that this concerned."""
        try:
            peer, resumed = json.loads(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"{REFRESH}: {error}") from error
        return json.dumps(await self._refreshed(peer, resumed is True)).encode()

    async def refresh(self, nodes: Iterable[str], peer: str | None, *, resumed: bool) -> dict[str, list[str] | None]:
        """Let `nodes` read what operators want; of each the names of the peers that this concerned; None: it did not
        answer, and follows within seconds, or once it can read the metastore. `resumed`: what an earlier version
        suspended on a node alone ends, too."""
        names = sorted(nodes)
        found = await asyncio.gather(*(self._refresh_on(name, peer, resumed) for name in names))
        return dict(zip(names, found, strict=True))

    async def _refresh_on(self, node: str, peer: str | None, resumed: bool) -> list[str] | None:
        try:
            if node == self._node:
                return await self._refreshed(peer, resumed)
            body = json.dumps([peer, resumed]).encode()
            found = json.loads(await self._request(node, REFRESH, body, TIMEOUT_MS))
        except (IsthmusError, ValueError, RecursionError):
            return None
        return found if isinstance(found, list) else None

    async def _refreshed(self, peer: str | None, resumed: bool) -> list[str]:
        manager = self._manager()
        before = set(manager.peers)
        await self._refresh()
        names = sorted(name for name in before | manager.peers.keys() if peer in (None, name))
        for name in names if resumed else ():
            if name in manager.peers:
                await manager.resume(name)
        return names

    async def answer_act(self, _node: str, body: bytes) -> bytes:
        """Suspend or resume here alone, as a node of an earlier version passes it on; the names of the peers that this
        concerned."""
        try:
            wish = SuspendWish(*json.loads(body))
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"{ACT}: {error}") from error
        return json.dumps(await self._acted(wish)).encode()

    async def _acted(self, wish: SuspendWish) -> list[str]:
        manager = self._manager()
        names = [name for name in manager.peers if wish.peer in (None, name)]
        for name in names:
            if wish.suspended:
                await manager.suspend(name, wish.by, wish.reason)
            else:
                await manager.resume(name)
        return names

    async def _ask(self, node: str, what: str) -> dict[str, Any] | None:
        if node == self._node:
            return self._own(what)
        try:
            found = json.loads(await self._request(node, METHOD, what.encode(), TIMEOUT_MS))
        except (IsthmusError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def sharing(peer: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any] | None]) -> tuple[list[str], list[str]]:
    """(nodes that compare with the cluster of `peer`, nodes that did not say). Two peers are of one cluster when they
    name it, or one of its URLs, alike; `peer` and what `nodes` say are rows of `aae.listing`."""
    found = [
        node
        for node, said in nodes.items()
        if said is not None and any(_same(peer, other) for other in said.get("peers", ()))
    ]
    return sorted(found), sorted(node for node, said in nodes.items() if said is None)


def warning(shared_by: list[str], silent: list[str], nodes: int) -> str | None:
    """What is to be said when one node of several compares with a cluster alone; None when not so, or unknown."""
    if len(shared_by) > 1 or nodes < 2 or silent:
        return None
    return f"only {shared_by[0]} compares with it, and nobody when that is gone: add the [[fullsync]] to another node"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    named = one["cluster"] is not None and one["cluster"] == other["cluster"]
    return named or bool(set(one["urls"]) & set(other["urls"]))
