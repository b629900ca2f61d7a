"""What happened in a world, in order: what its clients, operators and machines did, and what its nodes logged.

Two runs of one seed have the same story, byte for byte, and the same digest of every event of the kernel.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from isthmus.node.observability import logs
from isthmus.node.observability.events import recent
from isthmus.repl import machine as product_machine
from tests.simulation.world.kernel import SECOND, Kernel
from tests.simulation.world.machine import VirtualMachine
from tests.support.log_watch import LoggedError, error_in

UNTOLD = frozenset(("level", "node", "timestamp", "event", "exc_info", "exception"))


class Story:
    """The lines of one world."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.directory = ""
        """Where the world's files are, by a name that another run does not have; the story does not tell it."""
        self.lines: list[str] = []
        self.errors: list[tuple[str, LoggedError]] = []
        """(machine, error) of every error that a node logged."""

    def tell(self, who: str, what: str) -> None:
        """Add a line."""
        if self.directory:
            what = what.replace(self.directory, "")
        self.lines.append(f"{self._kernel.now_ns / SECOND:12.6f} {who:<10} {what}")

    def uncaught(self, machine: VirtualMachine, what: str, error: BaseException | None) -> None:
        """What nobody caught on a machine."""
        text = "" if error is None else "".join(traceback.format_exception(error))
        self.tell(machine.name, f"UNCAUGHT {what} {text}")
        self.errors.append((machine.name, LoggedError("uncaught", True, f"{what} {text}")))

    def _step(self, _logger: object, method: str, event: Any) -> Any:
        running = product_machine.machine()
        if not isinstance(running, VirtualMachine):
            raise structlog.DropEvent
        event["level"] = method
        event["node"] = running.name
        found = error_in(event)
        if found is not None:
            self.errors.append((running.name, found))
        told = " ".join(f"{key}={value!r}" for key, value in event.items() if key not in UNTOLD)
        if event.get("exc_info"):
            told += f" {event['exc_info']!r}"
        self.tell(running.name, f"{method:<8} {event.get('event')} {told}")
        return recent.keep(None, method, event)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this lasts, the story has what nodes log."""
        before = structlog.get_config()
        logs.set_level("info")
        structlog.configure(
            processors=[self._step, _nothing],
            wrapper_class=logs.NodeLogger,
            logger_factory=lambda *_: _Silent(),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)


def _nothing(_logger: object, _method: str, _event: Mapping[str, Any]) -> str:
    return ""


class _Silent:
    """Writes nothing; the story has it."""

    def msg(self, line: str) -> None:
        """Drop the line."""

    debug = info = warning = error = critical = msg
