"""The share that a sink's fetch carries."""

from __future__ import annotations

import pytest

from isthmus.config.settings import SinkSettings
from isthmus.queues.leases import Session
from isthmus.queues.sink_shares import Share, TypeShare
from isthmus.queues.wire import (
    SERVING,
    SHARE_TYPES_MAX,
    BatchAck,
    FetchReply,
    FetchRequest,
    decode_request,
    encode_reply,
)
from isthmus.sink.fetch import Fetcher, FetchOptions, LocalCluster
from tests.support.queue_source import OURS, SINK

SESSION = Session(SINK, "w1", b"incarnat", 0)
SHARE: Share = {b"default": TypeShare(12, 0b101)}


class RecordingPeer:
    """A source without changes that keeps the requests."""

    url = "http://east"

    def __init__(self) -> None:
        self.requests: list[FetchRequest] = []

    async def post(self, _path: str, body: bytes, **_how: object) -> bytes:
        self.requests.append(decode_request(body))
        return encode_reply(FetchReply(OURS, "east", 1, b"", 30_000, 0, SERVING, ()))


def fetcher_to(peer: RecordingPeer) -> Fetcher:
    return Fetcher(peer, "q", SESSION, LocalCluster(SINK, "west"), SinkSettings())  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [None, {}, SHARE])
async def test_a_fetch_carries_the_share_of_its_node(share: Share | None) -> None:
    """No share differs from an empty share."""
    peer = RecordingPeer()
    await fetcher_to(peer).fetch(FetchOptions(1, 1, 0, share=share), None, "")
    assert [request.share for request in peer.requests] == [share]


async def test_a_share_of_more_bucket_types_than_a_request_may_have_is_not_sent() -> None:
    """The source then serves everything to this node; the request is not refused."""
    peer = RecordingPeer()
    for count in (SHARE_TYPES_MAX, SHARE_TYPES_MAX + 1):
        many = {b"%d" % number: TypeShare(1, 1) for number in range(count)}
        await fetcher_to(peer).fetch(FetchOptions(1, 1, 0, share=many), None, "")
    assert [request.share is None for request in peer.requests] == [False, True]


async def test_an_acknowledgement_without_a_fetch_carries_no_share() -> None:
    """It fetches nothing."""
    peer = RecordingPeer()
    fetcher = fetcher_to(peer)
    fetcher.ack = BatchAck(b"batch", 1)
    await fetcher.acknowledge()
    assert [request.share for request in peer.requests] == [None]
