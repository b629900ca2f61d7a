"""Riak's property paths, and the admin listener's: shown, set, taken back, refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.admin_api.properties import PropertiesAdmin
from isthmus.node.client_api.properties import PropertyRoutes
from isthmus.node.services.properties import PropertyService
from isthmus.repl.controller import bucket_properties as properties_room
from isthmus.repl.controller.bucket_properties import PropertyCache
from isthmus.repl.model.record import PartitionRecord
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.query_links import QueryLinks


class FixedTime:
    """A time source that does not advance."""

    def now_ms(self) -> int:
        return 1

    def wall_ms(self) -> int:
        return 1_700_000_000_000


class PropertyApi:
    """A client API whose properties lie in a metastore in memory; `notes` has three replicas."""

    def __init__(self, client_api: Any, send_request: Any) -> None:
        self.app, self._ask = client_api.app, send_request
        self.metastore = MemoryMetastore(MemoryEnsemble())
        records = {
            0: PartitionRecord(0, "default", 0, 1, ("n1",)),
            1: PartitionRecord(1, "notes", 0, 1, ("n1", "n2", "n3")),
        }
        self.properties = PropertyService(
            PropertyCache(self.metastore),
            self.metastore,
            FixedTime(),
            partitions=SimpleNamespace(records=records),
            key_limit_bytes=100,
        )
        PropertyRoutes(self.properties, self.app)
        services = SimpleNamespace(
            properties=self.properties,
            query=QueryLinks().add("n1"),
            membership=SimpleNamespace(live_nodes=set, known_nodes=set),
        )
        PropertiesAdmin(services, self.app.router)  # type: ignore[arg-type]

    async def ask(self, method: str, target: str, body: Any = None) -> tuple[int, Any, str | None]:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self._ask(self.app, method, target, raw)
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = answer.body.decode()
        return answer.status, found, answer.reason


@pytest.fixture
def api(client_api, send_request):
    return PropertyApi(client_api, send_request)


@asynccontextmanager
async def started(api: PropertyApi) -> AsyncIterator[Any]:
    """The requests of `api`, over a started metastore."""
    await api.metastore.start(lambda _state: None)
    yield api.ask


async def test_a_bucket_shows_riaks_properties_and_takes_them_back(api):
    """GET, PUT of one, GET again, PUT of all that was read, DELETE: the sequence of Riak's clients, in all three
    forms."""

    async with started(api) as ask:
        status, before, _ = await ask("GET", "/buckets/b/props")
        assert status == 200
        props = before["props"]
        assert (props["name"], props["n_val"], props["allow_mult"], props["r"]) == ("b", 1, True, "quorum")
        assert props["chash_keyfun"]["fun"] == "chash_std_keyfun"
        assert await ask("PUT", "/buckets/b/props", {"props": {"allow_mult": False}}) == (204, "", None)
        assert (await ask("GET", "/riak/b"))[1]["props"]["allow_mult"] is False
        assert (await ask("GET", "/types/default/buckets/b/props"))[1]["props"]["allow_mult"] is False
        assert (await ask("GET", "/buckets/c/props"))[1]["props"]["allow_mult"] is True
        read = (await ask("GET", "/buckets/b/props"))[1]
        assert (await ask("PUT", "/riak/b", read))[0] == 204
        assert (await ask("GET", "/buckets/b/props"))[1] == read
        assert (await ask("DELETE", "/buckets/b/props"))[0] == 204
        assert (await ask("GET", "/buckets/b/props"))[1] == before
        assert (await ask("GET", "/buckets/a%2Fb%FF/props"))[1]["props"]["name"] == "a%2Fb%FF"


async def test_a_bucket_type_has_properties_that_its_buckets_have(api):
    """A property set for the type applies to its buckets, except those with their own; n_val is the type's factor."""

    async with started(api) as ask:
        assert (await ask("PUT", "/types/notes/props", {"props": {"last_write_wins": True, "n_val": 3}}))[0] == 204
        shown = (await ask("GET", "/types/notes/props"))[1]["props"]
        assert (shown["last_write_wins"], shown["n_val"], shown["active"]) == (True, 3, True)
        assert (await ask("GET", "/types/notes/buckets/b/props"))[1]["props"]["last_write_wins"] is True
        assert (await ask("GET", "/buckets/b/props"))[1]["props"]["last_write_wins"] is False


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"props": {"allow_mult": False, "alow_mult": True}}, 'did you mean "allow_mult"?'),
        ({"props": {"n_val": 5}}, "isthmus bucket-type set-replication-factor"),
        ({"props": {"postcommit": [{"mod": "m", "fun": "f"}]}}, "hooks"),
        ({"props": {"dw": "some"}}, 'dw: "some" is not known; allowed is one, quorum'),
        ({"props": []}, '{"props": {"allow_mult": true}}'),
        ({"allow_mult": True}, '{"props": {"allow_mult": true}}'),
        (b"{", "not JSON"),
    ],
)
async def test_an_invalid_property_is_400_with_a_reason_and_sets_nothing(api, body, text):
    """The whole request is refused, with any other content."""

    async with started(api) as ask:
        status, answer, reason = await ask("PUT", "/buckets/b/props", body)
        assert (status, reason in ("bad-property", "bad-json")) == (400, True)
        assert text in answer
        assert api.properties.cache.settings.scopes == {}


