"""Faults of a cluster: each nemesis injects one kind of fault for a while and undoes it.

A nemesis only injects; `tests.system.faults.campaign` checks whether the cluster withstood it. NEMESES lists them with
their requirements and with the exit codes and answers that they may cause; those about whole replicas, lost, old and
moved, are in `tests.system.faults.replica_faults`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from isthmus.repl.replog.log import RESERVE_BYTES
from tests.system.faults.cluster import KILLED, ClusterNode
from tests.system.faults.nemesis import FAULT, SESSION_S, STORAGE_FAILED, FaultContext, Nemesis
from tests.system.faults.reassignment_faults import PLACEMENTS
from tests.system.faults.replica_faults import COPIES

ATTACH_TIMEOUT_S: Final = 10.0

SYNCS: Final = "fdatasync,pwritev2"
"""The calls that wait for the disk while a node is written to: the store's, and the log's writes that sync at once."""


# -- processes --------------------------------------------------------------------------------------------------


def kill(context: FaultContext) -> None:
    """kill -9 of one node, which restarts after a moment."""
    _kill(context, [context.victim()])


def kill_most(context: FaultContext) -> None:
    """kill -9 of all nodes but one at the same time."""
    spared = context.victim()
    _kill(context, context.others(spared))


def kill_all(context: FaultContext) -> None:
    """kill -9 of every node at the same time."""
    _kill(context, list(context.cluster.nodes.values()))


def kill_twice(context: FaultContext) -> None:
    """kill -9 of one node, and of another as soon as that one is back."""
    for _ in range(2):
        _kill(context, [context.victim()])
        context.wait(0.0, 2.0)


def last_standing(context: FaultContext) -> None:
    """Nodes die one by one, each after the ISR has shrunk to those that are left; the last but one is back first."""
    nodes = list(context.cluster.nodes.values())
    context.chance.shuffle(nodes)
    for node in nodes:
        node.kill()
        context.timeline.note(f"killed {node.name}")
        context.wait(SESSION_S, SESSION_S * 1.5)
    for node in (nodes[-2], nodes[-1], *nodes[:-2]):
        context.cluster.start(node)
        context.timeline.note(f"started {node.name}")
        context.wait(1.0, SESSION_S)


def _kill(context: FaultContext, nodes: list[ClusterNode]) -> None:
    for node in nodes:
        node.wanted = False
        node.send(signal.SIGKILL)
    for node in nodes:
        node.kill()
    context.timeline.note(f"killed {' '.join(node.name for node in nodes)}")
    context.chance.shuffle(nodes)
    for node in nodes:
        context.wait(0.0, 3.0)
        context.cluster.start(node)
        context.timeline.note(f"started {node.name}")


def stop(context: FaultContext) -> None:
    """Stop every node in turn gracefully, and start it again."""
    nodes = list(context.cluster.nodes.values())
    context.chance.shuffle(nodes)
    for node in nodes:
        began_s = time.monotonic()
        code = node.terminate()
        context.timeline.note(f"{node.name} stopped with {code} in {time.monotonic() - began_s:.1f} s")
        assert code == 0, f"{node.name} was told to stop and ended with {code}"
        context.wait(0.0, 1.0)
        context.cluster.start(node)
        context.cluster.wait_until_healthy(60)


def pause(context: FaultContext) -> None:
    """Pause one node until its session has expired, and continue it."""
    _pause(context, context.victim(), SESSION_S * 1.2, SESSION_S * 2)


def pause_briefly(context: FaultContext) -> None:
    """Pause one node for less than a session."""
    _pause(context, context.victim(), 0.2, SESSION_S * 0.6)


def pause_controller(context: FaultContext) -> None:
    """Pause the node with the active controller until another one takes over."""
    answers = (node.ask("/admin/cluster") for node in context.cluster.nodes.values())
    name = next((answer["controller"] for answer in answers if answer is not None), None)
    _pause(context, context.cluster.nodes.get(name) or context.victim(), SESSION_S * 1.2, SESSION_S * 2)


def _pause(context: FaultContext, node: ClusterNode, low_s: float, high_s: float) -> None:
    node.send(signal.SIGSTOP)
    context.timeline.note(f"paused {node.name}")
    context.wait(low_s, high_s)
    node.send(signal.SIGCONT)
    context.timeline.note(f"{node.name} goes on")


def metastore_kill(context: FaultContext) -> None:
    """kill -9 of ZooKeeper; away for less or more than a session."""
    context.cluster.zookeeper.kill()
    context.timeline.note("killed zookeeper")
    context.wait(0.0, SESSION_S * 2)
    context.cluster.start(context.cluster.zookeeper)
    context.timeline.note("started zookeeper")


def metastore_pause(context: FaultContext) -> None:
    """Pause ZooKeeper for less or more than a session."""
    context.cluster.zookeeper.send(signal.SIGSTOP)
    context.timeline.note("paused zookeeper")
    context.wait(1.0, SESSION_S * 2)
    context.cluster.zookeeper.send(signal.SIGCONT)
    context.timeline.note("zookeeper goes on")


# -- the network ------------------------------------------------------------------------------------------------


def cut(context: FaultContext) -> None:
    """One node and the others cannot reach each other; ZooKeeper and clients reach all."""
    node = context.victim()
    _cut(context, [(node.name, other.name) for other in context.others(node)], both=True)


def cut_pair(context: FaultContext) -> None:
    """Two nodes cannot reach each other; all others reach both."""
    node = context.victim()
    _cut(context, [(node.name, context.chance.choice(context.others(node)).name)], both=True)


def cut_one_way(context: FaultContext) -> None:
    """One node's packets to another are lost; the other direction works."""
    pair = [context.victim()]
    pair.append(context.chance.choice(context.others(pair[0])))
    context.chance.shuffle(pair)
    _cut(context, [(pair[0].name, pair[1].name)], both=False)


