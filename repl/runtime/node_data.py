"""A node as its runtime knows it: identity and limits, and what its data directory holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.replog.port import Replog
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.port import Store


class RuntimeSettings(NamedTuple):
    """Identity of this node, and its limits: sizes in bytes, times in ms."""

    node: str
    """Its name, unique in the cluster."""
    cluster_uuid: bytes
    """16 bytes."""
    window_bytes: int
    """Most bytes of unapplied entries in memory (replication.window_size)."""
    entry_limit_bytes: int
    """Longest encoded entry that can be sent to another node."""
    checkpoint_interval_ms: int
    """How often the store is made durable, at the least (replication.checkpoint_interval)."""
    removed_grace_ms: int
    """How long a copy that no record names is kept (replication.removed_copy_grace)."""
    options_of: Callable[[str], ReplicaOptions]
    """Bucket type -> the options of its new replicas."""


@dataclass(frozen=True)
class NodeData:
    """What the data directory holds."""

    identity: NodeIdentity
    store: Store
    replog: Replog
