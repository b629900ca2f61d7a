"""The bodies of refused writes are freed at once, without a run of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import msgpack
import pytest

from isthmus.node.http.application import LINGER_PAUSE_S, LINGER_S
from isthmus.repl.model.errors import NotReady, Overloaded

TEXT = {"content-type": "text/plain"}


class TrackedObject:
    """An object that a call holds, such as a body."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The garbage collector is off: objects are freed by reference counting alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("query", ["", "?timeout=5000", "?timeout=20"])
@pytest.mark.usefixtures("uncollected")
async def test_an_answered_error_frees_its_traceback(client_api: Any, send_request: Any, query: str) -> None:
    """Frames that keep the raised exception in a variable are freed with the answer; those behind a time-out once they
    end."""
    seen: list[ref[TrackedObject]] = []
    gate = asyncio.Event()

    async def refusing(*_: object) -> None:
        held = TrackedObject()
        seen.append(ref(held))
        if query == "?timeout=20":
            await gate.wait()
        try:
            raise NotReady("no leader")
        except NotReady as cause:
            error = Overloaded("full")
            raise error from cause

    client_api.kv.write = client_api.kv.get = refusing
    for method in ("PUT", "POST", "GET"):
        answer = await send_request(client_api.app, method, f"/buckets/b/keys/k{query}", b"v", TEXT)
        assert answer.status in (503, 504)
    gate.set()
    for _ in range(100):  # turns of the loop: more than the writes need to end
        await asyncio.sleep(0)
    assert [each() for each in seen] == [None] * 3


@pytest.mark.usefixtures("uncollected")
async def test_errors_of_items_free_their_tracebacks(client_api: Any, send_request: Any) -> None:
    """This holds for a single write and for those of a batch."""
    seen: list[ref[TrackedObject]] = []

    async def refusing(requests: Any) -> list[Any]:
        held = TrackedObject()
        seen.append(ref(held))
        results: list[Any] = []
        for _ in requests:
            try:
                raise Overloaded("full")
            except Overloaded as error:
                results.append(error)
        return results

    client_api.kv.write_batch = refusing
    body = msgpack.packb([["default", "b", "k", b"v"]] * 3)
    answer = await send_request(client_api.app, "POST", "/batch/put", body)
    assert [item[0] for item in msgpack.unpackb(answer.body)] == [503] * 3
    assert [each() for each in seen] == [None]


@pytest.mark.usefixtures("uncollected")
async def test_a_refused_body_is_freed_before_the_rest_is_discarded(client_api: Any) -> None:
    """A client may take seconds to send the rest of a refused body; the part received before is not held that long."""
    gone: list[int] = []
    told: list[int] = []

    class TrackedBytes(bytes):
        def __del__(self) -> None:
            gone.append(len(self))

    size = client_api.app.budget.limit_bytes = 1000

    async def receive() -> dict[str, Any]:
        if told:
            assert sorted(gone) == [2, size - 1]
            return {"type": "http.request", "body": b"", "more_body": False}
        piece = TrackedBytes(b"v" * (2 if sent_first else size - 1))
        sent_first.append(True)
        return {"type": "http.request", "body": piece, "more_body": True}

    sent_first: list[bool] = []

    async def send(message: dict[str, Any]) -> None:
        if "status" in message:
            told.append(message["status"])

    headers = [(b"content-type", b"text/plain")]
    scope = {"method": "PUT", "raw_path": b"/buckets/b/keys/k", "headers": headers, "query_string": b""}
    await client_api.app(scope, receive, send)
    assert told == [503]
    assert sorted(gone) == [2, size - 1]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("pause_s", "lasts_s"),
    [(1.0, 20.0), (LINGER_PAUSE_S + 1, LINGER_PAUSE_S), (LINGER_PAUSE_S / 2, LINGER_S), (1.0, 5.0)],
    ids=["slowly", "it falls silent", "for ever", "until the node stops"],
)
async def test_the_rest_of_a_refused_body_is_awaited_while_it_comes(
    client_api: Any, pause_s: float, lasts_s: float
) -> None:
    """A client that sends slowly reads the refusal, whatever a busy machine makes of its pace; one that falls silent,
    or never ends, is closed, and so are all when the node stops."""
    loop = asyncio.get_running_loop()
    client_api.app.budget.limit_bytes = 1
    pieces = 21
    began_s = due_s = loop.time()

    async def receive() -> dict[str, Any]:  # as a connection's: what is not taken in time is taken later
        nonlocal pieces, due_s
        await asyncio.sleep(due_s - loop.time())
        pieces, due_s = pieces - 1, due_s + pause_s
        return {"type": "http.request", "body": b"v" * 10, "more_body": pieces > 0 or lasts_s in (5.0, LINGER_S)}

    ended: list[bool] = []

    async def send(message: dict[str, Any]) -> None:
        ended.append(message["type"] == "http.response.body" and not message.get("more_body"))

    if lasts_s == 5.0:
        loop.call_later(lasts_s, client_api.app.stop)
    headers = [(b"content-type", b"text/plain")]
    scope = {"method": "PUT", "raw_path": b"/buckets/b/keys/k", "headers": headers, "query_string": b""}
    await client_api.app(scope, receive, send)
    assert ended == [False, False, True]
    assert loop.time() - began_s == pytest.approx(lasts_s)
