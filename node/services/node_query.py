"""Health of every node: its version, disk, certificates and their problems, and partitions that went back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from isthmus.node.observability.version import program_version
from isthmus.node.security.credentials import NodeCredentials
from isthmus.node.services.clock_watch import ClockWatch
from isthmus.node.services.cluster_query import EmptyBody, JsonBody, Query
from isthmus.node.services.history import History
from isthmus.node.services.history_series import ALL_TYPES
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.runtime.actor_renewal import Renewal
from isthmus.repl.shortage import DESCRIPTORS, warnings_of
from isthmus.repl.unforeseen import unforeseen

METHOD: Final = "node-health"


RENEWED_SHOWN_MS: Final = 24 * 3_600_000
"""How long a renewed actor is reported: a day, within which a check of full-sync usually compares everything."""


class RenewedActor(msgspec.Struct, frozen=True):
    """A partition that took another actor at `at_ms`: `cluster` holds a write of `epoch` at `offset` that its log
    lacks."""

    partition: int
    cluster: str
    epoch: int
    offset: int
    at_ms: int


class NodeHealth(msgspec.Struct, frozen=True):
    """A node's report about itself. None: not measured yet."""

    version: str
    started_ms: int
    free_bytes: int | None
    """Free space of the disk with the data directory, as measured at most half a minute ago."""
    total_bytes: int | None
    certificates: dict[str, int]
    """Setting that names a file of certificates -> when the first of them expires, in ms since 1970."""
    problems: list[str]
    """Credentials that need an operator soon, a sentence each."""
    urgent: list[str] = []
    """Those of `problems` because of which connections are refused, now or within days. A node of an earlier version
    does not say."""
    renewed: list[RenewedActor] = []
    """Partitions that took another actor in the last day, since this cluster went back (R-ACTOR)."""
    undialled: dict[str, str] = {}
    """Registered node that this one cannot dial -> its address for nodes. Nodes of older versions do not say."""
    short: list[str] = []
    """What is short, or will be soon: descriptors, inodes; a sentence each. Nodes of older versions do not say."""
    defects: list[str] = []
    """Unforeseen exceptions of the last day, a sentence each. Nodes of the version before do not send it."""
    clocks: dict[str, list[dict[str, Any]]] = {}
    """Offsets of other clocks (`node.services.clock_watch.ClockWatch.as_dict`); empty from an earlier version."""


NODE_HEALTH: Final[Query[None, NodeHealth]] = Query(METHOD, EmptyBody(), JsonBody(METHOD, NodeHealth))


class NodeHealthResponder:
    """Answers NODE_HEALTH from this node's credentials, the newest sample of its history, and what its process may
    open."""

    def __init__(
        self,
        credentials: NodeCredentials,
        history: History,
        started_ms: int,
        connections_limit: int,
        free_inodes: Callable[[], int | None],
        undialled: Callable[[], dict[str, str]],
        renewals: Callable[[], Sequence[Renewal]],
        time: TimeSource,
        clocks: ClockWatch,
    ) -> None:
        self._clocks = clocks
        self._connections_limit = connections_limit
        self._free_inodes = free_inodes
        self._undialled = undialled
        self._credentials = credentials
        self._renewals = renewals
        self._time = time
        self._newest: Callable[[str], float] = lambda name: history.newest.get((name, ALL_TYPES), math.nan)
        self._started_ms = started_ms

    async def respond(self, _request: None) -> NodeHealth:
        """See Responder."""
        return NodeHealth(
            program_version(),
            self._started_ms,
            _whole(self._newest("disk.free_bytes")),
            _whole(self._newest("disk.total_bytes")),
            self._credentials.expiries_ms(),
            self._credentials.problems(),
            urgent=self._credentials.urgent(),
            renewed=[
                RenewedActor(*renewal)
                for renewal in self._renewals()
                if self._time.wall_ms() - renewal.at_ms < RENEWED_SHOWN_MS
            ],
            undialled=self._undialled(),
            short=warnings_of(DESCRIPTORS.limit, DESCRIPTORS.reached, self._connections_limit, self._free_inodes()),
            defects=[each.sentence for each in unforeseen.recent()],
            clocks=dict(self._clocks.as_dict()),
        )


def _whole(number: float) -> int | None:
    return None if math.isnan(number) else int(number)
