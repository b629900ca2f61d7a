"""Riak's folds over HTTP: Riak's JSON from the pages of all partitions, within limits, and truthful where they end."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.aae.folds.folds import FoldCursor, FoldKind, FoldMatch, Page
from isthmus.node.client_api import riak_folds
from isthmus.repl.model.errors import BadInput, NotReady, OutcomeUnknown, Overloaded, PeerFault
from isthmus.repl.model.vclock import Clock, encode_clock
from isthmus.repl.riak.clocks import parse_clock_text
from tests.support.memory_client_api import ClientApiFixture

CLOCK: Clock = ((b"a" * 20, 7, 1_700_000_000),)


def filter_of(**document: Any) -> str:
    """The query of a filter."""
    return "?filter=" + b64encode(json.dumps(document).encode()).decode().replace("=", "%3D").replace("+", "%2B")


def match(key: bytes, **more: Any) -> FoldMatch:
    """A key that a page found."""
    return FoldMatch(b"b", key, **{"siblings": 1, "size_bytes": 10, "modified_ms": 0, **more})


def test_buckets_of_all_types_are_in_riaks_order(client_api: ClientApiFixture) -> None:
    """What has a type precedes what has none; a name that is not UTF-8 is percent-encoded."""
    client_api.folds.pages = [
        Page(buckets=Counter({b"z": 1, b"\xff": 2})), Page(buckets=Counter({b"a": 1, b"z": 5})),
        Page(buckets=Counter({b"q": 1})),
    ]  # fmt: skip
    for query in ("", "?nval=3&timeout=5000", "?filter=2"):
        pages = list(client_api.folds.pages)
        answer = client_api.call("GET", "/aaebucketlist" + query)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert json.loads(answer.body) == {
            "results": [{"bucket-type": "t", "bucket": "q"}, {"bucket": "a"}, {"bucket": "z"}, {"bucket": "%FF"}]
        }
        client_api.folds.pages = pages
    assert {asked.kind for _, asked in client_api.folds.asked} == {FoldKind.LIST_BUCKETS}
    assert client_api.call("GET", "/aaebucketlist?nval=0").reason == "bad-query"


@pytest.mark.parametrize(("path", "partitions"), [("/buckets/b", [0, 1]), ("/types/t/buckets/b/", [2, 3])])
def test_stats_are_the_sums_of_all_pages(client_api: ClientApiFixture, path: str, partitions: list[int]) -> None:
    """Of all partitions of the bucket type, in Riak's names; each page follows the one before."""
    client_api.folds.pages = [
        Page(next=FoldCursor(3, b"k"), objects=2, bytes=300, sizes=Counter({2: 2}), siblings=Counter({1: 2})),
        Page(objects=1, bytes=9, sizes=Counter({0: 1}), siblings=Counter({2: 1})),
        Page(objects=1, bytes=100, sizes=Counter({2: 1}), siblings=Counter({1: 1})),
    ]
    answer = client_api.call("GET", f"/objectstats{path}{filter_of(key_range={'start': 'a', 'end': 'b'})}")
    assert json.loads(answer.body) == {
        "total_count": 4, "total_size": 409, "sizes": {"0": 1, "2": 3}, "siblings": {"1": 3, "2": 1},
    }  # fmt: skip
    asked = client_api.folds.asked
    assert [partition for partition, _ in asked] == [partitions[0], *partitions]
    assert [one.cursor for _, one in asked] == [FoldCursor(), FoldCursor(3, b"k"), FoldCursor()]
    assert {(one.kind, one.scope.bucket, one.scope.key_from, one.scope.key_to, one.dry) for _, one in asked} == {
        (FoldKind.KEY_STATS, b"b", b"a", b"b\0", True)
    }
    assert "x-isthmus-refused" not in answer.headers


def test_found_keys_are_in_order_with_their_number(client_api: ClientApiFixture) -> None:
    """Sizes and counts of siblings are the path's; keys of all partitions are in one order."""
    pages: list[Any] = [Page(found=[match(b"k2", siblings=4), match(b"\xff")]), Page(found=[match(b"k1", siblings=3)])]
    client_api.folds.pages = list(pages)
    answer = client_api.call("GET", "/siblings/buckets/b/counts/2")
    assert json.loads(answer.body) == {
        "results": [{"key": "k1", "value": 3}, {"key": "k2", "value": 4}, {"key": "%FF", "value": 1}]
    }
    client_api.folds.pages = list(pages)
    answer = client_api.call("GET", "/objectsizes/types/t/buckets/b/sizes/9")
    assert [row["value"] for row in json.loads(answer.body)["results"]] == [10, 10, 10]
    scopes = [one.scope for _, one in client_api.folds.asked]
    assert [(one.siblings_over, one.size_over) for one in scopes] == [(2, None)] * 2 + [(None, 9)] * 2
    for path in ("/siblings/buckets/b/counts/0", "/objectsizes/buckets/b/sizes/-1", "/objectsizes/buckets/b/sizes/x"):
        answer = client_api.call("GET", path)
        assert (answer.status, answer.reason) == (400, "bad-path")
        assert b"a whole number from 1" in answer.body


