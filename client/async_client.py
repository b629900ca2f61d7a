"""`AsyncClient`: the operations for the tasks of an asyncio event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from isthmus.client.batches import Batches, Items
from isthmus.client.errors import BadRequest, closed
from isthmus.client.objects import HasContext, Name, Resolver, StoredObject, Written
from isthmus.client.operations import Updated, operations_of
from isthmus.client.options import Options, Settings
from isthmus.client.steps import Call, Operation, Send, Step, T
from isthmus.client.transport import AsyncTransport


class AsyncClient:
    """A client of one cluster, for the tasks of one event loop: the methods of `Client`, as coroutines.

    A call that is cancelled ends at once; a write may have taken effect by then. Raises BadRequest for wrong options,
    and from calls in another event loop than that of the first one.
    """

    def __init__(self, urls: str | Sequence[str], **options: Unpack[Options]) -> None:
        settings = Settings(urls, options)
        self._transport = AsyncTransport(settings.ssl_context, settings.connections, certified=settings.certified)
        self._closed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first call, to which locks and connections belong."""
        self._operations = operations_of(settings, _loop_s)
        self._batches = Batches(self._operations)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Calls of other tasks end with an error; further calls raise BadRequest."""
        self._check_loop()
        self._closed.set()
        await self._transport.close()

    async def get(
        self,
        bucket: Name,
        key: Name,
        *,
        resolve: Resolver | None = None,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> StoredObject:
        """Read an object. Raises NotFound."""
        operations = self._operations
        return await self._run(operations.get(operations.key(bucket_type, bucket, key), resolve, timeout_s))

    async def find(
        self,
        bucket: Name,
        key: Name,
        *,
        resolve: Resolver | None = None,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> StoredObject | None:
        """Read an object; None if the key does not exist."""
        operations = self._operations
        return await self._run(operations.find(operations.key(bucket_type, bucket, key), resolve, timeout_s))

    async def exists(
        self, bucket: Name, key: Name, *, bucket_type: Name | None = None, timeout_s: float | None = None
    ) -> bool:
        """True if the key exists, also with siblings."""
        operations = self._operations
        return await self._run(operations.exists(operations.key(bucket_type, bucket, key), timeout_s))

    async def put(
        self,
        bucket: Name,
        key: Name,
        value: Any,
        *,
        context: HasContext = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        content_encoding: str = "",
        if_absent: bool = False,
        if_unchanged: bool = False,
        request_id: str | None = None,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Write a value.

        `context`: the object that it replaces, as it was read. Without it, a value that is already there is kept
        beside this one, as a sibling. `if_absent`, `if_unchanged`: only if the key does not exist, or still has the
        version of the context; otherwise Conflict. `request_id`: 1 to 64 printable characters; a call with the same id
        for the same key takes effect once."""
        operations = self._operations
        return await self._run(
            operations.put(
                operations.key(bucket_type, bucket, key),
                value,
                context=context,
                content_type=content_type,
                metadata=metadata,
                content_encoding=content_encoding,
                if_absent=if_absent,
                if_unchanged=if_unchanged,
                request_id=request_id,
                timeout_s=timeout_s,
            )
        )

    async def overwrite(
        self,
        bucket: Name,
        key: Name,
        value: Any,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        content_encoding: str = "",
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Write a value in place of whatever is there, siblings included. Reads the version of the key first."""
        operations = self._operations
        return await self._run(
            operations.overwrite(
                operations.key(bucket_type, bucket, key),
                value,
                content_type=content_type,
                metadata=metadata,
                content_encoding=content_encoding,
                timeout_s=timeout_s,
            )
        )

    async def update(
        self,
        bucket: Name,
        key: Name,
        change: Callable[[Any], Any | Awaitable[Any]],
        *,
        default: Any = None,
        resolve: Resolver | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> Updated:
        """Read a value, change it, write it; again while others have written in between.

        `change`, a function or coroutine function, gets the value, a copy of `default` if the key does not exist, and
        returns the new one. It may be called several times. `resolve` makes one value of siblings. Content type and
        metadata stay, as far as they are not given. Raises Siblings without resolver, Conflict when others were quicker
        in every attempt."""
        operations = self._operations
        return await self._run(
            operations.update(
                operations.key(bucket_type, bucket, key),
                change,
                default=default,
                resolver=resolve,
                content_type=content_type,
                metadata=metadata,
                timeout_s=timeout_s,
            )
        )

    async def delete(
        self,
        bucket: Name,
        key: Name,
        *,
        context: HasContext = None,
        if_unchanged: bool = False,
        request_id: str | None = None,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """Delete a key; False if there was nothing to delete.

        Without `context` whatever is there is deleted; with it, the version that was read, and a concurrent one stays.
        `if_unchanged`: only if the key still has that version; otherwise Conflict."""
        operations = self._operations
        return await self._run(
            operations.delete(
                operations.key(bucket_type, bucket, key),
                context=context,
                if_unchanged=if_unchanged,
                request_id=request_id,
                timeout_s=timeout_s,
            )
        )

    async def get_many(
        self,
        bucket: Name,
        keys: Iterable[Name],
        *,
        resolve: Resolver | None = None,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> list[StoredObject | None]:
        """Read many keys, in few requests; in the order of `keys`, None for one that does not exist.

        `timeout_s` is that of each request. Raises BatchFailed, which has a result for each item."""
        return await self._run(self._batches.get_many(bucket, keys, resolve, bucket_type, timeout_s))

    async def put_many(
        self, bucket: Name, items: Items, *, bucket_type: Name | None = None, timeout_s: float | None = None
    ) -> list[Written]:
        """Write and delete many keys, in few requests: `{key: value}`, or Put and Delete; results in their order.

        Not atomic: each item succeeds or fails by itself. `timeout_s` is that of each request. Raises BatchFailed,
        which has a result for each item."""
        return await self._run(self._batches.put_many(bucket, items, bucket_type, timeout_s))

    def list_keys(
        self,
        bucket: Name,
        *,
        prefix: Name = "",
        page_size: int = 1000,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[str]:
        """The keys of a bucket that begin with `prefix`. Read page by page; `timeout_s` is that of each page."""
        return self._names(bucket_type, bucket, prefix, page_size, timeout_s)

    def list_buckets(
        self,
        *,
        prefix: Name = "",
        page_size: int = 1000,
        bucket_type: Name | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[str]:
        """The buckets of a bucket type that have a key and begin with `prefix`, as `list_keys`."""
        return self._names(bucket_type, None, prefix, page_size, timeout_s)

    async def properties(
        self, bucket: Name | None = None, *, bucket_type: Name | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """The properties in force of a bucket; without it, of a bucket type."""
        return await self._run(self._operations.properties(bucket_type, bucket, timeout_s))

    async def _names(
        self, bucket_type: Name | None, bucket: Name | None, prefix: Name, page_size: int, timeout_s: float | None
    ) -> AsyncIterator[str]:
        continuation = ""
        while True:
            operation = self._operations.page(bucket_type, bucket, prefix, page_size, continuation, timeout_s)
            page = await self._run(operation)
            for name in page.names:
                yield name
            continuation = page.continuation
            if not continuation:
                return

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise BadRequest(
                "this AsyncClient was first used in another event loop: make one in each event loop", reason="bad-call"
            )

    async def _run(self, operation: Operation[T]) -> T:
        try:
            self._check_loop()
            step = next(operation)
            while True:
                try:
                    result = await self._perform(step)
                except BaseException as error:  # noqa: BLE001 - the operation decides, and ends with it
                    step = operation.throw(error)
                else:
                    step = operation.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            operation.close()

    async def _perform(self, step: Step) -> Any:
        if self._closed.is_set():
            raise closed()
        if isinstance(step, Send):
            return await self._transport.send(step)
        if isinstance(step, Call):
            result = step.function(*step.arguments)
            return await result if inspect.isawaitable(result) else result
        try:
            async with asyncio.timeout(step.seconds):
                await self._closed.wait()
        except TimeoutError:
            pass
        return None


def _loop_s() -> float:
    """The clock of the running event loop, by which its time-outs are."""
    return asyncio.get_running_loop().time()
