"""Batches: chunks by leader and size, a result for each item, items that are sent again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest

from isthmus.client import batches
from isthmus.client.errors import BadRequest, BatchFailed, OutcomeUnknown, Refused, Retryable, ServerFault
from isthmus.client.objects import Context, Delete, Put
from isthmus.client.steps import Response, Send, Sleep, Step
from tests.support.scripted_cluster import SILENT, UNREACHABLE, ScriptedCluster, answer, refusal

Item = Sequence[Any]
CLOCK = b"\x00\x01"


def items_of(send: Send) -> list[Any]:
    """The items of a request."""
    found: list[Any] = msgpack.unpackb(send.request.body or b"", raw=True)
    return found


def each(result: Callable[[Item], Item]) -> Callable[[Send], Response]:
    """Answers each item by `result`."""
    return lambda send: answer(200, msgpack.packb([result(item) for item in items_of(send)]))


def done(item: Item) -> Item:
    """The answer to an item that was written."""
    return 204, CLOCK, None


def put(cluster: ScriptedCluster, items: Any) -> Any:
    return cluster.run(cluster.batches.put_many("b", items, None, None))


def get(cluster: ScriptedCluster, keys: Any) -> Any:
    return cluster.run(cluster.batches.get_many("b", keys, None, None, None))


def test_values_by_key() -> None:
    """A dict is written in its order; each item has a request id of its own."""
    cluster = ScriptedCluster(each(done))
    results = put(cluster, {"a": {"n": 1}, "ü": "text", "c": b"\xff"})
    assert [(result.key, result.context) for result in results] == [(key, Context(CLOCK)) for key in ("a", "ü", "c")]
    (sent,) = [items_of(send) for send in cluster.asked]
    assert [item[:5] for item in sent] == [
        [b"default", b"b", b"a", b'{"n":1}', b"application/json"],
        [b"default", b"b", "ü".encode(), b"text", b"text/plain; charset=utf-8"],
        [b"default", b"b", b"c", b"\xff", b"application/octet-stream"],
    ]
    assert len({item[7] for item in sent}) == 3


def test_puts_and_deletes() -> None:
    """They carry context, content type, metadata and request id; a delete that finds nothing has succeeded."""
    cluster = ScriptedCluster(each(lambda item: done(item) if item[3] is not None else (404, None, b"not-found")))
    results = put(
        cluster,
        [
            Put("a", b"v", context=Context(b"c"), content_type="a/b", metadata={"N": "v"}, request_id="id"),
            Delete(b"\xff", context=Context(b"d")),
        ],
    )
    first, second = items_of(cluster.asked[0])
    assert first == [b"default", b"b", b"a", b"v", b"a/b", b"c", [b"", [[b"n", b"v"]], [], []], b"id"]
    assert second[2:7] == [b"\xff", None, None, b"d", None]
    assert [result.context for result in results] == [Context(CLOCK), None]


def test_a_wrong_item_does_not_stop_the_others() -> None:
    """It has an error of its own and is not sent; the error of the batch carries the results of the others."""
    cluster = ScriptedCluster(each(done))
    with pytest.raises(BatchFailed, match="3 of 4 items failed") as caught:
        put(cluster, [Put("", 1), Put("a", {1}), Put("b", 1), 5])
    assert set(caught.value.errors) == {0, 1, 3}
    assert all(isinstance(error, BadRequest) for error in caught.value.errors.values())
    assert caught.value.results[2].key == "b"
    assert len(items_of(cluster.asked[0])) == 1


def test_items_that_are_refused_for_now_are_sent_again() -> None:
    """Only these items are sent again, with the same ids, after a pause."""
    cluster = ScriptedCluster(
        each(lambda item: (503, None, b"not-ready: later") if item[2] == b"b" else done(item)), each(done)
    )
    assert len(put(cluster, {"a": 1, "b": 2, "c": 3})) == 3
    first, second = (items_of(send) for send in cluster.asked)
    assert second == [first[1]]
    assert len(cluster.slept) == 1


def test_items_that_stay_refused_have_their_errors() -> None:
    """The errors are classified by what the caller must do; the other items are written."""
    answers = {
        b"a": (503, None, b"retry: x"),
        b"b": (504, None, b"outcome-unknown: x"),
        b"c": (413, None, b"too-large: x"),
    }
    cluster = ScriptedCluster(each(lambda item: answers.get(item[2]) or done(item)), attempts=3)
    with pytest.raises(BatchFailed) as caught:
        put(cluster, {"a": 1, "b": 2, "c": 3, "d": 4})
    kinds = [type(caught.value.errors[at]) for at in range(3)]
    assert kinds == [Retryable, OutcomeUnknown, BadRequest]
    assert caught.value.errors[1].request_id == items_of(cluster.asked[0])[1][7].decode()
    assert len(cluster.asked) == 3


def test_an_item_of_unknown_outcome_stays_so() -> None:
    """This also holds if its repetition is refused, or the rest of the batch fails."""
    for second in (each(lambda _: (503, None, b"retry: x")), UNREACHABLE, refusal(401, "unauthorized")):
        cluster = ScriptedCluster(each(lambda _: (504, None, b"outcome-unknown: x")), second, attempts=2)
        with pytest.raises(BatchFailed) as caught:
            put(cluster, {"a": 1})
        assert type(caught.value.errors[0]) is OutcomeUnknown


@pytest.mark.parametrize("step", [Send, Sleep])
def test_closing_before_a_repetition_leaves_the_outcome_unknown(step: type[Step]) -> None:
    """It is unknown for the items whose first answer left it open; the others were refused, and not sent again."""
    first = {b"a": (504, None, b"outcome-unknown: x"), b"b": (503, None, b"retry: x")}
    cluster = ScriptedCluster(each(lambda item: first.get(item[2]) or done(item)))
    cluster.closes_in = step
    with pytest.raises(BatchFailed) as caught:
        put(cluster, {"a": 1, "b": 2, "c": 3})
    errors = caught.value.errors
    assert {at: type(error) for at, error in errors.items()} == {0: OutcomeUnknown, 1: BadRequest}
    assert errors[0].request_id == items_of(cluster.asked[0])[0][7].decode()


def test_a_wrong_time_limit_is_an_error_of_the_call() -> None:
    """It is raised once, not for each item; nothing is sent."""
    cluster = ScriptedCluster(each(done))
    with pytest.raises(BadRequest, match="timeout_s is nan"):
        cluster.run(cluster.batches.put_many("b", {"a": 1}, None, float("nan")))
    with pytest.raises(BadRequest, match="timeout_s is inf"):
        cluster.run(cluster.batches.get_many("b", ["a"], None, None, float("inf")))
    assert not cluster.sent


def test_a_lost_answer_is_asked_for_again() -> None:
    """The batch is sent again with the same ids, so that each item takes effect once."""
    cluster = ScriptedCluster(SILENT, each(lambda _: (204, CLOCK, b"repeated")))
    (result,) = put(cluster, {"a": 1})
    assert result.repeated
    assert cluster.asked[0].request == cluster.asked[1].request


def test_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are limited by items and by bytes; a larger item is sent alone."""
    monkeypatch.setattr(batches, "CHUNK_ITEMS", 3)
    monkeypatch.setattr(batches, "CHUNK_BYTES", 10)
    cluster = ScriptedCluster(each(done))
    sizes = [1, 1, 1, 1, 6, 6, 50, 1]
    assert len(put(cluster, [Put(f"k{at}", b"x" * size) for at, size in enumerate(sizes)])) == 8
    assert [len(items_of(send)) for send in cluster.asked] == [3, 2, 1, 1, 1]


