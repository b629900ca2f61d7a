"""A Riak's full-sync over HTTP: trees, branches, keys with clocks in Riak's JSON, and refusals of bad filters."""

from __future__ import annotations

import asyncio
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from isthmus.aae.folds.folds import FoldCursor, FoldKind, FoldMatch, FoldScope, Page, RiakSegments, RiakTreeShape
from isthmus.node.client_api import riak_trees
from isthmus.repl.model.vclock import Clock, encode_clock
from isthmus.repl.riak.clocks import parse_clock_text
from tests.support.memory_client_api import ClientApiFixture, ask

CLOCK: Clock = ((b"a" * 20, 7, 1_700_000_000),)
IN_RIAK: Clock = ((b"a" * 20, 7, 1_700_000_000 + 62_167_219_200),)
CACHED = "/cachedtrees/nvals/3"


def filter_of(document: Any) -> str:
    """The query of a filter."""
    return "?filter=" + b64encode(json.dumps(document).encode()).decode().replace("=", "%3D").replace("+", "%2B")


def words_of(text: str) -> list[int]:
    """The hashes in base64."""
    found: list[int] = np.frombuffer(b64decode(text), ">u4").tolist()
    return found


def match(key: bytes, bucket: bytes = b"b", clock: bytes = encode_clock(CLOCK)) -> FoldMatch:
    """A key that a page found."""
    return FoldMatch(bucket, key, 1, 10, 0, "", clock)


def test_root_and_branches_are_numbers_of_four_bytes(client_api: ClientApiFixture) -> None:
    """4,096 hashes of branches; the 256 leaves of each branch that was asked for, in the order asked."""
    client_api.riak_trees.leaves[5, 255] = 0x01020304
    client_api.riak_trees.leaves[5, 0] = 0x01000000
    answer = client_api.call("GET", CACHED + "/root")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    root = words_of(json.loads(answer.body)["root"])
    assert (len(root), root[5], sum(root)) == (4096, 0x020304, 0x020304)
    answer = client_api.call("GET", CACHED + "/branch" + filter_of([9, 5]))
    nine, five = json.loads(answer.body)["branches"]
    assert (nine["branch-id"], five["branch-id"]) == (9, 5)
    assert b64decode(five["branch"])[-4:] == b"\1\2\3\4"
    assert words_of(nine["branch"]) == [0] * 256


@pytest.mark.parametrize(
    "document",
    [
        [3, 70_000],
        {"segment_filter": {"segments": [3, 70_000], "tree_size": "large"}, "date_range": {"start": 10, "end": 20}},
    ],
)
def test_keys_of_leaves_have_the_clocks_that_riak_reads(client_api: ClientApiFixture, document: Any) -> None:
    """Of all bucket types of the n_val, tombstones included; a name that is not UTF-8 is left out and counted."""
    pages = [
        Page(next=FoldCursor(1, b"x"), found=[match(b"k")]),
        Page(found=[match(b"\xff")]),
        Page(),
        Page(found=[match(b"l")]),
    ]
    client_api.folds.pages = list(pages)
    answer = client_api.call("GET", CACHED + "/keysclocks" + filter_of(document))
    rows = json.loads(answer.body)["keys-clocks"]
    assert [parse_clock_text(row.pop("clock")) for row in rows] == [IN_RIAK] * 2
    assert rows == [{"bucket": "b", "key": "k"}, {"bucket-type": "t", "bucket": "b", "key": "l"}]
    assert answer.headers["x-isthmus-refused"].startswith("1; 1: not-utf-8: ")
    times = {} if isinstance(document, list) else {"since_ms": 10_000, "before_ms": 21_000}
    scope = FoldScope(riak_segments=RiakSegments(20, (3, 70_000)), **times)
    asked = client_api.folds.asked
    assert {(one.kind, one.scope) for _, one in asked} == {(FoldKind.KEY_CLOCKS, scope)}
    assert [partition for partition, _ in asked] == [0, 0, 1, 2, 3]


def test_keys_of_a_range_have_their_clocks(client_api: ClientApiFixture) -> None:
    """Of one bucket, within the filter."""
    client_api.folds.pages = [Page(found=[match(b"k")])]
    document = {"key_range": {"start": "a", "end": "l"}, "segment_filter": {"segments": [7], "tree_size": "small"}}
    answer = client_api.call("GET", "/rangetrees/types/t/buckets/b/keysclocks" + filter_of(document))
    (row,) = json.loads(answer.body)["keys-clocks"]
    assert parse_clock_text(row.pop("clock")) == IN_RIAK
    assert row == {"bucket-type": "t", "bucket": "b", "key": "k"}
    scope = FoldScope(b"b", b"a", b"l\0", riak_segments=RiakSegments(16, (7,)))
    assert {(one.kind, one.scope) for _, one in client_api.folds.asked} == {(FoldKind.KEY_CLOCKS, scope)}


