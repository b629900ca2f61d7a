"""The admin listener's reaps: waiting tombstones, and the reap of one key."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from isthmus.node.admin_api.tombstones import ReapsAdmin
from isthmus.repl.coordinator.tombstone_reaper import Reaped
from isthmus.repl.model.keys import Key


class RecordingReaper:
    """A reaper that records its requests."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def status(self) -> list[dict[str, object]]:
        return [{"partition": 3, "tombstones": 2, "waits": "queue q: waits"}]

    async def ask(self, key: Key) -> Reaped:
        self.keys.append(key)
        return Reaped("waits", "queue q: waits")


async def test_tombstones_that_wait_are_shown_and_one_is_asked_for(client_api: Any, send_request: Any) -> None:
    """Names are percent-encoded, a plus is a plus; without bucket or key it is refused before anybody is asked."""
    reaper = RecordingReaper()
    settings = SimpleNamespace(node=SimpleNamespace(name="n1"))
    ReapsAdmin(SimpleNamespace(reaper=reaper, settings=settings), client_api.app.router)  # type: ignore[arg-type]

    async def call(method: str, body: Any = None) -> tuple[int, Any]:
        raw = b"" if body is None else json.dumps(body).encode()
        answer = await send_request(client_api.app, method, "/admin/reaps", raw)
        return answer.status, answer.body

    status, body = await call("GET")
    shown = {"partition": 3, "tombstones": 2, "waits": "queue q: waits"}
    assert (status, json.loads(body)) == (200, {"node": "n1", "partitions": [shown]})
    status, body = await call("POST", {"bucket_type": "t", "bucket": "a%2Fb", "key": "c+d%FF"})
    assert (status, json.loads(body)) == (200, {"outcome": "waits", "reason": "queue q: waits"})
    assert (await call("POST", {"bucket": "b", "key": "k"}))[0] == 200
    assert reaper.keys == [Key(b"t", b"a/b", b"c+d\xff"), Key(b"default", b"b", b"k")]
    assert (await call("POST", {"bucket": "b"}))[0] == 400
    assert len(reaper.keys) == 2
