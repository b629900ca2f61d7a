"""Starting a supervisor and sending it commands; the embedded ZooKeeper of a single node, which runs under one.

A supervisor (`node.local.supervisor`) owns the children of one directory; `node.local.clusters` runs whole clusters
under one. `isthmus node run` without metastore hosts calls `ensure_embedded` at its start and `release_embedded` at its
graceful stop: the ZooKeeper outlives a node that was killed, for the linger time, and the node's next start finds it.

    python -m isthmus.node.local.supervisor_client DIRECTORY      runs DIRECTORY/spec.json, detached from its parent
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

import isthmus
from isthmus.node.local.child_process import ChildSpec, ChildState, Restart
from isthmus.node.local.ports import PortAllocator
from isthmus.node.local.process_id import ProcessId, stop_process
from isthmus.node.local.supervisor import LINE_BYTES_MAX, Spec, Supervisor, short_path
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.metastore.java import Java, find_java
from isthmus.repl.model.errors import LocalFault

log = structlog.get_logger(__name__)

LAUNCH_TIMEOUT_S: Final = 20.0
"""How long a new supervisor may take to answer; it takes 0.3 s, more while an earlier one is ending."""

STOP_TIMEOUT_S: Final = 90.0
"""How long stopping all children may take: a restart under way comes first, then their own time limits, one rank after
the other."""

LEFTOVER_TIMEOUT_S: Final = 20.0
"""How long a child without its supervisor may take to end after SIGTERM; then SIGKILL."""

ASK_TIMEOUT_S: Final = 20.0
"""How long an answer may take. Restarting a child waits for its graceful stop."""

ZOOKEEPER_TIMEOUT_S: Final = 30.0
"""How long a ZooKeeper may take to serve; it takes 0.8 s, up to 12 s on an overloaded machine."""

START_TRIES: Final = 3
"""Consecutive failures after which a child counts as unable to start."""

ZOOKEEPER_STOP_TIMEOUT_MS: Final = 5_000
"""A ZooKeeper ends 0.3 s after SIGTERM; killing it is safe, since its log is synced."""

PACKAGE_ROOT: Final = Path(isthmus.__file__).resolve().parents[1]
"""The directory that holds the package `isthmus`."""


class NotRunning(LocalFault):
    """No supervisor answers in that directory."""


# --- commands to a supervisor ---


def ask(directory: Path, command: dict[str, Any], timeout_s: float = ASK_TIMEOUT_S) -> dict[str, Any]:
    """The supervisor's state after a command (`Supervisor._state`).

    Raises NotRunning when no supervisor runs, LocalFault when it refuses or does not answer in time."""
    what = f"the supervisor of {directory}"
    try:
        with short_path(directory) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(f"{folder}/supervisor.sock")
            sock.sendall(json.dumps(command).encode() + b"\n")
            line = b""
            while not line.endswith(b"\n") and len(line) <= LINE_BYTES_MAX:
                part = sock.recv(65_536)
                if not part:
                    raise NotRunning(f"{what} ended before it answered")
                line += part
    except TimeoutError as error:
        raise LocalFault(f"{what} does not answer within {timeout_s:g} s (its log: {log_file(directory)})") from error
    except OSError as error:
        raise NotRunning(f"{what} does not run: {error.strerror}") from error
    answer = json.loads(line)
    if not answer["ok"]:
        raise LocalFault(f"{what} refuses {command['do']}: {answer['error']}")
    state: dict[str, Any] = answer["state"]
    return state


def running_state(directory: Path) -> dict[str, Any] | None:
    """The state of the supervisor of `directory`, None when none runs."""
    try:
        return ask(directory, {"do": "status"})
    except NotRunning:
        return None


def launch(directory: Path, spec: Spec) -> dict[str, Any]:
    """Start a supervisor in `directory`; its first state. Raises LocalFault, naming its log."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / "spec.tmp"
        temporary.write_text(json.dumps(spec.to_json(), indent=1))
        temporary.replace(directory / "spec.json")
        with log_file(directory).open("ab") as output:
            subprocess.run(
                [sys.executable, "-m", "isthmus.node.local.supervisor_client", str(directory)],
                cwd=PACKAGE_ROOT,
                env={**os.environ, **package_environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LAUNCH_TIMEOUT_S,
                check=True,
            )
    except OSError as error:
        raise LocalFault(f"cannot start a supervisor in {directory}: {error}") from error
    except subprocess.SubprocessError as error:
        raise LocalFault(f"cannot start a supervisor in {directory}: {last_line(log_file(directory))}") from error
    deadline = time.monotonic() + LAUNCH_TIMEOUT_S
    while True:
        try:
            return ask(directory, {"do": "status"})
        except NotRunning as error:
            if time.monotonic() >= deadline:
                raise LocalFault(f"{error}: {last_line(log_file(directory))} ({log_file(directory)})") from error
            time.sleep(0.02)


def stop(directory: Path) -> bool:
    """Stop the supervisor of `directory` and all its children, also those that a killed supervisor left. False when
    nothing ran. Raises LocalFault."""
    try:
        ask(directory, {"do": "stop"}, STOP_TIMEOUT_S)
    except NotRunning:
        left = list(recorded_children(directory).values())
        for process in reversed(left):  # nodes before the ZooKeeper that they use
            stop_process(process, LEFTOVER_TIMEOUT_S)
        return bool(left)
    return True


def recorded_children(directory: Path) -> dict[str, ProcessId]:
    """Running children of the directory's state file, by name, whether or not their supervisor runs."""
    try:
        children = json.loads((directory / "state.json").read_bytes())["children"]
        recorded = {str(name): ProcessId.from_json(child["process"]) for name, child in children.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: process for name, process in recorded.items() if process is not None and process.alive()}


def log_file(directory: Path) -> Path:
    """The supervisor's own log."""
    return directory / "supervisor.log"


def last_line(path: Path) -> str:
    """The last non-blank line of a text file, cut; of an event in JSON its sentence, if it has one. A remark in
    parentheses when there is no line."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError as error:
        return f"(no log: {error.strerror})"
    line = next((line for line in reversed(lines) if line), "(its log is empty)")
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("sentence"), str):
            line = event["sentence"]
    return line[:500]


def node_command(file: Path) -> tuple[str, ...]:
    """The arguments that run the node of a config file with this interpreter."""
    return (sys.executable, "-m", "isthmus.node.cli.main", "node", "run", str(file))


def package_environment() -> dict[str, str]:
    """Environment with which a child imports this installation's packages from any working directory."""
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{before}" if before else str(PACKAGE_ROOT)}


# --- the embedded ZooKeeper of one node ---


def zookeeper_child(
    name: str, directory: Path, port: int, java: Java, ensemble: Sequence[embedded_zookeeper.EnsembleMember] = ()
) -> ChildSpec:
    """The ZooKeeper of `directory` (prepared by `embedded_zookeeper.prepare`), alone or in an `ensemble`."""
    command = embedded_zookeeper.zookeeper_command(
        java, embedded_zookeeper.find_jars(), directory, port, quorum=bool(ensemble)
    )
    return ChildSpec(
        name=name,
        argv=tuple(command),
        reads=repr(ensemble) if ensemble else "",
        cwd=str(directory),
        log=str(directory / "output.log"),
        restart=Restart.ALWAYS,
        rank=0,
        stop_timeout_ms=ZOOKEEPER_STOP_TIMEOUT_MS,
    )


def _is_wanted() -> bool:
    return True


def ensure_embedded(
    data_dir: Path, port: int, linger_ms: int, owner_pid: int, wanted: Callable[[], bool] = _is_wanted
) -> str:
    """The address of a serving ZooKeeper for the node of this data directory: "127.0.0.1:PORT".

    Uses the one that a supervisor still runs for this directory, or starts one. It ends `linger_ms` after process
    `owner_pid` is gone, unless a later call names another owner. `port` 0: any free port, the same at every start
    while it is free. Blocks up to about 30 s, or until `wanted` is false. Raises LocalFault.
    """
    owner = ProcessId.of(owner_pid)
    assert owner is not None, "the owner is the caller, so it runs"
    embedded_zookeeper.find_jars()
    java = find_java()
    directory = data_dir.absolute() / "metastore"
    home = directory / "zookeeper"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        ours = recorded_children(directory)
        chosen = port or PortAllocator(directory).ports(["zookeeper"], in_use=ours)["zookeeper"]
    except OSError as error:
        raise LocalFault(f"cannot use {directory} for the embedded ZooKeeper: {error}") from error
    child = zookeeper_child("zookeeper", home, chosen, java)

    def failure() -> str | None:
        return child_failure(directory, "zookeeper") if wanted() else "the node is stopping"

    if not _adopted(directory, child, owner, linger_ms):
        if not ours:
            embedded_zookeeper.check_port_free(chosen, "the embedded ZooKeeper ([metastore] embedded_port)")
        embedded_zookeeper.prepare(home, chosen)
        launch(directory, Spec((child,), owner, linger_ms))
    try:
        embedded_zookeeper.wait_until_serving(home, chosen, ZOOKEEPER_TIMEOUT_S, failure)
    except LocalFault:
        stop(directory)
        raise
    log.info("metastore.embedded", port=chosen, directory=str(home))
    return f"{embedded_zookeeper.HOST}:{chosen}"


def _adopted(directory: Path, child: ChildSpec, owner: ProcessId, linger_ms: int) -> bool:
    """True when a supervisor runs exactly this child and now has this owner; one that runs another child is stopped."""
    try:
        state = ask(directory, {"do": "own", "owner": owner.to_json(), "linger_ms": linger_ms})
        running = state["children"].get(child.name)
        if running is not None and running["command"] == child.digest():
            ask(directory, {"do": "start", "child": child.name})
            return True
    except NotRunning:
        return False
    except LocalFault as error:
        log.info("supervisor.not_adopted", directory=str(directory), reason=str(error))
    stop(directory)
    return False


def release_embedded(data_dir: Path) -> None:
    """Stop the ZooKeeper of this data directory, if one runs; for a node's graceful stop. Raises LocalFault."""
    stop(data_dir.absolute() / "metastore")


def child_failure(directory: Path, name: str) -> str | None:
    """Why this child cannot start, as text; None while it may."""
    return failure_in(running_state(directory), directory, name)


def failure_in(state: dict[str, Any] | None, directory: Path, name: str) -> str | None:
    """As `child_failure`, from a supervisor's state."""
    if state is None:
        return f"its supervisor ended: {last_line(log_file(directory))}"
    child = state["children"][name]
    given_up = child["state"] == ChildState.WAITING and child["failures"] >= START_TRIES
    if given_up or child["state"] in (ChildState.ENDED, ChildState.STOPPED):
        return str(child["reason"])
    return None


# --- the process ---


def main(directory: Path) -> int:
    """Detach from the caller, then run the directory's spec until it is stopped."""
    from isthmus.config.settings import LogSettings
    from isthmus.node.observability import logs

    spec = Spec.from_json(json.loads((directory / "spec.json").read_bytes()))
    if os.fork() > 0:
        return 0  # the caller goes on; the forked process has no parent any more
    os.setsid()
    logs.configure(LogSettings(format="json"), "supervisor")
    try:
        asyncio.run(Supervisor(directory, spec).run())
    except OSError as error:
        log.error("supervisor.failed", directory=str(directory), error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
