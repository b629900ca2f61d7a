"""The operations of a client on one key or bucket, as generators of steps (`steps`)."""

from __future__ import annotations

import copy
import json
import random
import re
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgpack

from isthmus.client import answers
from isthmus.client.answers import INDEX, META
from isthmus.client.errors import BadRequest, Conflict, Retryable, ServerFault
from isthmus.client.exchange import Exchange, pause_s
from isthmus.client.names import Key, bucket_path, name_bytes, name_text, quoted, type_path
from isthmus.client.nodes import Nodes
from isthmus.client.objects import (
    Context,
    HasContext,
    Link,
    Name,
    NotFound,
    Resolver,
    Sibling,
    Siblings,
    StoredObject,
    Written,
    context_of,
    shown,
)
from isthmus.client.options import Settings
from isthmus.client.steps import Call, Operation, Request, Sleep
from isthmus.client.values import Codecs, encode_value, keeps_type

REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,64}")

REQUEST_ID_BYTES: Final = 18
"""Random bytes of a request id that the client makes: two are never equal, and base64 of them needs no padding."""

PAGE_NAMES_MAX: Final = 10_000
"""Most names that a node sends in one page of a listing."""

BATCH_GET: Final = b"/batch/get"
MSGPACK: Final = (b"Content-Type", b"application/msgpack")

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTENT_TYPE: Final = re.compile(r"[\x21-\x7e]+/[\x20-\x7e]+")
_HEADER_VALUE: Final = re.compile(r"(?:[^\x00-\x20\x7f](?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")

Change = Callable[[Any], Any | Awaitable[Any]]
"""The function of an update: the present value -> the new one."""


@dataclass(frozen=True, slots=True)
class Updated(Written):
    """The result of an update."""

    value: Any
    """The value that the function returned, as it was written."""


class Page(NamedTuple):
    """One page of a listing."""

    names: list[str]
    continuation: str
    """Where the next page begins; "" after the last one."""


class Extras(NamedTuple):
    """Data stored with a value."""

    metadata: Mapping[str, str]
    content_encoding: str = ""
    indexes: tuple[tuple[str, str], ...] = ()
    links: tuple[Link, ...] = ()


