"""The audit log in memory: lines as the files would give them back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from isthmus.node.observability.audit_log import AuditPage


class MemoryAuditLog:
    """Keeps every line. Implements `node.http.audit.AuditLines`."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    async def append(self, line: dict[str, Any]) -> None:
        """See AuditLines."""
        self.enqueue(line)

    def enqueue(self, line: dict[str, Any]) -> asyncio.Future[None]:
        """See AuditLines."""
        self.lines.append(json.loads(json.dumps({"id": len(self.lines) + 1, **line})))
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    async def page(self, before_id: int | None, since_ms: int, limit: int) -> AuditPage:
        """See AuditLog."""
        fit = [
            line
            for line in reversed(self.lines)
            if (before_id is None or line["id"] < before_id) and line["at_ms"] >= since_ms
        ]
        return AuditPage(fit[:limit], len(fit) > limit, 0)

    async def stop(self) -> None:
        """See AuditLog."""