def test_a_batch_that_is_too_large_for_a_node_is_halved() -> None:
    """It is halved down to one item, which then gets the error; the order of the results stays."""

    def small(send: Send) -> Response:
        items = items_of(send)
        if len(items) > 2 or any(item[2] == b"k9" for item in items):
            return refusal(413, "too-large", "over limits.batch_items")
        return answer(200, msgpack.packb([(204, item[2], None) for item in items]))

    cluster = ScriptedCluster(small)
    with pytest.raises(BatchFailed) as caught:
        put(cluster, [Put(f"k{at}", b"") for at in range(10)])
    assert set(caught.value.errors) == {9}
    for at, result in enumerate(caught.value.results[:9]):
        assert result.context == Context(f"k{at}".encode())


def test_after_a_chunk_that_no_node_answers_the_rest_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends after the time of one request; the errors say which items were never sent."""
    monkeypatch.setattr(batches, "CHUNK_ITEMS", 2)
    cluster = ScriptedCluster(each(done), UNREACHABLE, attempts=3)
    with pytest.raises(BatchFailed) as caught:
        put(cluster, [Put(f"k{at}", b"") for at in range(8)])
    reasons = [getattr(result, "reason", "written") for result in caught.value.results]
    assert reasons == ["written"] * 2 + ["no-answer"] * 2 + ["not-sent"] * 4
    assert cluster.now_s <= 1015.0


def test_refused_credentials_are_the_result_of_every_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request is enough: the other chunks are not sent."""
    monkeypatch.setattr(batches, "CHUNK_ITEMS", 2)
    cluster = ScriptedCluster(refusal(403, "forbidden"))
    with pytest.raises(BatchFailed) as caught:
        put(cluster, [Put(f"k{at}", b"") for at in range(5)])
    assert all(isinstance(error, Refused) for error in caught.value.errors.values())
    assert len(caught.value.errors) == 5
    assert len(cluster.asked) == 1


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb([]), msgpack.packb([1]), msgpack.packb({"a": 1})])
def test_what_is_no_answer_to_a_batch_is_a_fault_of_the_server(body: bytes) -> None:
    """All items of the request get a ServerFault."""
    with pytest.raises(BatchFailed) as caught:
        put(ScriptedCluster(answer(200, body)), {"a": 1})
    assert type(caught.value.errors[0]) is ServerFault


