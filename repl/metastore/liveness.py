"""Liveness of nodes: registrations, claims, and the checks of a write that names a node's copy.

A node that registers writes five znodes, in this order, so that a reader of a registration finds log ids at least as
new: `/node-ids/ID` (persistent, holds the node's name: no other node gets the id until the node is removed), `/ids/ID`
(the same, ephemeral, for programs of earlier versions), `/replicas/NODE` (persistent: log ids, and whether the node is
active), `/nodes/NODE` (ephemeral: the whole registration; its creation zxid is the session id),
`/joined-readers/NODE` (ephemeral, holds that session id: the process reads joined documents; a registration has no
field for it, since programs of earlier versions refuse fields that they do not know).

An ephemeral belongs to one session; it is judged by its owner session and not by its name (docs/protocol.md H28). If
two processes have one name, the one that started later wins; the other registers again once that session is over. This
module has paths and rules; `repl.metastore.codecs` has the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from isthmus.repl.metastore.codecs import (
    LogIdentityRecord,
    decode_at,
    decode_log_identity,
    decode_registration,
    encode_log_identity,
    encode_registration,
)
from isthmus.repl.metastore.port import Ambiguous, NameTaken, Unavailable, VersionConflict
from isthmus.repl.metastore.tree_port import Stat, VersionCheck, ZnodeClient
from isthmus.repl.model.errors import Corruption, WrongIdentity
from isthmus.repl.model.record import Member, Registration

log = structlog.get_logger(__name__)

IDS_PATH: Final = "/node-ids"
"""Below it: the name of the node that has each id, live or down."""

JOINED_PATH: Final = "/joined-readers"
"""Below it: by node, the session id of the registration whose process reads joined documents."""

ATTEMPTS_LIMIT: Final = 8
"""Attempts of read and conditional write within one call before it raises Unavailable. An attempt is lost to another
writer; eight in a row do not happen among a handful of nodes."""


class Liveness:
    """The registrations of nodes below `base`."""

    def __init__(self, tree: ZnodeClient, base: str) -> None:
        self._tree = tree
        self._base = base

    async def register(self, registration: Registration, takes: Collection[int] | None) -> int:
        """See `Metastore.register`. Raises Unavailable if the session changed meanwhile: a registration made for one
        session is not left in another."""
        session, node = self._tree.session(), registration.node
        path = f"/nodes/{node}"

        def replaceable(stat: Stat) -> bool:
            return takes is None or stat.czxid in takes

        if takes is not None:
            # Before any write: the id and log ids belong to the process that has the name.
            here = await self._tree.read(self._base + path, armed=False)
            self._still(session)
            if here is not None and here[1].owner != session and not replaceable(here[1]):
                raise NameTaken(self._taken(node, here[0]))
        if await self._own_id(registration, session) or takes is None:
            await self._give_up_other_ids(registration)
        other = await self._hold(
            f"/ids/{registration.id}", node.encode(), session, lambda left, _stat: left == node.encode()
        )
        if isinstance(other, bytes):
            raise WrongIdentity(
                f"node {node} has the id {registration.id}, which the live node {other.decode(errors='replace')} has "
                f"already: give each node of the cluster its own node.id"
            )
        await self._write_log_identity(registration, session)
        made = await self._hold(path, encode_registration(registration), session, lambda _left, stat: replaceable(stat))
        if isinstance(made, bytes):
            raise NameTaken(self._taken(node, made))
        await self._hold(
            f"{JOINED_PATH}/{node}",
            b"%d" % made.czxid,
            session,
            lambda left, stat: not stat.owner or _number(left) < made.czxid,  # that of a later process stays
        )
        return made.czxid

    async def all_read_joined(self) -> bool:
        """See `Metastore.all_read_joined`. The claim that a node's former process left until its session ends does not
        count: it names another registration."""
        known = {
            node for path in ("/replicas", "/nodes") for node in await self._tree.children(self._base + path) or ()
        }
        for node in sorted(known):
            here = await self._tree.stat(f"{self._base}/nodes/{node}", armed=False)
            claim = await self._tree.read(f"{self._base}{JOINED_PATH}/{node}", armed=False)
            if here is None or claim is None or claim[0] != b"%d" % here.czxid:
                return False
        return bool(known)

    def _taken(self, node: str, found: bytes) -> str:
        """Why a node cannot register: the process that has its name."""
        try:
            other = decode_at(f"/nodes/{node}", found, partial(decode_registration, node=node, session_id=0))
            where = f", its admin listener is {other.admin_url or 'unknown'}"
        except Corruption:
            where = ""
        return (
            f"another process is registered as node {node}{where}: two processes have the same node.name. "
            "This one takes no part until that one has ended; stop one of them, or give it another node.name"
        )

    async def _own_id(self, registration: Registration, session: int) -> bool:
        """Hold the node's id beyond its session, so that no other node gets it while this one is down. True if it is
        held only since this call. Raises WrongIdentity."""
        node = registration.node
        path, value = f"{self._base}{IDS_PATH}/{registration.id}", node.encode()
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._tree.read(path, armed=False)
            self._still(session)
            if found is not None and found[0] == value:
                return False
            if found is not None:
                other = found[0].decode(errors="replace")
                live = await self._tree.stat(f"{self._base}/nodes/{other}", armed=False) is not None
                raise WrongIdentity(
                    f"node {node} has the id {registration.id}, which the {'live ' if live else ''}node {other} has "
                    f"already{'' if live else ' (it is down)'}: give each node of the cluster its own node.id"
                    + ("" if live else f"; if {other} never comes back, `isthmus node remove {other}` frees its id")
                )
            try:
                await self._tree.ensure(self._base + IDS_PATH)
                await self._tree.create(path, value)
            except (VersionConflict, Ambiguous) as error:
                log.debug("metastore.register_retried", error=repr(error))
            else:
                return True
        raise Unavailable(f"{path} could not be made")

    async def _give_up_other_ids(self, registration: Registration) -> None:
        """Free ids that the node had before."""
        for held in await self._tree.children(self._base + IDS_PATH) or ():
            path = f"{self._base}{IDS_PATH}/{held}"
            found = await self._tree.read(path, armed=False)
            if held != str(registration.id) and found is not None and found[0] == registration.node.encode():
                try:
                    await self._tree.delete(path, found[1].version)
                except (VersionConflict, Ambiguous) as error:  # the next start of the process removes it
                    log.warning("metastore.id_kept", peer=registration.node, id=held, error=repr(error))

    async def claim(self, path: str, value: bytes) -> bool:
        """See `Metastore.claim`. A claim of another session is respected until it ends, even if it is an earlier
        process of this node: that process may still believe that it decides."""
        held = await self._hold(path, value, self._tree.session(), lambda _left, _stat: False, armed=True)
        return isinstance(held, Stat)

    async def end(self, node: str, session_id: int, claims: Collection[str]) -> bool:
        """See `Metastore.end_registration`. A registration that was renewed meanwhile stays: its process lives. One
        that was replaced between the two steps may be removed; that process then registers again."""
        path = f"{self._base}/nodes/{node}"
        here = await self._tree.stat(path, armed=False)
        if here is None or here.czxid != session_id:
            return False
        for claim in claims:  # first: a call that breaks off is repeated while the registration is there
            held = await self._tree.stat(self._base + claim, armed=False)
            if held is not None and held.owner == here.owner:
                with suppress(VersionConflict):  # another node did it
                    await self._tree.delete(self._base + claim, held.version)
        try:
            await self._tree.delete(path, here.version)
        except VersionConflict:
            return False
        return True

    async def checks(self, partition: int, needs: Collection[Member]) -> list[VersionCheck]:
        """The checks of a commit that names these members, true only while each is registered, active, and has this log
        id for `partition`. Raises VersionConflict if one is not, Unavailable."""
        checks: list[VersionCheck] = []
        for node, log_id in needs:
            identity = await self._read_log_identity(node)
            here = await self._tree.stat(f"{self._base}/nodes/{node}", armed=False)
            if identity is None or here is None:
                raise VersionConflict(f"{node} is not registered")
            if not identity[0].active:
                raise VersionConflict(f"{node} is leaving")
            if identity[0].log_id_of(partition) != log_id:
                raise VersionConflict(
                    f"{node} has gen {identity[0].log_id_of(partition)} of partition {partition}, not {log_id}"
                )
            # The version of the ephemeral does not suffice: it begins at 0 again in the node's next session.
            checks.append(VersionCheck(f"{self._base}/replicas/{node}", identity[1]))
            checks.append(VersionCheck(f"{self._base}/nodes/{node}", here.version))
        return checks

    async def _read_log_identity(self, node: str) -> tuple[LogIdentityRecord, int] | None:
        path = f"{self._base}/replicas/{node}"
        found = await self._tree.read(path, armed=False)
        return None if found is None else (decode_at(path, found[0], decode_log_identity), found[1].version)

    async def _write_log_identity(self, registration: Registration, session: int) -> None:
        """Write down what others may go by; nothing is written that is there already."""
        path, data = f"{self._base}/replicas/{registration.node}", encode_log_identity(registration)
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._tree.read(path, armed=False)
            self._still(session)
            try:
                if found is None:
                    await self._tree.create(path, data)
                elif found[0] != data:
                    await self._tree.set(path, data, found[1].version)
            except (VersionConflict, Ambiguous) as error:
                log.debug("metastore.register_retried", error=repr(error))
            else:
                return
        raise Unavailable(f"{path} could not be written")

    async def _hold(
        self, path: str, value: bytes, session: int, gives_way: Callable[[bytes, Stat], bool], *, armed: bool = False
    ) -> Stat | bytes:
        """Make `path` an ephemeral of `session` with `value`. The ephemeral of another session is replaced if it
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
                if not gives_way(left, stat):
                    return left
                log.info("metastore.stale_ephemeral", path=full, owner=stat.owner)
                await self._tree.delete(full, stat.version)
            except (VersionConflict, Ambiguous) as error:
                log.debug("metastore.register_retried", error=repr(error))
        raise Unavailable(f"{full} could not be made")

    def _still(self, session: int) -> None:
        if self._tree.session() != session:
            raise Unavailable("the session ended meanwhile")


def _number(text: bytes) -> int:
    """The number in a value that another program may have written; -1 for anything else."""
    return int(text) if text.isdigit() else -1
