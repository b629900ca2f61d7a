"""Client sessions: each does one operation at a time, through any node of its cluster, and records it in the history.

Two kinds: `RawSession` sends requests of its own making, and repeats them by the decisions of the Python client
(`isthmus.client.exchange`); `ProductSession` is the Python client itself.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgpack

from isthmus.client import AsyncClient
from isthmus.client.answers import parse_batch, reason_of
from isthmus.client.errors import BatchFailed, ClientError, OutcomeUnknown, Retryable
from isthmus.client.exchange import Exchange, Limits
from isthmus.client.names import Key as ClientKey
from isthmus.client.nodes import Nodes
from isthmus.client.objects import Context, Delete, NotFound, Put, StoredObject, Written
from isthmus.client.operations import BATCH_GET
from isthmus.client.options import Options as ClientOptions
from isthmus.client.routes import PATH as ROUTES_PATH
from isthmus.client.steps import Endpoint, NoAnswer, Request, Response, Send, Sleep
from isthmus.client.steps import Operation as Exchanging
from tests.simulation.world.history import (
    PLAIN,
    Content,
    History,
    Key,
    Kind,
    Listing,
    Operation,
    Outcome,
    Surprise,
    clock_in,
    clock_of,
)
from tests.simulation.world.node import HTTP_PORT
from tests.simulation.world.raw_http import RawTransport

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.machine import VirtualMachine

CONNECT_TIMEOUT_S: Final = 1.0

ATTEMPTS: Final = 12
"""As of the Python client."""

PADDINGS: Final = (0, 0, 40, 400, 4_000)
"""Bytes that values are larger than their text."""

BULKY: Final = (0, 400, 4_000, 30_000, 50_000)
"""The same in worlds of large values."""

KNOWN_MAX: Final = 3
"""Answers for one key that a session remembers, so that it may use an old one."""

EXPECTED_REFUSALS: Final = frozenset(
    (
        "precondition-failed",
        "modified",
        "too-many-siblings",
        "too-large",
        "not-found",
    )
)
"""Refusals that a request of a session may earn in a sound cluster."""

_MSGPACK: Final = (b"Content-Type", b"application/msgpack")
_ACCEPT: Final = (b"Accept", b"application/json")


class Known(NamedTuple):
    """What a session knows of a key by one answer."""

    clock: bytes
    """Encoded."""
    etag: str = ""
    values: tuple[str, ...] = ()


class Value(NamedTuple):
    """What is to be written; `text` is "" for a delete."""

    text: str
    content: Content = PLAIN
    padding: int = 0

    @property
    def body(self) -> bytes:
        """The bytes."""
        return self.text.encode() + b" " * self.padding


class Attempts:
    """A transport that notes what became of each attempt."""

    def __init__(self, session: Session, transport: Any) -> None:
        self._session = session
        self._transport = transport
        self.uncertain = False
        """An attempt of the operation under way may have taken effect, or still may: also after an attempt that was
        refused, or a delete that found nothing, since a request may be late."""

    async def send(self, send: Send) -> Response | NoAnswer:
        """The answer to a request."""
        result: Response | NoAnswer = await self._transport.send(send)
        method, target = send.request.method, send.request.target
        if target == ROUTES_PATH:
            return result
        writes = method not in (b"GET", b"HEAD") and target != BATCH_GET
        count = self._session.history.count
        if isinstance(result, NoAnswer):
            count(f"{method.decode()} no answer{' to what was sent' if result.sent else ''}")
            self.uncertain = self.uncertain or (writes and result.sent)
            return result
        reason = reason_of(result)
        count(f"{method.decode()} {result.status} {reason}".rstrip())
        if reason == "internal":
            self._session.surprised(f"{target!r} at {send.node}: 500 {result.body!r}", reason)
        self.uncertain = self.uncertain or (writes and result.status in (500, 502, 504))
        return result

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()


class Session(ABC):
    """A client of one cluster. Its subclasses send."""

    def __init__(self, name: str, cluster: WorldCluster, machine: VirtualMachine, history: History) -> None:
        self.name = name
        self.cluster = cluster.name
        self.history = history
        self.lock = asyncio.Lock()
        self.known: dict[Key, list[Known]] = {}
        """The newest answers for each key, the newest last."""
        self.attempts: Attempts
        self.paddings = PADDINGS
        self._credentials = cluster.credentials
        self._machine = machine
        self._values = 0

    def endpoints(self, cluster: WorldCluster) -> list[Endpoint]:
        """The nodes of its cluster."""
        return [Endpoint(node.scheme, node.machine.address, HTTP_PORT) for node in cluster.nodes.values()]

    def value(self, chance: Random) -> Value:
        """A value that nobody writes a second time."""
        self._values += 1
        text = f"{self.name}.{self._values}"
        indexes: tuple[tuple[str, str], ...] = ()
        metadata: tuple[tuple[str, str], ...] = ()
        if chance.random() < 0.2:
            indexes = (("age_int", str(chance.randrange(100))), ("name_bin", text))
        if chance.random() < 0.2:
            metadata = (("by", text),)
        padding = chance.choice(self.paddings)
        return Value(text, Content("text/plain", indexes, metadata), padding)

    def now_ns(self) -> int:
        """The time of the world."""
        return self._machine.kernel.now_ns

    def begin(self, kind: Kind, key: Key, value: Value | None = None, **more: Any) -> Operation:
        """Record an operation that begins."""
        self.attempts.uncertain = False
        text, content = ("", PLAIN) if value is None else (value.text, value.content)
        made = Operation(kind, self.name, self.cluster, key, self.now_ns(), value=text, content=content, **more)
        return self.history.add(made)

    def end(self, operation: Operation, outcome: Outcome, reason: str = "") -> None:
        """Record how an operation ended."""
        operation.answered_ns = self.now_ns()
        operation.outcome = outcome
        operation.reason = reason
        self.history.count(f"{operation.kind} {outcome} {reason}".rstrip())

    def failed(self, operation: Operation, error: ClientError) -> None:
        """Record an operation that ended with an error of the client."""
        self.refused(operation, error.reason, unknown=isinstance(error, OutcomeUnknown))
        if isinstance(error, OutcomeUnknown):
            return
        credentials = self._credentials
        if error.reason == "unauthorized" and credentials is not None and operation.called_ns < credentials.removed_ns:
            return  # it was on its way with a token that has been taken out
        if not isinstance(error, Retryable) and error.reason not in EXPECTED_REFUSALS:
            self.surprised(f"{operation}: {error.reason}: {error.message}", error.reason)

    def refused(self, operation: Operation, reason: str, *, unknown: bool = False) -> None:
        """Record an operation that was refused, or whose outcome is unknown."""
        unknown = unknown or (operation.writes and self.attempts.uncertain)
        self.end(operation, Outcome.UNKNOWN if unknown else Outcome.REFUSED, reason)

    def found_nothing(self, operation: Operation, clock: bytes | None) -> None:
        """Record a delete that found nothing: a read, unless an attempt before may still find something."""
        if self.attempts.uncertain:
            self.end(operation, Outcome.UNKNOWN, "not-found")
        else:
            operation.kind = Kind.READ
            self.read_ended(operation, clock, "", ())

    def surprised(self, what: str, reason: str) -> None:
        """Record an answer that a sound cluster does not give."""
        self.history.surprises.append(Surprise(self.now_ns(), self.cluster, reason, f"{self.name}: {what}"))

    def learn(self, operation: Operation, known: Known) -> None:
        """Remember an answer."""
        kept = self.known.setdefault(operation.key, [])
        kept.append(known)
        del kept[:-KNOWN_MAX]

    def forget(self, key: Key) -> None:
        """Forget what is known of a key."""
        self.known.pop(key, None)

    def read_ended(
        self, operation: Operation, clock: bytes | None, etag: str, found: Sequence[tuple[str, Content]]
    ) -> None:
        """Record the answer to a read, or to a delete that found nothing; learn from it."""
        operation.values = tuple(text for text, _ in found)
        operation.contents = tuple(content for _, content in found)
        operation.clock = None if clock is None else clock_in(clock)
        self.end(operation, Outcome.OK)
        if clock is None:
            self.forget(operation.key)
        else:
            self.learn(operation, Known(clock, etag, operation.values))

    def write_ended(self, operation: Operation, clock: bytes | None, *, repeated: bool) -> None:
        """Record the answer to a write; learn from it."""
        operation.repeated = repeated
        operation.clock = None if clock is None else clock_in(clock)
        self.end(operation, Outcome.OK, "repeated" if repeated else "")
        if clock is not None:
            self.learn(operation, Known(clock))

    @abstractmethod
    async def read(self, key: Key) -> Operation:
        """Read a key."""

    @abstractmethod
    async def put(
        self, key: Key, value: Value, context: Known | None, *, if_absent: bool = False, if_unchanged: bool = False
    ) -> Operation:
        """Write a value. `if_absent`, `if_unchanged`: only if the key does not exist, or is as in the context."""

    @abstractmethod
    async def delete(self, key: Key, context: Known | None) -> Operation:
        """Delete a key."""

    @abstractmethod
    async def batch_get(self, keys: Sequence[Key]) -> None:
        """Read keys of one bucket."""

    @abstractmethod
    async def batch_put(self, items: Sequence[tuple[Key, Value | None, Known | None]]) -> None:
        """Write (a value) or delete (None) keys of one bucket, each once."""

    @abstractmethod
    async def update(self, key: Key, chance: Random) -> None:
        """Read a value and write another in its place, until nobody wrote in between."""


class RawSession(Session):
    """Requests of its own making."""

    def __init__(
        self,
        name: str,
        cluster: WorldCluster,
        machine: VirtualMachine,
        history: History,
        chance: Random,
        *,
        identified: bool,
        routing: bool,
        timeout_s: float,
    ) -> None:
        """`identified`: its writes have request ids, and are repeated while their outcome is unknown."""
        super().__init__(name, cluster, machine, history)
        self.identified = identified
        self.attempts = Attempts(self, RawTransport(machine.loop, cluster.credentials))
        nodes = Nodes(self.endpoints(cluster), routing=routing, discover=True)
        now_s = machine.loop.time
        self._exchange = Exchange(nodes, Limits(timeout_s, None, CONNECT_TIMEOUT_S, ATTEMPTS), now_s, None, chance)
        self._once = Exchange(nodes, Limits(timeout_s, None, CONNECT_TIMEOUT_S, 1), now_s, None, chance)
        self._writing = self._exchange if identified else self._once
        self._ids = 0

    async def carry_out(self, operation: Exchanging[Response]) -> Response:
        """The answer. Raises ClientError."""
        result: Any = None
        try:
            while True:
                step = operation.send(result)
                if isinstance(step, Send):
                    result = await self.attempts.send(step)
                else:
                    assert isinstance(step, Sleep)
                    result = await asyncio.sleep(step.seconds)
        except StopIteration as end:
            answer: Response = end.value
            return answer

    def deadline_s(self) -> float:
        """When a call ends that begins now."""
        return self._exchange.deadline_s(None)

    def id_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """A new request id, as headers; none if this session uses none."""
        if not self.identified:
            return ()
        self._ids += 1
        return ((b"X-Isthmus-Request-Id", f"{self.name}-{self._ids}".encode()),)

    async def read(self, key: Key) -> Operation:
        operation = self.begin(Kind.READ, key)
        await self._get(operation, (_ACCEPT,))
        return operation

    async def _get(self, operation: Operation, headers: tuple[tuple[bytes, bytes], ...]) -> Response | None:
        name = client_key(operation.key)
        try:
            answer = await self.carry_out(
                self._exchange.read(Request(b"GET", name.path, headers), name, self.deadline_s())
            )
        except ClientError as error:
            self.failed(operation, error)
            return None
        if answer.status != 304:
            self.read_ended(operation, *found_in(answer))
        return answer

    async def read_if_changed(self, key: Key) -> None:
        """Read a key with If-None-Match: what is known, or *."""
        known = [each for each in self.known.get(key, ()) if each.etag]
        if not known:
            await self.read(key)
            return
        operation = self.begin(Kind.READ, key)
        answer = await self._get(operation, (_ACCEPT, (b"If-None-Match", f'"{known[-1].etag}"'.encode())))
        if answer is not None and answer.status == 304:
            # The key holds the version that is known; its clock may have grown since.
            clock = answer.headers.get("x-riak-vclock")
            operation.values = known[-1].values
            operation.clock = clock_of(clock)
            self.end(operation, Outcome.OK, "not-modified")

    async def put(
        self, key: Key, value: Value, context: Known | None, *, if_absent: bool = False, if_unchanged: bool = False
    ) -> Operation:
        headers = [*content_headers(value.content), *self.id_headers()]
        by_tag = False
        if if_absent:
            headers.append((b"If-None-Match", b"*"))
        if context is not None:
            clock = b64encode(context.clock)
            by_tag = if_unchanged and bool(context.etag)
            if by_tag:
                headers.append((b"If-Match", f'"{context.etag}"'.encode()))
            else:
                headers.append((b"X-Riak-Vclock", clock))
                if if_unchanged:
                    headers.append((b"X-Riak-If-Not-Modified", clock))
        operation = self.begin(
            Kind.PUT,
            key,
            value,
            context=None if context is None or by_tag else clock_in(context.clock),
            replaces_all=by_tag,
            if_absent=if_absent,
        )
        await self._write(operation, Request(b"PUT", client_key(key).path, tuple(headers), value.body))
        return operation

    async def _write(self, operation: Operation, request: Request) -> None:
        name = client_key(operation.key)
        try:
            answer = await self.carry_out(self._writing.write(request, name, self.deadline_s(), "-"))
        except ClientError as error:
            self.failed(operation, error)
            return
        self._written(operation, answer)

    def _written(self, operation: Operation, answer: Response) -> None:
        clock = encoded_clock(answer)
        if answer.status == 404:
            self.found_nothing(operation, clock)
        else:
            self.write_ended(operation, clock, repeated=answer.headers.get("x-isthmus-repeated") == "true")

    async def put_twice(self, key: Key, value: Value, context: Known | None) -> None:
        """Write a value, and send the same request again once it is acknowledged."""
        ids = self.id_headers()
        headers = [*content_headers(value.content), *ids]
        if context is not None:
            headers.append((b"X-Riak-Vclock", b64encode(context.clock)))
        seen = None if context is None else clock_in(context.clock)
        operation = self.begin(Kind.PUT, key, value, context=seen)
        request = Request(b"PUT", client_key(key).path, tuple(headers), value.body)
        await self._write(operation, request)
        if operation.outcome is not Outcome.OK or not ids:
            return
        try:
            answer = await self.carry_out(self._writing.write(request, client_key(key), self.deadline_s(), "-"))
        except ClientError:
            return
        if answer.headers.get("x-isthmus-repeated") != "true":
            self.surprised(f"{operation}: the same request took effect again", "repeated")

    async def create(self, bucket_type: str, bucket: str, value: Value) -> None:
        """Write a value under a generated key, which is known only from the answer."""
        path = client_key(Key(bucket_type, bucket, "k")).path.rpartition(b"/")[0]
        request = Request(b"POST", path, tuple(content_headers(value.content)), value.body)
        called_ns = self.now_ns()
        try:
            answer = await self.carry_out(self._once.write(request, None, self.deadline_s(), "-"))
        except ClientError as error:
            self.history.count(f"post {error.reason}")
            return
        key = Key(bucket_type, bucket, unquote(answer.headers["location"].rpartition("/")[2]))
        operation = self.begin(Kind.PUT, key, value, if_absent=True)
        operation.called_ns = called_ns
        self.write_ended(operation, encoded_clock(answer), repeated=False)

    async def delete(self, key: Key, context: Known | None) -> Operation:
        headers = self.id_headers()
        if context is not None:
            headers += ((b"X-Riak-Vclock", b64encode(context.clock)),)
        seen = None if context is None else clock_in(context.clock)
        operation = self.begin(Kind.DELETE, key, context=seen, replaces_all=context is None)
        await self._write(operation, Request(b"DELETE", client_key(key).path, headers))
        return operation

    async def batch_get(self, keys: Sequence[Key]) -> None:
        operations = [self.begin(Kind.READ, key) for key in keys]
        body = msgpack.packb([[*key] for key in keys])
        try:
            answer = await self.carry_out(
                self._exchange.read(Request(b"POST", BATCH_GET, (_MSGPACK,), body), None, self.deadline_s())
            )
            items = parse_batch(answer, len(keys))
        except ClientError as error:
            for operation in operations:
                self.failed(operation, error)
            return
        for operation, (status, clock, rest) in zip(operations, items, strict=True):
            if status in (200, 300) or (status == 404 and (clock is not None or rest == b"not-found")):
                self.read_ended(operation, clock, *batch_siblings(rest if status != 404 else ()))
            else:
                self._item_failed(operation, status, rest)

    async def batch_put(self, items: Sequence[tuple[Key, Value | None, Known | None]]) -> None:
        operations = []
        body = []
        for key, value, context in items:
            seen = None if context is None else clock_in(context.clock)
            kind = Kind.DELETE if value is None else Kind.PUT
            operations.append(self.begin(kind, key, value, context=seen, replaces_all=value is None and seen is None))
            ids = self.id_headers()
            body.append(
                [
                    *key,
                    None if value is None else value.body,
                    None if value is None else value.content.content_type,
                    None if context is None else context.clock,
                    None if value is None else [b"", [*value.content.metadata], [], [*value.content.indexes]],
                    ids[0][1] if ids else None,
                ]
            )
        request = Request(b"POST", b"/batch/put", (_MSGPACK,), msgpack.packb(body))
        try:
            answer = await self.carry_out(self._writing.write(request, None, self.deadline_s(), "-"))
            answers = parse_batch(answer, len(items))
        except ClientError as error:
            for operation in operations:
                self.failed(operation, error)
            return
        for operation, (status, clock, rest) in zip(operations, answers, strict=True):
            if status == 204:
                self.write_ended(operation, clock, repeated=rest == b"repeated")
            elif status == 404 and rest == b"not-found":
                self.found_nothing(operation, clock)
            else:
                self._item_failed(operation, status, rest)

    def _item_failed(self, operation: Operation, status: int, rest: Any) -> None:
        reason = rest.decode().partition(":")[0] if isinstance(rest, bytes) else ""
        self.history.count(f"item {status} {reason}")
        self.refused(operation, reason, unknown=operation.writes and status in (500, 502, 504))
        if reason == "internal" or (status not in (500, 502, 503, 504) and reason not in EXPECTED_REFUSALS):
            self.surprised(f"{operation}: {status} {rest!r}", reason)

    async def update(self, key: Key, chance: Random) -> None:
        read = await self.read(key)
        if read.outcome is Outcome.OK:
            known = self.known.get(key)
            await self.put(key, self.value(chance), known[-1] if known else None, if_unchanged=bool(known))

    async def list_keys(self, bucket_type: str, bucket: str) -> None:
        """List the keys of a bucket."""
        path = client_key(Key(bucket_type, bucket, "k")).path.rpartition(b"/")[0] + b"?keys=true"
        called_ns = self.now_ns()
        try:
            answer = await self.carry_out(self._exchange.read(Request(b"GET", path), None, self.deadline_s()))
        except ClientError as error:
            self.history.count(f"list {error.reason}")
            return
        names = frozenset(json.loads(answer.body)["keys"])
        self.history.count("list ok")
        self.history.listings.append(Listing(self.cluster, bucket_type, bucket, called_ns, self.now_ns(), names))


class ProductSession(Session):
    """The Python client."""

    def __init__(
        self,
        name: str,
        cluster: WorldCluster,
        machine: VirtualMachine,
        history: History,
        chance: Random,
        *,
        routing: bool,
        timeout_s: float,
    ) -> None:
        super().__init__(name, cluster, machine, history)
        urls = [str(each) for each in self.endpoints(cluster)]
        options = ClientOptions(routing=routing, timeout_s=timeout_s, connect_timeout_s=CONNECT_TIMEOUT_S)
        credentials = cluster.credentials
        if credentials is not None:
            options["token_file"] = credentials.file("write")
            if credentials.client is not None:
                options["ssl_context"] = credentials.client
        self._client = AsyncClient(urls, **options)
        self._client._operations.exchange.chance = chance
        self.attempts = Attempts(self, self._client._transport)
        self._client._transport = self.attempts  # type: ignore[assignment]

    def value(self, chance: Random) -> Value:
        made = super().value(chance)
        return made._replace(content=Content("text/plain; charset=utf-8", (), made.content.metadata))

    async def read(self, key: Key) -> Operation:
        operation = self.begin(Kind.READ, key)
        try:
            found = await self._client.get(key.bucket, key.key, bucket_type=key.bucket_type)
        except NotFound as missing:
            self.read_ended(operation, None if missing.context is None else missing.context.vclock, "", ())
        except ClientError as error:
            self.failed(operation, error)
        else:
            self._found(operation, found)
        return operation

    def _found(self, operation: Operation, found: StoredObject) -> None:
        shown = [
            (
                each.body.decode().rstrip(),
                Content(each.content_type, each.indexes, tuple(sorted(each.metadata.items()))),
            )
            for each in found.siblings
            if not each.deleted
        ]
        self.read_ended(operation, found.context.vclock, found.etag, shown)

    async def put(
        self, key: Key, value: Value, context: Known | None, *, if_absent: bool = False, if_unchanged: bool = False
    ) -> Operation:
        seen = None if context is None else clock_in(context.clock)
        operation = self.begin(Kind.PUT, key, value, context=seen, if_absent=if_absent)
        try:
            written = await self._client.put(
                key.bucket,
                key.key,
                value.body.decode(),
                context=None if context is None else Context(context.clock),
                metadata=dict(value.content.metadata),
                if_absent=if_absent,
                if_unchanged=if_unchanged and context is not None and not if_absent,
                bucket_type=key.bucket_type,
            )
        except ClientError as error:
            self.failed(operation, error)
        else:
            self._written(operation, written)
        return operation

    def _written(self, operation: Operation, written: Written) -> None:
        clock = None if written.context is None else written.context.vclock
        self.write_ended(operation, clock, repeated=written.repeated)

    async def delete(self, key: Key, context: Known | None) -> Operation:
        seen = None if context is None else clock_in(context.clock)
        operation = self.begin(Kind.DELETE, key, context=seen, replaces_all=context is None)
        try:
            found = await self._client.delete(
                key.bucket,
                key.key,
                context=None if context is None else Context(context.clock),
                bucket_type=key.bucket_type,
            )
        except ClientError as error:
            self.failed(operation, error)
            return operation
        if found:
            self.end(operation, Outcome.OK)
        else:
            operation.clock_hidden = True
            self.found_nothing(operation, None)
        self.forget(key)
        return operation

    async def batch_get(self, keys: Sequence[Key]) -> None:
        operations = [self.begin(Kind.READ, key) for key in keys]
        try:
            results: Sequence[object] = await self._client.get_many(
                keys[0].bucket, [key.key for key in keys], bucket_type=keys[0].bucket_type
            )
        except BatchFailed as failed:
            results = failed.results
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, ClientError):
                self.failed(operation, result)
            elif result is None:
                operation.clock_hidden = True
                self.read_ended(operation, None, "", ())
            else:
                assert isinstance(result, StoredObject)
                self._found(operation, result)

    async def batch_put(self, items: Sequence[tuple[Key, Value | None, Known | None]]) -> None:
        operations = []
        sent: list[Put | Delete] = []
        for key, value, known in items:
            context = None if known is None else Context(known.clock)
            seen = None if known is None else clock_in(known.clock)
            kind = Kind.DELETE if value is None else Kind.PUT
            operations.append(self.begin(kind, key, value, context=seen, replaces_all=value is None and seen is None))
            if value is None:
                sent.append(Delete(key.key, context))
            else:
                metadata = dict(value.content.metadata)
                sent.append(Put(key.key, value.body.decode(), context, metadata=metadata))
        first = items[0][0]
        try:
            results: Sequence[object] = await self._client.put_many(first.bucket, sent, bucket_type=first.bucket_type)
        except BatchFailed as failed:
            results = failed.results
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, ClientError):
                self.failed(operation, result)
            elif operation.kind is Kind.DELETE:
                self.end(operation, Outcome.UNKNOWN, "deleted-or-not-found")  # the client does not tell which
            else:
                assert isinstance(result, Written)
                self._written(operation, result)

    async def update(self, key: Key, chance: Random) -> None:
        attempts: list[Operation] = []

        def change(_before: object) -> str:
            if attempts:
                self.refused(attempts[-1], "modified")
            value = self.value(chance)
            attempts.append(self.begin(Kind.PUT, key, value, replaces_all=True))
            attempts[-1].content = None  # it keeps what was stored beside the value before
            return value.text

        try:
            written = await self._client.update(
                key.bucket,
                key.key,
                change,
                content_type="text/plain",
                metadata={},
                resolve=lambda siblings: siblings[0],
                bucket_type=key.bucket_type,
            )
        except ClientError as error:
            if attempts:
                self.failed(attempts[-1], error)
        else:
            self._written(attempts[-1], written)


def client_key(key: Key) -> ClientKey:
    """The key in the Python client's form."""
    return ClientKey(*(part.encode() for part in key))


