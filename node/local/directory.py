"""The clusters in a directory: their status, waiting until nodes serve, stopping and starting single nodes.

`node.local.clusters` sets them up and writes `clusters.json`. The directory's supervisor owns nodes and ZooKeepers and
carries out the commands (`node.local.supervisor_client`); `node.local.probe` finds out whether a node serves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from isthmus.config.text import no_such
from isthmus.node.local import supervisor_client
from isthmus.node.local.child_process import ChildState
from isthmus.node.local.dev_certificates import credentials_of
from isthmus.node.local.probe import NodeProbe, Online
from isthmus.node.local.process_id import ProcessId
from isthmus.node.local.topology_model import SECURITY
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.model.errors import BadInput, LocalFault

READY_TIMEOUT_S: Final = 120.0
"""How long to wait for nodes. Six and their ZooKeepers take some 15 s on two quiet cores, a restarted one 3 s."""

POLL_S: Final = 0.2
"""Between two probes of nodes that are waited for: each probe costs a starting node two requests."""

NODE_STOP_TIMEOUT_MS: Final = 30_000
"""How long a node may take to stop gracefully: it hands leaderships over, finishes requests, syncs log and store."""

PROBES_MAX: Final = 16
"""Nodes that are probed concurrently; a node that hangs delays no other."""


PROGRESS_CHARACTERS_MAX: Final = 80
"""Characters of a node's state in a line of progress; an error shows all of it."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node of a directory, with the URLs of its listeners."""

    cluster: str
    name: str
    http: str
    admin: str


# --- status ---


