"""A node without HTTP, driven over standard input: the cost of the path from the coordinator to the commit.

Run as `python -m bench.bare NODE.toml`. The process prints a line once the node serves. It then reads one `Work` as
JSON per line of standard input, and prints its result as JSON. The node stops at the end of the input. It is the same
node as `node.daemon` runs, with the same tuning; only the source of the writes differs.
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
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest, WriteResult


@dataclass(frozen=True)
class Work:
    """A run of writes of fresh keys."""

    first: int
    """Number of the first key."""
    count: int
    batch: int
    """Objects per call."""
    outstanding: int
    """Concurrent calls."""


async def write(node: Node, work: Work) -> dict[str, Any]:
    """Run the writes and return their rate, latencies and failures."""
    pool = random.Random(0)
    values = [Content(pool.randbytes(VALUE_BYTES)) for _ in range(VALUE_POOL_COUNT)]
    starts = iter(range(work.first, work.first + work.count, work.batch))
    latencies_ms: list[float] = []
    failed: Counter[str] = Counter()
    began_s = time.perf_counter()

    async def write_in_turn(starts: Iterator[int]) -> None:
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

    await asyncio.gather(*(write_in_turn(starts) for _ in range(work.outstanding)))
    latencies_ms.sort()
    return {
        "objects": work.count - failed.total(),
        "seconds": time.perf_counter() - began_s,
        "p50_ms": latencies_ms[len(latencies_ms) // 2],
        "p99_ms": latencies_ms[int(len(latencies_ms) * 0.99)],
        "failed": dict(failed),
    }


async def serve(file: Path) -> int:
    """Start the node, run the work from standard input, and stop the node."""
    settings = load_file(file)
    logs.configure(settings.log, settings.node.name)
    node = Node(settings, file, ServiceManager())
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
