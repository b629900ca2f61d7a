"""Riaks, and a cluster behind sinks that fetch from them, in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from isthmus.config.settings import RiakPeerSettings, RiakSettings, SinkSettings
from isthmus.repl.clock import SystemTime
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Object, Sibling
from isthmus.repl.model.requests import PushItem, PushResult
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.riak.clocks import GREGORIAN_EPOCH_S
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.dead_letters import DeadLetters
from isthmus.sink.service import Sink, SinkPorts
from tests.support.cluster_facts import FakeClusterFacts, OpenPeers
from tests.support.fake_riak import FakeRiak
from tests.support.memory_metastore import MemoryMetastore
from tests.support.queue_source import SINK
from tests.support.sink_pair import Cluster

CAPTURES = Path(__file__).parents[1] / "unit/repl/riak/captures"
ACTOR = b"\x23\x09\xfe\xf9\x01\x02\x03\x04"


def captured(name: str) -> bytes:
    """A message of an OpenRiak."""
    body = bytes.fromhex((CAPTURES / f"http_fetch_{name}.hex").read_text().replace("\n", ""))
    return body[:2] + body[10:] if name == "dvv_2" else body  # it was fetched with hashes


def key(name: bytes, bucket_type: bytes = b"default") -> Key:
    """A key of the bucket that tests use."""
    return Key(bucket_type, b"bucket", name)


def value(data: bytes, counter: int = 1, ms: int = 1_750_000_000_000) -> Object:
    """An object with one sibling, as a Riak with dots has it."""
    clock = ((ACTOR, counter, GREGORIAN_EPOCH_S + ms // 1000),)
    return Object(clock, (Sibling((ACTOR, counter), ms, False, data, b"text/plain"),))


class RiakPair:
    """Riaks, and a cluster behind the sinks that `sink()` makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster()
        self.pushed: list[PushItem] = []
        self.metastore = MemoryMetastore()
        self.riaks: list[FakeRiak] = []
        self.sinks: list[Sink] = []

    async def __aenter__(self) -> RiakPair:
        await self.metastore.start(lambda state: None)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cluster.stuck.set()
        for sink in self.sinks:
            await sink.stop()
        for riak in self.riaks:
            await asyncio.to_thread(riak.close)

    def riak(self, queue: str = "isthmus", **more: Any) -> FakeRiak:
        self.riaks.append(FakeRiak(queue, **more))
        return self.riaks[-1]

    async def sink(
        self,
        *riaks: FakeRiak,
        letters: tuple[int, int] = (100, 1_000_000),
        riak_settings: dict[str, Any] | None = None,
        peer: dict[str, Any] | None = None,
        node_name: str = "w1",
        live: tuple[str, ...] = ("w1",),
        **more: Any,
    ) -> Sink:
        pair = self

        class Recorder:
            async def push(self, items: list[PushItem]) -> list[PushResult]:
                pair.pushed += items
                return await pair.cluster.push(items)

            get_batch = staticmethod(pair.cluster.get_batch)

            async def get(self, key: Key, isolation: object = None) -> bytes | None:
                return (await pair.cluster.get_batch([key], isolation, 0))[0]

        urls = ",".join(riak.url for riak in riaks)
        peers = (RiakPeerSettings("old", urls, "isthmus", **(peer or {})),) if riaks else ()
        settings = SinkSettings(
            workers=4, delay_min_ms=2, delay_max_ms=50, empty_delay_max_ms=20, request_timeout_ms=2_000, **more
        )
        time = SystemTime()
        sink = Sink(
            settings,
            ThisNode(node_name, "west", SINK),
            SinkPorts(
                kv=Recorder(),  # type: ignore[arg-type]
                metastore=self.metastore,
                letters=DeadLetters(self.folder / "letters.sqlite", *letters),
                conflicts=Conflicts(self.folder / "conflicts.sqlite", 10),
                credentials=OpenPeers(),
                cluster=FakeClusterFacts(
                    live=live, types=lambda: None if self.cluster.types is None else frozenset(self.cluster.types)
                ),
                time=time,
                clocks=ClockOffsets("peer", time),
            ),
            traces=None,
            counters=None,
            riak=RiakSettings(peers, **(riak_settings or {})),
        )
        self.sinks.append(sink)
        await sink.start()
        return sink

    def has(self, name: bytes) -> bool:
        return key(name) in self.cluster.objects