async def test_unknown_types_methods_and_full_documents_are_refused(api, monkeypatch):
    """The answers are 404 with the existing types, 405 with the allowed methods, and 422 at the limit."""
    monkeypatch.setattr(properties_room, "OWN_BUCKETS_MAX", 1)

    async with started(api) as ask:
        status, answer, reason = await ask("GET", "/types/no/buckets/b/props")
        assert (status, reason) == (404, "unknown-bucket-type")
        assert "default, notes" in answer
        assert (await ask("DELETE", "/types/notes/props"))[0] == 405
        assert (await ask("PUT", "/buckets/b/props", {"props": {"r": 1}}))[0] == 204
        status, answer, reason = await ask("PUT", "/buckets/c/props", {"props": {"r": 1}})
        assert (status, reason) == (422, "too-many-properties")
        assert (await ask("GET", f"/buckets/{'x' * 101}/props"))[0] == 400


async def test_operators_see_who_set_what_and_where_it_comes_from(api):
    """Rows show value, origin, operator and time; a dry run validates and changes nothing; properties are unset one by
    one."""

    async with started(api) as ask:
        base = "/admin/bucket-types/notes/properties"
        wish = {"props": {"delete_mode": "3s"}, "by": "ann", "dry_run": True}
        assert (await ask("POST", f"{base}/set", wish))[1]["outcome"] == "would be set"
        assert api.properties.cache.settings.scopes == {}
        assert (await ask("POST", f"{base}/set", {**wish, "dry_run": False}))[1]["outcome"] == "set"
        own = "/admin/buckets/notes/a%2Fb/properties"
        assert (await ask("POST", f"{own}/set", {"props": {"r": "one"}, "by": "bob"}))[0] == 200
        rows = {row["property"]: row for row in (await ask("GET", own))[1]["properties"]}
        mode, quorum, plain = rows["delete_mode"], rows["r"], rows["allow_mult"]
        assert (mode["value"], mode["origin"], mode["by"]) == (3_000, "bucket type", "ann")
        assert (quorum["origin"], quorum["by"], quorum["acts"]) == ("bucket", "bob", False)
        assert (plain["value"], plain["origin"], plain["at_ms"]) == (True, "default", None)
        listing = (await ask("GET", "/admin/buckets"))[1]["buckets"]
        assert listing == [{"bucket_type": "notes", "bucket": "a%2Fb", "props": {"r": "one"}}]
        assert (await ask("POST", f"{own}/unset", {"names": ["rr"]}))[2] == "bad-property"
        assert (await ask("POST", f"{own}/unset", {"names": ["r"]}))[1]["outcome"] == "unset"
        assert (await ask("POST", f"{own}/unset", {}))[1]["outcome"] == "was not set"
        assert (await ask("GET", "/admin/buckets"))[1] == {"buckets": []}
        assert (await ask("POST", f"{base}/set", {"props": {}}))[0] == 400
