"""Answers of the admin listeners of two clusters that replicate to each other, for tests of the command line.

They have the keys of real answers as far as commands read them.
"""

from __future__ import annotations

from typing import Any, Final

from tests.support.fake_admin_listener import FakeAdminListener

NOW_MS: Final = 1_770_000_000_000
UUIDS: Final = {"east": "e" * 32, "west": "f" * 32}
OTHER: Final = {"east": "west", "west": "east"}


def node_row(cluster: str, number: int, state: str = "live") -> dict[str, Any]:
    """A node of /admin/cluster."""
    host = f"{cluster}-{number}.data-centre.example.com"
    return {
        "name": f"{cluster}-{number}", "id": number - 1, "rack": "a", "state": state, "drained": False,
        "reason": "" if state == "live" else "it has no session with the metastore", "leaders": 4, "replicas": 12,
        "in_sync": 12, "http": f"http://{host}:8098", "admin": f"http://{host}:8099", "cluster": f"{host}:8097",
    }  # fmt: skip


def cluster_answer(cluster: str) -> dict[str, Any]:
    """The answer of /admin/cluster of three nodes in sync."""
    return {
        "cluster": cluster, "cluster_uuid": UUIDS[cluster], "state": "online", "state_reason": "",
        "node": f"{cluster}-1", "ready": True, "reason": "", "version": "0.1.0", "controller": f"{cluster}-2",
        "metastore": "connected", "registered": True, "read_at_ms": NOW_MS, "started_ms": NOW_MS - 60_000,
        "waiting": "", "moving": {"reason": ""},
        "partitions": {"total": 12, "online": 12, "election": 0, "candidate_found": 0, "offline": 0},
        "replicas": {"total": 36, "in_sync": 36}, "under_replicated": [], "below_min_isr": [], "unclean_elections": {},
        "problems": [], "warnings": [], "silent": [], "nodes": [node_row(cluster, number) for number in (1, 2, 3)],
        "actors": [{"actor": "source", "state": "running", "reason": ""}],
    }  # fmt: skip


def lag_answer(cluster: str) -> dict[str, Any]:
    """The answer of /admin/lag: the other cluster has everything."""
    other = OTHER[cluster]
    row = {
        "queue": f"to-{other}", "cluster": other, "uuid": UUIDS[other], "bucket_type": "default", "seconds": 0.0,
        "objects": 0, "bytes": 0, "in_flight": 0, "partitions": 12, "unknown_partitions": [], "reason": "",
        "proven_ms": NOW_MS - 180_000,
    }  # fmt: skip
    return {"lag": [row], "at_ms": NOW_MS}


def sink_link(cluster: str, **changed: Any) -> dict[str, Any]:
    """A link of a node's sink to the other cluster."""
    other = OTHER[cluster]
    return {
        "queue": f"to-{cluster}", "peer": f"http://{other}-1.data-centre.example.com:8098", "source_cluster": other,
        "source_uuid": UUIDS[other], "from": "config", "set": None, "state": "running", "reason": "", "suspended": None,
        "delay_ms": 0, "applied": 10, "superseded": 0, "merged": 0, "rejected": 0,
        "lag_ms_p50": 12.5, "lag_ms_p99": 80.0,
        "last_error": None, "held_types": [], **changed,
    }  # fmt: skip


def sinks_answer(cluster: str, **changed: Any) -> dict[str, Any]:
    """The answer of /admin/sink/nodes. `changed`: keys of each link."""
    nodes = [
        {
            "node": f"{cluster}-{number}",
            "sink": {
                "node": f"{cluster}-{number}", "actor": "sink", "state": "running", "reason": "",
                "sinks": [sink_link(cluster, **changed)], "dead_letters": {"kept": 0, "given_up": 0}, "suspensions": [],
                "throttle": {"configured": {"bytes_per_second": None, "objects_per_second": None}}, "limits_set": None,
            },
        }
        for number in (1, 2, 3)
    ]  # fmt: skip
    return {"nodes": nodes}


def queue_row(cluster: str, node: str) -> dict[str, Any]:
    """A queue of a node in /admin/queues/nodes."""
    other = OTHER[cluster]
    return {
        "name": f"to-{other}", "node": node, "filter": "any", "owner": {"cluster": other, "uuid": UUIDS[other]},
        "waiting": 0, "in_flight": 0, "oldest_age_ms": None, "publishing": "running", "serving": "running",
        "reason": "", "suspended": None, "suspensions": [],
        "priorities": {name: {"waiting": 0, "in_flight": 0} for name in ("real_time", "full_sync", "fold")},
        "throttle": {"configured": {"bytes_per_second": None, "objects_per_second": None}, "set": None},
    }  # fmt: skip


def fullsync_answer(cluster: str) -> dict[str, Any]:
    """The answer of /admin/fullsync/nodes: proven in sync three minutes ago."""
    other = OTHER[cluster]
    result = {"verdict": "in-sync", "began_ms": NOW_MS - 180_000, "queued": 0, "left": 0, "reason": ""}
    peer = {
        "name": other, "state": "scheduled", "reason": "", "queue": f"to-{other}", "bucket_types": ["default"],
        "compares": {f"to-{other}": ["default"]}, "proven_ms": {"default": NOW_MS - 180_000}, "suspended": None,
        "newest": {"default": result}, "newest_looked": {"default": result}, "results": [], "cluster": other,
    }  # fmt: skip
    nodes = {
        f"{cluster}-{number}": {"node": f"{cluster}-{number}", "peers": [peer], "sent": []} for number in (1, 2, 3)
    }
    return {"nodes": nodes, "gone": {}, "at_ms": NOW_MS}


def health_answer(cluster: str) -> dict[str, Any]:
    """The answer of /admin/nodes/health."""
    one = {
        "version": "0.1.0", "started_ms": NOW_MS, "free_bytes": 60, "total_bytes": 100, "problems": [],
        "certificates": {"tls.certificate": NOW_MS + 90 * 86_400_000},
    }  # fmt: skip
    return {"nodes": {f"{cluster}-{number}": one for number in (1, 2, 3)}, "unknown": {}, "at_ms": NOW_MS}


def option_row(name: str, **changed: Any) -> dict[str, Any]:
    """An option of /admin/options, not set."""
    return {
        "option": name, "bucket_type": None, "default": "3s", "set": None, "effective": "3s", "origin": "default",
        "by": None, "at_ms": None, "waiting": [], "scope": "cluster", "unit": "ms", "range": "1 to 9",
        "meaning": "A time.", **changed,
    }  # fmt: skip


def respond_as(listener: FakeAdminListener, cluster: str) -> None:
    """Let a listener answer as a healthy cluster."""
    nodes = [f"{cluster}-{number}" for number in (1, 2, 3)]
    queues = [{"node": node, "gone": False, "queues": [queue_row(cluster, node)]} for node in nodes]
    listener.respond("/admin/cluster", cluster_answer(cluster))
    listener.respond("/admin/nodes/health", health_answer(cluster))
    listener.respond("/admin/lag", lag_answer(cluster))
    listener.respond("/admin/queues/nodes", {"nodes": queues})
    listener.respond("/admin/sink/nodes", sinks_answer(cluster))
    listener.respond("/admin/fullsync/nodes", fullsync_answer(cluster))
    listener.respond("/admin/gaps", {"gaps": [], "unknown": [], "unknown_partitions": {}, "at_ms": NOW_MS})
    listener.respond("/admin/options", {"options": [option_row("replication.max.time.lag.millis")]})
    listener.respond("/admin/moves", {"orders": [], "ended": [], "drained": [], "paused": ""})
