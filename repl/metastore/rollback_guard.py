"""Finds out whether the ensemble has lost confirmed writes, when no connection succeeds (docs/protocol.md H32).

A server that knows less than a client has seen refuses it without a reason, so a metastore that was restored from an
older copy looks like one that is down. Its `srvr` command still reports its zxid. This module only reports; the session
stays suspended (`repl.metastore.zookeeper_session`).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 2.0
"""Between two rounds while there is no connection; a server that lags for longer is found in the next round."""

ANSWER_TIMEOUT_S: Final = 1.0
"""How long one server may take to answer."""

ROUNDS: Final = 2
"""Rounds in a row that must find every serving server behind: a restarted one may be catching up."""

ANSWER_BYTES_MAX: Final = 4096
"""Limit of an answer, which has about 250 bytes."""


async def watch_for_rollback(
    hosts: str,
    seen: Callable[[], int],
    on_rollback: Callable[[str], None],
    zxid_of: Callable[[str], Awaitable[int | None]],
) -> None:
    """Query the servers until cancelled. `seen` returns the newest zxid of this process, `zxid_of` that of one server
    ("host:port"; see `server_zxid`); `on_rollback` gets a sentence."""
    behind = 0
    while True:
        await asyncio.sleep(INTERVAL_S)
        answers = await asyncio.gather(*(zxid_of(host) for host in hosts.split("/")[0].split(",")))
        newest = max((zxid for zxid in answers if zxid is not None), default=None)
        behind = behind + 1 if newest is not None and newest < seen() else 0
        if behind == ROUNDS:
            why = (
                f"metastore-rollback: ZooKeeper at {hosts} is at zxid {newest:#x}, this process has seen {seen():#x}: "
                "the ensemble lost what it had confirmed, or was restored from an older copy"
            )
            log.error("metastore.rollback", hosts=hosts, zxid=newest, seen=seen())
            on_rollback(why)


async def server_zxid(host: str, tls: Callable[[], ssl.SSLContext] | None = None) -> int | None:
    """The zxid of the server at "host:port", by its `srvr` command; None if it does not serve or answer."""
    name, _, port = host.strip().rpartition(":")
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            context = None if tls is None else tls()
            reader, writer = await asyncio.open_connection(
                name.strip("[]"), int(port), limit=ANSWER_BYTES_MAX, ssl=context
            )
            try:
                writer.write(b"srvr")
                answer = await reader.read(ANSWER_BYTES_MAX)
            finally:
                writer.close()
    except (OSError, ValueError, TimeoutError):
        return None
    found = re.search(rb"^Zxid: 0x([0-9a-f]{1,16})\s*$", answer, re.MULTILINE)
    return None if found is None else int(found[1], 16)
