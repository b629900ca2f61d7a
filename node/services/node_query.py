"""Health of every node: its version, disk, certificates, and their problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from isthmus.node.observability.version import program_version
from isthmus.node.security.credentials import NodeCredentials
from isthmus.node.services.clock_watch import ClockWatch
from isthmus.node.services.cluster_query import EmptyBody, JsonBody, Query
from isthmus.node.services.history import History
from isthmus.node.services.history_series import ALL_TYPES

METHOD: Final = "node-health"


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
    clocks: dict[str, list[dict[str, Any]]] = {}
    """Offsets of other clocks (`node.services.clock_watch.ClockWatch.as_dict`); empty from an earlier version."""


NODE_HEALTH: Final[Query[None, NodeHealth]] = Query(METHOD, EmptyBody(), JsonBody(METHOD, NodeHealth))


class NodeHealthResponder:
    """Answers NODE_HEALTH from this node's credentials and the newest sample of its history."""

    def __init__(self, credentials: NodeCredentials, history: History, started_ms: int, clocks: ClockWatch) -> None:
        self._clocks = clocks
        self._credentials = credentials
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
            dict(self._clocks.as_dict()),
        )


def _whole(number: float) -> int | None:
    return None if math.isnan(number) else int(number)
