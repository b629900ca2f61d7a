"""The journal in memory: acts as the files would give them back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from isthmus.node.observability.line_files import Line, LinePage


class MemoryJournal:
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

    async def acts(
        self, before_id: int | None, since_ms: int, limit: int, wanted: Callable[[Line], bool] = lambda _line: True
    ) -> LinePage:
        """See Journal."""
        acts: list[Line] = []
        read_to: tuple[int, int] | None = None
        for line in reversed(self.lines):
            if before_id is not None and line["id"] >= before_id:
                continue
            if line["at_ms"] >= since_ms and wanted(line):
                if len(acts) == limit:
                    return LinePage(acts, True, 0, read_to)
                acts.append(line)
            read_to = line["id"], line["at_ms"]
        return LinePage(acts, False, 0, read_to)

    async def stop(self) -> None:
        """See Journal."""
