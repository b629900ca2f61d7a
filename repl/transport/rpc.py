"""Requests between the nodes of one cluster: `RpcClient` sends over one connection, `RpcServer` serves another.

Frequent requests take no task at either end: `RpcClient.send` calls back with the answer, `RpcServer` calls the direct
handler of a method, and one timer a connection ends all requests that are overdue. `RpcClient.ask` and `Handler` are
the same for everything else.

An answer is a body or an error. Errors travel as the code of their class: BadInput and Retryable are raised here as the
other side raised them; every other failure there is OutcomeUnknown here, since it is no definite refusal. Both sides
bound the number and bytes of requests under way. Answers wait for space on the connection; an answer that does not fit
in memory either becomes OutcomeUnknown. Methods and bodies are opaque here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from isthmus.repl.model.errors import (
    BadInput,
    CodecError,
    Fenced,
    IsthmusError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    OutOfStorage,
    Overloaded,
    Retryable,
    TooFewInSync,
    TooLarge,
    clear_traceback,
)
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.transport.frames import Lane, Parts, bin_head
from isthmus.repl.unforeseen import unforeseen

IN_FLIGHT_MAX: Final = 1_024
"""Most unanswered requests on one connection, and most requests that are served for one node; one more is refused with
Overloaded. A guess: some milliseconds of a busy node."""

METHOD_LENGTH_MAX: Final = 64
MESSAGE_LENGTH_MAX: Final = 2_000
"""Longest text of an error, in characters; longer ones are cut."""

TIMEOUT_MS_MAX: Final = 600_000
"""Longest timeout of a request, and longest run of a handler."""

DRAIN_ID: Final = 0
"""Id of an answer that asks for no more requests: the node that sends it is about to stop."""

DRAIN: Final = "leave"
"""Method of the last request over a connection, after a DRAIN_ID: the client has all its answers. This frame has no
answer."""

WANT_STREAM: Final = "pair-stream"
"""Method by which a node asks for a stream over the connection that it dialled (repl.isr.pair_stream). A node of an
older version answers that it does not know the method."""

SPACE_POLL_S: Final = 0.02
"""Pause between checks whether a connection has space for an answer: at 100 MB/s 2 MB are sent meanwhile."""

OVERHEAD_BYTES: Final = 128
"""Upper bound of the bytes of a request or answer besides method and body."""

Handler = Callable[[str, str, bytes], Awaitable[bytes]]
"""(requesting node, method, body) -> body of the answer."""

Answered = Callable[[bytes | IsthmusError], None]
"""Called once with the body of an answer, or with the error of a request whose answer is not known or is an error."""

DirectHandler = Callable[[str, bytes, Answered], None]
"""(requesting node, body, answered): calls `answered` once, now or later, and runs in no task. It bounds its own time:
the server ends it never. Raises IsthmusError before it has arranged for `answered`."""

NO_DIRECT: Final[Mapping[str, DirectHandler]] = MappingProxyType({})

_Work = Callable[[], Awaitable[bytes]]

_pack: Final = msgpack.Packer().pack
_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""

_ID_MAX: Final = (1 << 64) - 1

_CROSSING: Final[dict[str, type[IsthmusError]]] = {
    cls.reason: cls
    for cls in (
        BadInput, TooLarge, CodecError, Retryable, NotLeader, Fenced, TooFewInSync, Overloaded, OutOfStorage, NotReady,
    )
}  # fmt: skip


class CallConnection(Protocol):
    """The connection that carries requests and answers (`repl.transport.connection.PeerConnection`)."""

    def put_call(self, item: Parts, /) -> bool:
        """Queue a request or an answer; False if the connection is closed."""

    def waiting_bytes(self, lane: Lane, /) -> int:
        """Bytes that wait to be written in one lane."""

    def stream_wanted(self) -> None:
        """The other node takes a stream over this connection."""


class _Pending(NamedTuple):
    """A request that was sent and not answered yet. `deadline_s` is a time of the event loop."""

    answered: Answered
    deadline_s: float
    length: int
    method: str
    timeout_ms: int


class RpcClient:
    """Sends requests to `node` over the connection that this node dialled, and matches its answers."""

    def __init__(self, node: str, connection: CallConnection, *, body_limit: int, bytes_max: int) -> None:
        self._node = node
        self._connection = connection
        self._body_limit = body_limit
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Pending] = {}
        self._bytes = 0
        self._last_id = 0
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        """Due at the earliest deadline of `_waiting`, or before it; stays armed when a request is answered, since
        cancelling it for each request would cost more than one idle call."""
        self._timer_s = 0.0

    async def ask(self, method: str, body: bytes, timeout_ms: int, queued_bytes: int) -> bytes:
        """Send a request and wait for its answer; errors as in `Links.request`. `queued_bytes` wait to be written."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        asked = self.send(method, body, timeout_ms, queued_bytes, partial(_complete, future))
        try:
            return await future
        finally:
            if asked in self._waiting:  # this task was cancelled
                self._take(asked)

    def send(self, method: str, body: bytes, timeout_ms: int, queued_bytes: int, answered: Answered) -> int:
        """Send a request; returns its id. `answered` is called in a later turn of the loop; its errors are as in
        `Links.request`. Raises NotReady, TooLarge and Overloaded when nothing was sent; then `answered` is not called.
        """
        assert 0 < len(method) <= METHOD_LENGTH_MAX
        assert timeout_ms > 0
        length = len(body)
        if self._draining:
            raise NotReady(f"node {self._node} is stopping")
        if length + OVERHEAD_BYTES > self._body_limit:
            raise TooLarge(f"a request {method} of {length} bytes: node {self._node} takes {self._body_limit}")
        waiting = self._waiting
        if len(waiting) >= IN_FLIGHT_MAX or (waiting and max(self._bytes, queued_bytes) + length > self._bytes_max):
            raise Overloaded(
                f"{len(waiting)} requests of {self._bytes} bytes wait for node {self._node}; "
                f"at most {IN_FLIGHT_MAX}, of {self._bytes_max} bytes in all"
            )
        timeout_ms = min(timeout_ms, TIMEOUT_MS_MAX)
        if not self._write(method, timeout_ms, body):
            raise NotReady(f"the connection to node {self._node} has just broken")
        asked = self._last_id
        deadline_s = self._loop.time() + timeout_ms / 1000
        waiting[asked] = _new(_Pending, (answered, deadline_s, length, method, timeout_ms))
        self._bytes += length
        if self._timer is None or deadline_s < self._timer_s:
            self._arm(deadline_s)
        return asked

    def _write(self, method: str, timeout_ms: int, body: bytes) -> bool:
        self._last_id += 1
        head = b"\x94" + _pack(self._last_id) + _pack(method) + _pack(timeout_ms) + bin_head(len(body))
        return self._connection.put_call((head, body))

    def _take(self, asked: int) -> _Pending:
        """Remove a request from those that wait."""
        pending = self._waiting.pop(asked)
        self._bytes -= pending.length
        if self._draining:
            self._drain_if_answered()
        return pending

    def _drain_if_answered(self) -> None:
        if not self._waiting:
            self._write(DRAIN, 1, b"")

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(deadline_s, self._expire), deadline_s

    def _expire(self) -> None:
        """Answer all requests that are overdue."""
        self._timer = None
        now_s = self._loop.time()
        for asked in [asked for asked, pending in self._waiting.items() if pending.deadline_s <= now_s]:
            pending = self._take(asked)
            what = f"node {self._node} did not answer {pending.method} within {pending.timeout_ms} ms"
            _call(pending.answered, OutcomeUnknown(what))
        if self._waiting:
            self._arm(min(pending.deadline_s for pending in self._waiting.values()))

    def answered(self, raw: Any) -> None:
        """Handle one item of an ANSWERS frame; answers to requests that timed out are dropped. Raises CodecError."""
        if type(raw) is not tuple or len(raw) not in (2, 5) or type(raw[0]) is not int:
            raise CodecError("an answer that is not a list of two or five fields")
        answer = raw[1] if len(raw) == 2 else _raised(self._node, raw)
        if len(raw) == 2 and type(answer) is not bytes:
            raise CodecError("an answer whose body is not bytes")
        if raw[0] == DRAIN_ID and not self._draining:
            self._draining = True
            self._drain_if_answered()
        elif raw[0] in self._waiting:
            _call(self._take(raw[0]).answered, answer)

    def broke(self, why: str) -> None:
        """Fail all waiting requests: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        for pending in waiting.values():
            _call(pending.answered, OutcomeUnknown(f"the connection to node {self._node} broke: {why}"))


def _call(answered: Answered, answer: bytes | IsthmusError) -> None:
    """Call back; a bug there must not cost the connection, nor the answers of other requests."""
    try:
        answered(answer)
    except Exception as error:
        unforeseen.exception("transport.answer.failed", error)


def _complete(future: asyncio.Future[bytes], answer: bytes | IsthmusError) -> None:
    if future.done():
        return
    if isinstance(answer, IsthmusError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _raised(node: str, raw: tuple[Any, ...]) -> IsthmusError:
    _, code, reason, message, leader = raw
    if tuple(map(type, raw[1:])) != (str, str, str, str) or len(message) > MESSAGE_LENGTH_MAX:
        raise CodecError("an error with fields of a wrong type or length")
    if code == NotLeader.reason:
        return NotLeader(message, leader or None)
    cls = _CROSSING.get(code)
    if cls is None:
        return OutcomeUnknown(f"node {node}: {message}")
    error = cls(message)
    if reason != cls.reason:
        error.reason = reason
    return error


class RpcServer:
    """Serves the requests of one node, over the connection that it dialled. `tasks` holds the running handlers.

    Methods in `direct` are served without a task, all others by `handler`. While more than `bytes_max` bytes of answers
    wait to be written, further answers wait here, up to `bytes_max` again, until their requests time out."""

    def __init__(
        self,
        node: str,
        handler: Handler,
        connection: CallConnection,
        *,
        body_limit: int,
        bytes_max: int,
        tasks: OrderedSet[asyncio.Task[None]],
        direct: Mapping[str, DirectHandler] = NO_DIRECT,
    ) -> None:
        self._node = node
        self._handler = handler
        self._connection = connection
        self._body_limit = body_limit
        self._bytes_max = bytes_max
        self._tasks = tasks
        self._direct = direct
        self._in_flight = 0
        self._bytes = 0
        self._held_bytes = 0
        self.left = asyncio.Event()
        """Set once `node` sends no more requests and has all answers, or its connection is gone."""

    def drain(self) -> None:
        """Ask the client for no more requests; `left` is set when it has all answers."""
        self._connection.put_call((b"\x92" + _pack(DRAIN_ID) + bin_head(0),))

    def asked(self, raw: Any) -> None:
        """Handle one item of a REQUESTS frame. Raises CodecError."""
        if type(raw) is not tuple or tuple(map(type, raw)) != (int, str, int, bytes):
            raise CodecError("a request with fields of a wrong type or number")
        asked, method, timeout_ms, body = raw
        if not 0 < asked <= _ID_MAX or not 0 < len(method) <= METHOD_LENGTH_MAX or not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise CodecError("a request with a field out of range")
        if method == DRAIN:
            self.left.set()
            return
        if method == WANT_STREAM:
            self._connection.put_call((b"\x92" + _pack(asked) + bin_head(0),))
            self._connection.stream_wanted()
            return
        count = self._in_flight
        if count >= IN_FLIGHT_MAX or (count and self._bytes + len(body) > self._bytes_max):
            self._connection.put_call(
                _error_item(asked, Overloaded(f"{count} requests of node {self._node} are under way"))
            )
            return
        self._in_flight += 1
        self._bytes += len(body)
        direct = self._direct.get(method)
        if direct is None:
            self._start(asked, method, timeout_ms, len(body), partial(self._handler, self._node, method, body))
            return
        answered = partial(self._answer_direct, asked, method, timeout_ms, len(body))
        try:
            direct(self._node, body, answered)
        except IsthmusError as error:
            answered(clear_traceback(error))
        except Exception as error:
            unforeseen.exception("transport.request.failed", error, peer=self._node, method=method)
            answered(OutcomeUnknown(f"{method} failed: {type(error).__name__}"))

    def _start(self, asked: int, method: str, timeout_ms: int, length: int, work: _Work) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(asked, method, timeout_ms, length, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, asked: int, method: str, timeout_ms: int, length: int, work: _Work) -> None:
        """Send the answer to a request of `length` bytes once `work` has it and the connection has space."""
        try:
            async with asyncio.timeout(timeout_ms / 1000) as deadline:
                answer = await work()
                self._check_length(answer)
                await self._wait_for_space(len(answer))
            item = _answer_item(asked, answer)
        except IsthmusError as error:
            item = _error_item(asked, error)
        except Exception as error:
            if deadline.expired():
                return  # the client has given up, too
            unforeseen.exception("transport.request.failed", error, peer=self._node, method=method)
            item = _error_item(asked, OutcomeUnknown(f"{method} failed: {type(error).__name__}"))
        finally:
            self._in_flight -= 1
            self._bytes -= length
        self._connection.put_call(item)

    def _answer_direct(
        self, asked: int, method: str, timeout_ms: int, length: int, answer: bytes | IsthmusError
    ) -> None:
        """Send the answer of a direct handler now; in a task where the connection has no space for it."""
        if isinstance(answer, IsthmusError):
            item = _error_item(asked, answer)
        elif (
            len(answer) + OVERHEAD_BYTES > self._body_limit
            or self._connection.waiting_bytes(Lane.CALLS) > self._bytes_max
        ):
            self._start(asked, method, timeout_ms, length, partial(_ready, answer))
            return
        else:
            item = _answer_item(asked, answer)
        self._in_flight -= 1
        self._bytes -= length
        self._connection.put_call(item)

    def _check_length(self, answer: bytes) -> None:
        if len(answer) + OVERHEAD_BYTES > self._body_limit:
            raise OutcomeUnknown(f"the answer has {len(answer)} bytes, node {self._node} takes {self._body_limit}")

    async def _wait_for_space(self, length: int) -> None:
        """Wait until fewer than `bytes_max` bytes wait to be written. Raises OutcomeUnknown when too many bytes wait
        here already; the connection's health check finds a peer that reads nothing."""
        if self._connection.waiting_bytes(Lane.CALLS) <= self._bytes_max:
            return
        if self._held_bytes and self._held_bytes + length > self._bytes_max:
            raise OutcomeUnknown(f"{self._held_bytes} bytes of answers are already queued for node {self._node}")
        self._held_bytes += length
        try:
            # Polled, since an answer rarely waits.
            while self._connection.waiting_bytes(Lane.CALLS) > self._bytes_max and not self.left.is_set():  # noqa: ASYNC110
                await asyncio.sleep(SPACE_POLL_S)
        finally:
            self._held_bytes -= length


async def _ready(answer: bytes) -> bytes:
    return answer


def _answer_item(asked: int, answer: bytes) -> Parts:
    return b"\x92" + _pack(asked) + bin_head(len(answer)), answer


def _error_item(asked: int, error: IsthmusError) -> Parts:
    code = next((cls.reason for cls in type(error).__mro__ if _CROSSING.get(cls.__dict__.get("reason", "")) is cls), "")
    leader = error.leader or "" if isinstance(error, NotLeader) else ""
    return (_pack((asked, code, error.reason, str(error)[:MESSAGE_LENGTH_MAX], leader)),)
