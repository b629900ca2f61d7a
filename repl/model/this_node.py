"""Which node this is: its name and its cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThisNode:
    """The names of one node. Other nodes and clusters know it by them."""

    name: str
    cluster: str
    """The name of its cluster."""
    cluster_uuid: bytes
    """16 bytes."""
