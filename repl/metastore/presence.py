"""Who is here: registrations, claims, and what a write must check before it names a node's copy.

A node that registers leaves three znodes: `/ids/ID` (ephemeral, holds the node's name: no two live nodes have one
id), `/replicas/NODE` (persistent: gens, and whether it is active), `/nodes/NODE` (ephemeral: all of the
registration; its creation zxid is the inc). In this order: whoever sees a registration finds gens that are at least as
new. An ephemeral belongs to one session, and what another session left is judged by its owner and not by its
name (docs/protocol.md H28). Knows paths and rules; the bytes are `repl.metastore.records`'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import structlog

from repl.metastore.port import Ambiguous, Conflict, Unavailable
from repl.metastore.records import (
    Standing,
    decode_standing,
    encode_registration,
    encode_standing,
    parsed,
)
from repl.metastore.znodes import Check, Stat, Tree
from repl.model.errors import WrongIdentity
from repl.model.record import Member, Registration

log = structlog.get_logger(__name__)

ATTEMPTS_LIMIT: Final = 8
"""Rounds of read and conditional write within one call before it gives up as Unavailable. Each round lost means that
somebody else won one; eight in a row do not happen among a handful of nodes."""


class Presence:
    """The presence of nodes below `base`."""

    def __init__(self, tree: Tree, base: str) -> None:
        self._tree = tree
        self._base = base

    async def register(self, registration: Registration) -> int:
        """As `Metastore.register`. Raises Unavailable when the session changed meanwhile: a registration made for
        one session is not left in another."""
        session, node = self._tree.session(), registration.node
        other = await self._hold(f"/ids/{registration.id}", node.encode(), session, lambda left: left == node.encode())
        if isinstance(other, bytes):
            raise WrongIdentity(
                f"node {node} has the id {registration.id}, which the live node {other.decode(errors='replace')} has "
                f"already: give each node of the cluster its own node.id"
            )
        await self._stand(registration, session)
        made = await self._hold(f"/nodes/{node}", encode_registration(registration), session, lambda _: True)
        assert isinstance(made, Stat), "what another session left at our own name is replaced"
        return made.czxid

    async def claim(self, path: str, value: bytes) -> bool:
        """As `Metastore.claim`. What another session has is respected until it goes, be it of an earlier process of
        this very node: that one may still believe that it decides."""
        held = await self._hold(path, value, self._tree.session(), lambda _: False, armed=True)
        return isinstance(held, Stat)

    async def checks(self, partition: int, needs: Collection[Member]) -> list[Check]:
        """What a commit must check so that it names these members only while each is registered, active, and has
        noted this gen of `partition`. Raises Conflict when one is not, Unavailable."""
        checks: list[Check] = []
        for node, gen in needs:
            standing = await self._standing(node)
            here = await self._tree.stat(f"{self._base}/nodes/{node}", armed=False)
            if standing is None or here is None:
                raise Conflict(f"{node} is not registered")
            if not standing[0].active:
                raise Conflict(f"{node} is leaving")
            if standing[0].gen_of(partition) != gen:
                raise Conflict(f"{node} has gen {standing[0].gen_of(partition)} of partition {partition}, not {gen}")
            # The version of the ephemeral alone would not do: it begins at 0 again in the node's next session.
            checks.append(Check(f"{self._base}/replicas/{node}", standing[1]))
            checks.append(Check(f"{self._base}/nodes/{node}", here.version))
        return checks

    async def _standing(self, node: str) -> tuple[Standing, int] | None:
        path = f"{self._base}/replicas/{node}"
        found = await self._tree.read(path, armed=False)
        return None if found is None else (parsed(path, found[0], decode_standing), found[1].version)

    async def _stand(self, registration: Registration, session: int) -> None:
        """Write down what others may go by; nothing is written that is there already."""
        path, data = f"{self._base}/replicas/{registration.node}", encode_standing(registration)
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._tree.read(path, armed=False)
            self._still(session)
            try:
                if found is None:
                    await self._tree.create(path, data)
                elif found[0] != data:
                    await self._tree.set(path, data, found[1].version)
            except (Conflict, Ambiguous) as error:
                log.debug("metastore.register_retried", error=repr(error))
            else:
                return
        raise Unavailable(f"{path} could not be written")

    async def _hold(
        self, path: str, value: bytes, session: int, gives_way: Callable[[bytes], bool], *, armed: bool = False
    ) -> Stat | bytes:
        """Make `path` an ephemeral of `session` with `value`. What another session left there is replaced if it
        `gives_way`, else its value is returned."""
        full = self._base + path
        for _ in range(ATTEMPTS_LIMIT):
            here = await self._tree.stat(full, armed=armed)
            found = None if here is None else await self._tree.read(full, armed=False, sync=False)
            self._still(session)
            try:
                if found is None:
                    made = await self._tree.create(full, value, ephemeral=True)
                    if made.owner == session:
                        return made
                    await self._tree.delete(full, made.version)
                    continue
                left, stat = found
                if stat.owner == session:
                    return stat if left == value else await self._tree.set(full, value, stat.version)
                if not gives_way(left):
                    return left
                log.info("metastore.stale_ephemeral", path=full, owner=stat.owner)
                await self._tree.delete(full, stat.version)
            except (Conflict, Ambiguous) as error:
                log.debug("metastore.register_retried", error=repr(error))
        raise Unavailable(f"{full} could not be made")

    def _still(self, session: int) -> None:
        if self._tree.session() != session:
            raise Unavailable("the session ended meanwhile")
