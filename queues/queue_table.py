"""The queues of one node, by name, and the store of their documents.

Made before the coordinator, which asks it on the write path; `queues.service.QueueService` fills it.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.config.settings import QueueSettings
from isthmus.queues.origin_check import is_unreplicated
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.queue_store import QueueStore
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.keys import Key


class QueueTable:
    """Empty until the service fills it. `settings` are the queues of this node's file."""

    def __init__(self, metastore: Metastore, settings: Sequence[QueueSettings]) -> None:
        self.settings = settings
        self.store = QueueStore(metastore, {one.name: one for one in settings})
        self.servers: dict[str, QueueServer] = {}

    def is_unreplicated(self, partition: int, offset: int, pusher: bytes, key: Key) -> bool:
        """See `queues.origin_check`; called on the write path."""
        return bool(self.store.unread) or is_unreplicated(
            (queue.machine for queue in self.servers.values()), partition, offset, pusher, key
        )
