"""Shares of a queue: the windows from which a node of the sink's cluster may take at once."""

from __future__ import annotations

from isthmus.queues.sink_shares import NODES_MAX, SHARE_PATIENCE_MS, KeyRange, SinkShares, TypeShare, includes

TYPE = b"default"
TOTAL = 4
WAIT_MS = 1_000


def share(led: int, total: int = TOTAL) -> dict[bytes, TypeShare]:
    return {TYPE: TypeShare(total, led)}


def positions(shares: SinkShares, node: str, now_ms: int, total: int = TOTAL) -> list[int]:
    """The partitions of `total` from which the node may take at once."""
    allowed = shares.allowed(node, now_ms)
    every = range(total)
    return [at for at in every if allowed is None or includes(allowed, TYPE, KeyRange(at, total))]


def test_a_node_may_take_its_share_and_what_no_other_node_has_in_its_share() -> None:
    """A partition in two shares, as while its leadership moves, may be taken by both nodes."""
    shares = SinkShares()
    shares.report("w1", share(0b0001), WAIT_MS, 0)
    shares.report("w2", share(0b0011), WAIT_MS, 0)
    shares.report("w3", share(0b0100), WAIT_MS, 0)
    assert positions(shares, "w1", 0) == [0, 3]
    assert positions(shares, "w2", 0) == [0, 1, 3]
    assert positions(shares, "w3", 0) == [2, 3]


def test_a_node_that_sends_no_share_may_take_everything() -> None:
    """This holds for a node of the previous version, also after one with a share (a downgrade)."""
    shares = SinkShares()
    shares.report("w1", share(0b1111), WAIT_MS, 0)
    assert positions(shares, "w2", 0) == [0, 1, 2, 3]
    shares.report("w2", share(0), WAIT_MS, 0)
    assert positions(shares, "w2", 0) == []
    shares.report("w2", None, WAIT_MS, 0)
    assert positions(shares, "w2", 0) == [0, 1, 2, 3]


def test_a_bucket_type_with_another_number_of_partitions_or_without_a_share_is_open_to_all() -> None:
    """Keys cannot be assigned by partition then, nor before the window's own range is known."""
    shares = SinkShares()
    shares.report("w1", share(0b1111), WAIT_MS, 0)
    shares.report("w2", share(0), WAIT_MS, 0)
    assert positions(shares, "w2", 0, total=8) == list(range(8))
    allowed = shares.allowed("w2", 0)
    assert allowed is not None
    assert includes(allowed, b"other", KeyRange(0, TOTAL))
    assert includes(allowed, TYPE, None)
    shares.report("w1", share(0b1111_1111, total=8), WAIT_MS, 0)
    assert positions(shares, "w2", 0) == [0, 1, 2, 3], "nobody has them in a share that can be compared"


def test_leadership_that_moves_moves_the_share_with_the_next_fetch() -> None:
    """The old and the new leader may report in either order."""
    shares = SinkShares()
    shares.report("w1", share(0b11), WAIT_MS, 0)
    shares.report("w2", share(0b1100), WAIT_MS, 0)
    assert positions(shares, "w2", 0) == [2, 3]
    shares.report("w1", share(0b01), WAIT_MS, 10)
    assert positions(shares, "w2", 10) == [1, 2, 3]
    shares.report("w2", share(0b1110), WAIT_MS, 20)
    assert positions(shares, "w1", 20) == [0]


def test_the_share_of_a_node_that_stops_fetching_is_open_to_others() -> None:
    """It is open once its fetch should have ended, plus a tolerance, and at once if its fetch is cut off; it counts
    again from the node's next fetch on, even if nothing else has changed."""
    shares = SinkShares()
    shares.report("w1", share(0b0011), WAIT_MS, 0)
    shares.report("w2", share(0b1100), 100_000, 0)
    end_ms = WAIT_MS + SHARE_PATIENCE_MS
    assert positions(shares, "w2", end_ms - 1) == [2, 3]
    assert positions(shares, "w2", end_ms) == [0, 1, 2, 3]
    shares.report("w1", share(0b0011), WAIT_MS, end_ms + 5)
    assert positions(shares, "w2", end_ms + 5) == [2, 3]
    shares.forget("w1")
    assert positions(shares, "w2", end_ms + 6) == [0, 1, 2, 3]
    shares.report("w1", share(0b0011), WAIT_MS, end_ms + 7)
    assert positions(shares, "w2", end_ms + 7) == [2, 3]


def test_a_fetch_that_follows_another_renews_its_share() -> None:
    """A share counts from the last fetch on, not from the first."""
    shares = SinkShares()
    shares.report("w2", share(0b1100), 100_000, 0)
    for now_ms in range(0, 10_000, 900):
        shares.report("w1", share(0b0011), WAIT_MS, now_ms)
        assert positions(shares, "w2", now_ms + WAIT_MS) == [2, 3]


def test_no_more_shares_are_kept_than_there_may_be_nodes() -> None:
    """The oldest is dropped; its node may take everything until its next fetch."""
    shares = SinkShares()
    for number in range(NODES_MAX + 1):
        shares.report(f"w{number}", share(0), WAIT_MS, number)
    assert shares.allowed("w0", NODES_MAX) is None
    assert shares.allowed("w1", NODES_MAX) is not None
    shares.clear()
    assert shares.allowed("w1", NODES_MAX) is None
