"""The queue that goes on where a seed has ended: what a seed asks of it, at the source's admin listener.

    hold        the queue is there and gives nothing out: its cursors hold every tombstone that the copy may miss
    hand_over   its cursors go to the offsets of the copy, and it gives out again
    standing    whether the target has taken it, and how old the oldest change is that waits

The order matters: while the copy is made nothing may overtake it, or a delete that has come and been reaped would be
undone by the older object. A seed that is killed leaves the queue held; the same run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from isthmus.aae.reconcile.client import Credentials
from isthmus.repl.http.client import HttpPeer
from isthmus.repl.model.errors import BadInput, PeerFault

SERVING: Final = "serving"
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
TIMEOUT_MS: Final = 20_000


class AdminTransport(Protocol):
    """A node's admin listener: paths, and JSON objects as answers. What goes wrong is raised."""

    def get(self, path: str) -> dict[str, Any]:
        """The object at a path."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object that answers."""


class AdminConnection:
    """An Admin for programs. The command line has its own. Raises BadInput for files, PeerFault from its acts."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._peer = HttpPeer(url, 1, credentials.access())

    def get(self, path: str) -> dict[str, Any]:
        """See Admin."""
        return _object(self._peer.get(path, timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """See Admin."""
        data = json.dumps(body).encode()
        return _object(
            self._peer.post(
                path, data, media_type="application/json", timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX
            )
        )


class QueueStatus(NamedTuple):
    """Of a queue on all nodes: the uuid of the cluster that owns it, "" for none; changes that wait, and the age of the
    oldest, None when a node does not say, or nobody of a partition."""

    owner: str
    waiting: int | None
    oldest_age_ms: int | None


class QueueHandOver:
    """One queue of the source. `filter`: what it offers if it is made here; `reason` is shown to operators."""

    def __init__(self, admin: AdminTransport, queue: str, by: str, filter: str = "any") -> None:
        self._admin = admin
        self.queue = queue
        self._by = by
        self._filter = filter
        self._path = f"/admin/queues/{quote(queue, safe='')}"

    def check(self, source: bytes, target: bytes) -> dict[str, Any] | None:
        """The queue as it stands, None when there is none yet. Raises BadInput when the listener is not of the
        source, or the queue belongs to another cluster than the target."""
        told = self._admin.get("/admin/cluster")
        if told.get("cluster_uuid") != source.hex():
            raise BadInput(f"the admin listener is of cluster {told.get('cluster')}, which is not the source")
        queues = self._admin.get("/admin/queues").get("queues", [])
        found: dict[str, Any] | None = next((one for one in queues if one.get("name") == self.queue), None)
        owner = None if found is None else found.get("owner")
        if owner is not None and owner.get("uuid") != target.hex():
            raise BadInput(
                f"queue {self.queue} belongs to cluster {owner.get('cluster')}, not to the target: take another, or"
                f" `isthmus queue release {self.queue}`"
            )
        return found

    def hold(self, found: Mapping[str, Any] | None, positions: Mapping[int, int], reason: str) -> bool:
        """The queue is there, from `positions` on if it is new, and gives nothing out. Whether others held it before:
        then it stays so at the end. What is held for this `reason` is so by an earlier go of this one."""
        if found is None:
            wish = {"name": self.queue, "filter": self._filter, "positions": _named(positions)}
            self._admin.post("/admin/queues/register", {**wish, "by": self._by, "reason": reason})
        else:
            held = [
                one.get("reason")
                for one in found.get("suspensions", ())
                if (one.get("what"), one.get("node")) == (SERVING, None)
            ]
            if held:
                return reason not in held
        self._admin.post(f"{self._path}/suspend", {"what": SERVING, "by": self._by, "reason": reason})
        return False

    def hand_over(self, positions: Mapping[int, int], reason: str, *, resume: bool) -> None:
        """It goes on from there."""
        wish = {"positions": _named(positions), "by": self._by, "reason": reason}
        self._admin.post(f"{self._path}/place", wish)
        if resume:
            self._admin.post(f"{self._path}/resume", {"what": SERVING, "by": self._by})

    def standing(self) -> QueueStatus:
        """Of all nodes together."""
        owner, waiting, oldest, known = "", 0, 0, True
        for node in self._admin.get("/admin/queues/nodes").get("nodes", []):
            if node.get("gone"):
                continue
            rows = node.get("queues")
            one = next((row for row in rows or () if row.get("name") == self.queue), None)
            if one is None or one.get("waiting") is None:
                known = False
                continue
            owner = (one.get("owner") or {}).get("uuid", owner)
            waiting += one["waiting"] + (one.get("in_flight") or 0)
            oldest = max(oldest, one.get("oldest_age_ms") or 0)
        # What waits in a partition without a leader, or of a node that is gone, is in nobody's sum.
        lag = self._admin.get("/admin/lag").get("lag", [])
        known = known and not any(row.get("unknown_partitions") for row in lag if row.get("queue") == self.queue)
        return QueueStatus(owner, waiting if known else None, oldest if known else None)


def _named(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in positions.items()}


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PeerFault(f"the admin listener's answer is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise PeerFault("the admin listener's answer is no object")
    return found
