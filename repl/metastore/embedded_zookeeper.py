"""A real ZooKeeper from the jars that PySpark ships: its command line, its files, and its readiness probe.

For one node without an ensemble, and for clusters on one machine, which may have an ensemble of three. Loopback only;
one process per server, with all its files below one directory: `zoo.cfg`, `log4j2.properties`, `data/`, `zookeeper.log`
(bounded). Nothing is started here: `node.local.supervisor_client` owns the process, which outlives a killed node.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from isthmus.repl.extras import LOCAL, is_installed, missing_sentence
from isthmus.repl.metastore.java import Java
from isthmus.repl.model.errors import LocalFault

HOST: Final = "127.0.0.1"

JARS: Final = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "metrics-core",
    "snappy-java",  # without it the server hangs silently at its first snapshot
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
"""All that the server needs; the last three give it a log for 0.3 s of start and 15 MB of memory."""

JVM_FLAGS: Final = (
    "-Xmx64m",  # a cluster's records are a few KB; the whole process takes about 70 MB
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts in half the time; its load never needs the second compiler
    "-XX:-UsePerfData",  # no file of it in /tmp
    "-XX:+ExitOnOutOfMemoryError",  # the supervisor restarts it; a half-dead one would keep the port
    "-Dzookeeper.preAllocSize=64",  # KB: log files grow by this, not by 64 MB
)

TICK_MS: Final = 500
"""ZooKeeper's unit of time. A session lasts at least two ticks; 500 allows sessions from 1 s in tests."""

SESSION_MAX_MS: Final = 60_000
"""Longest session granted (ZooKeeper's own default, 20 ticks, would cut ours to 10 s)."""

INIT_LIMIT_TICKS: Final = 40
SYNC_LIMIT_TICKS: Final = 10
"""How long a server of an ensemble may take to join a leader (20 s: a slow disk, a busy machine), and how long leader
and follower may be silent before they disconnect (5 s). A killed leader is noticed at once, by its connections."""

CONNECTIONS_LIMIT: Final = 256
"""Connections from this machine; one more is closed at once. A node has one."""

_LOG4J: Final = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=zookeeper.log
appender.file.filePattern=zookeeper.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{ISO8601} %p %c{1} %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=1MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=2
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""

LOG_TAIL_BYTES: Final = 64_000
"""Bytes at the log's end that are searched for the reason of a failure; an exception with its stack has 4 KB."""

PROBE_TIMEOUT_S: Final = 2.0
"""Limit of one readiness probe."""


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One server of an ensemble on this machine: its number (1 to 255, never that of another data directory) and
    its loopback ports, for clients, for the leader's proposals and for elections."""

    number: int
    client_port: int
    peer_port: int
    election_port: int


def find_jars() -> list[Path]:
    """The jars of JARS in the installed pyspark package, in that order. Raises LocalFault. (pyspark itself is not
    imported: only its directory is looked up.)"""
    spec = importlib.util.find_spec("pyspark") if is_installed("pyspark") else None
    if spec is None or not spec.submodule_search_locations:
        raise LocalFault(
            f"{missing_sentence('the embedded ZooKeeper', 'pyspark', LOCAL)}, "
            f"or set [metastore] hosts to a ZooKeeper that runs elsewhere"
        )
    folder = Path(spec.submodule_search_locations[0], "jars")
    jars = []
    for name in JARS:
        found = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not found:
            raise LocalFault(f"no {name}-*.jar in {folder}: this pyspark has no ZooKeeper; set [metastore] hosts")
        jars.append(found[-1])
    return jars


