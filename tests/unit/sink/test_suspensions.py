"""Suspensions of links: what a resume covers, their limit, their document."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.model.errors import BadInput, CodecError, Overloaded
from isthmus.sink.scheduler import LinkName
from isthmus.sink.service import overloaded_when_away
from isthmus.sink.suspensions import DOCUMENT as SUSPENSIONS
from isthmus.sink.suspensions import SUSPENSIONS_MAX, SinkSuspension, added, decode, without
from tests.support.memory_metastore import MemoryMetastore, WriteFault
from tests.support.samples import share

_names = st.sampled_from([None, "q", "r"])
_peers = st.sampled_from([None, "http://east", "http://north"])
_nodes = st.sampled_from([None, "n1", "n2"])
_LINKS = [LinkName(queue, peer) for queue in ("q", "r") for peer in ("http://east", "http://north")]


@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(st.lists(st.tuples(_names, _peers, _nodes), max_size=4), _names, _peers, _nodes)
def test_a_resume_that_is_not_refused_frees_what_it_covers(
    acts: list[tuple[str | None, str | None, str | None]], queue: str | None, peer: str | None, node: str | None
) -> None:
    """After suspensions every link they name is suspended. A resume frees at least one of the links it names; otherwise
    it reports who suspended them, or there was no suspension."""
    held: tuple[SinkSuspension, ...] = ()
    for at_ms, act in enumerate(acts):
        held = added(held, SinkSuspension(*act[:2], "ann", at_ms, "", act[2]))
        assert len({(s.queue, s.peer, s.node) for s in held}) == len(held)
    assert decode(SUSPENSIONS.encode(held)) == held
    places = [(link, at) for link in _LINKS for at in ("n1", "n2")]
    named = [
        (link, at)
        for link, at in places
        if queue in (None, link.queue) and peer in (None, link.peer) and node in (None, at)
    ]
    before = [place for place in named if any(s.matches(*place) for s in held)]
    try:
        after = without(held, queue, peer, node)
    except BadInput:
        assert before, "refused though nothing that was named is held"
        return
    freed = [place for place in before if not any(s.matches(*place) for s in after)]
    assert freed or not before or len(after) < len(held)
    if queue is None and peer is None and node is None:
        assert after == ()


def test_suspensions_are_bounded() -> None:
    """One more suspension than the limit is refused; replacing one does not count as one more."""
    held: tuple[SinkSuspension, ...] = ()
    for n in range(SUSPENSIONS_MAX):
        held = added(held, SinkSuspension(f"q{n}", None, "ann", 0, ""))
    with pytest.raises(BadInput, match=str(SUSPENSIONS_MAX)):
        added(held, SinkSuspension("one more", None, "ann", 0, ""))
    assert len(added(held, SinkSuspension("q0", None, "bob", 1, ""))) == SUSPENSIONS_MAX


@pytest.mark.parametrize("value", [b"", b"{}x", b"7", b'["x"]', b'[{"queue": null}]', b'[{"queue":1,"peer":2,"by":3}]'])
def test_malformed_suspensions_are_reported(value: bytes) -> None:
    """A malformed document in the metastore raises a CodecError, not another exception."""
    with pytest.raises(CodecError):
        decode(value)


async def test_a_suspension_is_written_through_conflicts_and_lost_answers() -> None:
    """However single writes fail, a suspension is stored once, or refused with a message."""

    metastore = MemoryMetastore()
    await metastore.start(lambda state: None)
    for number, fault in enumerate(WriteFault):
        metastore.spoil(fault)
        act = SinkSuspension(f"q{number}", None, "ann", 5, "why")
        held = (await SUSPENSIONS.change(metastore, lambda before, act=act: added(before, act))).value
        assert held.count(act) == 1
        metastore.deliver_late()
        assert await SUSPENSIONS.read(metastore) == held
    assert (await SUSPENSIONS.change(metastore, lambda before: without(before, None, None))).value == ()
    assert await SUSPENSIONS.read(metastore) == ()
    metastore.disconnect()
    with pytest.raises(Overloaded, match="metastore"), overloaded_when_away():
        await SUSPENSIONS.change(metastore, lambda before: without(before, None, None))
