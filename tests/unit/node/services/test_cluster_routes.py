"""The routes that a node gives to clients: made from records and registrations, with a version that rises."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from isthmus.config.settings import Settings
from isthmus.node.services.cluster_routes import ClusterRoutes, leaders_of
from isthmus.repl.http.routes import parse_routes
from isthmus.repl.model.record import Incarnation, PartitionRecord, Registration


def record(index: int, leader: str | None, *, bucket_type: str = "default", version: int = 0, **more: Any) -> Any:
    found = PartitionRecord(
        more.get("partition", index), bucket_type, index, more.get("count", 2), ("a", "b"),
        leader=None if leader is None else Incarnation(leader, 1),
    )  # fmt: skip
    return replace(found, version=version)


class Fixture:
    """The routes of node a; `records` and `registrations` are what it has read."""

    def __init__(self) -> None:
        tls = SimpleNamespace(mode=lambda _listener: "off")
        settings: Any = SimpleNamespace(node=SimpleNamespace(cluster="east"), tls=tls)
        self.routes = ClusterRoutes(settings, b"u" * 16)

    def read(self, *records: PartitionRecord) -> None:
        self.routes.records_changed({each.partition: each for each in records})

    def live(self, **urls: str) -> None:
        self.routes.registrations_changed({node: Registration(node, 1, True, url) for node, url in urls.items()})

    def shown(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.routes.current()[1])
        return document


def test_the_document_has_all_leaders_and_addresses() -> None:
    """Partitions by index, null where no leader is known; addresses without scheme; a client reads it."""
    made = Fixture()
    assert made.shown()["bucket_types"] == {}
    made.live(a="http://10.0.0.1:8098", b="https://b.example:8443", c="")
    made.read(
        record(1, "b"), record(0, None), record(0, "a", bucket_type="notes", count=1, partition=5),
        record(2, "a", bucket_type="part", count=3, partition=6),
    )  # fmt: skip
    found = made.shown()
    assert found["nodes"] == {"a": "10.0.0.1:8098", "b": "b.example:8443"}
    assert found["bucket_types"] == {"default": [None, "b"], "notes": ["a"], "part": [None, None, "a"]}
    assert (found["v"], found["cluster"], found["cluster_uuid"], found["tls"]) == (1, "east", (b"u" * 16).hex(), "off")
    assert parse_routes(made.routes.current()[1]).leader(b"notes", b"b", b"k") == "10.0.0.1:8098"
    assert (made.routes.address("b"), made.routes.address("c"), made.routes.address("d")) == ("b.example:8443", "", "")


def test_records_that_contradict_each_other_give_no_routes() -> None:
    """Two counts, or two partitions with one index: the bucket type is left out instead of placing keys wrongly."""
    two_counts = {0: record(0, "a"), 1: record(1, "a", count=3)}
    one_index = {0: record(0, "a"), 1: record(0, "b", partition=1)}
    assert leaders_of(two_counts) == leaders_of(one_index) == {}


def test_the_version_rises_with_each_change_and_only_then() -> None:
    """A change of leader or address gives a higher version and another tag; a record that changed otherwise keeps
    both. Two nodes with the same records have the same version."""
    one, other = Fixture(), Fixture()
    for each in (one, other):
        each.live(a="http://a:1", b="http://b:1")
        each.read(record(0, "a", version=3), record(1, "b", version=4))
    first = one.routes.current()
    assert first == other.routes.current()
    assert one.shown()["version"] == 9
    one.read(record(0, "a", version=7), record(1, "b", version=4))
    assert one.routes.current() == first
    one.read(record(0, "b", version=8), record(1, "b", version=4))
    assert one.shown()["version"] == 14
    assert one.routes.current()[0] != first[0]
    one.live(a="http://a:2", b="http://b:1")
    assert one.shown()["version"] == 15
    one.read(record(0, "a", version=1), record(1, "b", version=4))
    assert one.shown()["version"] == 16


def test_the_document_is_made_once_a_change() -> None:
    """Pollers get the same bytes until something is read again."""
    made = Fixture()
    made.live(a="http://a:1")
    made.read(record(0, "a"))
    assert made.routes.current()[1] is made.routes.current()[1]


def test_settings_have_what_the_document_shows() -> None:
    """The fake settings of this test have attributes of the real ones."""
    assert {"node", "tls"} <= Settings.__dataclass_fields__.keys()
