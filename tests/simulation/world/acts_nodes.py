"""What operators do to nodes: stop and start them, reload their files, add and remove them."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.world.acts_placement import factor_later, undrained_later
from tests.simulation.world.admin import RETRY_S, WrongAnswer, act, look
from tests.simulation.world.clusters import WorldCluster, add_node
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.steps import Doing, StepKind, step

if TYPE_CHECKING:
    from tests.simulation.world.node import WorldNode

STOP_S: Final = 60.0
"""Within this time a node that nothing disturbs has ended after SIGTERM."""

SYNC_S: Final = 40.0
"""How long a rolling restart waits for a cluster in sync, and an operator for a drain, before they give up."""

NODES_MAX: Final = 4
"""Most nodes of a cluster that operators add to."""


async def wait_until(doing: Doing, holds: Callable[[], bool], seconds: float, *, every_s: float = 0.2) -> bool:
    """Wait until something holds, `seconds` at most; whether it does."""
    kernel = doing.world.kernel
    ends_ns = kernel.now_ns + round(seconds * SECOND)
    while not holds():
        if kernel.now_ns >= ends_ns:
            return False
        await asyncio.sleep(every_s)
    return True


async def stop(doing: Doing, node: WorldNode) -> bool:
    """End a node's process by SIGTERM; whether it has ended. Raises WrongAnswer where an undisturbed one does not, or
    ends otherwise than a stop does."""
    world, machine = doing.world, node.machine
    if not node.running:
        return True
    before = (machine.boots, world.disturbances)
    calm = not world.broken and not machine.frozen and node.node is not None and node.node.ready()[0]
    endings = len(node.ended)
    doing.tell(f"SIGTERM to {node.name}")
    if not machine.loop.signal(signal.SIGTERM):
        machine.kill()  # it handles no signals yet
        return True
    over = await wait_until(doing, lambda: not node.running or machine.boots != before[0], STOP_S)
    calm = calm and before == (machine.boots, world.disturbances) and not world.broken
    if calm and not over:
        raise WrongAnswer(f"{node.name} has not ended {STOP_S:g} s after SIGTERM")
    if calm and [code for code, _ in node.ended[endings:]] != [0]:
        raise WrongAnswer(f"{node.name} ended after SIGTERM so: {node.ended[endings:]}")
    return not node.running


async def start(doing: Doing, node: WorldNode, *, seconds: float = SYNC_S) -> bool:
    """Start a node's process, if it has none; whether it is ready after at most `seconds`."""
    if not node.running:
        doing.tell(f"starts {node.name}")
        node.start()
    return await wait_until(doing, lambda: node.running and node.node is not None and node.node.ready()[0], seconds)


async def in_sync(doing: Doing, cluster: WorldCluster, seconds: float = SYNC_S) -> bool:
    """Wait until the cluster says that it is in sync, `seconds` at most; whether it is."""
    ends_ns = doing.world.kernel.now_ns + round(seconds * SECOND)
    while doing.world.kernel.now_ns < ends_ns:
        found = await look(doing, cluster, "/admin/cluster")
        if found is not None:
            parts = found["partitions"]
            if parts["total"] and parts["online"] == parts["total"] and not found["under_replicated"]:
                return True
        await asyncio.sleep(RETRY_S)
    return False


@step(StepKind.ACT, weight=9)
async def rolling_restart(doing: Doing) -> None:
    """One node after the other, each once the cluster is in sync; it ends where that takes too long."""
    cluster = doing.cluster()
    nodes = list(cluster.nodes.values())
    doing.chance.shuffle(nodes)
    for node in nodes:
        if not await in_sync(doing, cluster):
            doing.tell(f"{cluster.name} is not in sync: the restart ends before {node.name}")
            return
        if not await stop(doing, node) or not await start(doing, node):
            doing.tell(f"{node.name} is not back: the restart ends")
            return


@step(StepKind.ACT, weight=9)
async def node_restart(doing: Doing) -> None:
    """One node, at any time."""
    node = doing.node()
    if node is not None and await stop(doing, node):
        await asyncio.sleep(doing.chance.choice((0.1, 1.0, 10.0)))
        await start(doing, node)


CHANGES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: text,
    lambda text: text.replace('format = "json"', 'format = "json"\naudit_size = "2MB"'),
    lambda text: text.replace('lease = "5s"', 'lease = "7s"'),
    lambda text: text + "\n[nonsense]\n",
    lambda text: text[: len(text) // 2] + "\x00",
)
"""Changes of a node's file: none, one that a reload takes over, one that needs a restart, and faults."""


