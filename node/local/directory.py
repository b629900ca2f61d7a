"""What is set up in a directory and what runs there: shown, waited for, single nodes stopped and started.

Whoever set the clusters up: `node.local.clusters` does, from a topology, and leaves `clusters.json`. Nodes and
ZooKeepers belong to the directory's supervisor (`node.local.supervisor_client`), which is asked to do what is done
here; whether a node serves is `node.local.probe`.
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
from isthmus.node.local.dev_certificates import access_of
from isthmus.node.local.probe import NodeProbe, Online
from isthmus.node.local.process_id import ProcessId
from isthmus.node.local.topology_model import SECURITY
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.model.errors import BadInput, LocalFault

READY_TIMEOUT_S: Final = 120.0
"""How long to wait for nodes. Six and their ZooKeepers take some 15 s on two quiet cores, a restarted one 3 s."""

POLL_S: Final = 0.2
"""How often nodes are asked while they are waited for: each look costs a node that is just starting two requests."""

NODE_STOP_TIMEOUT_MS: Final = 30_000
"""How long a node may take to stop gracefully: it hands leaderships over, finishes requests, syncs log and store."""

LOOKS_AT_ONCE: Final = 16
"""Nodes that are asked side by side for a status; one that hangs then delays no other."""


PROGRESS_CHARACTERS_MAX: Final = 80
"""How much of what a node lacks is shown while it is waited for; an error shows all of it."""


@dataclass(frozen=True, slots=True)
class NodeDirectory:
    """Where a node of a directory is."""

    cluster: str
    name: str
    http: str
    admin: str


# --- looking ---


def clusters_of(directory: Path) -> dict[str, Any]:
    """What `clusters.json` says: {NAME: {"zookeepers": [{"name", "address"}], "nodes": [{"name", "http", "admin",
    "cluster"}]}}. Raises LocalFault."""
    path = directory / "clusters.json"
    try:
        clusters: dict[str, Any] = json.loads(path.read_bytes())["clusters"]
    except FileNotFoundError as error:
        raise LocalFault(f"no clusters are set up in {directory} (`isthmus local up` does that)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalFault(f"{path} cannot be used ({error}); `isthmus local up` writes it anew") from error
    return clusters


def places_of(directory: Path) -> list[NodeDirectory]:
    """Every node that is set up in `directory`. Raises LocalFault."""
    return [
        NodeDirectory(name, node["name"], node["http"], node["admin"])
        for name, cluster in clusters_of(directory).items()
        for node in cluster["nodes"]
    ]


def described(directory: Path) -> dict[str, Any]:
    """What `up` returns: {"clusters": {NAME: {"nodes": [{"name", "http", "admin", "pid"}]}}}. Raises LocalFault."""
    processes = supervisor_client.recorded_children(directory)
    clusters: dict[str, Any] = {}
    for place in places_of(directory):
        process = processes.get(place.name)
        clusters.setdefault(place.cluster, {"nodes": []})["nodes"].append(
            {
                "name": place.name,
                "http": place.http,
                "admin": place.admin,
                "pid": None if process is None else process.pid,
            }
        )
    return {"clusters": clusters}


def status_of(directory: Path, *, ask_nodes: bool = True) -> dict[str, Any]:
    """What runs in `directory`: {"supervisor": PID or None, "clusters": {NAME: {"zookeepers": [...], "nodes": [...]}}}.

    Each process has name, state, pid, restarts, failures, reason, last_words (of one that does not run or does not stay
    up) and log; a node also its addresses and online (what `node.local.probe` says of it, None where nodes are not
    asked or do not run), a ZooKeeper its address. Raises LocalFault when nothing is set up there."""
    directory = directory.absolute()
    clusters = clusters_of(directory)
    state = supervisor_client.running_state(directory)
    boss = None if state is None else ProcessId.from_json(state["supervisor"])
    children = _unsupervised(directory) if state is None else state["children"]
    running = [place for place in places_of(directory) if _child(place.name, children)["state"] == ChildState.RUNNING]
    looks = _looks(running, access_of(directory / SECURITY)) if ask_nodes else {}
    shown: dict[str, Any] = {}
    for name, cluster in clusters.items():
        nodes = []
        for node in cluster["nodes"]:
            child = _child(node["name"], children)
            words = _last_words(child, partial(supervisor_client.last_line, node_log(directory, node["name"])))
            look = looks.get(node["name"])
            nodes.append({**child, **node, "last_words": words, "online": None if look is None else look.text})
        zookeepers = []
        for server in cluster["zookeepers"]:
            child = _child(server["name"], children)
            words = _last_words(child, partial(embedded_zookeeper.last_complaint, directory / server["name"]))
            zookeepers.append({**child, **server, "last_words": words})
        shown[name] = {"zookeepers": zookeepers, "nodes": nodes}
    return {"supervisor": None if boss is None else boss.pid, "clusters": shown}


def _looks(places: Sequence[NodeDirectory], access: PeerCredentials) -> dict[str, Online]:
    """What each node says of itself now, by name."""

    def look(place: NodeDirectory) -> Online:
        with NodeProbe(place.http, place.admin, access) as probe:
            return probe.online()

    if not places:
        return {}
    with ThreadPoolExecutor(min(LOOKS_AT_ONCE, len(places)), thread_name_prefix="look") as pool:
        return dict(zip((place.name for place in places), pool.map(look, places), strict=True))


def _unsupervised(directory: Path) -> dict[str, Any]:
    """What a killed supervisor left running, in the form of a supervisor's state."""
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


