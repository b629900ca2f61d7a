"""One supervised child process: started, watched, restarted after a pause, stopped within a time limit.

    stopped  -> running   start
    running  -> waiting   it ended, and its policy restarts it
    running  -> ended     it ended, and its policy does not
    waiting  -> running   the pause is over
    any      -> stopped   stop

A child that an earlier supervisor started, which was killed, is adopted as it runs: children run on without a
supervisor, so that a killed supervisor interrupts no service. `node.local.supervisor` decides which children there are.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

import structlog

from isthmus.node.local.process_id import ProcessId, wait_ended

log = structlog.get_logger(__name__)

RESTART_DELAY_FIRST_MS: Final = 100
RESTART_DELAY_MAX_MS: Final = 10_000
"""Pauses before a restart double from the first to the last: a killed child is back at once, and a child that cannot
run costs little CPU."""

STEADY_MS: Final = 10_000
"""After a run of this length the next pause is the first again."""

LOG_BYTES_MAX: Final = 16_000_000
"""Size above which a child's output file is copied to FILE.1 and truncated. Lines written during the copy are lost; the
child keeps its descriptor."""

REASON_UNKNOWN: Final = "ended; it was started by an earlier supervisor, so its exit code is not known"


class Restart(StrEnum):
    """Restart policy for a child that ends by itself."""

    ALWAYS = "always"
    NEVER = "never"


class ChildState(StrEnum):
    """State of a child; the head of this module lists the transitions."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Command and policy of a child.

    Children of lower `rank` start first and stop last. `reads` is a fingerprint of the files that the command reads:
    a changed file counts as a changed command.
    """

    name: str
    argv: tuple[str, ...]
    cwd: str
    log: str
    env: dict[str, str] = field(default_factory=dict)
    restart: Restart = Restart.ALWAYS
    rank: int = 0
    reads: str = ""
    stop_timeout_ms: int = 10_000

    def digest(self) -> str:
        """A hash of the command: a running process with an equal one is adopted as this child. The environment is not
        part of it, since it differs between shells."""
        return hashlib.sha256(json.dumps([self.argv, self.cwd, self.reads]).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The form in a spec file."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises TypeError, ValueError for anything else."""
        spec = cls(**{**raw, "argv": tuple(raw["argv"]), "restart": Restart(raw["restart"])})
        if not spec.argv or not all(isinstance(word, str) for word in spec.argv):
            raise ValueError(f"child {spec.name!r} has no command")
        return spec


def restart_delay_ms(restart: Restart, ran_ms: int, previous_delay_ms: int) -> int | None:
    """The pause before the next start of a child that ended after `ran_ms`; None: it is not restarted.
    `previous_delay_ms` is the pause before its last start, 0 for the first start."""
    if restart is Restart.NEVER:
        return None
    if ran_ms >= STEADY_MS or previous_delay_ms == 0:
        return RESTART_DELAY_FIRST_MS
    return min(previous_delay_ms * 2, RESTART_DELAY_MAX_MS)


class Child:
    """A child and its process. All methods run on the event loop; `on_change` is called after each transition."""

    def __init__(self, spec: ChildSpec, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.state = ChildState.STOPPED
        self.process: ProcessId | None = None
        self.restarts = 0
        self.failures = 0
        """Consecutive exits, without a steady run between them."""
        self.reason = "not started"
        self._popen: subprocess.Popen[bytes] | None = None
        self._delay_ms = 0
        self._run_task: asyncio.Task[None] | None = None
        self._on_change = on_change

    def to_json(self) -> dict[str, Any]:
        """State for the state file and for `status`."""
        return {
            "state": self.state,
            "process": None if self.process is None else self.process.to_json(),
            "command": self.spec.digest(),
            "restarts": self.restarts,
            "failures": self.failures,
            "reason": self.reason,
            "log": self.spec.log,
        }

    def adopt(self, process: ProcessId) -> None:
        """Take over a process that already runs this child's command."""
        assert self.state is ChildState.STOPPED
        self.process = process
        self._move(ChildState.RUNNING, "taken over from an earlier supervisor")
        self._run_task = asyncio.get_running_loop().create_task(self._run())

    def start(self) -> None:
        """Start it unless it runs; a pause before a restart is cut short."""
        if self.state is ChildState.RUNNING:
            return
        if self._run_task is not None:
            self._run_task.cancel()
        self._delay_ms = self.failures = 0
        self._run_task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, *, kill: bool = False) -> None:
        """Send SIGTERM, SIGKILL after the time limit, or with `kill` SIGKILL at once; return when it is gone."""
        task, self._run_task = self._run_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        process = self.process
        if process is not None and process.send(signal.SIGKILL if kill else signal.SIGTERM):
            try:
                async with asyncio.timeout(self.spec.stop_timeout_ms / 1000):
                    await wait_ended(process)
            except TimeoutError:
                log.warning("child.killed", child=self.spec.name, after_ms=self.spec.stop_timeout_ms)
                process.send(signal.SIGKILL)
                await wait_ended(process)
        self._reap()
        self.failures = 0
        self._move(ChildState.STOPPED, "killed on request" if kill else "stopped")

    async def _run(self) -> None:
        while True:
            if self.process is None and not self._spawn():
                ran_ms = 0
            else:
                assert self.process is not None
                began = time.monotonic()
                await wait_ended(self.process)
                ran_ms = round((time.monotonic() - began) * 1000)
                self.reason = self._reap()
            self.failures = 1 if ran_ms >= STEADY_MS else self.failures + 1
            delay_ms = restart_delay_ms(self.spec.restart, ran_ms, self._delay_ms)
            if delay_ms is None:
                self._move(ChildState.ENDED, self.reason)
                return
            self._delay_ms = delay_ms
            self._move(ChildState.WAITING, self.reason)
            await asyncio.sleep(delay_ms / 1000)
            self.restarts += 1

    def _spawn(self) -> bool:
        """Start a process; False when it cannot be started, with the cause in `reason`."""
        try:
            with open(self.spec.log, "ab") as output:
                self._popen = subprocess.Popen(
                    self.spec.argv,
                    cwd=self.spec.cwd,
                    env={**os.environ, **self.spec.env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C at the terminal must not reach it
                )
        except OSError as error:
            self.reason = f"cannot be started: {error}"
            return False
        self.process = ProcessId.of(self._popen.pid)
        if self.process is None:  # a zombie already
            self.reason = self._reap()
            return False
        self._move(ChildState.RUNNING, f"restarted; before: {self.reason}" if self.restarts else "")
        return True

    def _reap(self) -> str:
        """Forget the process that is gone; returns how it ended, as text."""
        popen, self._popen, self.process = self._popen, None, None
        if popen is None:
            return REASON_UNKNOWN
        code = popen.wait()
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def _move(self, state: ChildState, reason: str) -> None:
        self.state, self.reason = state, reason
        pid = None if self.process is None else self.process.pid
        log.info("child.moved", child=self.spec.name, state=str(state), pid=pid, reason=reason)
        self._on_change()


def bound_log(path: Path, limit_bytes: int = LOG_BYTES_MAX) -> None:
    """Move the content of an output file above the limit to FILE.1."""
    try:
        if path.stat().st_size > limit_bytes:
            shutil.copyfile(path, f"{path}.1")
            os.truncate(path, 0)
    except OSError as error:
        log.warning("child.log_not_bounded", file=str(path), error=str(error))
