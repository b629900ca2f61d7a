"""What clients do in a world: bucket types, sessions, and their operations as steps.

`prepare` makes the bucket types in every cluster, and the sessions; both follow from the world's seed. Each operation
chooses its session, keys and values by its own chances, and waits until the session is free: a session does one
operation at a time, and goes on through faults with what it knows.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from isthmus.client.steps import Endpoint, Request, Response, Send
from isthmus.repl.controller.bucket_properties import (
    PROPERTIES_PATH,
    PropertyScope,
    PropertySettings,
    decode_properties,
    effective,
)
from isthmus.repl.metastore.port import Versioned
from tests.simulation.world import riak
from tests.simulation.world.history import History, Key, Rules
from tests.simulation.world.node import ADMIN_PORT
from tests.simulation.world.raw_http import RawTransport
from tests.simulation.world.sessions import BULKY, Known, ProductSession, RawSession, Session
from tests.simulation.world.steps import Doing, StepKind, step

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.world import World

SESSIONS: Final = 6

KEYS: Final = 5
"""Keys of each bucket type: so few that operations meet."""

BUCKET: Final = "things"

LOCAL: Final = "local"
"""A bucket that some queues leave out."""

WAIT_S: Final = 20.0
"""An operation that has waited this long for its session is left out."""

READY_S: Final = 30.0
"""Within this time the bucket types are made and their partitions lead."""

BATCH_MAX: Final = 5

TYPES: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "newest": {"allow_mult": False},
    "last": {"last_write_wins": True},
    "reaped": {"delete_mode": "immediate"},
    "announced": {"delete_mode": "2s", "repl_reap": True},
}
"""The bucket types of clients, with their properties; "default" is there without being made."""

MADE: Final = 2
"""Bucket types that are made in one world, besides "default"."""


@dataclass(slots=True)
class Workload:
    """The clients of one world."""

    sessions: list[Session]
    keys: list[Key]


def prepare(world: World) -> Workload:
    """Make bucket types and sessions. Raises AssertionError if the bucket types are not there in time."""
    chance = Random(f"{world.kernel.seed}/clients")
    made = sorted(chance.sample([name for name in TYPES if name != "default"], MADE))
    beside = [riak.BUCKET_TYPE] if world.shape.riak else []
    making = world.clients.loop.create_task(_make_types(world, made + beside))
    world.run_until(making.done, READY_S, "bucket types are made")
    making.result()
    for name in ("default", *made):
        world.history.rules[name] = Rules(always_single=True, overwrites=True)
    for cluster in world.clusters.values():
        note_rules(world.history, cluster)
        cluster.ensemble.tree.listen(functools.partial(_noted, world.history, cluster))
    keys = [Key(name, BUCKET, f"k{number}") for name in ("default", *made) for number in range(KEYS)]
    if world.shape.partial:
        keys += [Key(name, LOCAL, f"k{number}") for name in ("default", *made) for number in range(2)]
    return Workload(_sessions(world, chance), keys)


def properties_path(cluster: WorldCluster) -> str:
    """Where a cluster's metastore has the properties."""
    return f"/isthmus/{cluster.name}{PROPERTIES_PATH}"


def note_rules(history: History, cluster: WorldCluster) -> None:
    """Record the properties that bucket types have in a cluster now, as its metastore has them."""
    read = cluster.ensemble.tree.read(properties_path(cluster))
    found = None if read is None else decode_properties(Versioned(read[0], read[1].version))
    settings = PropertySettings() if found is None else found
    for name, rules in history.rules.items():
        rules.note(effective(settings.values(PropertyScope(name, BUCKET.encode()))))


def _noted(history: History, cluster: WorldCluster, path: str, _parent: str, _before: object) -> None:
    if path == properties_path(cluster):
        note_rules(history, cluster)


def _sessions(world: World, chance: Random) -> list[Session]:
    clusters = list(world.clusters.values())
    made: list[Session] = []
    for number in range(1, SESSIONS + 1):
        cluster = clusters[(number - 1) % len(clusters)]
        seeded = Random(chance.getrandbits(64))
        routing, timeout_s = chance.random() < 0.7, chance.choice((2.0, 4.0, 8.0))
        identified = chance.random() < 0.8
        if number > SESSIONS - 2:
            made.append(
                ProductSession(
                    f"p{number}",
                    cluster,
                    world.clients,
                    world.history,
                    seeded,
                    routing=routing,
                    timeout_s=timeout_s,
                )
            )
        else:
            made.append(
                RawSession(
                    f"c{number}",
                    cluster,
                    world.clients,
                    world.history,
                    seeded,
                    identified=identified,
                    routing=routing,
                    timeout_s=timeout_s,
                )
            )
        if world.shape.bulky:
            made[-1].paddings = BULKY
    return made


async def _make_types(world: World, names: list[str]) -> None:
    """Make the bucket types in every cluster, and wait until every node shows their properties."""
    clusters = world.clusters.values()
    transports = [RawTransport(world.clients.loop, each.credentials, "admin") for each in clusters]
    try:
        for cluster, transport in zip(clusters, transports, strict=True):
            for name in names:
                await _make_type(transport, cluster, name)
    finally:
        for transport in transports:
            transport.close()