def _last_words(child: Mapping[str, Any], read: Callable[[], str]) -> str:
    """What a child that ended by itself or that does not stay up said last; "" for one that is well."""
    looping = child["failures"] >= supervisor_client.START_TRIES
    return read() if looping or child["state"] in (ChildState.ENDED, ChildState.WAITING) else ""


def node_log(directory: Path, name: str) -> Path:
    """Where a node's output goes."""
    return directory / name / "node.log"


# --- single nodes ---


def stop_node(directory: Path, name: str, *, kill: bool = False) -> None:
    """Stop a node, which stays stopped until it is started: gracefully, or with `kill` at once by SIGKILL. Raises
    BadInput for an unknown name, LocalFault."""
    _tell(directory, name, {"do": "stop-child", "kill": kill})


def start_node(directory: Path, name: str, timeout_s: float | None = READY_TIMEOUT_S) -> None:
    """Start a node unless it runs; returns once `wait_ready` does, with `timeout_s` None at once. Raises BadInput for
    an unknown name, LocalFault."""
    place = _tell(directory, name, {"do": "start"})
    if timeout_s is not None:
        wait_ready(directory, [place], timeout_s)


def restart_node(directory: Path, name: str, timeout_s: float | None = READY_TIMEOUT_S, *, kill: bool = False) -> None:
    """Give a node a new process: a live one is stopped gracefully, or with `kill` by SIGKILL. Otherwise as
    `start_node`."""
    place = _tell(directory, name, {"do": "restart", "kill": kill})
    if timeout_s is not None:
        wait_ready(directory, [place], timeout_s)


def _tell(directory: Path, name: str, command: dict[str, Any]) -> NodeDirectory:
    """Ask the supervisor to do something to a node; where the node is."""
    directory = directory.absolute()
    places = {place.name: place for place in places_of(directory)}
    if name not in places:
        raise BadInput(f"{no_such('node', name, list(places))} ({directory} has {', '.join(places)})")
    timeout = supervisor_client.ASK_TIMEOUT_S + NODE_STOP_TIMEOUT_MS / 1000
    try:
        supervisor_client.ask(directory, {**command, "child": name}, timeout)
    except supervisor_client.NotRunning as error:
        raise LocalFault(f"nothing runs in {directory}: `isthmus local up` starts its clusters") from error
    return places[name]


# --- waiting ---


def wait_online(
    directory: Path,
    places: Sequence[NodeDirectory],
    timeout_s: float,
    on_progress: Callable[[str], None] | None = None,
) -> None:
    """Return once every node of `places` is ready and sees all partitions online. Raises LocalFault when one cannot,
    with the last line of its log, or when `timeout_s` is over, with who is not ready and why."""
    _wait(directory, places, timeout_s, on_progress, lambda online: online.complete)


