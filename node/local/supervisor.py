"""The supervisor process: owns the children of one directory, restarts them, answers commands, ends with its owner.

Files in the directory: `spec.json` (what to run, read once), `supervisor.lock` (held while it runs: one supervisor per
directory), `supervisor.sock` (commands, one JSON line each way), `state.json` (replaced after every change),
`supervisor.log`. When a supervisor is killed, its children run on; the next one adopts those whose command is unchanged
and stops the others, each identified by `node.local.process_id`. `node.local.supervisor_client` starts supervisors and
sends them commands.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Self

import structlog

from isthmus.node.local.child_process import Child, ChildSpec, bound_log
from isthmus.node.local.process_id import ProcessId, stop_process, wait_ended

log = structlog.get_logger(__name__)

SPEC_VERSION: Final = 1

LINE_BYTES_MAX: Final = 64_000
"""Longest command or answer; a longer line gets an error. A state of ten children has 4 KB."""

ACCEPT_TURNS: Final = 4
"""Turns of the event loop between the removal of the socket's name and the server's end: callers that have connected
are accepted and get their tasks. asyncio loses a connection that is accepted in the turn in which the server closes."""

READ_TIMEOUT_S: Final = 5.0
"""How long a caller may take to send its line."""

LOCK_TIMEOUT_S: Final = 10.0
"""How long a new supervisor waits for one that is ending, which removes its socket first and its lock last."""

LOG_CHECK_S: Final = 5.0
"""Between two checks of the sizes of output files."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Children of a supervisor. With an `owner` it ends `linger_ms` after that process is gone."""

    children: tuple[ChildSpec, ...]
    owner: ProcessId | None = None
    linger_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """The form in `spec.json`."""
        return {
            "v": SPEC_VERSION,
            "owner": None if self.owner is None else self.owner.to_json(),
            "linger_ms": self.linger_ms,
            "children": [child.to_json() for child in self.children],
        }

    @classmethod
    def from_json(cls, raw: Any) -> Self:
        """The inverse of `to_json`. Raises ValueError, TypeError, KeyError for anything else."""
        if raw["v"] != SPEC_VERSION:
            raise ValueError(f"a spec of version {raw['v']!r}; this program reads {SPEC_VERSION}")
        children = tuple(ChildSpec.from_json(child) for child in raw["children"])
        if len({child.name for child in children}) != len(children):
            raise ValueError("two children have one name")
        return cls(children, ProcessId.from_json(raw["owner"]), int(raw["linger_ms"]))