def clusters_of(directory: Path) -> dict[str, Any]:
    """The content of `clusters.json`: {NAME: {"zookeepers": [{"name", "address"}], "nodes": [{"name", "http", "admin",
    "cluster"}]}}. Raises LocalFault."""
    path = directory / "clusters.json"
    try:
        clusters: dict[str, Any] = json.loads(path.read_bytes())["clusters"]
    except FileNotFoundError as error:
        raise LocalFault(f"no clusters are set up in {directory} (`isthmus local up` does that)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalFault(f"{path} cannot be used ({error}); `isthmus local up` writes it again") from error
    return clusters


def nodes_of(directory: Path) -> list[LocalNode]:
    """Every node that is set up in `directory`. Raises LocalFault."""
    return [
        LocalNode(name, node["name"], node["http"], node["admin"])
        for name, cluster in clusters_of(directory).items()
        for node in cluster["nodes"]
    ]


def describe(directory: Path) -> dict[str, Any]:
    """The nodes: {"clusters": {NAME: {"nodes": [{"name", "http", "admin", "pid"}]}}}. Raises LocalFault."""
    processes = supervisor_client.recorded_children(directory)
    clusters: dict[str, Any] = {}
    for node in nodes_of(directory):
        process = processes.get(node.name)
        clusters.setdefault(node.cluster, {"nodes": []})["nodes"].append(
            {
                "name": node.name,
                "http": node.http,
                "admin": node.admin,
                "pid": None if process is None else process.pid,
            }
        )
    return {"clusters": clusters}


def status_of(directory: Path, *, ask_nodes: bool = True) -> dict[str, Any]:
    """State of all processes: {"supervisor": PID or None, "clusters": {NAME: {"zookeepers": [...], "nodes": [...]}}}.

    Each process has name, state, pid, restarts, failures, reason, last_words (the last output of one that does not run
    or keeps failing) and log; a node also its addresses and online (`probe.Online.text`, None where nodes are not
    probed or do not run), a ZooKeeper its address. Raises LocalFault when nothing is set up there."""
    directory = directory.absolute()
    clusters = clusters_of(directory)
    state = supervisor_client.running_state(directory)
    supervisor = None if state is None else ProcessId.from_json(state["supervisor"])
    children = _unsupervised(directory) if state is None else state["children"]
    running = [node for node in nodes_of(directory) if _child(node.name, children)["state"] == ChildState.RUNNING]
    readiness = _probe_all(running, credentials_of(directory / SECURITY)) if ask_nodes else {}
    shown: dict[str, Any] = {}
    for name, cluster in clusters.items():
        nodes = []
        for node in cluster["nodes"]:
            child = _child(node["name"], children)
            words = _last_output(child, partial(supervisor_client.last_line, node_log(directory, node["name"])))
            online = readiness.get(node["name"])
            nodes.append({**child, **node, "last_words": words, "online": None if online is None else online.text})
        zookeepers = []
        for server in cluster["zookeepers"]:
            child = _child(server["name"], children)
            words = _last_output(child, partial(embedded_zookeeper.last_complaint, directory / server["name"]))
            zookeepers.append({**child, **server, "last_words": words})
        shown[name] = {"zookeepers": zookeepers, "nodes": nodes}
    return {"supervisor": None if supervisor is None else supervisor.pid, "clusters": shown}


def _probe_all(nodes: Sequence[LocalNode], access: PeerCredentials) -> dict[str, Online]:
    """Readiness of each node now, by name."""

    def online(node: LocalNode) -> Online:
        with NodeProbe(node.http, node.admin, access) as probe:
            return probe.online()

    if not nodes:
        return {}
    with ThreadPoolExecutor(min(PROBES_MAX, len(nodes)), thread_name_prefix="probe") as pool:
        return dict(zip((node.name for node in nodes), pool.map(online, nodes), strict=True))


def _unsupervised(directory: Path) -> dict[str, Any]:
    """Processes that a killed supervisor left running, in the form of a supervisor's state."""
    reason = "its supervisor is gone; `isthmus local up` takes it over, `isthmus local down` stops it"
    about = {"state": ChildState.RUNNING, "restarts": 0, "failures": 0, "reason": reason, "log": ""}
    return {
        name: {**about, "process": process.to_json()}
        for name, process in supervisor_client.recorded_children(directory).items()
    }


def _child(name: str, children: Mapping[str, Any]) -> dict[str, Any]:
    child = children.get(name)
    if child is None:
        child = {"state": ChildState.STOPPED, "process": None, "restarts": 0, "failures": 0, "reason": "", "log": ""}
    pid = None if child["process"] is None else child["process"]["pid"]
    return {"name": name, "pid": pid, **{key: child[key] for key in ("state", "restarts", "failures", "reason", "log")}}


def _last_output(child: Mapping[str, Any], read: Callable[[], str]) -> str:
    """The last output of a child that ended by itself or keeps failing; "" for a healthy one."""
    looping = child["failures"] >= supervisor_client.START_TRIES
    return read() if looping or child["state"] in (ChildState.ENDED, ChildState.WAITING) else ""


def node_log(directory: Path, name: str) -> Path:
    """The file of a node's output."""
    return directory / name / "node.log"


# --- single nodes ---


def stop_node(directory: Path, name: str, *, kill: bool = False) -> None:
    """Stop a node until it is started: gracefully, or with `kill` at once by SIGKILL. Raises BadInput for an unknown
    name, LocalFault."""
    _command(directory, name, {"do": "stop-child", "kill": kill})


def start_node(directory: Path, name: str, timeout_s: float | None = READY_TIMEOUT_S) -> None:
    """Start a node unless it runs; returns once `wait_ready` does, with `timeout_s` None at once. Raises BadInput for
    an unknown name, LocalFault."""
    node = _command(directory, name, {"do": "start"})
    if timeout_s is not None:
        wait_ready(directory, [node], timeout_s)


def restart_node(directory: Path, name: str, timeout_s: float | None = READY_TIMEOUT_S, *, kill: bool = False) -> None:
    """Give a node a new process: a live one is stopped gracefully, or with `kill` by SIGKILL. Otherwise as
    `start_node`."""
    node = _command(directory, name, {"do": "restart", "kill": kill})
    if timeout_s is not None:
        wait_ready(directory, [node], timeout_s)


def _command(directory: Path, name: str, command: dict[str, Any]) -> LocalNode:
    """Have the supervisor carry out a command on a node; the node."""
    directory = directory.absolute()
    nodes = {node.name: node for node in nodes_of(directory)}
    if name not in nodes:
        raise BadInput(f"{no_such('node', name, list(nodes))} ({directory} has {', '.join(nodes)})")
    timeout = supervisor_client.ASK_TIMEOUT_S + NODE_STOP_TIMEOUT_MS / 1000
    try:
        supervisor_client.ask(directory, {**command, "child": name}, timeout)
    except supervisor_client.NotRunning as error:
        raise LocalFault(f"nothing runs in {directory}: `isthmus local up` starts its clusters") from error
    return nodes[name]


# --- waiting ---


def wait_online(
    directory: Path,
    nodes: Sequence[LocalNode],
    timeout_s: float,
    on_progress: Callable[[str], None] | None = None,
) -> None:
    """Return once every node is ready and sees all partitions online.

    Raises LocalFault when a node cannot start, with the last line of its log, or after `timeout_s`, with the nodes that
    are not ready and why.
    """
    _wait(directory, nodes, timeout_s, on_progress, lambda online: online.complete)


def wait_ready(directory: Path, nodes: Sequence[LocalNode], timeout_s: float) -> None:
    """Return once every one of these nodes is ready with all its replicas in sync, so that the next one may be
    restarted. Raises as `wait_online`."""
    _wait(directory, nodes, timeout_s, None, lambda online: online.caught_up)


def _wait(
    directory: Path,
    nodes: Sequence[LocalNode],
    timeout_s: float,
    on_progress: Callable[[str], None] | None,
    enough: Callable[[Online], bool],
) -> None:
    directory = directory.absolute()
    deadline = time.monotonic() + timeout_s
    line = ""
    with ExitStack() as stack:
        access = credentials_of(directory / SECURITY)
        probes = {node.name: stack.enter_context(NodeProbe(node.http, node.admin, access)) for node in nodes}
        seen = {node.name: Online(caught_up=False, complete=False, text="starting") for node in nodes}
        waiting = list(nodes)
        while waiting:
            for node in waiting:
                seen[node.name] = probes[node.name].online()
            now = _progress(nodes, seen, enough)
            if on_progress is not None and now != line:
                on_progress(now)
            line = now
            missing = [node for node in nodes if not enough(seen[node.name])]
            if not missing and len(waiting) < len(nodes):
                waiting = list(nodes)  # all were ready, one after the other: probe all of them once more
                continue
            waiting = missing
            if not waiting:
                return
            _check_children(directory, waiting)
            if time.monotonic() >= deadline:
                raise LocalFault(_timeout_message(directory, waiting, seen, timeout_s))
            time.sleep(POLL_S)


def _progress(nodes: Iterable[LocalNode], seen: Mapping[str, Online], enough: Callable[[Online], bool]) -> str:
    """How many nodes of each cluster are ready, and what the first of the others lacks."""
    clusters: dict[str, list[str]] = {}
    for node in nodes:
        clusters.setdefault(node.cluster, []).append(node.name)
    parts = []
    for cluster, names in clusters.items():
        lacking = [
            f"{name} {shorten(seen[name].text, PROGRESS_CHARACTERS_MAX, placeholder=' ...')}"
            for name in names
            if not enough(seen[name])
        ]
        why = f" ({lacking[0]}{'; ...' * (len(lacking) > 1)})" if lacking else ""
        parts.append(f"{cluster}: {len(names) - len(lacking)} of {len(names)} nodes ready{why}")
    return ", ".join(parts)


def _timeout_message(
    directory: Path, waiting: Sequence[LocalNode], seen: Mapping[str, Online], timeout_s: float
) -> str:
    first = waiting[0].name
    log = node_log(directory, first)
    lacking = ", ".join(f"{node.name}: {seen[node.name].text}" for node in waiting)
    words = supervisor_client.last_line(log)
    return f"not online within {timeout_s:g} s: {lacking}; last output of {first}: {words} (its log: {log})"


def _check_children(directory: Path, waiting: Sequence[LocalNode]) -> None:
    """Raise LocalFault when a node that is waited for, or a ZooKeeper that it needs, keeps failing."""
    state = supervisor_client.running_state(directory)
    for cluster in sorted({node.cluster for node in waiting}):
        servers = [server["name"] for server in clusters_of(directory)[cluster]["zookeepers"]]
        failures = [(name, why) for name in servers if (why := supervisor_client.failure_in(state, directory, name))]
        if 2 * len(failures) >= len(servers):  # those that are left are no majority
            name, why = failures[0]
            words, log = (
                embedded_zookeeper.last_complaint(directory / name),
                embedded_zookeeper.log_file(directory / name),
            )
            raise LocalFault(f"{name} does not come up ({why}): {words} (its log: {log})")
    for node in waiting:
        why = supervisor_client.failure_in(state, directory, node.name)
        if why is not None:
            log = node_log(directory, node.name)
            raise LocalFault(
                f"{node.name} does not come up ({why}): {supervisor_client.last_line(log)} (its log: {log})"
            )