def wait_ready(directory: Path, places: Sequence[NodeDirectory], timeout_s: float) -> None:
    """Return once every node of `places` is ready with all its replicas in sync, whatever others lack: the next one may
    be restarted then. Raises as `wait_online`."""
    _wait(directory, places, timeout_s, None, lambda online: online.caught_up)


def _wait(
    directory: Path,
    places: Sequence[NodeDirectory],
    timeout_s: float,
    on_progress: Callable[[str], None] | None,
    enough: Callable[[Online], bool],
) -> None:
    directory = directory.absolute()
    deadline = time.monotonic() + timeout_s
    line = ""
    with ExitStack() as stack:
        access = access_of(directory / SECURITY)
        probes = {place.name: stack.enter_context(NodeProbe(place.http, place.admin, access)) for place in places}
        told = {place.name: Online(caught_up=False, complete=False, text="starting") for place in places}
        waiting = list(places)
        while waiting:
            for place in waiting:
                told[place.name] = probes[place.name].online()
            now = _progress(places, told, enough)
            if on_progress is not None and now != line:
                on_progress(now)
            line = now
            missing = [place for place in places if not enough(told[place.name])]
            if not missing and len(waiting) < len(places):
                waiting = list(places)  # all were, one after the other: once more, all in one look
                continue
            waiting = missing
            if not waiting:
                return
            _check_children(directory, waiting)
            if time.monotonic() >= deadline:
                raise LocalFault(_too_late(directory, waiting, told, timeout_s))
            time.sleep(POLL_S)


def _progress(places: Iterable[NodeDirectory], told: Mapping[str, Online], enough: Callable[[Online], bool]) -> str:
    """Cluster by cluster how many nodes are ready, and what the first of the others lacks."""
    clusters: dict[str, list[str]] = {}
    for place in places:
        clusters.setdefault(place.cluster, []).append(place.name)
    parts = []
    for cluster, names in clusters.items():
        lacking = [
            f"{name} {shorten(told[name].text, PROGRESS_CHARACTERS_MAX, placeholder=' ...')}"
            for name in names
            if not enough(told[name])
        ]
        why = f" ({lacking[0]}{'; ...' * (len(lacking) > 1)})" if lacking else ""
        parts.append(f"{cluster}: {len(names) - len(lacking)} of {len(names)} nodes ready{why}")
    return ", ".join(parts)


def _too_late(directory: Path, waiting: Sequence[NodeDirectory], told: Mapping[str, Online], timeout_s: float) -> str:
    first = waiting[0].name
    log = node_log(directory, first)
    lacking = ", ".join(f"{place.name}: {told[place.name].text}" for place in waiting)
    words = supervisor_client.last_line(log)
    return f"not online within {timeout_s:g} s: {lacking}; {first} last said: {words} (its log: {log})"


def _check_children(directory: Path, waiting: Sequence[NodeDirectory]) -> None:
    """Raises LocalFault when a child that is waited for, or a ZooKeeper that it needs, will not come up."""
    state = supervisor_client.running_state(directory)
    for cluster in {place.cluster for place in waiting}:
        servers = [server["name"] for server in clusters_of(directory)[cluster]["zookeepers"]]
        troubles = [(name, why) for name in servers if (why := supervisor_client.trouble_in(state, directory, name))]
        if 2 * len(troubles) >= len(servers):  # those that are left are no majority
            name, why = troubles[0]
            words, log = (
                embedded_zookeeper.last_complaint(directory / name),
                embedded_zookeeper.log_file(directory / name),
            )
            raise LocalFault(f"{name} does not come up ({why}): {words} (its log: {log})")
    for place in waiting:
        why = supervisor_client.trouble_in(state, directory, place.name)
        if why is not None:
            log = node_log(directory, place.name)
            raise LocalFault(
                f"{place.name} does not come up ({why}): {supervisor_client.last_line(log)} (its log: {log})"
            )
