"""Tests of both clients against a whole node."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgpack
import pytest

from isthmus.client import (
    BadRequest,
    BatchFailed,
    Client,
    Codec,
    Conflict,
    Context,
    Delete,
    NotFound,
    OutcomeUnknown,
    Put,
    Retryable,
    Sibling,
    Siblings,
    newest,
)
from tests.support.both_clients import MakeClient
from tests.support.raw_server import RawServer
from tests.support.threaded_node import ThreadedNode
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> str:
    """A bucket of the test's own."""
    return str(request.node.name)


@pytest.fixture
def client(make_client: MakeClient, url: str) -> Any:
    return make_client(url)


@pytest.mark.parametrize("value", [{"a": [1, None, "ä"]}, "text ä", b"\x00\xff", b"", "", 0, [], None, True, 1.5])
def test_a_value_is_written_and_read(client: Any, bucket: str, value: object) -> None:
    """A value of any type with bytes is written and read back, with its version and a time."""
    done = client.put(bucket, "k", value)
    read = client.get(bucket, "k")
    assert (read.value, read.context, read.in_conflict) == (value, done.context, False)
    assert type(read.value) is type(value)
    assert len(read.etag) == 16
    assert client.get_many(bucket, ["k"])[0].value == value


NAMES: Sequence[str | bytes] = ["ä/ö", "a b+c", "%41", ".", "..", "\n", "k?x#y", b"\xff\x00", "z" * 300, "😀"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_exact(client: Any, name: str | bytes) -> None:
    """Any text, and any bytes: as bucket and as key, in all requests that have a name, and in listings."""
    shown = name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
    for bucket, key in ((name, "key"), ("names", name)):
        client.overwrite(bucket, key, {"n": 1})
        assert client.update(bucket, key, lambda value: {**value, "m": 2}).value == {"n": 1, "m": 2}
        client.put_many(bucket, [Put(key, {"n": 3}, context=client.get(bucket, key))])
        assert client.get(bucket, key).value == {"n": 3}
        assert client.get_many(bucket, [key])[0].value == {"n": 3}
    assert shown in list(client.list_buckets())
    assert list(client.list_keys("names", prefix=name)) == [shown]
    assert client.properties(name)["allow_mult"] is True
    assert client.delete("names", shown) is True
    assert not client.exists("names", name)


def test_a_key_that_does_not_exist(client: Any, bucket: str) -> None:
    """A key that was never written, and one that was deleted, whose deletion has a context."""
    with pytest.raises(NotFound) as caught:
        client.get(bucket, "k")
    assert caught.value.context is None
    assert client.find(bucket, "k") is None
    assert client.delete(bucket, "k") is False
    client.put(bucket, "k", 1)
    assert client.exists(bucket, "k") is True
    assert client.delete(bucket, "k") is True
    with pytest.raises(NotFound) as caught:
        client.get(bucket, "k")
    with pytest.raises(BadRequest, match="of another key"):
        client.put(bucket, "other", 2, context=caught.value)
    client.put(bucket, "k", 2, context=caught.value)
    assert client.get(bucket, "k").value == 2


def test_what_is_stored_beside_a_value(client: Any, bucket: str) -> None:
    """Content type, encoding and metadata come back; `update` keeps them."""
    client.put(bucket, "k", "a;b", content_type="text/csv", metadata={"Author": "Zoë", "x": ""})
    read = client.get(bucket, "k")
    assert (read.content_type, read.metadata) == ("text/csv", {"author": "Zoë", "x": ""})
    client.update(bucket, "k", lambda text: text + ";c")
    for read in (client.get(bucket, "k"), client.get_many(bucket, ["k"])[0]):
        assert (read.value, read.content_type, read.metadata["author"]) == ("a;b;c", "text/csv", "Zoë")
    client.put(bucket, "zipped", b"\x1f\x8b", content_type="application/json", content_encoding="gzip")
    assert client.get(bucket, "zipped").value == b"\x1f\x8b"


def test_a_codec_of_the_caller(make_client: MakeClient, url: str, bucket: str) -> None:
    """A codec for a content type that the client does not know."""
    client = make_client(url, codecs={"application/msgpack": Codec(msgpack.packb, msgpack.unpackb)})
    client.put(bucket, "k", {"a": b"\xff"}, content_type="application/msgpack")
    assert client.update(bucket, "k", lambda value: {**value, "b": 1}).value == {"a": b"\xff", "b": 1}
    assert client.get(bucket, "k").value == {"a": b"\xff", "b": 1}


def test_a_context_says_what_a_write_replaces(client: Any, bucket: str) -> None:
    """A write with a context replaces the value, any number of times; without one it adds a sibling."""
    context = client.put(bucket, "k", 1)
    context = client.put(bucket, "k", 2, context=context)
    client.put(bucket, "k", 3, context=Context.from_text(str(context.context)))
    assert client.get(bucket, "k").value == 3
    client.put(bucket, "k", 4)
    assert [each.value for each in client.get(bucket, "k").siblings] == [3, 4]


def test_siblings(client: Any, bucket: str) -> None:
    """Values and a deletion, each with its metadata; one write with their context replaces all."""
    first = client.put(bucket, "k", {"n": 1}, metadata={"who": "ann"})
    client.put(bucket, "k", b"\r\n--", content_type="image/png")
    client.delete(bucket, "k", context=first)
    client.put(bucket, "k", "three", context=first)
    for read in (client.get(bucket, "k"), client.get_many(bucket, ["k"])[0]):
        found = {each.value for each in read.siblings if not each.deleted}
        assert found == {b"\r\n--", "three"}
        assert all(isinstance(each, Sibling) and each.vtag for each in read.siblings)
        with pytest.raises(Siblings):
            _ = read.value
    assert client.exists(bucket, "k")
    assert client.get(bucket, "k", resolve=newest).value in found
    with pytest.raises(Siblings) as caught:
        client.update(bucket, "k", lambda value: value)
    client.put(bucket, "k", "one", context=caught.value.object)
    assert client.get(bucket, "k").value == "one"


def test_a_deletion_beside_a_value_is_a_sibling(client: Any, bucket: str) -> None:
    """A resolver sees both."""
    first = client.put(bucket, "k", 1)
    client.put(bucket, "k", 2, context=first)
    client.delete(bucket, "k", context=first)
    read = client.get(bucket, "k")
    assert sorted((each.deleted, each.value) for each in read.siblings) == [(False, 2), (True, None)]
    assert client.update(bucket, "k", lambda value: value + 1, resolve=newest).value == 3


def test_update_merges_siblings(make_client: MakeClient, url: str, bucket: str) -> None:
    """The client's resolver merges siblings; the result has no siblings."""

    def union(siblings: Sequence[Sibling]) -> list[str]:
        return sorted({name for each in siblings for name in each.value or []})

    client = make_client(url, resolve=union)
    for name in ("ann", "bob", "cy"):
        client.put(bucket, "k", [name])
    assert client.get(bucket, "k").value == ["ann", "bob", "cy"]
    assert client.update(bucket, "k", lambda names: [*names, "di"]).value == ["ann", "bob", "cy", "di"]
    assert client.get(bucket, "k").content.value == ["ann", "bob", "cy", "di"]


def test_conditions(client: Any, bucket: str) -> None:
    """A write only if absent or only if unchanged writes nothing when its condition does not hold."""
    first = client.put(bucket, "k", 1, if_absent=True)
    with pytest.raises(Conflict) as caught:
        client.put(bucket, "k", 2, if_absent=True)
    assert caught.value.status == 412
    second = client.put(bucket, "k", 2, context=first, if_unchanged=True)
    with pytest.raises(Conflict) as caught:
        client.put(bucket, "k", 3, context=first, if_unchanged=True)
    assert caught.value.reason == "modified"
    with pytest.raises(Conflict):
        client.delete(bucket, "k", context=first, if_unchanged=True)
    assert client.get(bucket, "k").value == 2
    assert client.delete(bucket, "k", context=second, if_unchanged=True) is True


def test_overwrite(client: Any, bucket: str) -> None:
    """Replaces nothing, a value, siblings, a deletion."""
    client.overwrite(bucket, "k", 1)
    client.overwrite(bucket, "k", 2)
    client.put(bucket, "k", 3)
    assert client.get(bucket, "k").in_conflict
    client.overwrite(bucket, "k", 4)
    assert client.get(bucket, "k").value == 4
    client.delete(bucket, "k")
    client.overwrite(bucket, "k", 5)
    assert client.get(bucket, "k").value == 5


def test_a_request_id_takes_effect_once(client: Any, bucket: str) -> None:
    """A call repeated with the same id changes nothing, and reports that."""
    client.put(bucket, "k", 1, request_id="first")
    client.overwrite(bucket, "k", 2)
    again = client.put(bucket, "k", 1, request_id="first")
    assert again.repeated
    assert client.get(bucket, "k").value == 2
    (result,) = client.put_many(bucket, [Put("k", 1, request_id="first")])
    assert result.repeated


def test_counters_of_many_threads_add_up(client: Any, bucket: str) -> None:
    """Each update takes effect exactly once, whichever thread is faster."""
    failures: list[BaseException] = []

    def count() -> None:
        try:
            for _ in range(15):
                client.update(bucket, "count", lambda count: count + 1, default=0, timeout_s=60)
        except BaseException as error:  # noqa: BLE001 - the test judges it
            failures.append(error)

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert client.get(bucket, "count").value == 90


def test_large_values(client: Any, bucket: str) -> None:
    """Megabytes, one by one and in a batch; over the limit of the node a BadRequest with its code."""
    value = os.urandom(3_000_000)
    client.put(bucket, "k", value)
    assert client.get(bucket, "k").body == value
    client.put_many(bucket, {f"k{at}": value[at:] for at in range(4)})
    read = client.get_many(bucket, [f"k{at}" for at in range(4)])
    assert [each.body for each in read] == [value[at:] for at in range(4)]
    with pytest.raises(BadRequest) as caught:
        client.put(bucket, "k", bytes(51_000_000), timeout_s=60)
    assert (caught.value.reason, caught.value.status) == ("too-large", 413)


def test_batches(client: Any, bucket: str) -> None:
    """Batches have more than one chunk and results in order; reads have None for absent keys; deletes are items,
    too."""
    keys = [f"k{at}" for at in range(1_203)]
    results = client.put_many(bucket, {key: {"n": at} for at, key in enumerate(keys)})
    assert [result.key for result in results] == keys
    read = client.get_many(bucket, [*keys, "none"])
    assert [each.value["n"] for each in read[:-1]] == list(range(1_203))
    assert read[-1] is None
    changes = [Delete("k0"), Put("k1", 5, context=results[1]), Delete("none")]
    assert [result.context is not None for result in client.put_many(bucket, changes)] == [True, True, False]
    assert [each and each.value for each in client.get_many(bucket, ["k0", "k1"])] == [None, 5]
    assert client.put_many(bucket, {}) == []


def test_a_batch_with_wrong_items(client: Any, bucket: str) -> None:
    """Good items are written; the error has each item's own."""
    with pytest.raises(BatchFailed) as caught:
        client.put_many(bucket, [Put("a", 1), Put("k" * 5_000, 1), Put("b", bytes(51_000_000)), Put("c", {1})])
    reasons = {at: error.reason for at, error in caught.value.errors.items()}
    assert reasons == {1: "bad-key", 2: "too-large", 3: "bad-value"} or reasons[1] == "bad-input"
    assert client.get(bucket, "a").value == 1


def test_listings_in_pages(client: Any, bucket: str) -> None:
    """Every key is listed once and in order, whatever the size of a page; by prefix; without deleted ones."""
    keys = {f"{prefix}{at}" for prefix in ("a-", "ä-") for at in range(40)}
    client.put_many(bucket, dict.fromkeys(keys, 1))
    client.delete(bucket, "a-0")
    listed = list(client.list_keys(bucket, page_size=7))
    assert listed == sorted(keys - {"a-0"})
    assert list(client.list_keys(bucket, prefix="ä-", page_size=3)) == sorted(key for key in keys if key[0] == "ä")
    assert list(client.list_keys(bucket, prefix="none")) == []
    assert bucket in list(client.list_buckets(prefix=bucket[:5], page_size=1))


def test_properties(client: Any, bucket: str) -> None:
    """The properties of a bucket and of its type are read."""
    assert client.properties(bucket)["name"] == bucket
    assert client.properties()["last_write_wins"] is False


def test_last_write_wins(client: Any, url: str, bucket: str) -> None:
    """A bucket with this property keeps the last write, without a context; conditions, and so `update`, still hold."""
    body = json.dumps({"props": {"last_write_wins": True}}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/buckets/{quote(bucket)}/props", body, headers, method="PUT")
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()
    first = client.put(bucket, "k", 1)
    client.put(bucket, "k", 2)
    assert client.get(bucket, "k").value == 2
    with pytest.raises(Conflict):
        client.put(bucket, "k", 3, context=first, if_unchanged=True)
    assert client.update(bucket, "k", lambda value: value + 1).value == 3
    assert client.properties(bucket)["last_write_wins"] is True


def test_a_bucket_type_that_does_not_exist(make_client: MakeClient, url: str, bucket: str) -> None:
    """The sentence of the node names those that do."""
    client = make_client(url, bucket_type="nosuch")
    for call in (lambda: client.get(bucket, "k"), lambda: client.put(bucket, "k", 1), lambda: client.properties()):
        with pytest.raises(BadRequest, match="known are default") as caught:
            call()
        assert caught.value.reason == "unknown-bucket-type"
    assert client.find(bucket, "k", bucket_type="default") is None


def test_the_admin_listener_is_named_as_a_mistake(make_client: MakeClient, node: ThreadedNode) -> None:
    """Answers of the admin listener are not taken for results; the error says which URL is needed, also for a call
    whose answer has no body."""
    client = make_client(f"http://127.0.0.1:{node.admin}")
    calls: list[Callable[[], object]] = [
        lambda: client.get("b", "k"),
        lambda: client.put("b", "k", 1),
        lambda: client.exists("b", "k"),
        lambda: list(client.list_keys("b")),
    ]
    for call in calls:
        with pytest.raises(BadRequest, match="admin listener; give the URL of its client listener") as caught:
            call()
        assert caught.value.reason == "unknown-path"
        assert "{" not in caught.value.message
    with pytest.raises(BatchFailed, match="admin listener"):
        client.get_many("b", ["k"])


def test_a_node_that_is_not_there_is_replaced(make_client: MakeClient, url: str, bucket: str) -> None:
    """The client uses whichever given node answers; without one the error is Retryable, gives the reason, and comes
    within its time."""
    client = make_client(["http://127.0.0.1:9", url])
    for at in range(8):
        client.overwrite(bucket, "k", at)
    assert client.get(bucket, "k").value == 7
    lost = make_client("http://127.0.0.1:9")
    with pytest.raises(Retryable, match="cannot be reached"):
        lost.put(bucket, "k", 1, timeout_s=0.5)


def test_a_closed_client_refuses_calls(make_client: MakeClient, url: str, bucket: str) -> None:
    """A call that waits for its next attempt is refused, too; closing twice is allowed."""
    client = Client("http://127.0.0.1:9", timeout_s=30)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            client.get(bucket, "k")
        except BaseException as error:  # noqa: BLE001 - the test judges it
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    threading.Event().wait(0.3)
    client.close()
    client.close()
    thread.join(PATIENCE_S)
    assert [error.reason for error in failures if isinstance(error, BadRequest)] == ["closed"]
    with pytest.raises(BadRequest, match="closed"):
        client.get(bucket, "k")
    with make_client(url) as other:
        other.put(bucket, "k", 1)


async def plus_one(count: int) -> int:
    """A coroutine function where an ordinary one is needed."""
    return count + 1


def test_a_coroutine_function_in_a_client_for_threads(url: str, bucket: str) -> None:
    """The call is refused as a mistake, and nothing is written."""
    with Client(url) as client:
        with pytest.raises(BadRequest, match="coroutine function"):
            client.update(bucket, "k", plus_one, default=0)
        assert not client.exists(bucket, "k")


def test_a_write_that_is_under_way_when_the_client_is_closed() -> None:
    """The write was sent, its answer was lost, and the client is closed in the pause before a retry: the outcome is
    unknown, and the error has the id."""

    def hang_up(connection: socket.socket) -> None:
        server.read_request(connection)

    server = RawServer(hang_up)
    errors: list[Any] = []

    def write(client: Client) -> None:
        try:
            client.put("b", "k", 1, request_id="my-id")
        except OutcomeUnknown as error:
            errors.append(error)

    with server, Client(server.url, timeout_s=60) as client:
        thread = threading.Thread(target=write, args=(client,))
        thread.start()
        while not server.heads:
            time.sleep(0.01)
        time.sleep(0.05)
        client.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert [(type(error), error.request_id) for error in errors] == [(OutcomeUnknown, "my-id")]
