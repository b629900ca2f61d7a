"""Completed writes whose answer cannot be rendered are never reported as refusals, which would mean that nothing took
effect."""

from __future__ import annotations

import msgpack
import pytest

from isthmus.repl.model.errors import NotReady
from tests.support.memory_client_api import ClientApiFixture, ask

FULL_BYTES = 256 * 1000 * 1000


@pytest.mark.parametrize("target", ["/buckets/b/keys/k?returnbody=true", "/buckets/b/keys?returnbody=true"])
def test_a_write_whose_object_cannot_be_read_then_is_no_refusal(
    client_api: ClientApiFixture, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """An object that the write did not return is read; if the read fails, a 503 would mean that nothing was written."""

    async def none(*_: object) -> None:
        raise NotReady("no leader serves the partition yet")

    client_api.kv.returns = False
    monkeypatch.setattr(client_api.kv, "get", none)
    answer = client_api.call("POST", target, b"v", {"content-type": "text/plain"})
    assert client_api.kv.writes == 1
    assert (answer.status, answer.reason) == (504, "outcome-unknown")
    assert answer.body.endswith(b"outcome=unknown\n")


def requests_for_much() -> list[tuple[str, str, bytes, int]]:
    items = [["default", "b", f"k{number}", b"v"] for number in range(3000)]
    keys = [["default", "b", "large"]]
    return [
        ("PUT", "/buckets/b/keys/k?returnbody=true", b"x" * 100_000, 504),
        ("POST", "/batch/put", msgpack.packb(items), 504),
        ("GET", "/buckets/b/keys/large", b"", 503),
        ("POST", "/batch/get", msgpack.packb(keys), 503),
    ]


@pytest.mark.parametrize(("method", "target", "body", "status"), requests_for_much())
async def test_an_answer_without_memory_refuses_no_write(
    client_api: ClientApiFixture, monkeypatch: pytest.MonkeyPatch, method: str, target: str, body: bytes, status: int
) -> None:
    """When the memory for bodies is full, a large answer to a read is refused with a retry, and one to a write is an
    unknown outcome."""
    await ask(client_api.app, "PUT", "/buckets/b/keys/large", b"x" * 100_000, {"content-type": "text/plain"})
    writes = client_api.kv.writes

    def filling(name: str) -> None:
        act = getattr(client_api.kv, name)

        async def acts(*given: object) -> object:
            done = await act(*given)
            client_api.app.budget.used_bytes = FULL_BYTES + len(body)
            return done

        monkeypatch.setattr(client_api.kv, name, acts)

    for name in ("write", "write_batch", "get", "get_batch"):
        filling(name)

    answer = await ask(client_api.app, method, target, body, {"content-type": "text/plain"})
    assert answer is not None
    assert answer.status == status
    assert (answer.reason, client_api.kv.writes > writes) == (
        ("outcome-unknown", True) if status == 504 else ("overloaded", False)
    )
