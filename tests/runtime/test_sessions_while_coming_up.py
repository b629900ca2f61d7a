"""Sessions of the metastore that end while a node comes up."""

from __future__ import annotations

import asyncio

from config.loading import load_file
from node.daemon import Node
from node.ports import free_port
from tests.http.living import SETTINGS, NodeInMemory


class ComingUp(NodeInMemory):
    """A node whose session ends while its queues start, as those of a long start may."""

    def _make_faces(self) -> None:
        super()._make_faces()
        begin = self.queues.start

        async def begin_late() -> None:
            await begin()
            self._metastore.expire()
            await asyncio.sleep(0.1)

        self.queues.start = begin_late


async def until(condition) -> None:
    """Returns once `condition` holds."""
    async with asyncio.timeout(5):
        while not await condition():
            await asyncio.sleep(0.02)


def test_a_session_that_ends_while_the_node_comes_up_is_followed_by_another(tmp_path) -> None:
    """The node registers anew, though it did not serve yet when the session in which it had registered was over."""

    async def story() -> None:
        taken: set[int] = set()
        while len(taken) < 3:
            taken.add(free_port(taken))
        file = tmp_path / "node.toml"
        file.write_text(SETTINGS.format(*taken, ""))
        node: Node = ComingUp(load_file(file))
        await node.start()
        served = asyncio.create_task(node.serve())
        try:

            async def registered() -> bool:
                return "n1" in await node._metastore.registrations()

            await until(registered)
        finally:
            node.request_stop("the test is over")
            await served

    asyncio.run(story())
