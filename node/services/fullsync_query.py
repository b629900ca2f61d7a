"""The full-sync of every node: its checks, its trees, and the refresh after an operator's change.

Full-sync's work is not moved between nodes: a peer that only one node compares with is a risk, which `warning` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from isthmus.aae.service import FullSync
from isthmus.node.services.cluster_query import JsonBody, Query
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.repl.model.errors import CodecError

STATUS_METHOD: Final = "fullsync"
REFRESH_METHOD: Final = "fullsync.refresh"
SUSPEND_METHOD: Final = "fullsync.act"


class FullSyncPart(StrEnum):
    """The parts of a node's full-sync status."""

    CHECKS = "checks"
    TREES = "trees"


class FullSyncPartBody:
    """The part's name as plain text."""

    def encode(self, part: FullSyncPart) -> bytes:
        """See Codec."""
        return part.value.encode()

    def decode(self, body: bytes) -> FullSyncPart:
        """See Codec."""
        name = body.decode(errors="replace")
        try:
            return FullSyncPart(name)
        except ValueError:
            known = ", ".join(part.value for part in FullSyncPart)
            raise CodecError(f"{STATUS_METHOD}: {name!r:.40} is not known; the parts are: {known}") from None


class RefreshFullSync(msgspec.Struct, frozen=True, array_like=True):
    """Read the operators' documents after a change. On the wire: [peer, resumed]."""

    peer: str | None
    """The peer that changed; None: all."""
    resumed: bool
    """A suspension that an earlier version set on the node alone ends, too."""


class SuspendFullSync(msgspec.Struct, frozen=True, array_like=True):
    """Suspend or resume checks on one node; only earlier versions send it. On the wire: an array of these fields."""

    suspended: bool
    peer: str | None
    by: str
    reason: str


FULLSYNC_STATUS: Final[Query[FullSyncPart, dict[str, Any]]] = Query(
    STATUS_METHOD, FullSyncPartBody(), JsonBody(STATUS_METHOD, dict[str, Any])
)
FULLSYNC_REFRESH: Final[Query[RefreshFullSync, list[str]]] = Query(
    REFRESH_METHOD, JsonBody(REFRESH_METHOD, RefreshFullSync), JsonBody(REFRESH_METHOD, list[str])
)
"""The answer: the names of the peers that the change concerned."""
FULLSYNC_SUSPEND: Final[Query[SuspendFullSync, list[str]]] = Query(
    SUSPEND_METHOD, JsonBody(SUSPEND_METHOD, SuspendFullSync), JsonBody(SUSPEND_METHOD, list[str])
)
"""The answer: the names of the peers that were suspended or resumed."""


class FullSyncStatusResponder:
    """Answers FULLSYNC_STATUS."""

    def __init__(self, status: FullSyncStatus) -> None:
        self._status = status

    async def respond(self, part: FullSyncPart) -> dict[str, Any]:
        """See Responder."""
        return self._status.trees() if part is FullSyncPart.TREES else self._status.checks()


class FullSyncRefreshResponder:
    """Answers FULLSYNC_REFRESH."""

    def __init__(self, fullsync: FullSync) -> None:
        self._fullsync = fullsync

    async def respond(self, request: RefreshFullSync) -> list[str]:
        """See Responder."""
        manager = self._fullsync.scheduler
        before = set(manager.peers)
        await self._fullsync.documents.refresh()
        names = sorted(name for name in before | manager.peers.keys() if request.peer in (None, name))
        for name in names if request.resumed else ():
            if name in manager.peers:
                await manager.resume(name)
        return names


class FullSyncSuspendResponder:
    """Answers FULLSYNC_SUSPEND."""

    def __init__(self, fullsync: FullSync) -> None:
        self._fullsync = fullsync

    async def respond(self, request: SuspendFullSync) -> list[str]:
        """See Responder."""
        manager = self._fullsync.scheduler
        names = [name for name in manager.peers if request.peer in (None, name)]
        for name in names:
            if request.suspended:
                await manager.suspend(name, request.by, request.reason)
            else:
                await manager.resume(name)
        return names


def sharing(peer: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any] | None]) -> tuple[list[str], list[str]]:
    """(nodes that compare with the cluster of `peer`, nodes that did not answer). Two peers are one cluster when they
    have the same name, or a URL in common; `peer` and the rows of `nodes` are rows of `aae.status`."""
    found = [
        node
        for node, reported in nodes.items()
        if reported is not None and any(_same(peer, other) for other in reported.get("peers", ()))
    ]
    return sorted(found), sorted(node for node, reported in nodes.items() if reported is None)


def warning(shared_by: list[str], silent: list[str], nodes: int) -> str | None:
    """The warning when one node of several compares with a cluster alone; None when others do, or unknown."""
    if len(shared_by) > 1 or nodes < 2 or silent:
        return None
    return (
        f"only {shared_by[0]} compares with it, and no node when that one is gone: add the [[fullsync]] to another node"
    )


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    named = one["cluster"] is not None and one["cluster"] == other["cluster"]
    return named or bool(set(one["urls"]) & set(other["urls"]))
