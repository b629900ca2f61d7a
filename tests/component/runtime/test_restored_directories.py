"""A data directory that was restored from an earlier backup (docs/protocol.md H39)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.storage.identity import NodeIdentity
from tests.support.runtime_cluster import Cluster, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


async def test_a_renewed_directory_joins_as_new_replicas(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The directory's replicas get log ids that were never used before, join as new ones, and receive the writes made
    meanwhile."""

    async with start_cluster(tmp_path) as t:
        await t.led()
        await eventually(lambda: bool(t.followers()))
        follower = t.followers()[0].node
        old = t.members[follower].partition().replica.member
        await t.kill(follower)
        shutil.copytree(tmp_path / follower, tmp_path / "backup")
        leader = await t.led()
        await leader.coordinator.write(WriteRequest(Key(b"default", b"b", b"late"), Content(b"v")))
        shutil.rmtree(tmp_path / follower)
        (tmp_path / "backup").rename(tmp_path / follower)
        identity = NodeIdentity.open(tmp_path / follower)
        identity.renew("restored")
        identity.close(clean=False)
        await t.open(follower)
        await t.level()
        member = t.members[follower]
        assert member.partition().replica.member.log_id > old.log_id
        assert member.identity.spare > old.log_id
        assert member.runtime.store.object(0, b"b", b"late") is not None
