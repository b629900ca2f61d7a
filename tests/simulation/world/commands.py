"""The command line, as operators use it: `isthmus NOUN VERB`, run by its own entry in a thread of their machine.

Its sockets, clocks and sleeps are the machine's. Only the shell of a rolling restart is replaced: the one command that
it runs here is "restart NODE".
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from greenlet import getcurrent

from isthmus.node.cli import contexts, main, rolling_restart
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.repl.machine import machine
from tests.simulation.world.admin import CONFLICTS, LATER, NOT_FOUND, WrongAnswer

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.steps import Doing
    from tests.simulation.world.world import World

RESTART: Final = "restart {node}"
"""What a rolling restart runs for a node."""

STOP_S: Final = 60.0
"""How long the command waits for the end of a node's process."""

REASONS: Final = NOT_FOUND | CONFLICTS | LATER | {"peer-fault", "outcome-unknown", "too-many-properties"}
"""Refusals of nodes that are right at any time."""


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    reason: str
    """Why it failed; "" where it did not."""
    document: Any
    """What it printed, with `-o json`."""

    @property
    def done(self) -> bool:
        """The act took effect."""
        return self.code == Exit.OK


async def run(
    doing: Doing, cluster: WorldCluster, *words: str, allowed: Collection[str] = (), local: bool = False
) -> Ran | None:
    """Run a command against a running node of the cluster by chance; None where no node runs or none answers.
    `allowed`: further reasons of a failure that are right. `local`: it works on files, and asks no node. Raises
    WrongAnswer."""
    world = doing.world
    argv = [*words, "-o", "json"]
    node = None
    if not local:
        if not cluster.running:
            doing.tell(f"no node of {cluster.name} runs")
            return None
        node = doing.chance.choice(cluster.running)
        argv += ["--admin", node.admin_url]
        if cluster.credentials is not None:
            argv += cluster.credentials.options()
    before = world.disturbances, node and node.machine.boots
    calm, began_ns = not world.broken, world.kernel.now_ns
    code, out, err = await world.operators.loop.run_in_executor(None, functools.partial(_run, world, argv))
    calm = calm and not world.broken and before == (world.disturbances, node and node.machine.boots)
    calm = calm and (node is None or (node.running and node.node is not None and not node.node.stopping))
    failure = _last_json(err)
    reason = "" if code == Exit.OK else str(failure.get("reason") or "")
    told = f"isthmus {' '.join(words)}: {code} {reason} {str(failure.get('error') or '')[:160]}"
    doing.tell(told.replace(str(world.directory), "."))
    if code == Exit.OK:
        return Ran(code, reason, _json(out))
    if code != Exit.BROKEN and not reason and _json(out) is not None:
        return Ran(code, reason, _json(out))  # it has an outcome, of which the code tells
    if code == Exit.BROKEN or not reason:
        raise WrongAnswer(f"isthmus {' '.join(argv)}: {code}\n{err}")
    if reason == "unauthorized" and cluster.credentials and began_ns < cluster.credentials.removed_ns:
        return None
    if reason in allowed or reason in REASONS:
        return Ran(code, reason, failure)
    if calm or reason != "unavailable":
        raise WrongAnswer(f"isthmus {' '.join(argv)}: {code} {reason}: {failure.get('error')}")
    return None


def _last_json(text: str) -> dict[str, Any]:
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return {}


def _json(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return None


def _run(world: World, argv: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with _ENVIRONMENT.of(world), _streams() as (out, err):
        code = main.main(argv)
    return int(code), out.getvalue(), err.getvalue()


class _Environment:
    """What commands of a world find instead of this machine's, while any of them runs: no contexts of its user, no
    lock that another world holds, and nodes of the world for a shell."""

    def __init__(self) -> None:
        self._running = 0
        self._stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def of(self, world: World) -> Iterator[None]:
        """While a command of `world` runs."""
        if not self._running:
            nowhere = str(world.directory / "contexts.toml")
            self._stack.enter_context(patch.dict(os.environ, {contexts.FILE_VARIABLE: nowhere}))
            self._stack.enter_context(patch.object(rolling_restart, "_run", functools.partial(_restart, world)))
            self._stack.enter_context(patch.object(rolling_restart, "_open_lock", lambda _name: None))
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._stack.close()


_ENVIRONMENT: Final = _Environment()


def _restart(world: World, command: str, timeout_ms: int, *, quiet: bool) -> None:
    """As an init system does: SIGTERM, and a start once the process has ended."""
    name = command.split()[1]
    node = next(each for each in world.nodes if each.name == name)
    if node.running and not node.machine.loop.signal(signal.SIGTERM):
        node.machine.kill()
    ends_s = machine().monotonic_s() + STOP_S
    while node.running:
        if machine().monotonic_s() >= ends_s:
            raise CommandFailed(Exit.DIFFERS, "restart-failed", f"{name} does not end")
        machine().sleep(0.2)
    node.start()


class _Stream(io.TextIOBase):
    """A standard stream: each thread of the world that runs a command has text of its own."""

    encoding = "utf-8"
    errors = "strict"

    def __init__(self, before: Any) -> None:
        self.before = before
        self.texts: dict[Any, io.StringIO] = {}

    def write(self, text: str) -> int:
        """See io."""
        return int(self.texts.get(getcurrent(), self.before).write(text))

    def flush(self) -> None:
        """See io."""

    def isatty(self) -> bool:
        """See io."""
        return False


@contextlib.contextmanager
def _streams() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Standard output and standard error of the running thread."""
    me = getcurrent()
    texts = io.StringIO(), io.StringIO()
    for name, text in zip(("stdout", "stderr"), texts, strict=True):
        stream = getattr(sys, name)
        if not isinstance(stream, _Stream):
            stream = _Stream(stream)
            setattr(sys, name, stream)
        stream.texts[me] = text
    try:
        yield texts
    finally:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            del stream.texts[me]
            if not stream.texts:
                setattr(sys, name, stream.before)