def encoded_clock(answer: Response) -> bytes | None:
    """The clock in an answer, encoded."""
    text = answer.headers.get("x-riak-vclock")
    return None if text is None else b64decode(text)


def content_headers(content: Content) -> list[tuple[bytes, bytes]]:
    """The headers of a value."""
    headers = [(b"Content-Type", content.content_type.encode())]
    headers += [(b"X-Riak-Index-" + name.encode(), value.encode()) for name, value in content.indexes]
    headers += [(b"X-Riak-Meta-" + name.encode(), value.encode()) for name, value in content.metadata]
    return headers


def found_in(answer: Response) -> tuple[bytes | None, str, list[tuple[str, Content]]]:
    """(clock, tag, values with what is stored beside them) of the answer to a GET."""
    clock = encoded_clock(answer)
    etag = answer.headers.get("etag", "").strip('"')
    if answer.status == 404:
        return clock, "", []
    if answer.status == 200:
        return clock, etag, [(answer.body.decode().rstrip(), content_in(answer.headers))]
    siblings = json.loads(answer.body)["siblings"]
    return (
        clock,
        etag,
        [
            (
                each["text"].rstrip(),
                Content(each["content_type"], pairs(each.get("indexes", ())), pairs(each.get("metadata", ()))),
            )
            for each in siblings
            if not each.get("deleted")
        ],
    )


def content_in(headers: Mapping[str, str]) -> Content:
    """What is stored beside the only value, by the headers of the answer."""
    indexes = pairs((name[13:], value) for name, value in headers.items() if name.startswith("x-riak-index-"))
    metadata = pairs((name[12:], value) for name, value in headers.items() if name.startswith("x-riak-meta-"))
    return Content(headers["content-type"], indexes, metadata)


def pairs(given: Any) -> tuple[tuple[str, str], ...]:
    """Pairs of text, in order."""
    return tuple(sorted((str(name), str(value)) for name, value in given))


def batch_siblings(rest: Any) -> tuple[str, list[tuple[str, Content]]]:
    """(tag, values with what is stored beside them) of an item of /batch/get."""
    found = []
    for value, content_type, _, _, extras in rest:
        if value is not None:
            _, metadata, _, indexes = (b"", (), (), ()) if extras is None else extras
            texts = [[(name.decode(), text.decode()) for name, text in each] for each in (indexes, metadata)]
            found.append((value.decode().rstrip(), Content(content_type.decode(), pairs(texts[0]), pairs(texts[1]))))
    etag = rest[0][2].decode() if len(rest) == 1 else ""
    return etag, found
