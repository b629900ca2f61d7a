"""What a large cluster costs its nodes: shipped nodes in virtual time, in one process.

    python -m bench.virtual_nodes 100 [--partitions 300] [--json]

The nodes run in the simulated world of the tests: a disk, a network and an ensemble of ZooKeeper in memory, three
replicas of each partition, no clients. Virtual seconds are what the cluster takes by its clocks, where computing takes
none. CPU seconds are real ones of this process while it ran a node's events, what stands in for disk and network there
included; so they are an upper limit for the node, without a kernel's share. Measured in turn: a start of all nodes,
five idle seconds, `isthmus status` at one node, the death of a leader, its return, the death of the controller.
`bench.growth` runs this for several sizes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple
from unittest import mock

from isthmus.node.cli.status_report import PATHS
from isthmus.node.services.container import NodeServices
from isthmus.repl import machine as product_machine
from isthmus.repl.model.record import PartitionRecord, PartitionStatus
from tests.simulation.world import asking
from tests.simulation.world.clusters import Shape, WorldCluster
from tests.simulation.world.ensemble import Ensemble
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.node import ADMIN_PORT, WorldNode
from tests.simulation.world.node_state import leaders_of, records_of, running
from tests.simulation.world.world import World

REPLICAS: Final = 3
PARTITIONS_A_NODE: Final = 3
PARTITIONS_MOST: Final = 768
"""As many as the largest size of the growth of partitions."""

SETTLE_S: Final = 10.0
"""Virtual time after a start and after a death in which their work ends. It is a part of what a death costs."""

IDLE_S: Final = 5.0
"""Each periodic work between nodes is done at least once in this time."""

LIMIT_S: Final = 120.0
"""Most virtual time until what is waited for has come."""

LOOK_S: Final = 0.02
"""Virtual time between two looks, and so the error of a time."""

Values = dict[str, float]


class Spent(NamedTuple):
    """What a span of virtual time cost."""

    virtual_s: float
    cpu_s: Mapping[str, float]
    """By machine, "" for the world itself."""
    requests: int
    writes: int
    frames: int
    """Between nodes."""

    def nodes_cpu_s(self) -> float:
        """CPU seconds of all nodes."""
        return sum(seconds for name, seconds in self.cpu_s.items() if name)


class CpuMeter:
    """CPU seconds of this process by the machine whose events it runs."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._install = product_machine.install
        self._name, self._since_s = "", time.process_time()

    def install(self, machine: product_machine.Machine) -> product_machine.Machine:
        """See `isthmus.repl.machine.install`."""
        self.charge()
        self._name = getattr(machine, "name", "")
        return self._install(machine)

    def charge(self) -> None:
        """Add the time until now."""
        now_s = time.process_time()
        self.seconds[self._name] += now_s - self._since_s
        self._since_s = now_s


class VirtualCluster:
    """One cluster of `nodes` nodes, and what it has cost so far."""

    def __init__(self, world: World, meter: CpuMeter) -> None:
        self.world = world
        self.meter = meter
        self.requests = 0
        """Calls of the metastore, without pings."""
        (self.cluster,) = world.clusters.values()

    @property
    def controller(self) -> WorldNode:
        """The node that decides."""
        services: NodeServices = next(iter(running(self.cluster).values()))
        name = services.controller.controller
        assert name is not None, "no controller"
        return self.cluster.nodes[name]

    def spend(self, act: Callable[[], object]) -> Spent:
        """Do something, and return what it cost."""
        cluster, kernel = self.cluster, self.world.kernel
        self.meter.charge()
        before = dict(self.meter.seconds)
        since_ns, requests, writes, frames = kernel.now_ns, self.requests, cluster.ensemble.tree.zxid, _frames(cluster)
        act()
        self.meter.charge()
        return Spent(
            (kernel.now_ns - since_ns) / SECOND,
            defaultdict(float, {name: s - before.get(name, 0.0) for name, s in self.meter.seconds.items()}),
            self.requests - requests,
            cluster.ensemble.tree.zxid - writes,
            _frames(cluster) - frames,
        )

    def until(self, condition: Callable[[], bool], claim: str) -> Callable[[], None]:
        """Runs until the condition holds."""
        return lambda: self.world.run_until(condition, LIMIT_S, claim, every_s=LOOK_S)

    def led_without(self, node: str) -> bool:
        """Every partition is led by another node, and serves."""
        records = records_of(self.cluster)
        return len(leaders_of(self.cluster)) == len(records) and all(
            record.status is PartitionStatus.ONLINE and record.leader is not None and record.leader.node != node
            for record in records.values()
        )

    def leaders(self) -> Counter[str]:
        """How many partitions each node leads; 0 for some."""
        counted = Counter(dict.fromkeys(self.cluster.nodes, 0))
        counted.update(_leader(record) for record in records_of(self.cluster).values())
        return counted


