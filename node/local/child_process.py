"""One supervised child process: started, watched, restarted after a pause, stopped within a bound.

    stopped  -> running   start
    running  -> waiting   it ended, and its policy restarts it
    running  -> ended     it ended, and its policy does not
    waiting  -> running   the pause is over
    any      -> stopped   stop

A child may have been started by an earlier supervisor that was killed; then it is adopted as it runs. Children
ask for nothing when their supervisor dies: they go on, so that a killed supervisor interrupts nobody. Which
children there are, and when all of them stop, is `node.local.supervisor`.
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

from isthmus.node.local.process_id import ProcessId, gone

log = structlog.get_logger(__name__)

RESTART_DELAY_FIRST_MS: Final = 100
RESTART_DELAY_MAX_MS: Final = 10_000
"""Pauses before a restart double from the first to the last: a killed child is back at once, and one that cannot
run costs next to nothing."""

STEADY_MS: Final = 10_000
"""A child that ran this long had started well: its next pause is the first again."""

LOG_BYTES_MAX: Final = 16_000_000
"""Size of a child's output file above which it is copied to FILE.1 and begun anew. Lines written during the copy
are lost; the child keeps its descriptor."""

REASON_UNKNOWN: Final = "ended; it was started by an earlier supervisor, so its exit code is not known"


class Restart(StrEnum):
    """What happens when a child ends by itself."""

    ALWAYS = "always"
    NEVER = "never"


class ChildState(StrEnum):
    """Where a child is; the transitions stand at the top of this file."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a child is. Children of lower `rank` start first and stop last; `reads` is a fingerprint of the files that
    its command reads, so that a changed file counts as a changed command."""

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
        """Equal for equal commands: whether a running process may stand for this child. The environment is left out: it
        differs from shell to shell."""
        return hashlib.sha256(json.dumps([self.argv, self.cwd, self.reads]).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """For a spec file."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """What `to_json` made. Raises TypeError, ValueError for anything else."""
        spec = cls(**{**raw, "argv": tuple(raw["argv"]), "restart": Restart(raw["restart"])})
        if not spec.argv or not all(isinstance(word, str) for word in spec.argv):
            raise ValueError(f"child {spec.name!r} has no command")
        return spec


def restart_delay_ms(restart: Restart, ran_ms: int, previous_delay_ms: int) -> int | None:
    """How long to wait before the next start of a child that ended after `ran_ms`; None: it stays ended.
    `previous_delay_ms` is what was waited before the start that ended, 0 before the first."""
    if restart is Restart.NEVER:
        return None
    if ran_ms >= STEADY_MS or previous_delay_ms == 0:
        return RESTART_DELAY_FIRST_MS
    return min(previous_delay_ms * 2, RESTART_DELAY_MAX_MS)


class Child:
    """A child's life. All methods belong to the loop; `on_change` is called after each transition."""

    def __init__(self, spec: ChildSpec, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.state = ChildState.STOPPED
        self.process: ProcessId | None = None
        self.restarts = 0
        self.failures = 0
        """Ends in a row, by themselves, without a steady run between them."""
        self.reason = "not started"
        self._popen: subprocess.Popen[bytes] | None = None
        self._delay_ms = 0
        self._life: asyncio.Task[None] | None = None
        self._on_change = on_change

    def to_json(self) -> dict[str, Any]:
        """Its state, for the state file and for `status`."""
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
        """Take over a process that runs this child's command already."""
        assert self.state is ChildState.STOPPED
        self.process = process
        self._move(ChildState.RUNNING, "taken over from an earlier supervisor")
        self._life = asyncio.get_running_loop().create_task(self._live())

    def start(self) -> None:
        """Start it unless it runs; a pause before a restart is cut short."""
        if self.state is ChildState.RUNNING:
            return
        if self._life is not None:
            self._life.cancel()
        self._delay_ms = self.failures = 0
        self._life = asyncio.get_running_loop().create_task(self._live())

    async def stop(self, *, kill: bool = False) -> None:
        """Returns once it is gone: SIGTERM, after its bound SIGKILL; with `kill` SIGKILL at once."""
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        process = self.process
        if process is not None and process.send(signal.SIGKILL if kill else signal.SIGTERM):
            try:
                async with asyncio.timeout(self.spec.stop_timeout_ms / 1000):
                    await gone(process)
            except TimeoutError:
                log.warning("child.killed", child=self.spec.name, after_ms=self.spec.stop_timeout_ms)
                process.send(signal.SIGKILL)
                await gone(process)
        self._reap()
        self.failures = 0
        self._move(ChildState.STOPPED, "killed on request" if kill else "stopped")

    async def _live(self) -> None:
        while True:
            if self.process is None and not self._spawn():
                ran_ms = 0
            else:
                assert self.process is not None
                began = time.monotonic()
                await gone(self.process)
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
        """True when the child runs; else `reason` says why not."""
        try:
            with open(self.spec.log, "ab") as output:
                self._popen = subprocess.Popen(
                    self.spec.argv,
                    cwd=self.spec.cwd,
                    env={**os.environ, **self.spec.env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C at the terminal is the supervisor's business
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
        """Forget the process that is gone; how it ended, in words."""
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
    """Begin an output file anew when it has grown over the limit; what it held is in FILE.1."""
    try:
        if path.stat().st_size > limit_bytes:
            shutil.copyfile(path, f"{path}.1")
            os.truncate(path, 0)
    except OSError as error:
        log.warning("child.log_not_bounded", file=str(path), error=str(error))