def test_the_tree_of_a_range_is_the_sum_of_all_pages(client_api: ClientApiFixture) -> None:
    """In the size asked for, as Riak exports it: hashes of branches, and the leaves of each branch, compressed."""
    client_api.folds.pages = [
        Page(next=FoldCursor(0, b"k"), leaves={0: 3, 300: 5}),
        Page(leaves={300: 1, 4095: 0xFFFFFFFF}),
        Page(leaves={300: 4}),
    ]
    answer = client_api.call("GET", "/rangetrees/buckets/b/trees/xxsmall" + filter_of({"hash_iv": 9}))
    tree = json.loads(answer.body)["tree"]
    assert list(tree) == ["level1", "level2"]
    assert words_of(tree["level1"]) == [3, 0, *[0] * 13, 0xFFFFFFFF]
    assert list(tree["level2"]) == [str(at) for at in range(16)]
    leaves = [np.frombuffer(zlib.decompress(b64decode(one)), ">u4") for one in tree["level2"].values()]
    assert {len(one) for one in leaves} == {256}
    assert (leaves[0][0], leaves[1][44], leaves[15][255]) == (3, 0, 0xFFFFFFFF)
    assert {one.tree for _, one in client_api.folds.asked} == {RiakTreeShape(12, 9)}
    for name, size in (("small", 256), ("large", 4096)):
        answer = client_api.call("GET", f"/rangetrees/types/t/buckets/b/trees/{name}")
        assert len(words_of(json.loads(answer.body)["tree"]["level1"])) == size


@pytest.mark.parametrize(
    ("target", "status", "reason", "words"),
    [
        (CACHED + "/branch", 400, "bad-query", "filter is missing"),
        (CACHED + "/branch?filter=%25", 400, "bad-query", "filter is not base64"),
        (CACHED + "/branch?filter=W1s=", 400, "bad-query", "is not JSON"),
        (CACHED + "/branch" + filter_of({}), 400, "bad-query", "a list of whole numbers below 4096"),
        (CACHED + "/branch" + filter_of([4096]), 400, "bad-query", "below 4096"),
        (CACHED + "/branch" + filter_of([-1]), 400, "bad-query", "below 4096"),
        (CACHED + "/branch" + filter_of([True]), 400, "bad-query", "below 4096"),
        (CACHED + "/branch" + filter_of([]), 400, "bad-query", "0 branches; 1 to 1024"),
        (CACHED + "/branch" + filter_of([0] * 1025), 400, "bad-query", "1025 branches; 1 to 1024"),
        (CACHED + "/keysclocks", 400, "bad-query", "filter is missing"),
        (CACHED + "/keysclocks" + filter_of([]), 400, "bad-query", "names no leaf"),
        (CACHED + "/keysclocks" + filter_of([1 << 20]), 400, "bad-query", "below 1048576"),
        (CACHED + "/keysclocks" + filter_of([0] * 10_001), 400, "bad-query", "10000 are the most"),
        (CACHED + "/keysclocks" + filter_of(7), 400, "bad-query", "no JSON object"),
        (CACHED + "/keysclocks" + filter_of({"date_range": {"start": 1, "end": 2}}), 400, "bad-query", "names no leaf"),
        (CACHED + "/keysclocks" + filter_of({"key_range": "all"}), 400, "bad-query", "key_range"),
        ("/cachedtrees/nvals/0/root", 400, "bad-path", "a whole number from 1 to 1000"),
        ("/cachedtrees/nvals/x/root", 400, "bad-path", "a whole number from 1 to 1000"),
        ("/cachedtrees/nvals/9999999999/root", 400, "bad-path", "a whole number from 1 to 1000"),
        ("/cachedtrees/nvals/2/root", 404, "unknown-n-val", "n_val 2: it has n_val 3"),
        ("/cachedtrees/nvals/2/keysclocks" + filter_of([1]), 404, "unknown-n-val", "n_val 2"),
        ("/cachedtrees/nvals/3/leaves", 404, "unknown-path", "nothing answers"),
        ("/rangetrees/buckets/b/trees/huge", 400, "bad-path", "xxsmall, xsmall, small"),
        ("/rangetrees/buckets//trees/small", 400, "bad-key", "must not be empty"),
        ("/rangetrees/buckets/b/trees/small" + filter_of({"hash_iv": -1}), 400, "bad-query", "hash_iv must be"),
        ("/rangetrees/buckets/b/trees/small" + filter_of({"hash_iv": 1 << 63}), 400, "bad-query", "hash_iv must be"),
        ("/rangetrees/buckets/b/trees/small" + filter_of({"keyrange": 1}), 400, "bad-query", "keyrange"),
        ("/rangetrees/types/x/buckets/b/keysclocks", 404, "unknown-bucket-type", "b'x' does not exist"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_says_why(
    client_api: ClientApiFixture, target: str, status: int, reason: str, words: str
) -> None:
    """With a right form, a limit, or what there is instead."""
    answer = client_api.call("GET", target)
    assert (answer.status, answer.reason) == (status, reason), answer.body
    assert words in answer.body.decode()


async def test_more_questions_than_the_limit_are_refused(
    client_api_with: Callable[..., ClientApiFixture], monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, to be sent again; those that are being answered are, and the places are free afterwards."""
    monkeypatch.setattr(riak_trees, "QUESTIONS_MAX", 2)
    client_api = client_api_with()
    give = client_api.riak_trees.give = asyncio.Event()
    asked = [asyncio.create_task(ask(client_api.app, "GET", CACHED + "/root", b"")) for _ in range(2)]
    await asyncio.sleep(0.01)
    refused = await ask(client_api.app, "GET", CACHED + "/branch" + filter_of([1]), b"")
    assert refused is not None
    assert (refused.status, refused.reason) == (503, "overloaded")
    give.set()
    assert [answer.status for answer in await asyncio.gather(*asked) if answer is not None] == [200, 200]
    again = await ask(client_api.app, "GET", CACHED + "/root", b"")
    assert again is not None
    assert again.status == 200