@step(StepKind.ACT, weight=6)
async def node_reload(doing: Doing) -> None:
    """SIGHUP after the node's file has changed; a file with a fault changes nothing. The file is put back at once, so
    that the node's next start finds it."""
    node = doing.node(lambda each: each.running)
    if node is None:
        return
    text = node.file.read_text()
    node.file.write_text(doing.chance.choice(CHANGES)(text))
    try:
        doing.tell(f"SIGHUP to {node.name}: {node.machine.loop.signal(signal.SIGHUP)}")
        await asyncio.sleep(1.0)
    finally:
        node.file.write_text(text)
    node.machine.loop.signal(signal.SIGHUP) if node.running else None


@step(StepKind.ACT, weight=1)
async def node_add(doing: Doing) -> None:
    """One more node, to which replicas move."""
    cluster = doing.cluster()
    if len(cluster.nodes) >= NODES_MAX:
        return
    world = doing.world
    number = len(cluster.nodes) + 1
    first = cluster.nodes[f"{cluster.name}-1"]
    made = add_node(world.kernel, world.network, world.directory, cluster, number)
    made.machine.on_uncaught = world.story.uncaught
    text = first.file.read_text().replace(f'"{first.name}"', f'"{made.name}"')
    text = text.replace(first.machine.address + ":", made.machine.address + ":")
    made.file.write_text(re.sub(r"(?m)^id = 1$", f"id = {number}", text))
    if await start(doing, made):
        await act(doing, cluster, "/admin/moves", kind="spread")


@step(StepKind.ACT, weight=1, covers=("POST /admin/nodes/{name}/remove",))
async def node_remove(doing: Doing) -> None:
    """A node is drained, stopped and forgotten; later it comes back with an empty directory, as a new one. An operator
    who is impatient removes it as it is, and is refused."""
    cluster = doing.cluster()
    name = doing.chance.choice(list(cluster.nodes))
    path = f"/admin/nodes/{name}/remove"
    if len(cluster.nodes) == 1 or doing.chance.random() < 0.3:
        await act(doing, cluster, path, dry_run=doing.chance.random() < 0.3)
        return
    node = cluster.nodes[name]
    await _fewer_copies(doing, cluster)
    undrained_later(doing, cluster, name)
    await act(doing, cluster, "/admin/nodes/drain", nodes=[name], allowed={"bad-input"})
    if not await _empty(doing, cluster, name) or not await stop(doing, node):
        doing.tell(f"{name} stays")
        return
    for _ in range(30):
        answer = await act(doing, cluster, path)
        if answer is not None and answer.done:
            break
        await asyncio.sleep(RETRY_S)  # its session lives on for a while
    else:
        doing.tell(f"{name} is not removed")
        return
    if not node.running:
        empty_directory(node)
    await start(doing, node)
    await act(doing, cluster, "/admin/moves", kind="spread", allowed={"bad-input"})


async def _fewer_copies(doing: Doing, cluster: WorldCluster) -> None:
    """Let every bucket type have one copy less than there are nodes, so that a node can be drained."""
    found = await look(doing, cluster, "/admin/bucket-types")
    for row in (found or {}).get("bucket_types", ()):
        factor = row["replication_factor"]
        if factor is not None and factor >= len(cluster.nodes):
            factor_later(doing, cluster, row["bucket_type"], factor)
            path = f"/admin/bucket-types/{row['bucket_type']}/replication-factor"
            await act(doing, cluster, path, replication_factor=len(cluster.nodes) - 1)


async def _empty(doing: Doing, cluster: WorldCluster, name: str) -> bool:
    ends_ns = doing.world.kernel.now_ns + round(SYNC_S * SECOND)
    while doing.world.kernel.now_ns < ends_ns:
        found = await look(doing, cluster, "/admin/nodes")
        rows = {row["name"]: row for row in (found or {}).get("nodes", ())}
        if name in rows and not rows[name]["replicas"] and not rows[name]["leaders"]:
            return True
        await asyncio.sleep(RETRY_S)
    return False


def empty_directory(node: WorldNode) -> None:
    """Remove the data directory of a node that does not run."""
    assert not node.running
    shutil.rmtree(node.directory / "data", ignore_errors=True)
    node.disk.forget()
