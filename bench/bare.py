"""A node driven by its standard input, without HTTP: the cost of the path from coordinator to commit.

Run as `python -m bench.bare NODE.toml`; it prints a line once it serves. Each line on standard input is a `Work` as
JSON, each line on standard output its result; at the end of the input the node stops. The node is `node.daemon`'s,
whole and tuned as the real one; only where writes come from differs.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.loadgen import BUCKET, BUCKET_TYPE, VALUE_BYTES, VALUE_POOL_COUNT
from isthmus.config.loader import load_file
from isthmus.node import daemon
from isthmus.node.daemon import Node
from isthmus.node.observability import logs
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest, WriteResult


@dataclass(frozen=True)
class Work:
    """One stretch of writes of fresh keys."""

    first: int
    """Number of the first key."""
    count: int
    batch: int
    """Objects of one call."""
    outstanding: int
    """Calls under way at once."""


async def write(node: Node, work: Work) -> dict[str, Any]:
    """Run the work; returns its result."""
    pool = random.Random(0)
    values = [Content(pool.randbytes(VALUE_BYTES)) for _ in range(VALUE_POOL_COUNT)]
    starts = iter(range(work.first, work.first + work.count, work.batch))
    latencies_ms: list[float] = []
    failed: Counter[str] = Counter()
    began_s = time.perf_counter()

    async def one_after_the_other(starts: Iterator[int]) -> None:
        for start in starts:
            requests = [
                WriteRequest(
                    Key(BUCKET_TYPE, BUCKET, b"%016d" % number), values[number % VALUE_POOL_COUNT], payload_wanted=False
                )
                for number in range(start, min(start + work.batch, work.first + work.count))
            ]
            sent_s = time.perf_counter()
            results = await node.services.coordinator.write_batch(requests)
            latencies_ms.append((time.perf_counter() - sent_s) * 1000)
            failed.update(type(result).__name__ for result in results if not isinstance(result, WriteResult))

    await asyncio.gather(*(one_after_the_other(starts) for _ in range(work.outstanding)))
    latencies_ms.sort()
    return {
        "objects": work.count - failed.total(),
        "seconds": time.perf_counter() - began_s,
        "p50_ms": latencies_ms[len(latencies_ms) // 2],
        "p99_ms": latencies_ms[int(len(latencies_ms) * 0.99)],
        "failed": dict(failed),
    }


async def serve(file: Path) -> int:
    """Start, work, stop."""
    settings = load_file(file)
    logs.configure(settings.log, settings.node.name)
    node = Node(settings, file)
    await node.start()
    print("up", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await write(node, Work(**json.loads(line)))), flush=True)
    node.request_stop("the end of the input")
    return await node.serve()


if __name__ == "__main__":
    daemon.tune()
    sys.exit(uvloop.run(serve(Path(sys.argv[1]))))
