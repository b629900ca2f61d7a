"""What each node knows of its share of the source queues, gathered by the node that was asked; gaps closed on all.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from node.explaining import KeyLooks
from node.gathering import TIMEOUT_MS
from queues.acts import GapChoice, QueueActs
from queues.decrees import Applied
from queues.steering import Act
from repl.model.errors import CodecError, IsthmusError
from repl.model.keys import Key

METHOD: Final = "queues"

WHAT: Final = frozenset({"listing", "gaps", "ledger", "ledgers", "close", "lags", "explain", "applied"})


class QueueGathering:
    """Asks and answers. `request` is `Links.request`."""

    def __init__(
        self,
        *,
        node: str,
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        acts: Callable[[], QueueActs],
        looks: Callable[[], KeyLooks],
        proven: Callable[[], list[dict[str, Any]]],
    ) -> None:
        """`proven()`: what full-sync of this node has proven in sync, [{"queue", "bucket_type", "at_ms"}]."""
        self._node = node
        self._request = request
        self._acts = acts
        self._looks = looks
        self._proven = proven

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self.answer}

    async def answer(self, _node: str, body: bytes) -> bytes:
        """This node's answer to another one that gathers."""
        try:
            wish = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"{METHOD}: not JSON ({error})") from error
        if not isinstance(wish, dict) or wish.get("what") not in WHAT:
            raise CodecError(f"{METHOD}: asks for nothing that is known")
        return json.dumps(await self._own(wish)).encode()

    async def gather(self, nodes: Iterable[str], what: str, **wish: Any) -> dict[str, Any]:
        """What each of `nodes` says; None for who did not answer. `what`: listing, gaps, ledger (of `name`), ledgers
        (of all queues), lags, applied, explain (of the key [`bucket_type`, `bucket`, `key`] in hex), or close (gaps of
        `name`, as in `node.http.queue_admin`)."""
        names = sorted(set(nodes))
        found = await asyncio.gather(*(self._ask(name, {"what": what, **wish}) for name in names))
        return dict(zip(names, found, strict=True))

    async def applied(self, nodes: Iterable[str]) -> Applied:
        """What the leaders among `nodes` have applied, and how far apart the clocks are, as far as nodes answer."""
        found = [one for one in (await self.gather(nodes, "applied")).values() if one is not None]
        upto: dict[int, int] = {}
        for one in found:
            for partition, offset in one["positions"]:
                # A deposed leader may answer, too: what it applied is committed all the same.
                upto[partition] = max(offset, upto.get(partition, 0))
        clocks = [one["wall_ms"] for one in found]
        return Applied(tuple(sorted(upto.items())), min(clocks), max(clocks))

    async def _ask(self, node: str, wish: dict[str, Any]) -> Any:
        if node == self._node:
            return await self._own(wish)
        try:
            return json.loads(await self._request(node, METHOD, json.dumps(wish).encode(), TIMEOUT_MS))
        except (IsthmusError, ValueError, RecursionError):
            return None

    async def _own(self, wish: dict[str, Any]) -> Any:
        acts, name = self._acts(), wish.get("name")
        match wish["what"]:
            case "listing":
                return await acts.listing()
            case "gaps":
                return acts.gaps(name)
            case "ledger":
                return await acts.ledger(str(name))
            case "ledgers":
                return [await acts.ledger(one) for one in acts.names()]
            case "lags":
                return {"queues": await acts.lags(), "proven": self._proven()}
            case "explain":
                return await self._looks().own(_key(wish))
            case "applied":
                positions, wall_ms, _ = acts.applied()
                return {"positions": positions, "wall_ms": wall_ms}
            case _:
                ids, bucket_type = wish.get("ids"), wish.get("bucket_type")
                choice = GapChoice(
                    None if ids is None else tuple(map(str, ids)),
                    None if bucket_type is None else str(bucket_type).encode(),
                    int(wish.get("from_ms") or 0),
                    int(wish.get("upto_ms") or 1 << 62),
                )
                act = Act(str(wish["by"]), int(wish["at_ms"]), str(wish.get("reason") or ""))
                return await acts.close_gaps(str(name), choice, act)


def _key(wish: dict[str, Any]) -> Key:
    try:
        return Key(*(bytes.fromhex(wish[word]) for word in ("bucket_type", "bucket", "key")))
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"{METHOD}: names no key ({error})") from error
