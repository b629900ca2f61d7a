"""Operators' acts about tombstones in clusters of real processes: enable reap replication, delete, and reap."""

from __future__ import annotations

import json

from tests.system.faults.load import Broken, Connection, NotSent
from tests.system.replication.clusters import BUCKET, Clusters, eventually, key_path


def enable_reaps(clusters: Clusters) -> None:
    """`repl_reap` at all of them."""
    for cluster in clusters.by_name:
        connection = Connection(clusters.node(cluster).place)
        body = json.dumps({"props": {"repl_reap": True}}).encode()
        reply = connection.request("PUT", "/types/default/props", {"Content-Type": "application/json"}, body)
        connection.close()
        assert reply.status == 204, reply.body


def delete(clusters: Clusters, cluster: str, key: str) -> None:
    """Delete a key; retried while its partition has no leader."""
    connection = Connection(clusters.node(cluster).place)
    eventually("it is deleted", lambda: connection.request("DELETE", key_path(key), {}).status in (204, 404))
    connection.close()


def reap(clusters: Clusters, cluster: str, key: str) -> tuple[str, str]:
    """Reap one key as an operator, retried while its partition has no leader: (outcome, reason)."""
    body = json.dumps({"bucket": BUCKET, "key": key}).encode()
    connection = Connection(clusters.node(cluster).admin, 20.0)

    def answered() -> tuple[str, str] | None:
        try:
            reply = connection.request("POST", "/admin/reaps", {"Content-Type": "application/json"}, body)
        except (NotSent, Broken):
            return None
        found = json.loads(reply.body)
        assert reply.status in (200, 503, 504), found
        return (found["outcome"], found["reason"]) if reply.status == 200 else None

    try:
        outcome, reason = eventually("it may be asked", answered)
        return outcome, reason
    finally:
        connection.close()


def reaped(clusters: Clusters, cluster: str, keys: tuple[str, ...]) -> bool:
    """Whether nothing is left of any key. It reads without marking any key for deletion."""
    connection = Connection(clusters.node(cluster).place)
    replies = [connection.request("GET", key_path(key), {}) for key in keys]
    connection.close()
    return all(reply.status == 404 and "X-Riak-Vclock" not in reply.headers for reply in replies)
