"""A client in a process of its own, to be stopped, starved and watched: prints one JSON line for each event.

    python -m tests.support.metastore_client_process HOSTS SESSION_MS BUSY_S

It registers as n1 in each session. For BUSY_S seconds its loop is saturated with pieces of work of 50 to 100 ms, and a
second thread works beside it without a pause (with Python's own switch interval, ten times a node's). It ends when its
stdin is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time

import structlog

from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict
from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
from isthmus.repl.model.record import Registration


def report(**fields: object) -> None:
    """Print one line for the watching test."""
    print(json.dumps(fields), flush=True)


def work(until_s: float) -> int:
    """Keep the interpreter busy."""
    rounds = 0
    while time.monotonic() < until_s:
        rounds += sum(range(200))
    return rounds


async def saturated(seconds: float) -> None:
    """Keep the loop and a thread busy, without an idle moment, for this long."""
    loop, end = asyncio.get_running_loop(), time.monotonic() + seconds
    over = loop.create_future()
    thread = threading.Thread(target=work, args=(end,), daemon=True)
    thread.start()

    def piece(length_s: float) -> None:
        work(time.monotonic() + length_s)
        if time.monotonic() < end:
            loop.call_soon(piece, 0.15 - length_s)
        else:
            over.set_result(None)

    loop.call_soon(piece, 0.05)
    loop.call_soon(piece, 0.1)
    await over


async def main(hosts: str, session_ms: int, busy_s: float) -> None:
    """Be a node's client until stdin closes."""
    client = ZooKeeperMetastore(hosts, "/process", "east", session_timeout_ms=session_ms, connect_timeout_ms=20_000)
    sessions: asyncio.Queue[SessionState] = asyncio.Queue()
    await client.start(sessions.put_nowait)

    async def follow() -> None:
        while True:
            state = await sessions.get()
            report(state=state)
            if state is SessionState.CONNECTED:
                with contextlib.suppress(Unavailable, Ambiguous, VersionConflict):  # repeated after the next state
                    report(inc=await client.register(Registration("n1", 0, True, id=1)))

    following = asyncio.ensure_future(follow())
    loop = asyncio.get_running_loop()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    if line:
        await saturated(busy_s)
        report(busy="over")
        await loop.run_in_executor(None, sys.stdin.readline)
    following.cancel()
    await client.stop()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