def cut_metastore(context: FaultContext) -> None:
    """One node and ZooKeeper do not reach each other; the nodes do."""
    _cut(context, [(context.victim().name, context.cluster.zookeeper.name)], both=True)


def cut_metastore_one_way(context: FaultContext) -> None:
    """Between one node and ZooKeeper one direction is lost."""
    pair = [context.victim().name, context.cluster.zookeeper.name]
    context.chance.shuffle(pair)
    _cut(context, [(pair[0], pair[1])], both=False)


def isolate(context: FaultContext) -> None:
    """One node reaches neither ZooKeeper nor its peers; only clients reach it."""
    node = context.victim()
    _cut(
        context,
        [(node.name, name) for name in (context.cluster.zookeeper.name, *(o.name for o in context.others(node)))],
        both=True,
    )


def swizzle(context: FaultContext) -> None:
    """One node after the other is cut off from everything, then they come back in another order."""
    assert context.network is not None
    names = list(context.cluster.nodes)
    context.chance.shuffle(names)
    cuts: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        cuts[name] = [(name, other) for other in (*names, context.cluster.zookeeper.name) if other != name]
        for one, other in cuts[name]:
            context.network.cut(one, other)
        context.timeline.note(f"cut {name} off from everything")
        context.wait(0.2, 2.0)
    context.chance.shuffle(names)
    for name in names:
        context.network.heal()
        del cuts[name]
        for one, other in (pair for pairs in cuts.values() for pair in pairs):
            context.network.cut(one, other)
        context.timeline.note(f"{name} is back")
        context.wait(0.2, 2.0)


def lossy(context: FaultContext) -> None:
    """Three in ten packets between one node and the others are lost."""
    assert context.network is not None
    node = context.victim()
    for other in context.others(node):
        context.network.lose(node.name, other.name, 0.3)
        context.network.lose(other.name, node.name, 0.3)
    context.timeline.note(f"{node.name} loses 30 % of all packets")
    context.wait(SESSION_S, SESSION_S * 2.5)
    context.network.heal()
    context.timeline.note("healed")


def slow_link(context: FaultContext) -> None:
    """One node sends 64 kbit/s at most."""
    assert context.network is not None
    node = context.victim()
    context.network.slow(node.name, "64kbit")
    context.timeline.note(f"{node.name} sends at 64 kbit/s")
    context.wait(SESSION_S, SESSION_S * 2.5)
    context.network.heal()
    context.timeline.note("healed")


