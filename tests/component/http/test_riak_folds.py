"""Riak's folds against a live node: the requests that OpenRiak's client sends, and what the folds do to real keys."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from isthmus.repl.riak.clocks import parse_clock_text
from isthmus.repl.riak.tree_hash import segment_id
from tests.support.threaded_node import ThreadedNode, running_node

QUEUES = """
[[queues]]
name = "to-west"
"""

FILTER = (
    "eyJrZXlfcmFuZ2UiOiB7InN0YXJ0IjogImEiLCAiZW5kIjogImIifSwgImRhdGVfcmFuZ2UiOiB7InN0YXJ0IjogMCwgImVuZCI6IDF9LCAiY2hh"
    "bmdlX21ldGhvZCI6ICJjb3VudCJ9&timeout=30000"
)
"""A key range, a date range and a change method, as OpenRiak's client sends them."""

SENT = {
    **{
        f"{fold}{of}/buckets/b%20%C3%BC%2Fc{rest}?filter={FILTER}": members
        for of in ("", "/types/default")
        for fold, rest, members in (
            ("/erase", "", {"dispatched_count"}),
            ("/reap", "", {"dispatched_count"}),
            ("/rangerepair", "", {"dispatched_count"}),
            ("/rangerepl", "/queuename/to-west", {"dispatched_count"}),
            ("/objectsizes", "/sizes/10", {"results"}),
            ("/siblings", "/counts/1", {"results"}),
            ("/tombs", "", {"keys-clocks"}),
            ("/objectstats", "", {"total_count", "total_size", "sizes", "siblings"}),
        )
    },
    "/aaebucketlist?nval=1&timeout=30000": {"results"},
}
"""Requests of openriak 0.1.4 for a bucket "b ü/c", as they were recorded -> the members of Riak's answer."""


class Answer(NamedTuple):
    status: int
    refused: str
    document: Any


class Caller:
    """Sends requests to the node."""

    def __init__(self, node: ThreadedNode) -> None:
        self.port = node.http

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body, {"content-type": "text/plain", **headers})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        shown = answer.headers["x-isthmus-reason"] or answer.headers["x-isthmus-refused"] or ""
        return Answer(answer.status, shown, json.loads(text) if text[:1] == b"{" else text.decode())

    def fold(self, path: str, **document: Any) -> Any:
        """The document of a fold's answer."""
        answer = self.ask("GET", f"{path}?filter={quote(b64encode(json.dumps(document).encode()))}")
        assert answer.status == 200, answer
        return answer.document

    def put(self, bucket: str, key: str, value: bytes = b"x") -> None:
        assert self.ask("PUT", f"/buckets/{bucket}/keys/{key}", value).status == 204

    def delete(self, bucket: str, key: str) -> None:
        assert self.ask("DELETE", f"/buckets/{bucket}/keys/{key}").status == 204

    def keys(self, bucket: str) -> list[str]:
        found: list[str] = self.ask("GET", f"/buckets/{bucket}/keys?keys=true&prefix=").document["keys"]
        return found


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    with running_node(tmp_path_factory.mktemp("folds"), QUEUES) as node:
        yield Caller(node)


@pytest.mark.parametrize("target", SENT, ids=lambda target: target.partition("?")[0])
def test_what_openriaks_client_sends_is_answered_in_riaks_form(caller: Caller, target: str) -> None:
    """Also for a bucket that has no key."""
    answer = caller.ask("GET", target, accept="*/*")
    assert (answer.status, answer.refused) == (200, "")
    assert answer.document.keys() == SENT[target]


