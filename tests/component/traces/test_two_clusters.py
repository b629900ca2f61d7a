"""One trace of a write through two clusters: whole nodes, real listeners, and a collector of OTLP over HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from isthmus.config.loader import load_file
from isthmus.node.local.ports import free_port
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.repl.model.keys import key_hash
from tests.support.ensemble_nodes import NodeOfEnsemble, eventually
from tests.support.memory_metastore import MemoryEnsemble

NODE: Final = """\
[node]
name = "{cluster}-{number}"
cluster = "{cluster}"
id = {number}
data_dir = "{cluster}-{number}"
[listen]
http = "127.0.0.1:{http}"
admin = "127.0.0.1:{admin}"
cluster = "127.0.0.1:{links}"
[metastore]
hosts = "127.0.0.1:1"
[replication]
partitions = 4
factor = {count}
{more}"""

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT: Final = "00f067aa0ba902b7"
SAMPLED: Final = f"00-{TRACE}-{CLIENT}-01"
WAY: Final = ("PUT object", "isthmus.commit", "isthmus.queue", "isthmus.fetch", "isthmus.push", "isthmus.commit")
"""The spans of a write, each the parent of the next; the first three in one cluster, the others in the other one."""


@dataclass
class Received:
    """A span as the collector got it."""

    name: str
    trace: str
    span: str
    parent: str
    node: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[str]
    status: int


@dataclass
class Collector:
    """Takes spans on a port of its own."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def of(self, trace: str) -> list[Received]:
        """The spans of a trace, in the order of their begin."""
        return sorted((one for one in list(self.spans) if one.trace == trace), key=lambda one: one.begin_ns)

    def take(self, body: bytes) -> None:
        """Read a request."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            of = {each.key: each.value.string_value for each in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                values = {
                    each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes
                }
                self.spans.append(
                    Received(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        of["service.instance.id"],
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        values,
                        [event.name for event in span.events],
                        span.status.code,
                    )
                )


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that runs."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            found.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def traces(url: str, more: str = "sample_per_million = 0\n") -> str:
    """The section of a node that traces."""
    return f'[traces]\nendpoint = "{url}"\n{more}'


@asynccontextmanager
async def cluster(folder: Path, name: str, count: int, more: str) -> AsyncIterator[list[NodeOfEnsemble]]:
    """Nodes of one cluster that serve, with these sections."""
    ensemble, taken = MemoryEnsemble(), set[int]()
    nodes, served = [], []
    for number in range(1, count + 1):
        ports = []
        for _ in range(3):
            ports.append(free_port(taken))
            taken.add(ports[-1])
        file = folder / f"{name}-{number}.toml"
        http, admin, links = ports
        file.write_text(
            NODE.format(cluster=name, number=number, count=count, http=http, admin=admin, links=links, more=more)
        )
        node = NodeOfEnsemble(load_file(file), file, ServiceManager({}))
        node.ensemble = ensemble
        nodes.append(node)
    try:
        for node in nodes:
            await node.start()
            served.append(asyncio.create_task(node.serve()))
        await eventually(
            lambda: all(node.ready()[0] and node.services.runtime.partitions for node in nodes), f"{name} is ready"
        )
        yield nodes
    finally:
        for node in nodes:
            node.request_stop("the test is over")
        await asyncio.gather(*served)


@asynccontextmanager
async def pair(folder: Path, east: str, west: str) -> AsyncIterator[tuple[list[NodeOfEnsemble], NodeOfEnsemble]]:
    """East, of two nodes, and west, of one that fetches from both."""
    async with cluster(folder, "east", 2, f'[[queues]]\nname = "to-west"\n{east}') as sources:
        peers = "".join(f'[[sink.peers]]\nurl = "http://{one.address}"\nqueue = "to-west"\n' for one in sources)
        async with cluster(folder, "west", 1, f'[sink]\ndiscover = false\npoll = "1s"\n{peers}{west}') as (sink,):
            yield sources, sink


async def request(node: NodeOfEnsemble, method: str, path: str, *headers: str, body: bytes = b"v") -> int:
    """The status of an answer."""
    host, _, port = node.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = "".join(f"{each}\r\n" for each in headers)
    length = "" if method in ("GET", "DELETE") else f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: {node.address}\r\nConnection: close\r\n{length}{lines}\r\n"
    writer.write(head.encode() + (body if length else b""))
    answer = await reader.read()
    writer.close()
    return int(answer.split(None, 2)[1])


def leader_of(nodes: list[NodeOfEnsemble], key: str) -> NodeOfEnsemble:
    """The node that leads a key of bucket b."""
    routes = nodes[0].services.coordinator.routes
    name = routes.leader(routes.partition_of(b"default", key_hash(b"b", key.encode())))
    return next(node for node in nodes if node.settings.node.name == name)


async def arrived(node: NodeOfEnsemble, key: str) -> None:
    """Wait until a key of bucket b is there."""

    async def there() -> bool:
        return await request(node, "GET", f"/buckets/b/keys/{key}") == 200

    await eventually(there, key)


@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "parser"])
@pytest.mark.parametrize("at_leader", [True, False], ids=["at the leader", "forwarded"])
async def test_a_write_is_one_trace_through_both_clusters(
    tmp_path: Path, collector: Collector, fast: bool, at_leader: bool
) -> None:
    """The client's span is the parent of the request, and each step that of the next, at the nodes where they ran: the
    request at the receiving node, commit and queue at the key's leader, also if that is another node. An unsampled
    request leaves no span."""
    secret = tmp_path / "headers"
    secret.write_text("Authorization: Bearer 0123456789\n")
    secret.chmod(0o600)
    own = traces(collector.url, f'sample_per_million = 0\nheaders_file = "{secret}"\n')
    async with pair(tmp_path, own, traces(collector.url)) as (east, west):
        leader = leader_of(east, "traced")
        other = next(node for node in east if node is not leader)
        entry = leader if at_leader else other
        query = "" if fast else "?timeout=20000"
        assert await request(entry, "PUT", "/buckets/b/keys/untraced") == 204
        asleep = SAMPLED.replace(TRACE, "f" * 32)[:-1] + "0"
        assert await request(entry, "PUT", "/buckets/b/keys/unsampled", f"traceparent: {asleep}") == 204
        assert await request(entry, "PUT", f"/buckets/b/keys/traced{query}", f"traceparent: {SAMPLED}") == 204
        await arrived(west, "traced")
        await eventually(lambda: len(collector.of(TRACE)) >= len(WAY), "all spans arrived")
    spans = collector.of(TRACE)
    assert len(collector.spans) == len(spans) == len(WAY), [one.name for one in collector.spans]
    parent, way = CLIENT, []
    while following := [one for one in spans if one.parent == parent]:
        (span,) = following
        way.append(span)
        parent = span.span
    assert tuple(span.name for span in way) == WAY
    here, led = f"east/{entry.settings.node.name}", f"east/{leader.settings.node.name}"
    assert [span.node for span in way] == [here, led, led, "west/west-1", "west/west-1", "west/west-1"]
    assert all(span.status != 2 and span.begin_ns <= span.end_ns for span in way)
    put, commit, queue, fetch, push, stored = way
    assert (put.attributes["http.request.method"], put.attributes["isthmus.outcome"]) == ("PUT", "written")
    assert (put.attributes["isthmus.bucket"], put.attributes["isthmus.key"]) == ("b", "traced")
    assert commit.events == stored.events == ["appended"]
    assert commit.attributes["isthmus.offset"] == queue.attributes["isthmus.offset"]
    assert (queue.attributes["isthmus.queue"], queue.attributes["isthmus.sink_node"]) == ("to-west", "west-1")
    assert fetch.attributes["isthmus.peer"] == f"http://{leader.address}"
    assert push.attributes["isthmus.outcome"] == "applied"
    assert commit.begin_ns <= queue.begin_ns <= fetch.end_ns <= push.end_ns
    shown = [each.get("authorization") for each in collector.headers]
    assert "Bearer 0123456789" in shown


async def test_chance_samples_where_no_client_decides(tmp_path: Path, collector: Collector) -> None:
    """With a sampling rate of a million per million: each write of any kind begins a trace of its own; `from_clients =
    false` ignores the clients' headers."""
    own = traces(collector.url, "sample_per_million = 1000000\nfrom_clients = false\n")
    async with cluster(tmp_path, "east", 1, own) as (node,):
        header = f"traceparent: {SAMPLED[:-1]}0"
        assert await request(node, "PUT", "/buckets/b/keys/k", header) == 204
        assert await request(node, "POST", "/buckets/b/keys", header) == 201
        assert await request(node, "DELETE", "/buckets/b/keys/k", header) == 204
        assert await request(node, "PUT", "/buckets/b/keys/k", "If-None-Match: *", "If-Match: x") in (400, 412)
        await eventually(lambda: len(collector.spans) >= 7, "all spans arrived")
        text = (await node.exposition()).decode()
    requests = [one for one in collector.spans if one.name.endswith(" object")]
    assert sorted(one.name for one in requests)[:2] == ["DELETE object", "POST object"]
    assert len({one.trace for one in requests}) == len(requests) >= 3
    assert all(not one.parent and one.trace != TRACE for one in requests)
    assert f'isthmus_trace_requests_total{{by="sampling"}} {float(len(requests))}' in text
    assert 'isthmus_trace_spans_total{outcome="dropped"} 0.0' in text


