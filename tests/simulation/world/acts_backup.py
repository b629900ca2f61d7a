"""Backups: made while nodes run, restored beside a living cluster, and after the loss of a whole one.

The shipped functions of `node.backup` work on the node's directory, in a thread of the operators' machine.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isthmus.config.loader import load_file
from isthmus.node.backup import create as creating
from isthmus.node.backup import restore as restoring
from isthmus.node.backup.manifest import INCOMPLETE
from isthmus.node.services import wiring
from isthmus.repl import machine as product_machine
from isthmus.repl.model.errors import BadInput, IsthmusError, LocalFault, Retryable
from isthmus.repl.runtime.metastore_copy import adopt, check_known, load_copy, plan_adoption
from isthmus.repl.storage.identity import NAME as IDENTITY
from isthmus.repl.storage.slot_file import SlotFile
from tests.simulation.world import acts_types, riak, workload
from tests.simulation.world.acts_nodes import empty_directory, start, stop
from tests.simulation.world.acts_queues import kinds
from tests.simulation.world.admin import WrongAnswer, act, insist
from tests.simulation.world.copies import complete_without, leaders_forced_later, offline
from tests.simulation.world.history import DeclaredLoss, Scope
from tests.simulation.world.steps import Doing, StepKind, step

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.node import WorldNode

PROGRESS_S: Final = 0.05
"""Longest pause of a copy between two pieces, in which the node goes on."""


def _backups(doing: Doing, node: WorldNode) -> list[Path]:
    """The complete backups of a node, the oldest first."""
    place = doing.world.directory / "backups"
    return sorted(each for each in place.glob(f"{node.name}.*") if each.suffix != INCOMPLETE)


async def _backed_up(doing: Doing, node: WorldNode) -> Path | None:
    """Make a backup of a node, which may run; None where the directory cannot be copied."""
    data_dir = node.directory / "data"
    made = doing.world.directory / "backups" / f"{node.name}.{doing.world.kernel.now_ns:015d}"
    settings = load_file(node.file)
    disturbed = (node.machine.boots, node.running)
    chance = doing.chance

    def progress(_phase: str, _done: int, _all: int) -> None:
        if chance.random() < 0.3:
            product_machine.machine().sleep(chance.random() * PROGRESS_S)

    work = functools.partial(
        creating.create,
        data_dir,
        made,
        node=settings.node.name,
        cluster=settings.node.cluster,
        progress=progress,
        database=node.disk.database,
    )
    try:
        manifest = await doing.world.operators.loop.run_in_executor(None, work)
    except (LocalFault, BadInput, OSError) as error:
        doing.tell(f"no backup of {node.name}: {error}")
        if disturbed == (node.machine.boots, node.running) and node.running and not doing.world.broken:
            positions = (data_dir / "metastore-copy.0").exists()
            if positions:
                raise WrongAnswer(f"no backup of {node.name}, which runs undisturbed: {error}") from error
        return None
    if disturbed != (node.machine.boots, node.running):
        shutil.rmtree(made)  # a process that ends closes the files of its directory, also those that the copy reads
        return None
    doing.tell(f"backup of {node.name}: {len(manifest.files)} files, {manifest.size_bytes} bytes")
    return made


async def _restored(doing: Doing, node: WorldNode, backup: Path) -> None:
    """Put a backup into the place of the data directory of a node that does not run."""
    empty_directory(node)
    nothing = lambda _phase, _done, _all: None  # noqa: E731

    def work() -> None:
        manifest, faults = restoring.verify(backup, nothing)
        if faults:
            raise WrongAnswer(f"backup {backup.name} is damaged: {faults}")
        restoring.restore(backup, node.directory / "data", manifest, nothing)

    await doing.world.operators.loop.run_in_executor(None, work)
    doing.tell(f"restored {node.name} from {backup.name}")


@step(StepKind.ACT, weight=9)
async def backup_create(doing: Doing) -> None:
    """Of a node that runs, or not."""
    node = doing.node()
    if node is not None and (node.directory / "data" / "store").is_dir():
        await _backed_up(doing, node)


@step(StepKind.ACT, weight=3)
async def backup_restore_node(doing: Doing) -> None:
    """A node is stopped, and goes on with a backup of itself beside the others, from whom it catches up. Where it was
    needed, its partitions wait for an operator."""
    node = doing.node(lambda each: bool(_backups(doing, each)))
    if node is None:
        return
    cluster = doing.world.clusters[node.cluster]
    if not complete_without(cluster, node) or not await stop(doing, node):
        return
    backup = doing.chance.choice(_backups(doing, node))
    leaders_forced_later(doing, cluster)
    await _restored(doing, node, backup)
    if not node.running:
        await start(doing, node)


@step(StepKind.ACT, weight=1)
async def backup_restore_cluster(doing: Doing) -> None:
    """All nodes of a cluster and the data of its metastore are lost at once, some time after backups of all nodes: the
    nodes are restored, the metastore is adopted, and the records are made anew."""
    cluster = doing.cluster()
    nodes = list(cluster.nodes.values())
    backups = {}
    for node in nodes:
        if (made := await _backed_up(doing, node)) is not None:
            backups[node.name] = made
    if len(backups) < len(nodes):
        return
    await asyncio.sleep(doing.chance.random() * 10.0)
    loss = doing.declare_loss(Scope.CLUSTER, cluster.name)
    doing.tell(f"{cluster.name} is lost, with its metastore")
    _kill_all(cluster)
    cluster.ensemble.stop()
    cluster.ensemble.lose_everything()
    await asyncio.sleep(1.0)
    cluster.ensemble.start()
    _kill_all(cluster)  # what another act has started meanwhile
    for node in cluster.nodes.values():
        if node.name in backups:
            await _restored(doing, node, backups[node.name])
        else:  # it was added since
            empty_directory(node)
    await _adopted(doing, cluster, nodes[0])
    for node in cluster.nodes.values():
        await start(doing, node, seconds=0.0)
    await asyncio.sleep(5.0)
    reseeded_later(doing, cluster, loss)
    await act(doing, cluster, "/admin/cluster/reseed")


def _kill_all(cluster: WorldCluster) -> None:
    for node in cluster.running:
        node.machine.kill()


def reseeded_later(doing: Doing, cluster: WorldCluster, loss: DeclaredLoss) -> None:
    """In the end no partition waits for its records."""

    async def reseed() -> None:
        for _ in range(60):
            await insist(doing, cluster, "/admin/cluster/reseed")
            if not await offline(doing, cluster):
                for name in (*kinds(doing), *([riak.BUCKET_TYPE] if doing.world.shape.riak else [])):
                    await _made_again(doing, cluster, name)
                doing.loss_is_over(loss)
                return
            await asyncio.sleep(2.0)
        raise WrongAnswer(f"{cluster.name}: partitions are offline after the metastore was adopted")

    doing.recover_later(f"records of {cluster.name}", reseed)


async def _made_again(doing: Doing, cluster: WorldCluster, name: str) -> None:
    """Make a bucket type that is younger than the copy of the metastore in the backups."""
    if name == "default":
        return
    factor = doing.world.shape.nodes[cluster.number - 1]
    numbers = {"partition_count": 1, "replication_factor": factor, "props": workload.TYPES.get(name, {})}
    if name in acts_types.TYPES:
        numbers = acts_types.numbers_of(doing, cluster, acts_types.TYPES[name])
    await insist(doing, cluster, f"/admin/bucket-types/{name}", over={"bucket-type-exists"}, **numbers)


async def _adopted(doing: Doing, cluster: WorldCluster, node: WorldNode) -> None:
    """As `isthmus cluster adopt` of the node's file."""
    settings = load_file(node.file)
    directory = node.directory / "data"
    session = cluster.ensemble.session_of(doing.world.operators)
    identity = check_known(directory, SlotFile(directory, IDENTITY).read())
    for attempt in range(30):
        _kill_all(cluster)
        metastore = wiring.metastore_of(settings, settings.metastore.hosts, None, session=session)
        try:
            await metastore.start(lambda _: None)
            adoption = await plan_adoption(
                metastore, identity, load_copy(directory), node=settings.node.name, by="operator"
            )
            await adopt(metastore, adoption)
        except (Retryable, IsthmusError) as error:
            doing.tell(f"adopt, attempt {attempt}: {error}")
            await asyncio.sleep(1.0)
        else:
            doing.tell(f"adopted: {sorted(adoption.documents)}")
            return
        finally:
            await metastore.stop()
    raise WrongAnswer(f"the metastore of {cluster.name} cannot be adopted")