def _cut(context: FaultContext, pairs: list[tuple[str, str]], both: bool) -> None:
    assert context.network is not None
    for one, other in pairs:
        context.network.drop(one, other)
        if both:
            context.network.drop(other, one)
    arrow = "and" if both else "to"
    context.timeline.note("cut " + ", ".join(f"{one} {arrow} {other}" for one, other in pairs))
    context.wait(1.0, SESSION_S * 2.5)
    context.network.heal()
    context.timeline.note("healed")


# -- disks, descriptors, clocks ---------------------------------------------------------------------------------


def disk_full(context: FaultContext) -> None:
    """One node's disk has less free than the log keeps in reserve for a while, or has not a block left: then the node
    ends, and cannot start."""
    node = context.cluster.nodes[context.chance.choice(list(context.disks))]
    leave_bytes = context.chance.choice([0, RESERVE_BYTES // 2])
    context.disks[node.name].fill(leave_bytes)
    context.timeline.note(f"{node.name}'s disk is full, {leave_bytes:,} bytes left")
    context.wait(3.0, SESSION_S * 2)
    context.disks[node.name].free()
    context.timeline.note(f"{node.name}'s disk has space")


def sync_error(context: FaultContext) -> None:
    """One sync of one node fails with EIO, once."""
    node = context.victim()
    with injected(node, SYNCS, f"error=EIO:when={context.chance.randrange(1, 20)}"):
        context.timeline.note(f"a sync of {node.name} will fail")
        _wait_for_end(node, 5.0)


def slow_disk(context: FaultContext) -> None:
    """Each sync of one node takes two seconds."""
    node = context.victim()
    with injected(node, SYNCS, "delay_enter=2000000"):
        context.timeline.note(f"a sync of {node.name} takes 2 s")
        context.wait(SESSION_S * 1.5, SESSION_S * 2.5)
    context.timeline.note(f"{node.name}'s disk is itself again")


def kill_at_call(context: FaultContext) -> None:
    """kill -9 of one node at a random one of its next calls that write, sync, rename or send."""
    node = context.victim()
    calls = context.chance.choice([SYNCS, "write,pwrite64,writev", "sendto,sendmsg", "fsync,rename", "write,sendto"])
    place = context.chance.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
    with injected(node, calls, f"signal=SIGKILL:when={place}"):
        context.timeline.note(f"{node.name} will be killed at its {place}. {calls}")
        _wait_for_end(node, 4.0)


def _wait_for_end(node: ClusterNode, timeout_s: float) -> None:
    process = node.popen
    assert process is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)


@contextlib.contextmanager
def injected(node: ClusterNode, calls: str, what: str) -> Iterator[None]:
    """While the body runs, these system calls of a running node are tampered with by strace."""
    output = node.directory / "strace.log"
    words = [
        "-f",
        "-qq",
        "-o",
        str(output),
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:{what}",
        "-p",
        str(node.pid),
    ]
    tracer = subprocess.Popen(["strace", *words], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + ATTACH_TIMEOUT_S
        while node.running and tracer.poll() is None and _tracer_of(node.pid) == 0:
            assert time.monotonic() < deadline, "strace does not attach"
            time.sleep(0.01)
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it detaches from the node first
        try:
            tracer.wait(ATTACH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            tracer.kill()
            tracer.wait()


def _tracer_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("TracerPid")), 0)


def descriptors(context: FaultContext) -> None:
    """One node cannot open more files or connections than it has."""
    node = context.victim()
    used = len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (used + 1, hard))
    context.timeline.note(f"{node.name} has {used} descriptors and may have one more")
    context.wait(2.0, SESSION_S * 1.5)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)
    context.timeline.note(f"{node.name} may have descriptors again")


def clocks(context: FaultContext) -> None:
    """Wall clocks of one node or all jump by an hour, back and forth, and a node is killed meanwhile."""
    moved = list(context.cluster.nodes.values()) if context.chance.random() < 0.3 else [context.victim()]
    offset_s = context.chance.choice([3600, -3600])
    for node in moved:
        context.cluster.set_clock(node, offset_s)
    context.timeline.note(f"clock of {' '.join(node.name for node in moved)} {offset_s:+} s")
    context.wait(0.5, 2.0)
    _kill(context, [context.victim()])
    context.wait(0.5, 2.0)
    for node in moved:
        context.cluster.set_clock(node, 0)
    context.timeline.note("clocks are right")