def test_folds_look_at_a_whole_bucket(caller: Caller) -> None:
    """Counts, sizes, siblings and tombstones of what was written, over both partitions."""
    for n in range(20):
        caller.put("looked", f"k{n:02}", b"x" * 10 ** (n % 4))
    caller.put("looked", "k00", b"y")
    caller.delete("looked", "k19")
    stats = caller.fold("/objectstats/buckets/looked")
    assert stats["total_count"] == 20
    assert sum(stats["sizes"].values()) == 20
    assert stats["siblings"] == {"1": 19, "2": 1}
    assert caller.fold("/siblings/buckets/looked/counts/1") == {"results": [{"key": "k00", "value": 2}]}
    large = caller.fold("/objectsizes/types/default/buckets/looked/sizes/1000")["results"]
    assert [row["key"] for row in large] == ["k03", "k07", "k11", "k15"]
    assert all(1_000 < row["value"] < 1_500 for row in large)
    (tomb,) = caller.fold("/tombs/buckets/looked")["keys-clocks"]
    assert (tomb["bucket"], tomb["key"]) == ("looked", "k19")
    assert len(parse_clock_text(tomb["clock"])) == 1
    some = caller.fold("/objectsizes/buckets/looked/sizes/1", key_range={"start": "k03", "end": "k05"})
    assert [row["key"] for row in some["results"]] == ["k03", "k04", "k05"]
    assert caller.fold("/objectstats/buckets/looked", date_range={"start": 0, "end": 9})["total_count"] == 0
    assert {"bucket": "looked"} in caller.ask("GET", "/aaebucketlist").document["results"]


def test_segments_are_those_of_riaks_trees(caller: Caller) -> None:
    """A segment filter has exactly the keys that a Riak has in the segment."""
    for n in range(30):
        caller.put("segments", f"k{n}")
    leaf = segment_id(b"default", b"segments", b"k7") & 0xFFF
    expected = sorted(f"k{n}" for n in range(30) if segment_id(b"default", b"segments", b"k%d" % n) & 0xFFF == leaf)
    found = caller.fold(
        "/objectsizes/buckets/segments/sizes/1", segment_filter={"segments": [leaf], "tree_size": "xxsmall"}
    )
    assert [row["key"] for row in found["results"]] == expected
    assert "k7" in expected


def test_erasures_and_reaps_do_what_they_count(caller: Caller) -> None:
    """They count first, and change nothing; then the keys of the range are deleted. Tombstones that a queue has not
    passed stay, and the header says why."""
    for n in range(10):
        caller.put("erased", f"k{n}")
    span = {"key_range": {"start": "k2", "end": "k5"}}
    assert caller.fold("/erase/buckets/erased", **span) == {"dispatched_count": 4}
    assert len(caller.keys("erased")) == 10
    assert caller.fold("/erase/buckets/erased", change_method="local", **span) == {"dispatched_count": 4}
    assert caller.keys("erased") == ["k0", "k1", "k6", "k7", "k8", "k9"]
    assert caller.fold("/reap/types/default/buckets/erased") == {"dispatched_count": 4}
    filter_ = quote(b64encode(json.dumps({"change_method": {"job_id": 5}, **span}).encode()))
    answer = caller.ask("GET", f"/reap/buckets/erased?filter={filter_}")
    assert answer.document == {"dispatched_count": 0}
    assert answer.refused.startswith("4; 1: queue to-west: acknowledged below offset 0")
    assert len(caller.fold("/tombs/buckets/erased")["keys-clocks"]) == 4


def test_tombstones_that_no_queue_waits_for_are_reaped(tmp_path: Path) -> None:
    """Those of the range are gone, others stay."""
    with running_node(tmp_path) as node:
        caller = Caller(node)
        for n in range(6):
            caller.put("reaped", f"k{n}")
            caller.delete("reaped", f"k{n}")
        span = {"key_range": {"start": "k2", "end": "k3"}}
        assert caller.fold("/reap/buckets/reaped", change_method="local", **span) == {"dispatched_count": 2}
        left = [row["key"] for row in caller.fold("/tombs/buckets/reaped")["keys-clocks"]]
        assert left == ["k0", "k1", "k4", "k5"]


def test_a_range_goes_into_a_queue_that_there_is(caller: Caller) -> None:
    """References of the range wait in the queue; an unknown one is 404 where Riak would say that all went well."""
    for n in range(10):
        caller.put("queued", f"k{n}")
    span = {"key_range": {"start": "k2", "end": "k5"}}
    assert caller.fold("/rangerepl/buckets/queued/queuename/to-west", **span) == {"dispatched_count": 4}
    assert caller.ask("POST", "/queuename/to-west", b'{"keys-clocks": []}').document.startswith("Queue to-west: 4 0 ")
    answer = caller.ask("GET", "/rangerepl/buckets/queued/queuename/nobody")
    assert (answer.status, answer.refused) == (404, "unknown-queue")
    assert caller.fold("/rangerepair/buckets/queued", **span) == {"dispatched_count": 4}