async def _make_type(transport: RawTransport, cluster: WorldCluster, name: str) -> None:
    body = json.dumps(
        {
            "partition_count": 1,
            "replication_factor": len(cluster.nodes),
            "props": TYPES.get(name, {}),
            "by": "workload",
        }
    ).encode()
    nodes = list(cluster.nodes.values())
    node = Endpoint(nodes[0].scheme, nodes[0].machine.address, ADMIN_PORT)
    request = Request(
        b"POST",
        f"/admin/bucket-types/{name}".encode(),
        ((b"Content-Type", b"application/json"),),
        body,
    )
    answer = await transport.send(Send(node, request, READY_S, 1.0))
    assert isinstance(answer, Response), answer
    assert answer.status == 200, answer.body
    found = json.loads(answer.body)
    assert found["outcome"] == "created", found


# Operations

Act = Callable[[Doing, Session], Awaitable[None]]


async def _with_session(doing: Doing, act: Act, kind: type[Session] = Session) -> None:
    """Do `act` with a session by chance, once that is free."""
    sessions = [each for each in doing.world.workload.sessions if isinstance(each, kind)]
    session = doing.chance.choice(sessions)
    loop = doing.world.clients.loop
    began_s = loop.time()
    async with session.lock:
        if loop.time() - began_s > WAIT_S:
            doing.world.history.count("left out")
            return
        await act(doing, session)


def _key(doing: Doing) -> Key:
    """A key by chance."""
    return doing.chance.choice(doing.world.workload.keys)


def _context(doing: Doing, session: Session, key: Key) -> Known | None:
    """What a write names as seen: the session's newest answer mostly, an older one, another session's, or nothing."""
    draw = doing.chance.random()
    if draw < 0.15:
        return None
    if draw < 0.25:
        others = [each.known[key][-1] for each in doing.world.workload.sessions if each.known.get(key)]
        return doing.chance.choice(others) if others else None
    known = session.known.get(key)
    if not known:
        return None
    return doing.chance.choice(known) if draw < 0.32 else known[-1]


@step(StepKind.OPERATION, weight=30)
async def put_value(doing: Doing) -> None:
    """Write one value."""

    async def act(doing: Doing, session: Session) -> None:
        key = _key(doing)
        if doing.chance.random() < 0.4:
            await session.read(key)
        await session.put(key, session.value(doing.chance), _context(doing, session, key))

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=30)
async def read_value(doing: Doing) -> None:
    """Read one key."""

    async def act(doing: Doing, session: Session) -> None:
        await session.read(_key(doing))

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=4)
async def read_if_changed(doing: Doing) -> None:
    """Read one key unless it is as it was."""

    async def act(doing: Doing, session: Session) -> None:
        assert isinstance(session, RawSession)
        key = _key(doing)
        await session.read(key)
        await session.read_if_changed(key)

    await _with_session(doing, act, RawSession)


@step(StepKind.OPERATION, weight=10)
async def delete_value(doing: Doing) -> None:
    """Delete one key."""

    async def act(doing: Doing, session: Session) -> None:
        key = _key(doing)
        await session.delete(key, _context(doing, session, key) if doing.chance.random() < 0.6 else None)

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=6)
async def put_if_absent(doing: Doing) -> None:
    """Write a value if the key does not exist."""

    async def act(doing: Doing, session: Session) -> None:
        await session.put(_key(doing), session.value(doing.chance), None, if_absent=True)

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=6)
async def put_if_unchanged(doing: Doing) -> None:
    """Write a value if the key is as it was known."""

    async def act(doing: Doing, session: Session) -> None:
        key = _key(doing)
        if doing.chance.random() < 0.6:
            await session.read(key)
        known = session.known.get(key)
        await session.put(key, session.value(doing.chance), known[-1] if known else None, if_unchanged=bool(known))

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=6)
async def update_value(doing: Doing) -> None:
    """Read a value and write another in its place."""

    async def act(doing: Doing, session: Session) -> None:
        await session.update(_key(doing), doing.chance)

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=4)
async def put_twice(doing: Doing) -> None:
    """Send one write twice, with one request id."""

    async def act(doing: Doing, session: Session) -> None:
        assert isinstance(session, RawSession)
        key = _key(doing)
        await session.put_twice(key, session.value(doing.chance), _context(doing, session, key))

    await _with_session(doing, act, RawSession)


def _keys(doing: Doing) -> list[Key]:
    """Keys of one bucket, each once."""
    some = _key(doing)
    keys = [key for key in doing.world.workload.keys if key[:2] == some[:2]]
    return doing.chance.sample(keys, min(len(keys), doing.chance.randint(2, BATCH_MAX)))


@step(StepKind.OPERATION, weight=6)
async def batch_put(doing: Doing) -> None:
    """Write and delete several keys at once."""

    async def act(doing: Doing, session: Session) -> None:
        items = []
        for key in _keys(doing):
            value = None if doing.chance.random() < 0.15 else session.value(doing.chance)
            items.append((key, value, _context(doing, session, key)))
        await session.batch_put(items)

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=6)
async def batch_get(doing: Doing) -> None:
    """Read several keys at once."""

    async def act(doing: Doing, session: Session) -> None:
        await session.batch_get(_keys(doing))

    await _with_session(doing, act)


@step(StepKind.OPERATION, weight=2)
async def create_value(doing: Doing) -> None:
    """Write a value under a key that the node makes."""

    async def act(doing: Doing, session: Session) -> None:
        assert isinstance(session, RawSession)
        await session.create("default", BUCKET, session.value(doing.chance))

    await _with_session(doing, act, RawSession)


@step(StepKind.OPERATION, weight=2)
async def list_keys(doing: Doing) -> None:
    """List the keys of a bucket."""

    async def act(doing: Doing, session: Session) -> None:
        assert isinstance(session, RawSession)
        await session.list_keys(_key(doing).bucket_type, BUCKET)

    await _with_session(doing, act, RawSession)
