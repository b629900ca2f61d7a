"""POST /batch/put and /batch/get: many objects in a request, in msgpack or JSON.

Not atomic: there is an answer for each item, in the order of the request, and a bad item does not affect the others.
Only a body that is not a list of items is refused as a whole. docs/http.md has the forms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from isthmus.config.settings import LimitSettings
from isthmus.node.client_api.batch_json import JsonForm
from isthmus.node.client_api.batch_msgpack import MsgpackForm
from isthmus.node.client_api.cluster_routes import ClientAddresses, leader_headers
from isthmus.node.http.accept import accept_of, prefers
from isthmus.node.http.application import HttpApplication, Request
from isthmus.node.http.responses import JSON, Headers, Reply
from isthmus.repl.model.errors import BadInput, IsthmusError, Overloaded, clear_traceback
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import KeyValue
from isthmus.repl.model.requests import Isolation, WriteRequest, WriteResult
from isthmus.repl.unforeseen import unforeseen

TURN_ITEMS: Final = 256
"""Items handled before other requests run: about a millisecond of the event loop."""


class BatchForm(Protocol):
    """A form of batches: how their items are read, and their answers are written. One for each request."""

    media_type: bytes

    def items(self, body: bytes, limits: LimitSettings) -> Sequence[Any]:
        """The items of a body, not checked yet. Raises TooLarge (413) and RequestRefused (400) for all of it."""

    def write_request(self, item: Any, limit: int) -> WriteRequest:
        """An item to put, with a value of at most `limit` bytes. Raises BadInput."""

    def key(self, item: Any) -> tuple[Key, Isolation | None]:
        """An item to get. Raises BadInput."""

    def written(self, result: WriteResult) -> Any:
        """The answer to an item that was put."""

    def found(self, payload: bytes | None) -> Any:
        """The answer to an item that was got: stored bytes; None for a key that never was. Raises Corruption."""

    def refused(self, error: IsthmusError) -> Any:
        """The answer to an item that was refused."""

    def enlarges(self, answer: Any) -> int:
        """By how many bytes an answer of `found` enlarges the body; 0 if by no more than what was read."""

    def encoded(self, answers: Sequence[Any]) -> bytes:
        """The body of all answers."""


class BatchRoutes:
    """The batch routes."""

    def __init__(self, kv: KeyValue, limits: LimitSettings, api: HttpApplication, addresses: ClientAddresses) -> None:
        self._kv = kv
        self._addresses = addresses
        self._limits = limits
        api.router.add("POST", "/batch/put", self._put)
        api.router.add("POST", "/batch/get", self._get)

    async def _put(self, request: Request) -> Reply:
        """Write or delete many objects."""
        form, answer_form = _forms(request, puts=True)
        items = await self._items(request, form)
        headers: Headers = []
        answers: list[Any] = [None] * len(items)
        writes: list[WriteRequest] = []
        slots: list[int] = []
        limit = self._limits.object_bytes
        for slot, item in enumerate(items):
            if slot % TURN_ITEMS == TURN_ITEMS - 1:
                await asyncio.sleep(0)
            try:
                write = form.write_request(item, limit)
            except BadInput as error:
                answers[slot] = answer_form.refused(clear_traceback(error))
            except Exception as error:  # noqa: BLE001 -- see the module's docstring
                answers[slot] = answer_form.refused(unforeseen.exception("batch.item_failed", error))
            else:
                writes.append(write)
                slots.append(slot)
        if writes:
            results = await self._kv.write_batch(writes)
            headers = self._leader_headers(results)
            for slot, result in zip(slots, results, strict=True):
                if isinstance(result, IsthmusError):
                    answers[slot] = answer_form.refused(clear_traceback(result))
                else:
                    answers[slot] = answer_form.written(result)
        return _reply(answer_form, answers, headers)

    def _leader_headers(self, results: Sequence[WriteResult | IsthmusError]) -> Headers:
        """The headers that name the leader if one other node answered all items."""
        leader = results[0].leader
        if not leader or any(result.leader != leader for result in results):
            return []
        return leader_headers(self._addresses, leader)

    async def _get(self, request: Request) -> Reply:
        """Read many objects."""
        form, answer_form = _forms(request, puts=False)
        items = await self._items(request, form)
        answers: list[Any] = [None] * len(items)
        asked: dict[Isolation | None, tuple[list[int], list[Key]]] = {}
        for slot, item in enumerate(items):
            try:
                key, isolation = form.key(item)
            except BadInput as error:
                answers[slot] = answer_form.refused(clear_traceback(error))
            except Exception as error:  # noqa: BLE001 -- see the module's docstring
                answers[slot] = answer_form.refused(unforeseen.exception("batch.item_failed", error))
            else:
                slots, keys = asked.setdefault(isolation, ([], []))
                slots.append(slot)
                keys.append(key)
        room_bytes = answer_room_bytes = self._limits.batch_bytes
        first = True
        for isolation, (slots, keys) in asked.items():
            results = await self._kv.get_batch(keys, isolation, room_bytes)
            for count, (slot, result) in enumerate(zip(slots, results, strict=True), 1):
                if count % TURN_ITEMS == 0:
                    await asyncio.sleep(0)
                if type(result) is bytes:
                    room_bytes -= len(result)
                answer = _read(answer_form, result)
                answer_room_bytes -= answer_form.enlarges(answer)
                if answer_room_bytes < 0 and not first:
                    answer = answer_form.refused(Overloaded("the answer is full: ask again for the rest"))
                answers[slot] = answer
                first = False
        return _reply(answer_form, answers, [])

    async def _items(self, request: Request, form: BatchForm) -> Sequence[Any]:
        """The items of the body. Raises TooLarge (413) and RequestRefused (400) for the whole request."""
        limits = self._limits
        return form.items(await request.body(limits.batch_bytes, "limits.batch_size"), limits)


def _forms(request: Request, *, puts: bool) -> tuple[BatchForm, BatchForm]:
    """The form of a request by its Content-Type, and that of its answer: the same, unless Accept names the other."""
    kind = (request.header(b"content-type") or b"").partition(b";")[0].strip().lower()
    form: BatchForm = JsonForm(puts=puts) if kind == JSON else MsgpackForm()
    other: BatchForm = MsgpackForm() if kind == JSON else JsonForm(puts=puts)
    return form, other if prefers(accept_of(request.headers), other.media_type, form.media_type) else form


def _read(form: BatchForm, result: bytes | IsthmusError | None) -> Any:
    """The answer to one item of a get."""
    try:
        return form.refused(clear_traceback(result)) if isinstance(result, IsthmusError) else form.found(result)
    except IsthmusError as error:
        return form.refused(clear_traceback(error))
    except Exception as error:  # noqa: BLE001 -- see the module's docstring
        return form.refused(unforeseen.exception("batch.item_failed", error))


def _reply(form: BatchForm, answers: Sequence[Any], more: Headers) -> Reply:
    return Reply(200, [(b"content-type", form.media_type), *more], form.encoded(answers))