def test_tombstones_have_the_clocks_that_riak_reads(client_api: ClientApiFixture) -> None:
    """A clock is Riak's text of the same clock; one that cannot be read is counted in the header."""
    for path, of_type in (("/tombs/buckets/b", {}), ("/tombs/types/t/buckets/b", {"bucket-type": "t"})):
        client_api.folds.pages = [Page(found=[match(b"k", clock=encode_clock(CLOCK)), match(b"l", clock=b"\xc1")])]
        answer = client_api.call("GET", path)
        (row,) = json.loads(answer.body)["keys-clocks"]
        assert parse_clock_text(row.pop("clock")) == ((CLOCK[0][0], 7, CLOCK[0][2] + 62_167_219_200),)
        assert row == {**of_type, "bucket": "b", "key": "k"}
        assert answer.headers["x-isthmus-refused"].startswith("1; 1: malformed: ")
    assert {one.kind for _, one in client_api.folds.asked} == {FoldKind.TOMB_CLOCKS}


@pytest.mark.parametrize(("fold", "kind"), [("reap", FoldKind.REAP_TOMBS), ("erase", FoldKind.ERASE_KEYS)])
def test_reaps_and_erasures_act_only_where_the_filter_says_so(
    client_api: ClientApiFixture, fold: str, kind: FoldKind
) -> None:
    """Without change_method they count, as in Riak; with it the number is of what was done, and the header has the
    rest."""
    for method, dry, count in ((None, True, 9), ("count", True, 9), ("local", False, 6), ({"job_id": 3}, False, 6)):
        client_api.folds.asked.clear()
        client_api.folds.pages = [
            Page(matched=5, done=4, refused=Counter({"waits for\nqueue é": 1})), Page(matched=4, done=2),
        ]  # fmt: skip
        query = "" if method is None else filter_of(change_method=method)
        answer = client_api.call("GET", f"/{fold}/buckets/b{query}")
        assert json.loads(answer.body) == {"dispatched_count": count}
        assert answer.headers["x-isthmus-refused"] == "1; 1: waits for queue \\xe9"
        assert [(one.kind, one.dry) for _, one in client_api.folds.asked] == [(kind, dry)] * 2


def test_reasons_are_counted_and_limited(client_api: ClientApiFixture) -> None:
    """Where each key has a reason of its own, the number of all keys stays right, and the header short."""
    client_api.folds.pages = [
        Page(refused=Counter({f"the tombstone is at {n}": 1 for n in range(500)})),
        Page(refused=Counter({"the tombstone is at 3": 1, "damaged": 2})),
    ]
    answer = client_api.call("GET", "/reap/buckets/b" + filter_of(change_method="local"))
    shown = answer.headers["x-isthmus-refused"]
    assert shown.startswith("503; 402: other reasons; 2: the tombstone is at 3; 1: ")
    assert len(shown) == riak_folds.REFUSED_CHARS_MAX


def test_ranges_are_queued_and_repaired(client_api: ClientApiFixture) -> None:
    """References go into the queue of the path, and count if it takes them; all keys of a repaired range count."""
    client_api.folds.pages = [Page(matched=5, done=4), Page(matched=1, done=1)]
    answer = client_api.call("GET", "/rangerepl/types/t/buckets/b/queuename/to-west")
    assert json.loads(answer.body) == {"dispatched_count": 5}
    client_api.folds.pages = [Page(matched=5, found=[match(b"k")], done=1), Page(matched=1)]
    answer = client_api.call("GET", "/rangerepair/buckets/b")
    assert json.loads(answer.body) == {"dispatched_count": 6}
    asked = [(one.kind, one.queue, one.dry) for _, one in client_api.folds.asked]
    assert asked == [(FoldKind.REPL_KEYS, "to-west", False)] * 2 + [(FoldKind.REPAIR_KEYS, "", False)] * 2


