"""A Riak's full-sync with a live node: trees of keys that change, keys to repair, the push of what is ahead here."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from numpy.typing import NDArray

from isthmus.repl.model.vclock import Clock
from isthmus.repl.riak.clocks import parse_clock_text
from isthmus.repl.riak.tree_hash import leaf_hash, phash2_of_clock, place_of, segment_id
from tests.support.threaded_node import ThreadedNode, running_node
from tests.support.waiting import wait_until

MORE = """
[[queues]]
name = "to-riak"
riak_fetch = true
filter = "block_rtq"
[[riak.trees]]
n_val = 3
bucket_types = "default"
"""

BINARY = b"\xff\0"


class Caller:
    """Sends the requests that a Riak sends, and some of a client."""

    def __init__(self, node: ThreadedNode) -> None:
        self.node = node

    def ask(self, method: str, path: str, body: bytes | None = None, *, admin: bool = False) -> tuple[int, bytes]:
        port = self.node.admin if admin else self.node.http
        kind = "application/json" if admin or path.startswith("/queuename") else "text/plain"
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def put(self, bucket: str, key: str | bytes) -> None:
        assert self.ask("PUT", f"/buckets/{bucket}/keys/{quote(key)}", b"v")[0] == 204

    def get(self, path: str, document: Any = None) -> dict[str, Any]:
        query = "" if document is None else "?filter=" + b64encode(json.dumps(document).encode()).decode()
        status, body = self.ask("GET", path + query.replace("+", "%2B"))
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def tree(self) -> NDArray[np.uint32]:
        """All leaves, as a Riak reads them: the root, then the branches that are not empty."""
        status, body = self.ask("GET", "/cachedtrees/nvals/3/root")
        assert status == 200, body
        root = np.frombuffer(b64decode(json.loads(body)["root"]), ">u4")
        leaves = np.zeros((4096, 256), np.uint32)
        wanted = np.flatnonzero(root).tolist()
        for one in self.get("/cachedtrees/nvals/3/branch", wanted)["branches"] if wanted else ():
            leaves[one["branch-id"]] = np.frombuffer(b64decode(one["branch"]), ">u4")
        assert (np.bitwise_xor.reduce(leaves, axis=1) == root).all()
        return leaves.reshape(-1)

    def clocks(self, path: str, document: Any = None) -> dict[tuple[str, str], Clock]:
        """(bucket, key) -> clock of an answer."""
        rows = self.get(path, document)["keys-clocks"]
        return {(row["bucket"], row["key"]): parse_clock_text(row["clock"]) for row in rows}


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    with running_node(tmp_path, MORE) as node:
        caller = Caller(node)
        wait_until(lambda: caller.ask("GET", "/cachedtrees/nvals/3/root")[0] == 200, "trees")
        yield caller


def leaves_of(clocks: dict[tuple[str, str], Clock]) -> NDArray[np.uint32]:
    found = np.zeros(1 << 20, np.uint32)
    for (bucket, key), clock in clocks.items():
        names = b"default", bucket.encode(), key.encode()
        found[segment_id(*names) & 0xFFFFF] ^= leaf_hash(*names, clock)
    return found


def test_trees_are_those_of_the_keys_and_clocks_that_are_listed(caller: Caller) -> None:
    """Empty at first; after writes, overwrites and deletes, the leaves are made of the keys, deleted ones included, and
    of nothing else. A Riak that lacks some keys finds them by the leaves that differ."""
    assert not caller.tree().any()
    for number in range(30):
        caller.put(f"b{number % 2}", f"k{number}")
    before = caller.tree()
    for number in (3, 4):
        caller.put(f"b{number % 2}", f"k{number}")
    assert caller.ask("DELETE", "/buckets/b1/keys/k5")[0] == 204
    known = {**caller.clocks("/rangetrees/buckets/b0/keysclocks"), **caller.clocks("/rangetrees/buckets/b1/keysclocks")}
    assert len(known) == 30
    after = caller.tree()
    assert (after == leaves_of(known)).all()
    differing = np.flatnonzero(before != after).tolist()
    assert len(differing) == 3
    found = caller.clocks("/cachedtrees/nvals/3/keysclocks", differing)
    assert set(found) == {("b1", "k3"), ("b0", "k4"), ("b1", "k5")}
    assert found == {name: known[name] for name in found}
    limited = {"segment_filter": {"segments": differing, "tree_size": "large"}, "date_range": {"start": 1, "end": 2}}
    assert caller.clocks("/cachedtrees/nvals/3/keysclocks", limited) == {}


def test_a_range_has_a_tree_of_its_own(caller: Caller) -> None:
    """In any size, with the filter's keys alone; with `hash_iv` other hashes of the same keys."""
    for number in range(20):
        caller.put("b", f"k{number:02}")
    caller.put("other", "k")
    whole = caller.clocks("/rangetrees/buckets/b/keysclocks")
    tree = caller.get("/rangetrees/buckets/b/trees/large")["tree"]
    leaves = np.concatenate([np.frombuffer(zlib.decompress(b64decode(one)), ">u4") for one in tree["level2"].values()])
    assert (leaves == leaves_of(whole)).all()
    document = {"key_range": {"start": "k05", "end": "k07"}, "hash_iv": 7}
    part = caller.get("/rangetrees/buckets/b/trees/xxsmall", document)["tree"]
    level1 = np.frombuffer(b64decode(part["level1"]), ">u4")
    expected = np.zeros(16, np.uint32)
    for key in ("k05", "k06", "k07"):
        segment, names = place_of(b"default", b"b", key.encode())
        expected[(segment & 0xFFF) >> 8] ^= names ^ phash2_of_clock(whole["b", key], 7)
    assert (level1 == expected).all()