def _leader(record: PartitionRecord) -> str:
    return "" if record.leader is None else record.leader.node


def _frames(cluster: WorldCluster) -> int:
    return sum(sum(each.links.sent.frames.values()) for each in running(cluster).values())


@contextmanager
def virtual_cluster(nodes: int, partitions: int) -> Iterator[VirtualCluster]:
    """A cluster that does not run yet."""
    meter = CpuMeter()
    ask = Ensemble.request
    with mock.patch.object(product_machine, "install", meter.install):
        world = World(f"{nodes} nodes", Shape((nodes,), partitions))
        for node in world.nodes:
            text = node.file.read_text()
            node.file.write_text(text.replace(f"factor = {nodes}\n", f"factor = {REPLICAS}\n"))
        found = VirtualCluster(world, meter)

        def request(ensemble: Ensemble, *arguments: object) -> None:
            found.requests += 1
            ask(ensemble, *arguments)  # type: ignore[arg-type]

        with mock.patch.object(Ensemble, "request", request), world:
            yield found


def stages(nodes: int, partitions: int) -> Iterator[Values]:
    """The figures of a cluster of this size, stage by stage."""
    yield {"partitions": partitions}
    with virtual_cluster(nodes, partitions) as found:
        yield _start(found, partitions)
        found.world.kernel.run_for(SETTLE_S)
        idle = found.spend(lambda: found.world.kernel.run_for(IDLE_S))
        yield _idle(found, idle)
        yield _status(found)
        counted, controller = found.leaders(), found.controller
        victim = max((node for node in found.world.nodes if node is not controller), key=lambda it: counted[it.name])
        yield _death(found, victim, "a leader's death", idle)
        yield _return(found, victim)
        yield _death(found, controller, "the controller's death", idle)


def _start(found: VirtualCluster, partitions: int) -> Values:
    """All nodes at once, with empty directories, until every partition is led."""
    cluster = found.cluster

    def started() -> None:
        found.world.start()
        found.until(lambda: len(records_of(cluster)) == partitions and found.led_without(""), "all serve")()

    spent = found.spend(started)
    return {
        "virtual s until all serve": spent.virtual_s,
        "CPU s of the start, all nodes": spent.nodes_cpu_s(),
        "CPU s of it, controller": spent.cpu_s[found.controller.name],
        "metastore writes of the start": spent.writes,
        "metastore requests of the start": spent.requests,
    }


def _idle(found: VirtualCluster, idle: Spent) -> Values:
    nodes, controller_cpu_s = len(found.cluster.nodes), idle.cpu_s[found.controller.name]
    connections = [each for each in found.cluster.ensemble._connections if each.server_open]
    return {
        "idle node, % of a core": 100 * (idle.nodes_cpu_s() - controller_cpu_s) / (nodes - 1) / IDLE_S,
        "idle controller, % of a core": 100 * controller_cpu_s / IDLE_S,
        "frames/s of an idle node": idle.frames / nodes / IDLE_S,
        "metastore requests/s, idle": idle.requests / IDLE_S,
        "metastore writes/s, idle": idle.writes / IDLE_S,
        "watches of a node": sum(len(each.data) + len(each.names) for each in connections) / len(connections),
    }