PATHS = (
    "/objectstats/buckets/b", "/objectsizes/buckets/b/sizes/1", "/siblings/buckets/b/counts/1", "/tombs/buckets/b",
    "/reap/buckets/b", "/erase/buckets/b", "/rangerepl/buckets/b/queuename/q", "/rangerepair/buckets/b",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_what_is_wrong_reads_no_page(client_api: ClientApiFixture, path: str) -> None:
    """A bad filter or parameter, an unknown bucket type, an empty bucket, HEAD: each is refused before a page."""
    refused = {
        path + filter_of(key_rnge="all"): (400, "bad-query"),
        path + "?filter=%25": (400, "bad-query"),
        path + "?fliter=e30": (400, "bad-query"),
        path + "?timeout=soon": (400, "bad-query"),
        path.replace("/buckets/b", "/types/nothing/buckets/b"): (404, "unknown-bucket-type"),
    }
    for target, expected in refused.items():
        answer = client_api.call("GET", target)
        assert (answer.status, answer.reason) == expected, answer.body
    head = client_api.call("HEAD", path)
    assert (head.status, head.reason, head.headers["allow"]) == (405, "method-not-allowed", "GET")
    assert client_api.call("POST", path).status == 405
    assert client_api.folds.asked == []


def test_an_answer_has_a_limit(client_api_with: Callable[..., ClientApiFixture]) -> None:
    """More rows than limits.fold_keys are 413, and no further page is read."""
    client_api = client_api_with(fold_keys_count=2)
    for path in ("/tombs/buckets/b", "/objectsizes/buckets/b/sizes/1"):
        client_api.folds.asked.clear()
        client_api.folds.pages = [Page(found=[match(b"%d" % n) for n in range(3)])]
        answer = client_api.call("GET", path)
        assert (answer.status, answer.reason) == (413, "too-large")
        assert b"limits.fold_keys" in answer.body
        assert len(client_api.folds.asked) == 1
    client_api.folds.pages = [Page(buckets=Counter(b"abc"))]  # type: ignore[arg-type]
    assert client_api.call("GET", "/aaebucketlist").status == 413
    client_api.folds.pages = [Page(found=[match(b"%d" % n) for n in range(3)], matched=3)]
    assert client_api.call("GET", "/rangerepair/buckets/b").status == 200, "its rows are not in the answer"


def test_a_page_that_cannot_be_had_now_is_asked_for_again(
    client_api: ClientApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leadership that moves, and an answer that was lost, are not the client's concern."""
    monkeypatch.setattr(riak_folds, "RETRY_DELAY_S", 0.0)
    for path in ("/objectstats/buckets/b", "/erase/buckets/b" + filter_of(change_method="local")):
        client_api.folds.asked.clear()
        client_api.folds.pages = [NotReady("it moves"), OutcomeUnknown("the link broke"), Page(matched=1), Page()]
        assert client_api.call("GET", path).status == 200
        assert [partition for partition, _ in client_api.folds.asked] == [0, 0, 0, 1]


async def test_a_fold_ends_with_its_time(
    client_api: ClientApiFixture, send_request: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold that only reads is 503. One that has changed something, or may have, is 504 and says how much was done."""
    monkeypatch.setattr(riak_folds, "RETRY_DELAY_S", 0.02)
    never = [NotReady("nobody leads")] * 100
    full = [Overloaded("queue q is full")] * 100
    act = filter_of(change_method="local") + "&timeout=50"
    for target, pages, status, words in (
        ("/objectstats/buckets/b?timeout=50", [Page(objects=1), *never], 503, "within 0.05 s: not-ready: nobody leads"),
        ("/erase/buckets/b" + act, never, 503, "nobody leads"),
        ("/erase/buckets/b" + act, [Page(matched=7, done=6), *never], 504, "6 of 7 keys were done before"),
        ("/rangerepl/buckets/b/queuename/q?timeout=50", full, 504, "queue q is full; 0 of 0 keys were done before"),
    ):
        client_api.folds.pages = list(pages)
        answer = await send_request(client_api.app, "GET", target)
        assert answer.status == status, answer.body
        assert words in answer.body.decode()
        assert client_api.app._folds.running == 0


@pytest.mark.parametrize(
    ("error", "before", "after"), [(BadInput("no such queue"), 400, 504), (PeerFault("what is that"), 504, 504)]
)
def test_an_error_amid_a_change_leaves_its_outcome_unknown(
    client_api: ClientApiFixture, error: Any, before: int, after: int
) -> None:
    """A refusal before anything was done stays one; after a page that did something it is 504."""
    act = "/erase/buckets/b" + filter_of(change_method="local")
    client_api.folds.pages = [error]
    assert client_api.call("GET", act).status == before
    client_api.folds.pages = [Page(matched=1, done=1), error]
    assert client_api.call("GET", act).status == after
    client_api.folds.pages = [Page(matched=1, done=0), error]
    assert client_api.call("GET", "/erase/buckets/b").status == {400: 400, 504: 502}[before], "nothing was to change"


async def test_folds_at_once_are_limited(
    client_api_with: Callable[..., ClientApiFixture], send_request: Callable[..., Any]
) -> None:
    """One more than limits.folds is refused at once, and there is room again once one has ended."""
    client_api = client_api_with(folds=2)
    client_api.folds.give = asyncio.Event()
    path = "/objectstats/buckets/b"
    running = [asyncio.create_task(send_request(client_api.app, "GET", path)) for _ in range(2)]
    while len(client_api.folds.asked) < 2:
        await asyncio.sleep(0)
    assert ("isthmus_http_folds", {}, 2) in list(client_api.app.samples())
    answer = await send_request(client_api.app, "GET", path)
    assert (answer.status, answer.reason) == (503, "overloaded")
    assert b"limits.folds" in answer.body
    client_api.folds.give.set()
    assert [one.status for one in await asyncio.gather(*running)] == [200, 200]
    assert (await send_request(client_api.app, "GET", path)).status == 200


async def test_a_client_that_leaves_ends_its_fold(
    client_api: ClientApiFixture, send_request: Callable[..., Any]
) -> None:
    """No further page is read for a client that has closed the connection."""
    for target in ("/tombs/buckets/b", "/erase/buckets/b" + filter_of(change_method="local")):
        client_api.folds.asked.clear()
        client_api.folds.pages = [Page(next=FoldCursor(n, b"k"), matched=1, done=1) for n in range(50)]
        gone = asyncio.Event()

        async def receive(gone: asyncio.Event = gone) -> dict[str, Any]:
            if not gone.is_set():
                gone.set()
                return {"type": "http.request", "body": b"", "more_body": False}
            return {"type": "http.disconnect"}

        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any], sent: list[dict[str, Any]] = sent) -> None:
            sent.append(message)

        path, _, query = target.partition("?")
        scope = {
            "type": "http", "method": "GET", "raw_path": path.encode(), "query_string": query.encode(), "headers": [],
        }  # fmt: skip
        await client_api.app(scope, receive, send)
        assert len(client_api.folds.asked) < 3
        assert client_api.app._folds.running == 0


def test_large_answers_are_made_in_a_thread(client_api: ClientApiFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a number of rows, with the same result."""
    monkeypatch.setattr(riak_folds, "OFF_LOOP_FROM", 1)
    client_api.folds.pages = [Page(found=[match(b"b"), match(b"a")])]
    answer = client_api.call("GET", "/objectsizes/buckets/b/sizes/1")
    assert [row["key"] for row in json.loads(answer.body)["results"]] == ["a", "b"]


@pytest.mark.parametrize("fold", ["reap", "erase", "rangerepair", "rangerepl"])
@pytest.mark.parametrize(
    "header",
    [
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"),
        ("sec-fetch-site", "none"),
        ("origin", "http://testserver"),
        ("referer", "http://elsewhere.example/"),
    ],
)
def test_a_browser_sends_no_get_that_changes_something(
    client_api: ClientApiFixture, fold: str, header: tuple[str, str]
) -> None:
    """Any page could make it do so. Folds that only read are answered."""
    path = f"/{fold}/buckets/b" + ("/queuename/q" if fold == "rangerepl" else "")
    answer = client_api.call("GET", path, headers=dict([header]))
    assert (answer.status, answer.reason) == (403, "other-origin")
    assert client_api.folds.asked == []
    assert client_api.call("GET", "/tombs/buckets/b", headers=dict([header])).status == 200
    assert client_api.call("GET", path, headers={"user-agent": "python/0.5.0"}).status == 200


async def test_a_change_that_takes_longer_than_its_client_waits_is_unknown(
    client_api: ClientApiFixture, send_request: Callable[..., Any]
) -> None:
    """Though it is a GET; one that reads is refused with 503."""
    client_api.folds.give = asyncio.Event()
    for path, status in (("/erase/buckets/b", 504), ("/objectstats/buckets/b", 503)):
        answer = await send_request(client_api.app, "GET", path, headers={"X-Isthmus-Timeout-Ms": "20"})
        assert answer.status == status
    client_api.folds.give.set()
    while client_api.app._folds.running:
        await asyncio.sleep(0.01)