class Supervisor:
    """All children of one directory; `run` returns when it has stopped them."""

    def __init__(self, directory: Path, spec: Spec) -> None:
        self._directory = directory
        self._children = {child.name: Child(child, self._write_state) for child in spec.children}
        self._owner = spec.owner
        self._linger_ms = spec.linger_ms
        self._stop = asyncio.Event()
        self._stopped = asyncio.Event()
        self._owner_task: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._commands = asyncio.Lock()
        """Held by the command that changes children."""

    async def run(self) -> None:
        """Adopt, start, serve, and stop. Raises OSError when the directory cannot be used or has a supervisor."""
        lock = await take_lock(self._directory)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        try:
            await asyncio.to_thread(self._clear_leftovers, left := self._leftovers())
            for child in sorted(self._children.values(), key=_rank):
                if (process := left.get(child.spec.name)) is not None and process.alive():
                    child.adopt(process)
                else:
                    child.start()
            self._watch_owner()
            server = await asyncio.start_unix_server(self._on_connection, sock=self._listen(), limit=LINE_BYTES_MAX)
            logs = asyncio.create_task(self._bound_logs())
            await self._stop.wait()
            log.info("supervisor.stopping")
            logs.cancel()
            async with self._commands:
                await self._stop_all()
            (self._directory / "supervisor.sock").unlink(missing_ok=True)
            for _ in range(ACCEPT_TURNS):
                await asyncio.sleep(0)
            server.close()
            self._stopped.set()
            if self._connections:  # the caller of the stop gets its answer
                await asyncio.wait(self._connections, timeout=READ_TIMEOUT_S)
        finally:
            os.close(lock)

    # --- children ---

    async def _stop_all(self) -> None:
        by_rank = sorted(self._children.values(), key=_rank, reverse=True)
        for _, group in groupby(by_rank, key=_rank):
            await asyncio.gather(*(child.stop() for child in group))

    def _leftovers(self) -> dict[str, ProcessId]:
        """Running processes of an earlier supervisor's state file, by child; one whose command has changed is listed
        as "former NAME"."""
        try:
            state = json.loads((self._directory / "state.json").read_bytes())
            recorded = {str(name): raw for name, raw in state["children"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        left = {}
        for name, raw in recorded.items():
            process = ProcessId.from_json(raw.get("process"))
            if process is not None and process.alive():
                child = self._children.get(name)
                same = child is not None and child.spec.digest() == raw.get("command")
                left[name if same else f"former {name}"] = process
        return left

    def _clear_leftovers(self, left: dict[str, ProcessId]) -> None:
        for name in [name for name in left if name not in self._children]:
            log.info("supervisor.leftover_stopped", child=name, pid=left[name].pid)
            stop_process(left.pop(name), timeout_s=10)

    def _write_state(self) -> None:
        path = self._directory / "state.json"
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(self._state(), indent=1))
            temporary.replace(path)
        except OSError as error:  # a full disk must not end the supervisor
            log.error("supervisor.state_not_written", error=str(error))

    def _state(self) -> dict[str, Any]:
        me = ProcessId.of(os.getpid())
        return {
            "supervisor": None if me is None else me.to_json(),
            "owner": None if self._owner is None else self._owner.to_json(),
            "stopping": self._stop.is_set(),
            "children": {name: child.to_json() for name, child in self._children.items()},
        }

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            for file in (self._directory / "supervisor.log", *(Path(c.spec.log) for c in self._children.values())):
                await asyncio.to_thread(bound_log, file)

    # --- the owner ---

    def _watch_owner(self) -> None:
        if self._owner_task is not None:
            self._owner_task.cancel()
        self._owner_task = asyncio.create_task(self._stop_after(self._owner))

    async def _stop_after(self, owner: ProcessId | None) -> None:
        """Stop once `owner` has been gone for the linger time; never without an owner."""
        if owner is None:
            return
        await wait_ended(owner)
        log.info("supervisor.owner_gone", pid=owner.pid, linger_ms=self._linger_ms)
        await asyncio.sleep(self._linger_ms / 1000)
        self._stop.set()

    # --- commands ---

    def _listen(self) -> socket.socket:
        """A listening socket that only this user may open."""
        path = self._directory / "supervisor.sock"
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(self._directory) as folder:
            sock.bind(f"{folder}/supervisor.sock")
            os.chmod(f"{folder}/supervisor.sock", 0o600)  # no connection is accepted before `listen`
        sock.listen()
        sock.setblocking(False)
        return sock

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    line = await reader.readline()
                answer = await self._answer(json.loads(line))
            except (ValueError, KeyError, TypeError, TimeoutError) as error:
                answer = {"ok": False, "error": f"not a command: {error!r}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except ConnectionError as error:
            log.info("supervisor.caller_left", error=str(error))
        finally:
            await _close(writer)

    async def _answer(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "status":
                return {"ok": True, "state": self._state()}
            case "stop":
                self._stop.set()
                await self._stopped.wait()
                return {"ok": True, "state": self._state()}
            case _ if self._stop.is_set():
                return {"ok": False, "error": "the supervisor is stopping"}
            case "own":
                self._owner = ProcessId.from_json(command["owner"])
                self._linger_ms = int(command["linger_ms"])
                self._watch_owner()
                self._write_state()
                return {"ok": True, "state": self._state()}
            case "add":
                spec = ChildSpec.from_json(command["child"])
                found = self._children.get(spec.name)
                if found is None:
                    self._children[spec.name] = Child(spec, self._write_state)
                else:
                    found.spec = spec  # its process goes on; the next one is started so
                self._write_state()
                return {"ok": True, "state": self._state()}
            case "start" | "restart" | "stop-child" as verb:
                child = self._children.get(command["child"])
                if child is None:
                    return {"ok": False, "error": f"no child {command['child']!r}"}
                async with self._commands:
                    if verb != "start":
                        await child.stop(kill=command.get("kill") is True)
                    if verb != "stop-child":
                        child.start()
                        await asyncio.sleep(0)  # its task begins, so that the answer shows it running
                return {"ok": True, "state": self._state()}
            case unknown:
                return {"ok": False, "error": f"no command {unknown!r}"}


def _rank(child: Child) -> int:
    return child.spec.rank


async def take_lock(directory: Path) -> int:
    """The descriptor that holds the directory's lock. Raises OSError when another supervisor keeps it.

    Fails at once when that supervisor serves: waiting would start everything again as soon as it stops.
    """
    lock = os.open(directory / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if asyncio.get_running_loop().time() >= deadline or await _serves(directory):
                os.close(lock)
                raise
            await asyncio.sleep(0.05)
        else:
            return lock


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection: its socket is closed on return, also if the loop ends then."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def _serves(directory: Path) -> bool:
    """True where a supervisor of the directory answers and is not stopping."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            with short_path(directory) as folder:
                reader, writer = await asyncio.open_unix_connection(f"{folder}/supervisor.sock", limit=LINE_BYTES_MAX)
            try:
                writer.write(b'{"do": "status"}\n')
                state = json.loads(await reader.readline())["state"]
            finally:
                await _close(writer)
            return state.get("stopping") is False
    except (OSError, ValueError, KeyError, TypeError):  # a time-out is an OSError
        return False


@contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """A short path of `directory`, since socket addresses have at most 107 bytes."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
