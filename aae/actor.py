"""The full-sync actor of a node: the third that every node starts, beside the source and the sink.

This version has no setting that gives it work, so it is idle and says so.
"""

from __future__ import annotations


class FullSync:
    """The actor; it owns no thread and no timer while nothing is configured."""

    def status(self) -> dict[str, str]:
        """The actor's state and why: shown as `idle: not configured`."""
        return {"actor": "full-sync", "state": "idle", "reason": "not configured"}
