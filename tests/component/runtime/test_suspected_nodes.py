"""A living leader that is suspected falsely (docs/protocol.md R-SUSPECT) loses its leaderships, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, decode_object
from isthmus.repl.model.requests import WriteRequest
from tests.support.runtime_cluster import Cluster, Node, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


def held(member: Node, name: bytes) -> list[bytes]:
    """The values that a node's own store has of a key."""
    data = member.runtime.store.object(0, b"b", name)
    return [] if data is None else sorted(s.value for s in decode_object(data).live)


async def register_again(member: Node) -> None:
    """Register as the next session, as a node does when it sees that its registration is gone."""
    member.runtime.session_started(await member.registrar.register())


@pytest.mark.logs_errors("metastore.registration_lost")
async def test_a_false_suspicion_of_a_leader_costs_no_write(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Three times another node ends the registration of a leader that keeps writing. Another member leads in the next
    epoch, the suspected node registers as another session and is in sync again, and every acknowledged write is on all
    replicas."""

    async with start_cluster(tmp_path) as t:
        acked: list[bytes] = []
        stop = asyncio.Event()

        async def write() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                name = b"%d" % n
                try:
                    at = t.members[f"n{1 + n % 3}"]
                    await at.coordinator.write(WriteRequest(Key(b"default", b"b", name), Content(name)))
                    acked.append(name)
                except IsthmusError:
                    await asyncio.sleep(0.01)

        writer = asyncio.create_task(write())
        for _ in range(3):
            leader = await t.led()
            await eventually(lambda leader=leader: len(leader.controller.records[0].isr) == 3)
            epoch, session_id = leader.partition().replica.epoch, leader.registrar.session_id
            count = len(acked)
            await eventually(lambda count=count: len(acked) > count + 5)
            other = next(member for member in t.members.values() if member is not leader)
            assert await other.metastore.end_registration(leader.node, session_id, ("/controller",))
            heir = await t.led_by_another(leader)
            assert heir.partition().replica.epoch > epoch
            await register_again(leader)
            assert leader.registrar.session_id != session_id
            await eventually(lambda leader=leader: leader.partition().replica.following)
        stop.set()
        await writer
        await t.level()
        assert len(acked) > 15
        for member in t.members.values():
            assert not member.failures
            assert all(held(member, name) == [name] for name in acked)
