"""Readiness of a node, over HTTP: `GET {http}/readyz` and `GET {admin}/admin/cluster`.

The first must answer 200; the second has the partitions that are online and the node's replicas in sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from isthmus.config.text import quantity
from isthmus.repl.http import client

PROBE_TIMEOUT_S: Final = 2.0
"""Connect and read time-out of one request; a node that takes longer is not ready."""


REASON_CHARACTERS_MAX: Final = 200
"""Characters of a node's own reason that are shown: one line."""


@dataclass(frozen=True, slots=True)
class Online:
    """Readiness of a node: `caught_up`, it is ready and all its replicas are in sync; `complete`, it is ready and every
    partition of the cluster is online; `text`, "12 of 12 online", "starting", "4 of 12 online, not ready: ..."."""

    caught_up: bool
    complete: bool
    text: str


class NodeProbe:
    """Requests readiness from one node; keeps its connections."""

    def __init__(self, http_url: str, admin_url: str, access: client.PeerCredentials = client.OPEN) -> None:
        self._http_url = http_url
        self._admin_url = admin_url
        self._session = client.session(access=access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def online(self) -> Online:
        """The node's readiness now; a node that does not answer is starting."""
        try:
            cluster = self._session.get(f"{self._admin_url}/admin/cluster", timeout=PROBE_TIMEOUT_S)
            ready = self._session.get(f"{self._http_url}/readyz", timeout=PROBE_TIMEOUT_S)
        except OSError:  # everything that requests raises is one
            return Online(caught_up=False, complete=False, text="starting")
        why_not = "" if ready.status_code == 200 else f"not ready: {_first_line(ready.text)}"
        try:
            about = cluster.json()
            online, total = int(about["partitions"]["online"]), int(about["partitions"]["total"])
            own = next(node for node in about["nodes"] if node["name"] == about["node"])
            lacking = int(own["replicas"]) - int(own["in_sync"])
        except (ValueError, KeyError, TypeError, StopIteration):
            why_not = why_not or f"answers {cluster.status_code} without its partitions"
            return Online(caught_up=False, complete=False, text=why_not)
        counted = f"{online} of {total} online" if total else ""
        behind = f"{quantity(lacking, 'replica')} not in sync" if lacking else ""
        text = ", ".join(part for part in (counted, behind, why_not) if part) or "no partitions yet"
        return Online(not (why_not or lacking), not why_not and 0 < total == online, text)


def _first_line(text: str) -> str:
    """The first line of a node's reason, cut."""
    return next(iter(text.splitlines()), "")[:REASON_CHARACTERS_MAX]
