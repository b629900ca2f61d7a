"""A node's log is trimmed when it is above its size, and not only when the checkpoint's interval is over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.runtime_cluster import Node, eventually


async def test_a_log_above_its_size_does_not_wait_for_the_interval(
    tmp_path: Path, start_node: Callable[..., AbstractAsyncContextManager[Node]]
) -> None:
    """With checkpoints 100 s apart, a log that has received five times its size is trimmed long before the next one."""

    async with start_node(tmp_path, MemoryEnsemble(), log_size_bytes=60_000, log_file_bytes=20_000) as h:
        for number in range(300):
            name = Key(b"default", b"b", b"key-%d" % number)
            await h.coordinator.write(WriteRequest(name, Content(b"x" * 1_000)))
        await eventually(lambda: h.runtime.replog.stats().size_bytes < 100_000)
        assert not h.failures
