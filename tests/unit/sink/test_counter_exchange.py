"""When a link exchanges counters with its source, and what happens to the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from isthmus.queues.counters_wire import FILTER_MAX, HeldCountersMessage, decode_counters, encode_counters
from isthmus.queues.filters import Filter, parse_filter
from isthmus.queues.wire import UnknownFetchVersion
from isthmus.repl.http.client import HttpRefused
from isthmus.repl.model.errors import CodecError, PeerFault
from isthmus.sink.counter_exchange import INTERVAL_MS, UNANSWERED_MS, CounterExchange

EAST, WEST, OTHER = b"e" * 16, b"w" * 16, b"o" * 16


class Held:
    passes = 0

    def of(self, cluster_uuid: bytes) -> Mapping[bytes, int]:
        return {cluster_uuid + b"\0\0\0\1": 7}


class Time:
    def __init__(self) -> None:
        self.now = 1_000

    def now_ms(self) -> int:
        return self.now

    wall_ms = now_ms


@dataclass
class Link:
    cluster: bytes | None = EAST
    counters_due_ms: int = 0
    counters_passes: int = -1
    source_filter: Filter | None = None


@dataclass
class Source:
    """Answers with `answer`, or raises it."""

    answer: HeldCountersMessage | Exception
    sent: list[HeldCountersMessage] = field(default_factory=list)

    async def exchange(self, held: HeldCountersMessage) -> HeldCountersMessage:
        self.sent.append(held)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def exchange() -> tuple[CounterExchange, Held, Time, list[tuple[Mapping[bytes, int], str]]]:
    held, time, told = Held(), Time(), []
    made = CounterExchange(held, lambda counters, name: told.append((counters, name)), (WEST, "west"), time)
    return made, held, time, told


async def test_each_side_tells_what_it_holds_of_the_other() -> None:
    """The message has the source's actors alone, and what the source holds of ours is handed on."""
    made, _, _, told = exchange()
    source = Source(HeldCountersMessage(EAST, "east", {WEST + b"\0\0\0\2": 9}))
    await made.run(Link(), source)
    assert source.sent == [HeldCountersMessage(WEST, "west", {EAST + b"\0\0\0\1": 7})]
    assert told == [({WEST + b"\0\0\0\2": 9}, "east")]


async def test_an_answer_of_another_cluster_is_not_believed() -> None:
    """An address that was given to another cluster says nothing about this link's."""
    made, _, _, told = exchange()
    await made.run(Link(), Source(HeldCountersMessage(OTHER, "other", {WEST + b"\0\0\0\2": 9})))
    assert told == []


async def test_a_link_exchanges_at_first_after_each_failure_and_once_a_minute() -> None:
    """Also when the pass over what is stored has ended, since the counters were too low before; not before the source
    is known."""
    made, held, time, _ = exchange()
    link, source = Link(None), Source(HeldCountersMessage(EAST, "east", {}))
    assert not made.due(link)
    link.cluster = EAST
    assert made.due(link)
    await made.run(link, source)
    assert not made.due(link)
    held.passes = 1
    assert made.due(link)
    await made.run(link, source)
    assert not made.due(link)
    time.now += INTERVAL_MS
    assert made.due(link)
    await made.run(link, source)
    link.counters_due_ms = 0  # as `Slot` sets it after a failure
    assert made.due(link)


@pytest.mark.parametrize(
    "refusal", [HttpRefused("no such path", 404, "unknown-path"), CodecError("no map"), PeerFault("cut off")]
)
async def test_a_source_that_does_not_exchange_is_fetched_from_all_the_same(refusal: Exception) -> None:
    """It may be of an older version; it is asked again after the interval, not at each fetch."""
    made, _, time, told = exchange()
    link = Link()
    await made.run(link, Source(refusal))
    assert told == []
    assert not made.due(link)
    time.now += INTERVAL_MS
    assert made.due(link)


async def test_a_source_that_has_told_nothing_is_asked_again_soon() -> None:
    """At the beginning its queue may not be this cluster's yet. Once its filter is known, the interval counts."""
    made, _, time, _ = exchange()
    link = Link()
    await made.run(link, Source(PeerFault("not yours")))
    time.now += UNANSWERED_MS
    assert made.due(link)
    await made.run(link, Source(HeldCountersMessage(EAST, "east", {}, "any")))
    time.now += UNANSWERED_MS
    await made.run(link, Source(PeerFault("cut off")))
    time.now += INTERVAL_MS - 1
    assert not made.due(link)


async def test_the_source_tells_its_queues_filter() -> None:
    """A later answer replaces it. It is unknown from a source of an older version, and with rules that are not known
    here; a failed exchange changes nothing."""
    made, _, _, told = exchange()
    link, answer = Link(), HeldCountersMessage(EAST, "east", {}, "any, !buckettype:local")
    await made.run(link, Source(answer))
    assert link.source_filter == parse_filter("any, !buckettype:local")
    await made.run(link, Source(PeerFault("cut off")))
    await made.run(link, Source(HeldCountersMessage(OTHER, "other", {}, "any")))
    assert link.source_filter == parse_filter("any, !buckettype:local")
    for unknown in ("", "bucketcolour:red"):
        await made.run(link, Source(answer._replace(filter=unknown)))
        assert link.source_filter is None
        await made.run(link, Source(answer))
    assert len(told) == 5


def test_a_filter_is_told_by_those_who_have_one() -> None:
    """A message without a filter has the bytes of before; one that is longer than any that can be configured is left
    out, and refused from others."""
    message = HeldCountersMessage(EAST, "east", {b"a": 1}, "bucketname:x")
    assert decode_counters(encode_counters(message)) == message
    assert b"filter" not in encode_counters(message._replace(filter=""))
    assert decode_counters(encode_counters(message._replace(filter="x" * (FILTER_MAX + 1)))).filter == ""
    with pytest.raises(CodecError):
        decode_counters(encode_counters(message).replace(b"\xacbucketname:x", b"\xc0"))


def test_a_message_is_read_back_and_a_wrong_one_refused() -> None:
    """Another version, too, and counters that no clock may have."""
    message = HeldCountersMessage(EAST, "east", {EAST + b"\0\0\0\1": (1 << 64) - 1, b"a": 1})
    assert decode_counters(encode_counters(message)) == message
    for body in (b"", b"\x80", encode_counters(message)[:-1], encode_counters(message._replace(cluster=b"short"))):
        with pytest.raises(CodecError):
            decode_counters(body)
    with pytest.raises(CodecError):
        decode_counters(encode_counters(message._replace(counters={b"a": 0})))
    with pytest.raises(UnknownFetchVersion):
        decode_counters(encode_counters(message).replace(b"\xa1v\x01", b"\xa1v\x02"))
