"""What happens where a Riak is beside the first cluster: clients of both write to the shared bucket, and changes on
their way between them are lost."""

from __future__ import annotations

from isthmus.client.steps import Endpoint, Request, Response, Send
from tests.simulation.world.node import HTTP_PORT
from tests.simulation.world.raw_http import RawTransport
from tests.simulation.world.riak import BUCKET, BUCKET_TYPE, KEYS, WorldRiak
from tests.simulation.world.steps import Doing, StepKind, step

CONTEXT: float = 0.6
"""Share of writes that show what their writer has read."""

DELETES: float = 0.3
"""Share of those that are deletes."""


def riak_of(doing: Doing) -> WorldRiak:
    """The Riak of the world."""
    found = doing.world.riak
    assert found is not None
    return found


@step(StepKind.OPERATION, weight=3, needs="riak")
async def riak_write(doing: Doing) -> None:
    """A client of the Riak writes or deletes."""
    riak, chance = riak_of(doing), doing.chance
    key = chance.choice(KEYS).encode()
    stored = riak.model.get(key)
    knows = stored is not None and chance.random() < CONTEXT
    context = dict(stored.clock) if stored is not None and knows else {}
    value = None if knows and chance.random() < DELETES else f"r{chance.getrandbits(32):08x}".encode()
    riak.model.put(key, value, context, round(riak.machine.loop.time() * 1e6) + 1_795_000_000_000_000)
    doing.tell(f"{key.decode()} is {value!r} in the Riak")


@step(StepKind.OPERATION, weight=3, needs="riak")
async def write_beside(doing: Doing) -> None:
    """A client of a cluster writes or deletes, through any of its nodes."""
    cluster, chance = doing.cluster(), doing.chance
    node = chance.choice(list(cluster.nodes.values()))
    transport = RawTransport(doing.world.clients.loop, cluster.credentials)
    endpoint = Endpoint(node.scheme, node.machine.address, HTTP_PORT)
    target = f"/types/{BUCKET_TYPE}/buckets/{BUCKET}/keys/{chance.choice(KEYS)}".encode()
    try:
        headers: tuple[tuple[bytes, bytes], ...] = ()
        knows = chance.random() < CONTEXT
        if knows:
            found = await transport.send(Send(endpoint, Request(b"GET", target), 4.0, 2.0))
            if isinstance(found, Response) and "x-riak-vclock" in found.headers:
                headers = ((b"X-Riak-Vclock", found.headers["x-riak-vclock"].encode()),)
        if headers and chance.random() < DELETES:
            request = Request(b"DELETE", target, headers)
        else:
            value = f"i{chance.getrandbits(32):08x}".encode()
            request = Request(b"PUT", target, (*headers, (b"Content-Type", b"text/plain")), value)
        answer = await transport.send(Send(endpoint, request, 4.0, 2.0))
        what = answer.status if isinstance(answer, Response) else answer.why
        doing.tell(f"{request.method.decode()} {target.decode()} {request.body!r}: {what}")
    finally:
        transport.close()


@step(StepKind.FAULT, weight=2, needs="riak")
async def riak_loses_changes(doing: Doing) -> None:
    """The next changes that the Riak fetches are lost on their way; it gets no second answer."""
    riak_of(doing).drops += doing.chance.randrange(1, 6)
    doing.tell("the Riak loses what it fetches next")


@step(StepKind.FAULT, weight=2, needs="riak")
async def riak_restarts(doing: Doing) -> None:
    """The Riak's queue was in memory."""
    riak_of(doing).forget_queue()
    doing.tell("the Riak forgets its queue")