def sibling(value: bytes | None) -> Item:
    return value, b"application/json", b"tag", 1_700_000_000_123, None


def test_many_keys_are_read() -> None:
    """Results are in the order of the call; None for keys that do not exist or are deleted; siblings as in a single
    read."""
    answers = {
        b"one": (200, CLOCK, [sibling(b"1")]),
        b"two": (300, CLOCK, [sibling(b"1"), sibling(b"2")]),
        b"gone": (404, CLOCK, [sibling(None)]),
        b"none": (404, None, b"not-found"),
    }
    cluster = ScriptedCluster(each(lambda item: answers[item[2]]))
    one, none, two, gone, again = get(cluster, ["one", "none", b"two", "gone", "one"])
    assert (none, gone) == (None, None)
    assert one.value == again.value == 1
    assert one.etag == "tag"
    assert one.last_modified.microsecond == 123_000
    assert [each.value for each in two.siblings] == [1, 2]
    assert two.etag == ""
    assert get(cluster, []) == []


def test_a_wrong_key_does_not_stop_the_others() -> None:
    """It has an error of its own and is not sent; the error of the batch carries the objects of the others."""
    cluster = ScriptedCluster(each(lambda _: (200, CLOCK, [sibling(b"1")])))
    with pytest.raises(BatchFailed, match="2 of 4 items failed") as caught:
        get(cluster, ["a", "", 5, "b"])
    assert {at: type(error) for at, error in caught.value.errors.items()} == {1: BadRequest, 2: BadRequest}
    assert [caught.value.results[at].key for at in (0, 3)] == ["a", "b"]
    assert len(items_of(cluster.asked[0])) == 2


def test_objects_without_room_in_an_answer_are_read_by_further_requests() -> None:
    """They are requested at once, as often as needed, since each answer has at least one of them."""

    def one(send: Send) -> Response:
        first, *rest = items_of(send)
        full = [(503, None, b"overloaded: full")] * len(rest)
        return answer(200, msgpack.packb([(200, CLOCK, [sibling(first[2])]), *full]))

    cluster = ScriptedCluster(one, attempts=3)
    assert [found.value for found in get(cluster, [str(at) for at in range(40)])] == list(range(40))
    assert len(cluster.asked) == 40
    assert cluster.slept == []


def test_a_read_that_fails_has_its_error() -> None:
    """The error is per item, as with writes; a bucket type that does not exist is not reported as a missing key."""
    cluster = ScriptedCluster(each(lambda _: (404, None, b"unknown-bucket-type: no such type")))
    with pytest.raises(BatchFailed) as caught:
        get(cluster, ["a"])
    assert type(caught.value.errors[0]) is BadRequest
    assert caught.value.errors[0].reason == "unknown-bucket-type"
