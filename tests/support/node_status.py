"""A node's status as the HTTP APIs read it (`node.http.health.NodeStatus`), set by the test."""

from __future__ import annotations


class FakeNodeStatus:
    """Ready, with no metrics, and not stopping, until a test changes it."""

    def __init__(self) -> None:
        self.readiness = (True, "")
        self.stopping = False

    def ready(self) -> tuple[bool, str]:
        """See NodeStatus."""
        return self.readiness

    async def exposition(self) -> bytes:
        """See NodeStatus."""
        return b"# no metrics\n"