class Operations:
    """`update_attempts`: how often an update reads and writes before it gives up."""

    def __init__(
        self,
        exchange: Exchange,
        bucket_type: Name,
        codecs: Codecs,
        resolver: Resolver | None,
        update_attempts: int,
    ) -> None:
        self.exchange = exchange
        self.codecs = codecs
        self.resolver = resolver
        self._bucket_type = name_bytes(bucket_type, "bucket_type")
        self._update_attempts = update_attempts

    def type_of(self, bucket_type: Name | None) -> bytes:
        """The bytes of a bucket type, of that of the client for None."""
        return self._bucket_type if bucket_type is None else name_bytes(bucket_type, "bucket_type")

    def key(self, bucket_type: Name | None, bucket: Name, key: Name) -> Key:
        """The full name of an object. Raises BadRequest."""
        return Key(self.type_of(bucket_type), name_bytes(bucket, "bucket"), name_bytes(key, "key"))

    def request_id(self, given: str | None) -> str:
        """The request id of a write: the given one, or one that no other write has. Raises BadRequest."""
        if given is None:
            return urlsafe_b64encode(self.exchange.chance.randbytes(REQUEST_ID_BYTES)).decode()
        if not isinstance(given, str) or REQUEST_ID.fullmatch(given) is None:
            raise BadRequest("a request id has 1 to 64 printable ASCII characters, no space", reason="bad-request-id")
        return given

    def get(self, key: Key, resolver: Resolver | None, timeout_s: float | None) -> Operation[StoredObject]:
        """Read an object. Raises NotFound."""
        found = yield from self._read(key, resolver, self.exchange.deadline_s(timeout_s))
        if isinstance(found, NotFound):
            raise found
        return found

    def find(self, key: Key, resolver: Resolver | None, timeout_s: float | None) -> Operation[StoredObject | None]:
        """Read an object; None if there is none."""
        found = yield from self._read(key, resolver, self.exchange.deadline_s(timeout_s))
        return None if isinstance(found, NotFound) else found

    def exists(self, key: Key, timeout_s: float | None) -> Operation[bool]:
        """Whether a key exists."""
        answer = yield from self.exchange.read(Request(b"HEAD", key.path), key, self.exchange.deadline_s(timeout_s))
        return answer.status != 404

    def put(
        self,
        key: Key,
        value: Any,
        *,
        context: HasContext,
        content_type: str | None,
        metadata: Mapping[str, str] | None,
        content_encoding: str,
        if_absent: bool,
        if_unchanged: bool,
        request_id: str | None,
        timeout_s: float | None,
    ) -> Operation[Written]:
        """Write a value."""
        body, content_type = encode_value(value, content_type, self.codecs)
        known = context_of(context, key)
        headers = [
            *_content_headers(content_type, Extras(metadata or {}, content_encoding)),
            *_condition(known, if_absent, if_unchanged),
        ]
        deadline_s = self.exchange.deadline_s(timeout_s)
        return (yield from self._write(key, headers, body, self.request_id(request_id), deadline_s))

    def overwrite(
        self,
        key: Key,
        value: Any,
        *,
        content_type: str | None,
        metadata: Mapping[str, str] | None,
        content_encoding: str,
        timeout_s: float | None,
    ) -> Operation[Written]:
        """Write a value in place of whatever is there."""
        body, content_type = encode_value(value, content_type, self.codecs)
        content = _content_headers(content_type, Extras(metadata or {}, content_encoding))
        deadline_s = self.exchange.deadline_s(timeout_s)
        for attempt in range(self._update_attempts):
            head = yield from self.exchange.read(Request(b"HEAD", key.path), key, deadline_s)
            context = answers.clock_of(head)
            headers = [*content, *_condition(context, head.status == 404, head.status != 404)]
            try:
                return (yield from self._write(key, headers, body, self.request_id(None), deadline_s))
            except Conflict as conflict:
                yield from self._before_next(attempt, deadline_s, key, conflict)
        raise AssertionError("unreachable: the last attempt raises")

    def update(
        self,
        key: Key,
        change: Change,
        *,
        default: Any,
        resolver: Callable[..., Any] | None,
        content_type: str | None,
        metadata: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> Operation[Updated]:
        """Read, change and write, until nobody else has written in between."""
        resolver = resolver or self.resolver
        deadline_s = self.exchange.deadline_s(timeout_s)
        for attempt in range(self._update_attempts):
            found = yield from self._read(key, None, deadline_s)
            if isinstance(found, NotFound):
                value, before = copy.deepcopy(default), None
            else:
                value, before = yield from self._resolved(found, resolver)
            changed = yield Call(change, (value,))
            if changed is None:
                raise TypeError(
                    "the function of an update returned None: it must return the new value, also when it changes the "
                    "one that it was given"
                )
            body, kind, extras = self._changed(changed, before, content_type, metadata)
            context = found.context
            headers = [*_content_headers(kind, extras), *_condition(context, before is None, before is not None)]
            try:
                written = yield from self._write(key, headers, body, self.request_id(None), deadline_s)
            except Conflict as conflict:
                yield from self._before_next(attempt, deadline_s, key, conflict)
            else:
                parts = (written.bucket_type, written.bucket, written.key, written.context, written.repeated)
                return Updated(*parts, changed)
        raise AssertionError("unreachable: the last attempt raises")

    def delete(
        self,
        key: Key,
        *,
        context: HasContext,
        if_unchanged: bool,
        request_id: str | None,
        timeout_s: float | None,
    ) -> Operation[bool]:
        """Delete a key; False if there was nothing to delete."""
        known = context_of(context, key)
        request_id = self.request_id(request_id)
        headers = (*_condition(known, False, if_unchanged), (b"X-Isthmus-Request-Id", request_id.encode()))
        request = Request(b"DELETE", key.path, headers)
        answer = yield from self.exchange.write(request, key, self.exchange.deadline_s(timeout_s), request_id)
        return answer.status != 404

    def page(
        self,
        bucket_type: Name | None,
        bucket: Name | None,
        prefix: Name,
        page_size: int,
        continuation: str,
        timeout_s: float | None,
    ) -> Operation[Page]:
        """A page of the keys of a bucket, or of the buckets of a type for None."""
        if not 1 <= page_size <= PAGE_NAMES_MAX:
            raise BadRequest(f"page_size is {page_size}: it must be 1 to {PAGE_NAMES_MAX}", reason="bad-query")
        kind = self.type_of(bucket_type)
        begin = name_bytes(prefix, "prefix") if prefix else b""
        if bucket is None:
            what, path = "buckets", type_path(kind) + b"/buckets"
        else:
            what, path = "keys", bucket_path(kind, name_bytes(bucket, "bucket")) + b"/keys"
        query = b"%b=true&encoding=percent&limit=%d" % (what.encode(), page_size)
        if begin:
            query += b"&prefix=" + quoted(begin)
        if continuation:
            query += b"&continuation=" + quoted(name_bytes(continuation, "continuation"))
        request = Request(b"GET", path + b"?" + query)
        answer = yield from self.exchange.read(request, None, self.exchange.deadline_s(timeout_s))
        return _page(answer.body, what, begin)

    def properties(
        self, bucket_type: Name | None, bucket: Name | None, timeout_s: float | None
    ) -> Operation[dict[str, Any]]:
        """The properties of a bucket, or of a bucket type for None."""
        kind = self.type_of(bucket_type)
        if bucket is None:
            path = b"/types/" + quoted(kind) + b"/props"
        else:
            path = bucket_path(kind, name_bytes(bucket, "bucket")) + b"/props"
        answer = yield from self.exchange.read(Request(b"GET", path), None, self.exchange.deadline_s(timeout_s))
        try:
            props = json.loads(answer.body)["props"]
            if not isinstance(props, dict):
                raise ValueError("props is not an object")
            return props
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerFault(f"the answer has no properties: {error}", reason="bad-answer") from error

    def _read(self, key: Key, resolver: Resolver | None, deadline_s: float) -> Operation[StoredObject | NotFound]:
        resolver = resolver or self.resolver
        answer = yield from self.exchange.read(Request(b"GET", key.path), key, deadline_s)
        if answer.status == 404:
            return answers.not_found(key, answers.clock_of(answer))
        if answer.status == 300:
            return (yield from self._read_siblings(key, resolver, deadline_s))
        return answers.parse_object(key, answer, self.codecs, resolver)

    def _read_siblings(
        self, key: Key, resolver: Resolver | None, deadline_s: float
    ) -> Operation[StoredObject | NotFound]:
        """Read a key by a batch of one item, whose answer has all siblings, with their times in milliseconds."""
        exchange = self.exchange
        request = Request(b"POST", BATCH_GET, (MSGPACK,), msgpack.packb([key]))
        for attempt in range(exchange.limits.attempts):
            answer = yield from exchange.read(request, key, deadline_s)
            ((status, clock, rest),) = answers.parse_batch(answer, 1)
            if status in (200, 300):
                return answers.item_object(key, clock, rest, self.codecs, resolver)
            if status == 404 and (clock is not None or rest == b"not-found"):
                return answers.not_found(key, None if clock is None else Context(clock))
            error = answers.item_refusal(status, rest)
            wait_s = pause_s(attempt, exchange.chance)
            if not isinstance(error, Retryable) or wait_s >= deadline_s - exchange.now_s():
                break
            yield Sleep(wait_s)
        raise error

    def _write(
        self, key: Key, headers: list[tuple[bytes, bytes]], body: bytes, request_id: str, deadline_s: float
    ) -> Operation[Written]:
        headers.append((b"X-Isthmus-Request-Id", request_id.encode()))
        request = Request(b"PUT", key.path, tuple(headers), body)
        answer = yield from self.exchange.write(request, key, deadline_s, request_id)
        return answers.parse_written(key, answer)

    def _resolved(self, found: StoredObject, resolver: Callable[..., Any] | None) -> Operation[tuple[Any, Sibling]]:
        """The value to change, and the version whose content type and metadata stay."""
        if not found.in_conflict:
            return found.content.value, found.content
        if resolver is None:
            raise Siblings(found)
        resolved = yield Call(resolver, (found.siblings,))
        if isinstance(resolved, Sibling):
            return resolved.value, resolved
        return resolved, max(found.siblings, key=lambda each: (not each.deleted, each.last_modified))

    def _changed(
        self, value: Any, before: Sibling | None, content_type: str | None, metadata: Mapping[str, str] | None
    ) -> tuple[bytes, str, Extras]:
        """The bytes, content type and extras of an updated value: those of the value before, as far as they fit."""
        extras = Extras(metadata or {})
        if before is not None and not before.deleted:
            is_bytes = isinstance(value, bytes | bytearray | memoryview)
            encoded = bool(before.content_encoding) and is_bytes
            if content_type is None and (encoded or keeps_type(value, before.content_type, self.codecs)):
                content_type = before.content_type
            extras = Extras(
                before.metadata if metadata is None else metadata,
                before.content_encoding if encoded else "",
                before.indexes,
                before.links,
            )
        body, kind = encode_value(value, content_type, self.codecs)
        return body, kind, extras

    def _before_next(self, attempt: int, deadline_s: float, key: Key, conflict: Conflict) -> Operation[None]:
        """Wait before the next round of an update. Raises Conflict when there is none."""
        wait_s = pause_s(attempt, self.exchange.chance)
        if attempt + 1 == self._update_attempts or wait_s >= deadline_s - self.exchange.now_s():
            raise Conflict(
                f"{shown(name_text(key.bucket), name_text(key.key))} was changed by others in each of "
                f"{attempt + 1} attempts",
                reason=conflict.reason,
                status=conflict.status,
            ) from conflict
        yield Sleep(wait_s)


def operations_of(settings: Settings, now_s: Callable[[], float]) -> Operations:
    """The operations of a client with these options. `now_s` is a monotonic clock."""
    nodes = Nodes(settings.seeds, routing=settings.routing, discover=settings.discover)
    exchange = Exchange(nodes, settings.limits, now_s, settings.authorization, random.SystemRandom())
    return Operations(exchange, settings.bucket_type, settings.codecs, settings.resolver, settings.update_attempts)


def check_content_type(content_type: str) -> bytes:
    """A content type as bytes. Raises BadRequest."""
    if _CONTENT_TYPE.fullmatch(content_type) is None:
        raise BadRequest(f"content_type is {content_type!r}: it must be TYPE/SUBTYPE", reason="bad-content-type")
    return content_type.encode()


def check_metadata(metadata: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Names in lower case and values of metadata as bytes. Raises BadRequest."""
    found = []
    for name, value in metadata.items():
        if _TOKEN.fullmatch(name) is None:
            raise BadRequest(
                f"{name!r} is not a name of metadata: use letters, digits and !#$%&'*+-.^_`|~", reason="bad-header"
            )
        found.append((name.lower().encode(), _header_value(value, f"metadata {name}")))
    return found


def _header_value(value: str, what: str) -> bytes:
    if not isinstance(value, str) or _HEADER_VALUE.fullmatch(value) is None:
        raise BadRequest(f"{what}: text without line ends, and without spaces at its ends", reason="bad-header")
    return value.encode("utf-8", "surrogateescape")


def _content_headers(content_type: str, extras: Extras) -> list[tuple[bytes, bytes]]:
    headers = [(b"Content-Type", check_content_type(content_type))]
    if extras.content_encoding:
        headers.append((b"Content-Encoding", _header_value(extras.content_encoding, "content_encoding")))
    headers += [(META.encode() + name, value) for name, value in check_metadata(extras.metadata)]
    for name, value in extras.indexes:
        headers.append(
            (INDEX.encode() + name.encode("utf-8", "surrogateescape"), _header_value(value, f"index {name}"))
        )
    if extras.links:
        shown = [
            b'</buckets/%b/keys/%b>; riaktag="%b"' % tuple(quoted(name_bytes(part, "link")) for part in link)
            for link in extras.links
        ]
        headers.append((b"Link", b", ".join(shown)))
    return headers


def _condition(context: Context | None, if_absent: bool, if_unchanged: bool) -> list[tuple[bytes, bytes]]:
    """The headers for the version that a write replaces, and on which it depends. Raises BadRequest."""
    headers: list[tuple[bytes, bytes]] = []
    if if_absent and if_unchanged:
        raise BadRequest("if_absent and if_unchanged exclude each other", reason="bad-call")
    if if_unchanged and context is None:
        raise BadRequest("if_unchanged needs a context: the object as it was read", reason="bad-call")
    if context is not None:
        clock = str(context).encode()
        headers.append((b"X-Riak-Vclock", clock))
        if if_unchanged:
            headers.append((b"X-Riak-If-Not-Modified", clock))
    if if_absent:
        headers.append((b"If-None-Match", b"*"))
    return headers


def _page(body: bytes, what: str, prefix: bytes) -> Page:
    """The names of a page. A node of a version without pages sends all names, whatever their prefix."""
    try:
        document = json.loads(body)
        names = [unquote_to_bytes(name) for name in document[what]]
        continuation = document.get("continuation", "")
        if not isinstance(continuation, str):
            raise ValueError("continuation is not text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ServerFault(f"the answer is not a listing: {error}", reason="bad-answer") from error
    return Page([name_text(name) for name in names if name.startswith(prefix)], continuation)
