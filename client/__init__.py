"""Client of a cluster for Python programs: `Client` for threads, `AsyncClient` for asyncio (docs/client.md).

It imports no other package of Isthmus, and is a distribution of its own, `isthmus-client`. Both clients run the same
operations (`operations`, `batches`), generators that ask for requests and pauses (`steps`); `exchange` repeats
requests, `nodes` chooses the node, `transport` sends.
"""

from isthmus.client.async_client import AsyncClient
from isthmus.client.errors import (
    BadRequest,
    BatchFailed,
    ClientError,
    Conflict,
    OutcomeUnknown,
    Refused,
    Retryable,
    ServerFault,
)
from isthmus.client.objects import (
    Context,
    Delete,
    Link,
    NotFound,
    Put,
    Sibling,
    Siblings,
    StoredObject,
    Written,
    newest,
)
from isthmus.client.operations import Updated
from isthmus.client.sync_client import Client
from isthmus.client.values import Codec

__all__ = [
    "AsyncClient",
    "BadRequest",
    "BatchFailed",
    "Client",
    "ClientError",
    "Codec",
    "Conflict",
    "Context",
    "Delete",
    "Link",
    "NotFound",
    "OutcomeUnknown",
    "Put",
    "Refused",
    "Retryable",
    "ServerFault",
    "Sibling",
    "Siblings",
    "StoredObject",
    "Updated",
    "Written",
    "newest",
]