def _status(found: VirtualCluster) -> Values:
    """The requests of `isthmus status` to one node, one after the other."""
    world, asked = found.world, next(node for node in found.world.nodes if node is not found.controller)
    sizes: list[int] = []

    async def ask() -> None:
        for path in PATHS.values():
            answer = await asking.ask(asked.machine.address, ADMIN_PORT, "GET", path)
            assert answer.status == 200, f"{path}: {answer}"
            sizes.append(len(json.dumps(answer.document)))

    def status() -> None:
        task = world.operators.loop.create_task(ask())
        world.run_until(task.done, LIMIT_S, "status", every_s=LOOK_S)
        task.result()

    spent = found.spend(status)
    return {
        "CPU ms of a status, the asked node": 1_000 * spent.cpu_s[asked.name],
        "CPU ms of it, all nodes": 1_000 * (spent.nodes_cpu_s() - spent.cpu_s[world.operators.name]),
        "frames of it": spent.frames,
        "KB of it": sum(sizes) / 1_000,
    }


def _death(found: VirtualCluster, victim: WorldNode, what: str, idle: Spent) -> Values:
    """Kill a node; its leaderships go to others. Costs are those beyond the `idle` ones."""
    led = found.leaders()[victim.name]
    victim.machine.kill()
    spent = found.spend(found.until(lambda: found.led_without(victim.name), what))
    after = found.spend(lambda: found.world.kernel.run_for(SETTLE_S))
    spans = (spent.virtual_s + after.virtual_s) / idle.virtual_s
    decides = found.controller.name
    return {
        f"{what}: partitions it led": led,
        f"{what}: virtual s until all are led": spent.virtual_s,
        f"{what}: CPU s, all nodes": spent.nodes_cpu_s() + after.nodes_cpu_s() - spans * idle.nodes_cpu_s(),
        f"{what}: CPU s, controller": spent.cpu_s[decides] + after.cpu_s[decides] - spans * idle.cpu_s[decides],
        f"{what}: metastore writes": spent.writes + after.writes,
        f"{what}: metastore requests": spent.requests + after.requests - spans * idle.requests,
    }


def _return(found: VirtualCluster, victim: WorldNode) -> Values:
    """Start it again; it gets leaderships back."""
    records, lines = records_of(found.cluster), found.world.story.lines
    before, begun = {number: _leader(record) for number, record in records.items()}, len(lines)
    share = len(records) // len(found.cluster.nodes)

    def balanced() -> bool:
        told = [line for line in lines[begun:] if " balancing." in line]
        return bool(told) and " balancing.ended" in told[-1] and found.leaders()[victim.name] >= share

    victim.start()
    spent = found.spend(found.until(balanced, "leaders are balanced again"))
    after = {number: _leader(record) for number, record in records_of(found.cluster).items()}
    return {
        "a return: virtual s until leaders are balanced": spent.virtual_s,
        "a return: hand-overs": sum(before[number] != name for number, name in after.items()),
        "a return: CPU s, controller": spent.cpu_s[found.controller.name],
        "a return: metastore writes": spent.writes,
    }


def usual_partitions(nodes: int) -> int:
    """Partitions of a cluster of this size."""
    return min(PARTITIONS_MOST, PARTITIONS_A_NODE * nodes)


def main() -> None:
    """Measure one size and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int, help="number of nodes, at least 3")
    parser.add_argument("--partitions", type=int, help="default: three a node, 768 at most")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.nodes < REPLICAS:
        parser.error(f"at least {REPLICAS} nodes, one for each replica")
    values: Values = {}
    for stage in stages(given.nodes, given.partitions or usual_partitions(given.nodes)):
        values |= stage
        if not given.json:
            print(*(f"{column}: {value:,.6g}" for column, value in stage.items()), sep="\n", flush=True)
    if given.json:
        print(json.dumps(values))


if __name__ == "__main__":
    main()
