"""A document of the metastore as the controller's room of every node keeps it: read once, and again when a watch fires.

A document that cannot be read changes nothing, and stops no election. What the documents say is `repl.option_settings`'
and `repl.placement_orders`' affair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.model.errors import Corruption

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Document(Generic[T]):
    """One of them. `value` is what it said last."""

    def __init__(
        self, path: str, read: Callable[[Metastore], Awaitable[T]], value: T, on_read: Callable[[T], None]
    ) -> None:
        self.path = path
        self.value = value
        self.was_read = False
        """False until it could be read once: `value` says nothing of what stands there before."""
        self.readable = True
        """False while `value` is older than what stands there, which cannot be read."""
        self._read = read
        self._on_read = on_read
        self._known = False

    def hinted(self, path: str) -> None:
        """A watch fired."""
        self._known = self._known and path != self.path

    def forget(self) -> None:
        """No watch has fired for so long that it is read again."""
        self._known = False

    async def refresh(self, metastore: Metastore) -> None:
        """Read it unless it is known. Raises what the metastore raises."""
        if self._known:
            return
        self._known = True
        try:
            self.value = await self._read(metastore)
        except Corruption as error:
            self.readable = False
            log.error("controller.document_unreadable", path=self.path, error=str(error))
        except (Unavailable, Ambiguous, Conflict):
            self._known = False
            raise
        else:
            self.was_read = self.readable = True
            self._on_read(self.value)
