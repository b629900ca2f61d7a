"""Background tasks of one service: started on the event loop, logged when they fail, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.unforeseen import unforeseen


class TaskSet:
    """Tasks that run until they end or `cancel` is called."""

    def __init__(self) -> None:
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            unforeseen.exception("queue.task_failed", error)

    async def cancel(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