def prepare(directory: Path, port: int, ensemble: Sequence[EnsembleMember] = ()) -> None:
    """Write the server's files below `directory` for loopback port `port`. With `ensemble`, all members of it, this is
    the one with that client port; a directory stays a member or a single server for good, since servers that join
    with empty directories could outvote its data. Raises LocalFault when it cannot."""
    quorum = ""
    if ensemble:
        assert len({member.number for member in ensemble}) == len(ensemble), "a number names one member"
        quorum = f"initLimit={INIT_LIMIT_TICKS}\nsyncLimit={SYNC_LIMIT_TICKS}\n" + "".join(
            f"server.{member.number}={HOST}:{member.peer_port}:{member.election_port}\n" for member in ensemble
        )
    try:
        (directory / "data").mkdir(parents=True, exist_ok=True)
        (directory / "zoo.cfg").write_text(
            "dataDir=./data\n"  # relative: a folder's name may hold what these files would take for syntax
            f"clientPort={port}\n"
            f"clientPortAddress={HOST}\n"
            f"tickTime={TICK_MS}\n"
            f"maxSessionTimeout={SESSION_MAX_MS}\n"
            f"maxClientCnxns={CONNECTIONS_LIMIT}\n"
            "admin.enableServer=false\n"
            "autopurge.snapRetainCount=3\n"
            "autopurge.purgeInterval=1\n" + quorum
        )
        if ensemble:
            (own,) = (member for member in ensemble if member.client_port == port)
            (directory / "data" / "myid").write_text(f"{own.number}\n")
        (directory / "log4j2.properties").write_text(_LOG4J)
        if not os.access(directory / "data", os.W_OK | os.X_OK):
            raise PermissionError(f"{directory / 'data'} is not writable")
    except OSError as error:
        raise LocalFault(f"cannot write the embedded ZooKeeper's files in {directory}: {error}") from error


def zookeeper_command(java: Java, jars: list[Path], directory: Path, port: int, *, quorum: bool = False) -> list[str]:
    """The argument list that runs the server of a `directory` prepared for `port` in the foreground, when that
    directory is its working directory; `quorum`: it was prepared as a member of an ensemble."""
    return [
        str(java.path),
        *JVM_FLAGS,
        f"-Disthmus.zookeeper={directory}:{port}",  # read by people who list processes; the server ignores it
        "-Dlog4j2.configurationFile=log4j2.properties",
        "-cp",
        os.pathsep.join(map(str, jars)),
        f"org.apache.zookeeper.server.{'quorum.QuorumPeerMain' if quorum else 'ZooKeeperServerMain'}",
        "./zoo.cfg",
    ]


def log_file(directory: Path) -> Path:
    """The log of the server in `directory`: at most three files of 1 MB."""
    return directory / "zookeeper.log"


def last_complaint(directory: Path) -> str:
    """The newest error in the server's log with its exception, in one line; "" when there is none."""
    try:
        with log_file(directory).open("rb") as file:
            file.seek(max(0, log_file(directory).stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for at in range(len(lines) - 1, -1, -1):
        found = re.fullmatch(r"\S+ ERROR (?!ServiceUtils)\S+ (.*)", lines[at])  # ServiceUtils only says that it exits
        if found is not None:
            cause = lines[at + 1] if at + 1 < len(lines) and not lines[at + 1][:1].isdigit() else ""
            return f"{found[1]} {cause}".strip()[:500]
    return ""


def serves(port: int) -> bool:
    """True if a ZooKeeper on loopback `port` answers its `srvr` command."""
    try:
        with socket.create_connection((HOST, port), PROBE_TIMEOUT_S) as sock:
            sock.settimeout(PROBE_TIMEOUT_S)
            sock.sendall(b"srvr")
            return sock.recv(64).startswith(b"Zookeeper version")
    except OSError:
        return False


def wait_until_serving(directory: Path, port: int, timeout_s: float, failure: Callable[[], str | None]) -> None:
    """Return once the server of `directory` serves. Raises LocalFault, which names its log, after `timeout_s`, or if
    `failure()` returns why it never will."""
    deadline = time.monotonic() + timeout_s
    while not serves(port):
        why = failure()
        if why is None and time.monotonic() >= deadline:
            why = f"no answer on {HOST}:{port} within {timeout_s:g} s"
        if why is not None:
            complaint = last_complaint(directory)
            raise LocalFault(
                f"the embedded ZooKeeper does not serve: {why}"
                + f"; its output: {complaint}" * bool(complaint)
                + f" (its log: {log_file(directory)})"
            )
        time.sleep(0.02)  # a probe costs a connection; its start takes 0.5 s


def check_port_free(port: int, purpose: str, advice: str = "stop what holds it, or choose another port") -> None:
    """Raises LocalFault if another process has loopback `port`; `advice` ends its sentence."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections do not count
        try:
            sock.bind((HOST, port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise LocalFault(f"port {port} on {HOST}, for {purpose}, cannot be used ({why}): {advice}") from error
