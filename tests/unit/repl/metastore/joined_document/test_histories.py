"""Random histories of a cluster whose nodes are upgraded while operators change what will be one document.

Nodes of the version before use the sink's documents one by one, as that version does: the same codecs, and conditional
writes of one path (`Document.change`). Nodes of this version use them as one (`JoinedDocument`). Writes lose their
request or their answer, or arrive late; several writers run at once; nodes stop, and start as either version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import CodecError, NotReady, OutcomeUnknown
from isthmus.sink import limits, peers, suspensions
from isthmus.sink.limits import SinkLimits
from isthmus.sink.operator_settings import SETTINGS
from isthmus.sink.peers import PeerEntry, SetPeers
from isthmus.sink.suspensions import SinkSuspension
from tests.support.earlier_program import register_earlier, register_present
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault
from tests.support.samples import share

NODES: Final = 3

KINDS: Final = ("suspension", "limit", "peer")

DOCUMENTS: Final[dict[str, Document[Any]]] = {
    "suspension": suspensions.DOCUMENT,
    "limit": limits.DOCUMENT,
    "peer": peers.DOCUMENT,
}

STEPS = st.one_of(
    st.tuples(
        st.just("act"), st.lists(st.tuples(st.integers(0, NODES - 1), st.sampled_from(KINDS)), min_size=1, max_size=3)
    ),
    st.tuples(st.just("fault"), st.tuples(st.integers(0, NODES - 1), st.sampled_from(list(WriteFault)))),
    st.tuples(st.just("late"), st.integers(0, NODES - 1)),
    st.tuples(st.just("stop"), st.integers(0, NODES - 1)),
    st.tuples(st.just("start"), st.tuples(st.integers(0, NODES - 1), st.booleans())),
)


def change_of(kind: str, name: str) -> Callable[[Any], Any]:
    """An operator's act that adds `name`, by the functions that the sink has for it."""
    match kind:
        case "suspension":
            return lambda before: suspensions.added(before, SinkSuspension(name, None, "ann", 5, ""))
        case "limit":
            return lambda before: limits.changed(before, name, SinkLimits(workers=2, by="ann"), unset=False)
    entry = PeerEntry(name, f"http://{name}:8098", by="ann")
    return lambda before: peers.with_peer(before, entry, in_file=False)


def names_in(kind: str, value: Any) -> set[str]:
    """The names that were added."""
    match kind:
        case "suspension":
            return {one.queue for one in value}
        case "limit":
            return set(value)
    assert isinstance(value, SetPeers)
    return {one.queue for one in value.peers}


class Cluster:
    """The nodes, what operators were told, and what must be found."""

    def __init__(self) -> None:
        self.ensemble = MemoryEnsemble()
        self.nodes: dict[int, tuple[MemoryMetastore, bool]] = {}
        """Live nodes; True: of this version."""
        self.done: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self.unknown: dict[str, set[str]] = {kind: set() for kind in KINDS}
        """Acts of which nobody knows whether they took effect."""
        self.acts = 0

    @property
    def joined(self) -> bool:
        return self.ensemble.read(SETTINGS.path) is not None

    async def start(self, node: int, present: bool) -> None:
        await self.stop(node)
        metastore = MemoryMetastore(self.ensemble)
        await metastore.start(lambda _state: None)
        await (register_present if present else register_earlier)(metastore, f"n{node}", node + 1)
        self.nodes[node] = metastore, present

    async def stop(self, node: int) -> None:
        if node in self.nodes:
            await self.nodes.pop(node)[0].stop()

    async def act(self, node: int, kind: str) -> None:
        """An operator's act at a node, which may be of either version."""
        if node not in self.nodes:
            return
        self.acts += 1
        name, document = f"q{self.acts}", DOCUMENTS[kind]
        metastore, present = self.nodes[node]
        work: Awaitable[Any] = (
            SETTINGS.change_one(metastore, document, change_of(kind, name))
            if present
            else document.change(metastore, change_of(kind, name))
        )
        try:
            await work
        except OutcomeUnknown:
            self.unknown[kind].add(name)
        except CodecError:
            assert self.joined, "nothing was damaged"
            assert not present
        except NotReady:
            pass  # it says that nothing was changed
        else:
            self.done[kind].add(name)

    async def check(self) -> None:
        """Every reader finds what was written; one of the version before finds nothing readable once it is joined."""
        for metastore, present in self.nodes.values():
            for kind, document in DOCUMENTS.items():
                if present:
                    found = names_in(kind, (await SETTINGS.read(metastore))[document])
                elif self.joined:
                    try:
                        await document.read(metastore)
                    except CodecError:
                        continue
                    raise AssertionError(f"{document.path} is readable for the version before")
                else:
                    found = names_in(kind, await document.read(metastore))
                assert self.done[kind] <= found <= self.done[kind] | self.unknown[kind]

    async def run(self, steps: Iterable[tuple[str, Any]]) -> None:
        for step, what in steps:
            before = self.joined
            every_node_reads_it = len(self.nodes) == NODES and all(present for _, present in self.nodes.values())
            match step:
                case "act":
                    await asyncio.gather(*(self.act(node, kind) for node, kind in what))
                case "fault" if what[0] in self.nodes:
                    self.nodes[what[0]][0].spoil(what[1])
                case "late" if what in self.nodes:
                    self.nodes[what][0].deliver_late()
                case "stop":
                    await self.stop(what)
                case "start":
                    # A process registers by several writes, which are not what is lost here.
                    await self.start(*what)
            assert before <= self.joined, "there is no way back"
            if self.joined and not before:
                assert every_node_reads_it, "joined while a node of the version before was there, or was down"
            await self.check()


@given(st.lists(STEPS, max_size=30), st.tuples(*[st.booleans()] * NODES))
@settings(max_examples=share(200), derandomize=True)
def test_every_reader_of_either_version_finds_what_was_written(
    steps: list[tuple[str, Any]], present: tuple[bool, ...]
) -> None:
    """Before the documents are joined, both versions read and write the same; they are joined only while every known
    node is live and of this version; afterwards this version reads all that either wrote before, and the one before
    fails closed, whoever starts it."""

    async def history() -> None:
        cluster = Cluster()
        for node, is_present in enumerate(present):
            await cluster.start(node, is_present)
        await cluster.run(steps)
        for node in range(NODES):
            await cluster.start(node, True)
        await cluster.act(0, "limit")
        await cluster.check()
        assert cluster.joined
        await cluster.start(1, False)
        await cluster.check()
        for kind in KINDS:
            await cluster.act(1, kind)
            await cluster.act(0, kind)
        await cluster.check()

    asyncio.run(history())