async def test_a_cluster_without_traces_takes_what_one_with_them_sends(tmp_path: Path, collector: Collector) -> None:
    """The context goes to it with the change, and it ignores it; the trace ends at the queue."""
    async with pair(tmp_path, traces(collector.url), "") as (east, west):
        leader = leader_of(east, "traced")
        assert await request(leader, "PUT", "/buckets/b/keys/traced", f"traceparent: {SAMPLED}") == 204
        await arrived(west, "traced")
        await eventually(lambda: len(collector.spans) >= 3, "the spans of east arrived")
        assert west.services.traces is None
        assert "isthmus_trace" not in (await west.exposition()).decode()
    assert [one.name for one in collector.of(TRACE)] == list(WAY[:3])


@pytest.mark.timing
async def test_a_collector_that_is_away_delays_no_stop(tmp_path: Path) -> None:
    """Writes continue, spans are counted as failed or dropped, and a stop takes seconds."""
    own = traces(f"http://127.0.0.1:{free_port(set())}/v1/traces", "sample_per_million = 1000000\n")
    async with cluster(tmp_path, "east", 1, own) as (node,):
        for number in range(20):
            assert await request(node, "PUT", f"/buckets/b/keys/{number}") == 204
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 15
    assert node.services.traces is not None
    counts = {sample[1]["outcome"]: sample[2] for sample in node.services.traces.tracer.samples() if sample[1]}
    assert counts["exported"] == 0
    assert counts["failed"] + counts["dropped"] == 40
