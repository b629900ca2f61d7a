"""Routes of a client: the leader of a key by the documented hash, corrections, and malformed answers."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh64_intdigest

from isthmus.repl.http.routes import HASH, Routes, parse_routes
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import hashed_bytes, key_hash, partition_index, segment_of

HTTP_PAGE = Path(__file__).resolve().parents[4] / "docs" / "http.md"


def document(**changes: Any) -> bytes:
    base = {
        "v": 1,
        "cluster": "east",
        "cluster_uuid": "00ff",
        "version": 57,
        "hash": HASH,
        "nodes": {"n1": "h:1", "n2": "h:2"},
        "bucket_types": {"default": ["n1", "n2", None, "n1"], "notes": ["n3"]},
    }
    return json.dumps({**base, **changes}).encode()


def test_the_documented_example_is_that_of_the_program() -> None:
    """docs/http.md shows each step from bucket and key to the index, with the values that this program computes."""
    page = HTTP_PAGE.read_text()
    rows = dict(
        re.findall(r"^\| (bucket, key|joined|hash|segment|index of 12 partitions) \| (.*) \|$", page, re.MULTILINE)
    )
    bucket, key = (name.encode() for name in re.findall(r"`(\w+)`", rows["bucket, key"]))
    joined = struct.pack(">I", len(bucket)) + bucket + struct.pack(">I", len(key)) + key
    assert hashed_bytes(bucket, key) == joined == bytes.fromhex(rows["joined"].strip("`"))
    found = xxh64_intdigest(joined, seed=42)
    assert key_hash(bucket, key) == found == int(rows["hash"].strip("`"), 16)
    assert segment_of(found) == found >> 44 == int(rows["segment"])
    index = (found >> 44) * 12 >> 20
    assert partition_index(found, 12) == index == int(rows["index of 12 partitions"])
    leaders = [f"n{n}" for n in range(12)]
    routes = parse_routes(document(nodes={name: name for name in leaders}, bucket_types={"default": leaders}))
    assert routes.leader(b"default", bucket, key) == f"n{index}"


def test_a_key_has_the_leader_of_its_partition_or_none() -> None:
    """By bucket type; a partition without leader, a leader without address and an unknown type have none."""
    routes = parse_routes(document())
    assert (routes.version, routes.cluster_uuid) == (57, "00ff")
    assert set(routes.nodes) == {"h:1", "h:2"}
    found = {routes.leader(b"default", b"b", b"%d" % n) for n in range(50)}
    assert found == {"h:1", "h:2", None}
    assert routes.leader(b"notes", b"b", b"k") is None
    assert routes.leader(b"other", b"b", b"k") is None
    assert Routes().leader(b"default", b"b", b"k") is None


def test_an_answer_corrects_the_leader_of_its_partition_only() -> None:
    """The leader that an answer names holds for all keys of the partition; a forgotten node leads nothing."""
    routes = parse_routes(document(bucket_types={"default": ["n1", "n2"]}))
    keys = [b"%d" % n for n in range(50)]
    before = {key: routes.leader(b"default", b"b", key) for key in keys}
    mine = before[keys[0]]
    routes.learn(b"default", b"b", keys[0], "h:9")
    routes.learn(b"other", b"b", keys[0], "h:9")
    assert all(routes.leader(b"default", b"b", k) == ("h:9" if before[k] == mine else before[k]) for k in keys)
    routes.forget("h:9")
    assert all(routes.leader(b"default", b"b", k) == (None if before[k] == mine else before[k]) for k in keys)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{}", b"[]", b"\xff", b"<html>", document(v=2), document(hash="md5"), document(nodes=[]),
        document(bucket_types={"t": []}), document(bucket_types={"t": 7}), document(version=None), b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_answer_of_this_form_is_refused(raw: bytes) -> None:
    """Another version, another hash, another server: CodecError, and nothing else."""
    with pytest.raises(CodecError):
        parse_routes(raw)


def test_a_version_that_is_infinite_is_refused() -> None:
    """Python's JSON parser accepts infinity, which is not a version."""
    document = {"v": 1, "hash": HASH, "version": float("inf"), "cluster_uuid": "u", "nodes": {}, "bucket_types": {}}
    with pytest.raises(CodecError, match="infinity"):
        parse_routes(json.dumps(document).encode())