def corrupt(context: FaultContext) -> None:
    """kill -9 of one node, and a byte in the middle of its newest log file changes before it is back. It must not lead
    with the damaged log; it is in sync again after its operator has emptied the disk."""
    node = context.victim()
    node.kill()
    files = sorted((node.data_dir / "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
    newest = next(path for path in reversed(files) if len(path.read_bytes().rstrip(b"\0")) > 1000)
    data = bytearray(newest.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    place = context.chance.randrange(end // 4, end // 2)
    data[place] ^= 1 << context.chance.randrange(8)
    newest.write_bytes(data)
    context.timeline.note(f"killed {node.name}, and changed byte {place} of {end} in {newest.name}")
    context.cluster.start(node)
    context.wait(SESSION_S, SESSION_S * 2)
    _emptied(context, node)


def lost_disk(context: FaultContext) -> None:
    """kill -9 of one node, and it comes back with an empty data directory."""
    _emptied(context, context.victim())


def _emptied(context: FaultContext, node: ClusterNode) -> None:
    node.kill()
    context.empty(node)
    context.wait(0.0, 2.0)
    context.cluster.start(node)


NEMESES: Final[Mapping[str, Nemesis]] = {
    "kill": Nemesis(kill),
    "kill-twice": Nemesis(kill_twice),
    "kill-most": Nemesis(kill_most, nodes=3),
    "kill-all": Nemesis(kill_all),
    "last-standing": Nemesis(last_standing, nodes=3),
    "kill-at-call": Nemesis(kill_at_call, strace=True, exits=(KILLED,)),
    "stop": Nemesis(stop),
    "pause": Nemesis(pause),
    "blink": Nemesis(pause_briefly),
    "pause-controller": Nemesis(pause_controller),
    "metastore-kill": Nemesis(metastore_kill),
    "metastore-pause": Nemesis(metastore_pause),
    "cut": Nemesis(cut, nodes=3, network=True),
    "cut-pair": Nemesis(cut_pair, nodes=3, network=True),
    "cut-one-way": Nemesis(cut_one_way, nodes=3, network=True),
    "cut-metastore": Nemesis(cut_metastore, network=True),
    "cut-metastore-one-way": Nemesis(cut_metastore_one_way, network=True),
    "isolate": Nemesis(isolate, nodes=3, network=True),
    "swizzle": Nemesis(swizzle, nodes=3, network=True),
    "lossy": Nemesis(lossy, nodes=3, network=True),
    "slow-link": Nemesis(slow_link, nodes=3, network=True),
    "disk-full": Nemesis(disk_full, disks=True, exits=(STORAGE_FAILED, FAULT), excuses=("500 local-fault",)),
    "sync-error": Nemesis(sync_error, strace=True, exits=(STORAGE_FAILED,), excuses=("500 local-fault",)),
    "slow-disk": Nemesis(slow_disk, strace=True),
    "descriptors": Nemesis(descriptors, exits=(STORAGE_FAILED,), excuses=("500 local-fault",)),
    "clocks": Nemesis(clocks, clocks=True),
    "corrupt": Nemesis(corrupt, nodes=3),
    "lost-disk": Nemesis(lost_disk, nodes=3),
    **COPIES,
    **PLACEMENTS,
}
"""Nemeses by their names on the command line."""


def lacking(name: str, node_count: int) -> str:
    """Why this machine cannot make a nemesis; empty when it can."""
    nemesis = NEMESES[name]
    tools = ["strace"] * nemesis.strace + ["ip", "iptables", "tc", "nsenter"] * nemesis.network
    tools += ["mkfs.ext4", "mount", "losetup"] * nemesis.disks
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if tools and os.geteuid() != 0:
        return "needs root"
    if node_count < nemesis.nodes:
        return f"needs {nemesis.nodes} nodes"
    return ""
