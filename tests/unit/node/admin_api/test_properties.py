"""The admin listener's bucket properties: dry runs, expectations, notes, and nodes that have read older ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.services.properties import PropertyService
from isthmus.node.services.settings_query import SETTINGS, SettingsInForce
from isthmus.repl.controller.bucket_properties import PropertyCache
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY
from tests.support.query_links import QueryLinks

pytestmark = pytest.mark.virtual_time

TYPE = "/admin/bucket-types/notes/properties"
BUCKET = "/admin/buckets/notes/a%2Fb/properties"


class Answers:
    """Answers SETTINGS with versions that the test sets."""

    def __init__(self, version: int | None) -> None:
        self.version = version

    async def respond(self, _request: object) -> SettingsInForce:
        """See Responder."""
        return SettingsInForce(None, self.version, [])


class Node:
    """The admin API of n1, on a metastore in memory; n2 has read `behind`, n3 is down."""

    def __init__(self, metastore: MemoryMetastore) -> None:
        records = {0: SimpleNamespace(bucket_type="notes", factor=3)}
        cache = PropertyCache(metastore)
        self.other = Answers(None)
        links = QueryLinks()
        properties = PropertyService(
            cache,
            metastore,
            SimpleNamespace(wall_ms=lambda: 17),  # type: ignore[arg-type]
            partitions=SimpleNamespace(records=records),  # type: ignore[arg-type]
            key_limit_bytes=100,
        )

        class Own(Answers):
            async def respond(self, _request: object) -> SettingsInForce:
                return SettingsInForce(None, cache.settings.version, [])

        links.add("n1").serve(SETTINGS, Own(None))
        links.add("n2").serve(SETTINGS, self.other)
        services = SimpleNamespace(
            properties=properties,
            query=links.nodes["n1"],
            membership=SimpleNamespace(live_nodes=lambda: {"n1", "n2"}, known_nodes=lambda: {"n1", "n2", "n3"}),
        )
        self.api = AdminApi(services, FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]

    async def ask(self, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """The status and JSON of a GET, or with a body of a POST."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            raw = b"" if body is None else json.dumps(body).encode()
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        method = "GET" if body is None else "POST"
        scope = {"method": method, "raw_path": path.encode(), "headers": [], "query_string": b""}
        await self.api(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


@asynccontextmanager
async def a_node() -> AsyncIterator[Node]:
    """One node, with nothing set."""
    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _state: None)
    yield Node(metastore)
    await metastore.stop()


def row(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """The row of one property."""
    found: dict[str, Any] = next(each for each in answer["properties"] if each["property"] == name)
    return found


async def test_a_dry_run_shows_the_properties_as_they_would_be() -> None:
    """A dry run changes nothing; an unset property has its bucket type's value again."""
    async with a_node() as node:
        wish = {"props": {"max_siblings": 5}, "by": "ann", "reason": "a test"}
        status, said = await node.ask(f"{TYPE}/set", {**wish, "dry_run": True})
        then = row(said, "max_siblings")
        assert (status, said["outcome"], then["value"], then["origin"], then["default"]) == (
            200, "would be set", 5, "bucket type", 0,
        )  # fmt: skip
        assert row((await node.ask(TYPE))[1], "max_siblings")["origin"] == "default"
        status, done = await node.ask(f"{TYPE}/set", wish)
        kept = row(done, "max_siblings")
        assert (kept["value"], kept["by"], kept["at_ms"], kept["reason"]) == (5, "ann", 17, "a test")
        await node.ask(f"{BUCKET}/set", {"props": {"max_siblings": 9}})
        _, said = await node.ask(f"{BUCKET}/unset", {"names": ["max_siblings"], "dry_run": True})
        then = row(said, "max_siblings")
        assert (said["outcome"], then["value"], then["origin"]) == ("would be unset", 5, "bucket type")
        _, said = await node.ask(f"{BUCKET}/unset", {"names": ["r"], "dry_run": True})
        assert said["outcome"] == "was not set"
        assert row((await node.ask(BUCKET))[1], "max_siblings")["origin"] == "bucket"


async def test_a_change_of_what_another_operator_changed_is_refused() -> None:
    """The dry run and the change are refused with 409; with the current value the change is made. A malformed request
    is 400."""
    async with a_node() as node:
        await node.ask(f"{TYPE}/set", {"props": {"allow_mult": False}, "by": "ann", "expected": {}})
        for dry_run in (True, False):
            for act, wish in (
                ("set", {"props": {"allow_mult": True}}),
                ("unset", {"names": ["allow_mult"]}),
                ("unset", {}),
            ):
                status, said = await node.ask(f"{TYPE}/{act}", {**wish, "expected": {}, "dry_run": dry_run})
                assert (status, said["reason"]) == (409, "changed-meanwhile")
                assert "it is set to false now, by ann" in said["error"]
        status, done = await node.ask(f"{TYPE}/unset", {"expected": {"allow_mult": False}})
        assert (status, done["outcome"]) == (200, "unset")
        status, said = await node.ask(f"{TYPE}/unset", {"expected": {"allow_mult": None}})
        assert (status, said["reason"]) == (400, "bad-json")


async def test_notes_say_what_has_no_effect_and_which_buckets_keep_their_own() -> None:
    """The note for a bucket type names the buckets that have a value of their own for one of the properties, up to
    five."""
    async with a_node() as node:
        assert (await node.ask(f"{TYPE}/set", {"props": {"r": 1}, "dry_run": True}))[1]["warnings"] == [
            "r is stored and shown, and has no effect"
        ]
        await node.ask(f"{BUCKET}/set", {"props": {"allow_mult": False}})
        _, said = await node.ask(f"{TYPE}/set", {"props": {"allow_mult": True}})
        assert said["warnings"] == ["notes/a/b: its own value precedes the bucket type's"]
        for number in range(6):
            await node.ask(f"/admin/buckets/notes/{number}/properties/set", {"props": {"allow_mult": False}})
        (note,) = (await node.ask(f"{TYPE}/unset", {"names": ["allow_mult"], "dry_run": True}))[1]["warnings"]
        assert (
            note == "notes/0, notes/1, notes/2, notes/3, notes/4 and 2 more: their own values precede the bucket type's"
        )
        assert (await node.ask(f"{TYPE}/set", {"props": {"max_siblings": 1}, "dry_run": True}))[1]["warnings"] == []


async def test_nodes_that_have_read_older_properties_are_named() -> None:
    """They are named as soon as one node has read newer ones; a node that is down is unknown."""
    async with a_node() as node:
        assert ((await node.ask(TYPE))[1]["behind"], (await node.ask(TYPE))[1]["unknown"]) == ([], {"n3": "not alive"})
        await node.ask(f"{TYPE}/set", {"props": {"allow_mult": False}})
        assert (await node.ask(TYPE))[1]["behind"] == ["n2"]
        node.other.version = 0
        assert (await node.ask(TYPE))[1]["behind"] == []
        node.other.version = 5
        assert (await node.ask(TYPE))[1]["behind"] == ["n1"]
