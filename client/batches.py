"""Many objects in few requests: `/batch/put` and `/batch/get`, as generators of steps (`steps`).

Items go in chunks, each to the leader of its keys. Every item has a result; those that were refused for now are sent
again. After a chunk that fails as a whole, by no fault of the call, the rest is not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgpack

from isthmus.client import answers
from isthmus.client.errors import (
    BadRequest,
    BatchFailed,
    ClientError,
    OutcomeUnknown,
    Refused,
    Retryable,
    ServerFault,
)
from isthmus.client.exchange import pause_s
from isthmus.client.names import Key
from isthmus.client.objects import Context, Delete, Name, Put, Resolver, StoredObject, Written, context_of
from isthmus.client.operations import (
    BATCH_GET,
    MSGPACK,
    Operations,
    check_content_type,
    check_metadata,
)
from isthmus.client.steps import Operation, Request, Response, Sleep
from isthmus.client.values import encode_value

CHUNK_ITEMS: Final = 500
"""Most items of one request; nodes take 10,000 (limits.batch_items). More would not be quicker."""

CHUNK_BYTES: Final = 4_000_000
"""Bytes of values after which a chunk is full; nodes take 64 MB (limits.batch_size). One larger item goes alone."""

Items: TypeAlias = Mapping[str, Any] | Mapping[bytes, Any] | Iterable[Put | Delete]
"""The argument of `put_many`: values by key, or items."""

_Item = tuple[Any, ...]


class _Slot:
    """An item under way: its place in the call, its key, its form in a request, its size."""

    __slots__ = ("at", "item", "key", "size_bytes")

    def __init__(self, at: int, key: Key, item: _Item, size_bytes: int) -> None:
        self.at, self.key, self.item, self.size_bytes = at, key, item, size_bytes


class Batches:
    """Batches of a client."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._exchange = operations.exchange

    def put_many(
        self,
        bucket: Name,
        items: Items,
        bucket_type: Name | None,
        timeout_s: float | None,
    ) -> Operation[list[Written]]:
        """Write and delete many keys of a bucket. Raises BatchFailed."""
        given = [Put(key, value) for key, value in items.items()] if isinstance(items, Mapping) else list(items)
        results: list[Any] = [None] * len(given)
        slots = []
        for at, item in enumerate(given):
            try:
                slots.append(self._slot(at, item, bucket, bucket_type))
            except BadRequest as error:
                results[at] = error

        def result(slot: _Slot, status: int, clock: bytes | None, rest: Any) -> Written | ClientError:
            if status == 204:
                context = None if clock is None else Context(clock)
                return answers.written(slot.key, context, rest == b"repeated")
            if status == 404 and rest == b"not-found":
                return answers.written(slot.key, None if clock is None else Context(clock), False)
            return answers.item_refusal(status, rest)

        yield from self._all(b"/batch/put", slots, results, result, True, timeout_s)
        _check(results)
        return results

    def get_many(
        self,
        bucket: Name,
        keys: Iterable[Name],
        resolver: Resolver | None,
        bucket_type: Name | None,
        timeout_s: float | None,
    ) -> Operation[list[StoredObject | None]]:
        """Read many keys of a bucket; None for one that does not exist. Raises BatchFailed."""
        operations = self._operations
        given = list(keys)
        results: list[Any] = [None] * len(given)
        slots = []
        for at, name in enumerate(given):
            try:
                key = operations.key(bucket_type, bucket, name)
            except BadRequest as error:
                results[at] = error
            else:
                slots.append(_Slot(at, key, tuple(key), 0))

        def result(slot: _Slot, status: int, clock: bytes | None, rest: Any) -> StoredObject | ClientError | None:
            if status in (200, 300):
                return answers.item_object(slot.key, clock, rest, operations.codecs, resolver or operations.resolver)
            if status == 404 and (clock is not None or rest == b"not-found"):
                return None
            return answers.item_refusal(status, rest)

        yield from self._all(BATCH_GET, slots, results, result, False, timeout_s)
        _check(results)
        return results

    def _slot(self, at: int, item: Put | Delete, bucket: Name, bucket_type: Name | None) -> _Slot:
        """Raises BadRequest."""
        if not isinstance(item, Put | Delete):
            raise BadRequest(f"an item is a {type(item).__name__}: it must be a Put or a Delete", reason="bad-call")
        key = self._operations.key(bucket_type, bucket, item.key)
        context = context_of(item.context, key)
        clock = None if context is None else context.vclock
        request_id = self._operations.request_id(item.request_id)
        if isinstance(item, Delete):
            return _Slot(at, key, (*key, None, None, clock, None, request_id), 0)
        body, content_type = encode_value(item.value, item.content_type, self._operations.codecs)
        extras = [b"", check_metadata(item.metadata), [], []] if item.metadata else None
        return _Slot(at, key, (*key, body, check_content_type(content_type), clock, extras, request_id), len(body))

    def _all(
        self,
        path: bytes,
        slots: Sequence[_Slot],
        results: list[Any],
        result: Any,
        writes: bool,
        timeout_s: float | None,
    ) -> Operation[None]:
        """Fill `results` by what `result` makes of each answer."""
        self._exchange.deadline_s(timeout_s)  # a wrong time limit is an error of the call, not of each item
        broken: ClientError | None = None
        for chunk in self._chunks(slots):
            if broken is not None:
                for slot in chunk:
                    results[slot.at] = _not_sent(broken)
                continue
            waiting = [chunk]
            while waiting and broken is None:
                part = waiting.pop()
                try:
                    yield from self._chunk(path, part, results, result, writes, timeout_s)
                except BadRequest as error:
                    if error.status == 413 and len(part) > 1:
                        middle = len(part) // 2
                        waiting += [part[middle:], part[:middle]]
                    else:
                        _fill(results, part, error)
                except (Retryable, OutcomeUnknown, ServerFault, Refused) as error:
                    _fill(results, part, error)
                    broken = error
            for part in waiting:
                assert broken is not None
                _fill(results, part, _not_sent(broken))

    def _chunk(
        self,
        path: bytes,
        chunk: Sequence[_Slot],
        results: list[Any],
        result: Any,
        writes: bool,
        timeout_s: float | None,
    ) -> Operation[None]:
        """Send a chunk until each of its items has a result that no repetition changes, or time is over."""
        exchange = self._exchange
        deadline_s = exchange.deadline_s(timeout_s)
        uncertain: dict[int, ClientError] = {}
        attempt = 0
        wait_s = 0.0
        while True:
            request = Request(b"POST", path, (MSGPACK,), msgpack.packb([slot.item for slot in chunk]))
            try:
                if wait_s:
                    yield Sleep(wait_s)
                answer: Response = yield from (
                    exchange.write(request, chunk[0].key, deadline_s, "")
                    if writes
                    else exchange.read(request, chunk[0].key, deadline_s)
                )
                parsed = answers.parse_batch(answer, len(chunk))
            except ClientError as error:
                for slot in chunk:
                    if slot.at in uncertain:
                        results[slot.at] = _unknown(uncertain[slot.at], slot, error)
                raise
            again = []
            for slot, (status, clock, rest) in zip(chunk, parsed, strict=True):
                made = results[slot.at] = result(slot, status, clock, rest)
                if isinstance(made, Retryable | ServerFault):
                    again.append(slot)
                    if writes and isinstance(made, ServerFault):
                        uncertain[slot.at] = made
                elif isinstance(made, ClientError) and slot.at in uncertain:
                    results[slot.at] = _unknown(uncertain[slot.at], slot, made)
            # Objects that had no room in an answer with others are asked for at once.
            full = not writes and len(again) < len(chunk) and all(results[s.at].reason == "overloaded" for s in again)
            chunk = again
            if not chunk:
                return
            wait_s = 0.0 if full else pause_s(attempt, exchange.chance)
            attempt += not full
            if attempt == exchange.limits.attempts or wait_s >= deadline_s - exchange.now_s():
                break
        for slot in chunk:
            if slot.at in uncertain:
                results[slot.at] = _unknown(uncertain[slot.at], slot, results[slot.at])

    def _chunks(self, slots: Sequence[_Slot]) -> Iterator[list[_Slot]]:
        """Chunks whose keys have one leader, as far as it is known. The order within a key stays."""
        open_chunks: dict[Any, list[_Slot]] = {}
        sizes: dict[Any, int] = {}
        for slot in slots:
            leader = self._exchange.nodes.leader(slot.key)
            chunk = open_chunks.setdefault(leader, [])
            if chunk and (len(chunk) == CHUNK_ITEMS or sizes[leader] + slot.size_bytes > CHUNK_BYTES):
                yield chunk
                chunk = open_chunks[leader] = []
                sizes[leader] = 0
            chunk.append(slot)
            sizes[leader] = sizes.get(leader, 0) + slot.size_bytes
        yield from open_chunks.values()


def _fill(results: list[Any], part: Sequence[_Slot], error: ClientError) -> None:
    """The error of a whole request for each of its items that has no result yet."""
    for slot in part:
        known = results[slot.at]
        if known is None or isinstance(known, Retryable | ServerFault):
            if isinstance(error, OutcomeUnknown):
                results[slot.at] = _unknown(error, slot, error)
            else:
                results[slot.at] = error


def _unknown(first: ClientError, slot: _Slot, last: ClientError) -> OutcomeUnknown:
    made = OutcomeUnknown(first.message, reason=first.reason, status=first.status, request_id=str(slot.item[7]))
    made.__cause__ = last
    return made


def _not_sent(broken: ClientError) -> ClientError:
    if isinstance(broken, Refused):
        return broken
    return Retryable(f"not sent, since a chunk before it failed: {broken}", reason="not-sent")


def _check(results: list[Any]) -> None:
    """Raise BatchFailed if an item failed."""
    if any(isinstance(result, ClientError) for result in results):
        raise BatchFailed(results)
