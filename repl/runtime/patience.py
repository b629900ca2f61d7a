"""Writes of small durable values that wait while descriptors, inodes or space are short.

The value must be durable before anything is done with it, so the one that needs it waits; a replica that waits for its
epoch takes part in nothing, and the controller nominates another one after some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, ParamSpec, TypeVar

import structlog

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import one_per_process
from isthmus.repl.model.errors import StorageShort

log = structlog.get_logger(__name__)

RETRY_S: Final = 1.0
"""Pause between two tries: an operator, or connections that are closed, need seconds."""

_log_limit: Final = one_per_process(LogLimit)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def once_possible(
    pool: Executor | None, write: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """The result of `write(...)` in a thread of `pool`, again each RETRY_S while it raises StorageShort. Raises its
    other errors."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await loop.run_in_executor(pool, lambda: write(*arguments, **named))
        except StorageShort as error:
            if (suppressed := _log_limit.due()) is not None:
                log.warning("storage.short", error=str(error), suppressed=suppressed)
            await asyncio.sleep(RETRY_S)
