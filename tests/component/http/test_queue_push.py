"""Riak's push of references to a live node: queued references, answers, and refusals with their reasons."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.threaded_node import ThreadedNode, running_node

QUEUES = """
[[queues]]
name = "to-west"
queue_limit = 300
[[queues]]
name = "repairs"
filter = "block_rtq"
"""


class Answer(NamedTuple):
    status: int
    reason: str | None
    clock: str
    text: str


class NodeClient:
    """Sends requests to a node's HTTP APIs."""

    def __init__(self, node: ThreadedNode) -> None:
        self.node = node

    def ask(self, method: str, path: str, body: object = None, *, admin: bool = False) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.node.admin if admin else self.node.http, timeout=20)
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        connection.request(method, path, raw, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, answer.headers["x-isthmus-reason"], answer.headers["x-riak-vclock"] or "", text)

    def push(self, *elements: object, queue: str = "repairs") -> Answer:
        return self.ask("POST", f"/queuename/{queue}", {"keys-clocks": list(elements)})

    def waiting(self, queue: str) -> int:
        (row,) = [
            r for r in json.loads(self.ask("GET", "/admin/queues", admin=True).text)["queues"] if r["name"] == queue
        ]
        count: int = row["priorities"]["full_sync"]["waiting"]
        return count


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeClient]:
    directory: Path = tmp_path_factory.mktemp("pushes")
    with running_node(directory, QUEUES) as node:
        yield NodeClient(node)


def element(caller: NodeClient, key: str) -> dict[str, Any]:
    """A key that is there, as Riak's clients name it."""
    path = f"/buckets/b/keys/{key}"
    assert caller.ask("PUT", path, b"x").status == 204
    return {"bucket": "b", "key": key, "clock": caller.ask("GET", path).clock}


def test_pushed_references_wait_at_the_second_priority_and_lengths_are_returned(caller: NodeClient) -> None:
    """Keys of the default type and of a named one are queued, each once, though the filter offers nothing; the line has
    fold, full-sync and real time."""
    one, two = element(caller, "one"), element(caller, "two")
    typed = {**two, "bucket-type": "default"}
    answer = caller.push(one, typed)
    assert (answer.status, answer.text) == (200, "Queue repairs: 0 2 0\n")
    assert caller.push(two, one).text == "Queue repairs: 0 2 0\n"
    assert caller.push().text == "Queue repairs: 0 2 0\n"
    assert caller.waiting("repairs") == 2
    (first, second) = json.loads(caller.ask("GET", "/admin/queues/repairs/peek", admin=True).text)["references"]
    assert (first["key"], first["kind"], second["key"]) == ("one", "to_fetch", "two")


@pytest.mark.parametrize(
    ("bad", "reason", "words"),
    [
        (7, "bad-json", "keys-clocks[1] is not an object"),
        ({"key": "k", "clock": ""}, "bad-json", "keys-clocks[1]: bucket must be a text"),
        ({"bucket": "b", "key": "", "clock": ""}, "bad-json", "key must be a text that is not empty"),
        ({"bucket-type": None, "bucket": "b", "key": "k", "clock": ""}, "bad-json", "bucket-type must be"),
        ({"bucket": "b", "key": 7, "clock": ""}, "bad-json", "key must be"),
        ({"bucket": "b", "key": "\ud800", "clock": "kA=="}, "bad-json", "surrogates"),
        (
            {"bucket": "b", "key": "k" * 4097, "clock": "kA=="},
            "bad-key",
            "keys-clocks[1]: bucket and key have 1 to 4096",
        ),
        ({"bucket": "b" * 4097, "key": "k", "clock": "kA=="}, "bad-key", "limits.key_size"),
        ({"bucket": "b", "key": "k"}, "bad-vclock", "clock must be a text"),
        ({"bucket": "b", "key": "k", "clock": "%%"}, "bad-vclock", "keys-clocks[1]: clock is not base64"),
        ({"bucket": "b", "key": "k", "clock": "AAAA"}, "bad-vclock", "keys-clocks[1]: clock is"),
        ({"bucket": "b", "key": "k", "clock": "\ud800"}, "bad-vclock", "keys-clocks[1]: clock is"),
    ],
    ids=str,
)
def test_one_bad_element_refuses_the_push_by_its_place(
    caller: NodeClient, bad: object, reason: str, words: str
) -> None:
    """Nothing is queued, and the message names the element and its error."""
    before = caller.waiting("repairs")
    answer = caller.push(element(caller, "good"), bad)
    assert (answer.status, answer.reason) == (400, reason)
    assert words in answer.text
    assert caller.waiting("repairs") == before


def test_a_bucket_type_that_there_is_not_is_named_with_those_that_there_are(caller: NodeClient) -> None:
    """404 with the element's place, and nothing of the push is queued."""
    before = caller.waiting("repairs")
    good = element(caller, "good")
    answer = caller.push(good, good, {**good, "bucket-type": "defualt"})
    assert (answer.status, answer.reason) == (404, "unknown-bucket-type")
    assert "keys-clocks[2]: bucket type 'defualt' does not exist: known are default" in answer.text
    assert caller.waiting("repairs") == before


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"keys-clocks": {}}', b'{"keys-clocks": null}', b"[" * 50_000], ids=len
)
def test_a_body_that_is_no_list_of_keys_is_refused(caller: NodeClient, body: bytes) -> None:
    """The answer is 400 with a valid form, never a crash."""
    answer = caller.ask("POST", "/queuename/repairs", body)
    assert (answer.status, answer.reason) == (400, "bad-json")


def test_pushes_are_bounded_and_a_queue_that_is_not_there_is_named(caller: NodeClient) -> None:
    """Too many keys 400, too many bytes 413, an unknown queue 404, Riak's fetch 501."""
    one = element(caller, "one")
    assert caller.push(*[one] * 10_001).status in (400, 413)
    small = {"bucket": "b", "key": "k", "clock": "kA=="}
    answer = caller.push(*[small] * 10_001)
    assert (answer.status, answer.reason) == (400, "bad-json")
    assert "10000 are the most" in answer.text
    assert caller.ask("POST", "/queuename/repairs", b" " * 1_000_001).status == 413
    missing = caller.push(one, queue="nobody")
    assert (missing.status, missing.reason) == (404, "unknown-queue")
    assert caller.ask("GET", "/queuename/repairs?object_format=internal").status == 501
    assert caller.ask("PUT", "/queuename/repairs", b"{}").status == 405


def test_a_full_queue_answers_503_and_keeps_accepted_references(
    caller: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References that do not fit wait for room for a while, then 503 says how many were accepted; none of those is
    dropped."""
    monkeypatch.setattr("isthmus.node.client_api.queue_push.WAIT_MS", 50)
    clock = element(caller, "one")["clock"]
    many = [{"bucket": "b", "key": f"k{n}", "clock": clock} for n in range(301)]
    answer = caller.push(*many, queue="to-west")
    assert (answer.status, answer.reason) == (503, "overloaded")
    assert "took the first 300 of 301" in answer.text
    assert caller.waiting("to-west") == 300
