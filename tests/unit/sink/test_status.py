"""The lag of fetched changes that are not stored yet: shown for sources that answer and serve, omitted for others."""

from __future__ import annotations

from isthmus.queues.window_rules import Item
from isthmus.repl.model.reference import ReferenceKind
from isthmus.sink.discovery import LinkTarget
from isthmus.sink.scheduler import LinkName
from isthmus.sink.status import FetchedLag, fetched_lags
from isthmus.sink.worker import Link

NOW_MS = 1_700_000_000_000


def item(age_ms: int, size: int, bucket_type: bytes = b"default") -> Item:
    """A change of the given age, with an object of the given size."""
    return (int(ReferenceKind.OBJECT), 3, 0, bucket_type, b"b", b"k", bytes(16), NOW_MS - age_ms, bytes(size))


def link(peer: str, queue: str = "q", cluster: str = "east", held: dict[bytes, int] | None = None) -> Link:
    """A link that has been answered by a cluster."""
    name = LinkName(queue, peer)
    found = Link(name, LinkTarget(None, name), "", 0)
    found.source_cluster = cluster
    found.held = held
    return found


def test_batches_of_all_links_of_a_queue_are_added() -> None:
    """For each bucket type it has the age of the oldest change, the number, and the bytes; a type without changes has
    zeros."""
    links = [
        (link("http://a"), [[item(2_000, 10), item(500, 20)], [item(100, 5, b"other")]], True),
        (link("http://b"), [[item(3_000, 1)]], True),
    ]
    assert fetched_lags(links, (b"default", b"quiet"), NOW_MS) == [
        FetchedLag("q", "east", b"default", 3.0, 3, 31),
        FetchedLag("q", "east", b"quiet"),
        FetchedLag("q", "east", b"other", 0.1, 1, 5),
    ]


def test_a_queue_with_a_link_that_is_not_known_is_left_out() -> None:
    """The number of changes behind that link is unknown, so its queue is omitted; other queues, and the queue of the
    same name of another cluster, stay."""
    links = [
        (link("http://a"), [[item(2_000, 10)]], True),
        (link("http://b"), [], False),
        (link("http://c", cluster="south"), [], True),
        (link("http://d", queue="r"), [], True),
    ]
    assert [(one.queue, one.cluster) for one in fetched_lags(links, (b"default",), NOW_MS)] == [
        ("q", "south"),
        ("r", "east"),
    ]


def test_a_link_that_was_never_answered_makes_all_of_its_queue_not_known() -> None:
    """The name of its cluster is unknown, so it may be any cluster."""
    links = [(link("http://a"), [], True), (link("http://b", cluster=""), [], False)]
    assert fetched_lags(links, (b"default",), NOW_MS) == []


def test_a_bucket_type_that_the_source_holds_back_is_left_out() -> None:
    """Its changes wait at the source, which counts them."""
    found = fetched_lags([(link("http://a", held={b"lacking": 1}), [], True)], (b"default", b"lacking"), NOW_MS)
    assert [one.bucket_type for one in found] == [b"default"]