def test_a_key_that_is_not_utf8_is_in_the_tree_and_not_in_the_list(caller: Caller) -> None:
    """JSON cannot name it; the header counts it."""
    caller.put("b", BINARY)
    leaf = segment_id(b"default", b"b", BINARY) & 0xFFFFF
    assert np.flatnonzero(caller.tree()).tolist() == [leaf]
    query = "?filter=" + b64encode(json.dumps([leaf]).encode()).decode()
    url = f"http://127.0.0.1:{caller.node.http}/cachedtrees/nvals/3/keysclocks{query}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert json.loads(answer.read()) == {"keys-clocks": []}
        assert answer.headers["x-isthmus-refused"].startswith("1; 1: not-utf-8")


def test_what_is_ahead_here_is_pushed_by_the_riak_and_fetched(caller: Caller) -> None:
    """The Riak sends a key back with the clock that it got, as text or as a list of character codes; its sink then
    fetches the object. The clock may be the list that Riak's own JSON has."""
    caller.put("b", "k")
    (row,) = caller.get("/rangetrees/buckets/b/keysclocks")["keys-clocks"]
    for clock in (row["clock"], list(row["clock"].encode())):
        body = json.dumps({"keys-clocks": [{**row, "clock": clock}]}).encode()
        assert caller.ask("POST", "/queuename/to-riak", body) == (200, b"Queue to-riak: 0 1 0\n")
        status, body = caller.ask("GET", "/queuename/to-riak?object_format=internal")
        assert (status, body[:2]) == (200, b"\1\0")
        assert caller.ask("GET", "/queuename/to-riak?object_format=internal") == (200, b"\0")
    for bad in ([1, 2, "x"], [300], list(b"!!"), list(row["clock"].encode()[:-8]), {"a": 1}, 7):
        body = json.dumps({"keys-clocks": [{**row, "clock": bad}]}).encode()
        status, said = caller.ask("POST", "/queuename/to-riak", body)
        assert (status, b"keys-clocks[0]: clock" in said) == (400, True), said


def test_nodes_that_are_up_are_listed_for_a_riak(caller: Caller) -> None:
    """With the port as a text."""
    port = str(caller.node.http)
    assert caller.get("/membership_request") == {"up_nodes": [{"ip": "127.0.0.1", "port": port}]}


def test_operators_see_whether_the_trees_are_ready(caller: Caller) -> None:
    """An actor of the node's status, with its state and the reason."""
    status, body = caller.ask("GET", "/admin/cluster", admin=True)
    assert status == 200
    (actor,) = [one for one in json.loads(body)["actors"] if one["actor"] == "riak-trees"]
    assert actor == {"actor": "riak-trees", "state": "ready", "reason": "2 of 2 trees ready, for n_val 3"}
    metrics = caller.ask("GET", "/metrics", admin=True)[1].decode()
    assert 'isthmus_riak_trees{state="ready"} 2' in metrics
