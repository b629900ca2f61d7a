"""The speed of this machine: the building blocks of a node, relative to the machine of the targets.

    python -m bench.yardstick [--json] [--dir DIR]

Measures the libraries of the product without its code: requests to a bare server, batches into LevelDB, file syncs and
hashes. Each is measured in CPU time, once with the other core idle and once with a second process that keeps it busy,
as clients and peers do. `times_the_reference` is the factor by which every cost in `docs/benchmarks.md` should be
scaled; the target rates are within reach only where it is about 1.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
import uvicorn
import uvloop
import xxhash

from bench.figures import Figure, cpu_time, machine, report
from bench.loadgen import VALUE_BYTES, Phase
from bench.nodes import REPOSITORY, BenchFailed, LoadProcess
from isthmus.repl.store.leveldb import plyvel  # type: ignore[attr-defined]  # one of two packages

REFERENCE_US: Final = {"request": 15.0, "store": 3.51, "hash": 0.09, "sync": 120.0}
"""CPU microseconds per object (`sync`: wall time) on the machine of the targets: two cores, Python 3.11."""

REQUESTS: Final = 20_000
CONNECTIONS: Final = 32
STORED: Final = 50_000
STORE_BATCH: Final = 100
VALUES: Final = 500
SYNCS: Final = 200
TURNS: Final = 200_000
ROUNDS: Final = 5
"""Repetitions of the measurements within this process; the median is reported."""

CONTEXT: Final = (b"x-riak-vclock", b"AAAA")
"""The load generator expects a context in every response."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory on the disk to measure.")
@click.option("--serve", is_flag=True, hidden=True)
def main(as_json: bool, directory: Path | None, serve: bool) -> None:
    """Measure the CPU time of the building blocks, and compare it with the reference machine."""
    if serve:
        uvloop.run(_serve())
        return
    where = machine()
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix="yardstick-") as place:
            figures = [_requests()]
            figures += list(_parts(Path(place) / "idle", "other core idle"))
            with _busy():
                figures += list(_parts(Path(place) / "busy", "other core busy"))
        report("bare parts", where, figures, as_json, [])
    except BenchFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _parts(place: Path, when: str) -> Iterator[Figure]:
    """The measurements within this process; `when` is the state of the other core."""
    place.mkdir()
    values = [os.urandom(VALUE_BYTES) for _ in range(VALUES)]
    micros = [_interpreted() for _ in range(ROUNDS)]
    yield Figure("plain Python, one turn of a loop", when, TURNS * ROUNDS, values={"cpu_us_a_turn": median(micros)})
    yield _figure("store", "LevelDB, batches of 100, not synced", when, STORED, lambda: _store(place, values))
    yield _figure("hash", "xxh64 of 1 KB", when, 100_000, lambda: _hash(values))
    waits = [_sync(place / "synced", values) for _ in range(SYNCS)]
    yield Figure(
        "fdatasync of 1 KB, wall time",
        when,
        values={"p50_us": median(waits), "times_the_reference": median(waits) / REFERENCE_US["sync"]},
    )


def _figure(part: str, work: str, when: str, objects: int, act: Callable[[], None]) -> Figure:
    """The median of ROUNDS runs of `act`, in CPU time of all threads of this process."""
    taken: list[float] = []
    seconds = 0.0
    for _ in range(ROUNDS):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        act()
        taken.append((time.process_time() - cpu_s) / objects * 1e6)
        seconds += time.perf_counter() - began_s
    return Figure(work, when, objects * ROUNDS, seconds, values=_compared(part, median(taken)))


def _compared(part: str, micros: float) -> dict[str, float]:
    return {"cpu_us_an_object": micros, "times_the_reference": micros / REFERENCE_US[part]}


def _store(place: Path, values: list[bytes]) -> None:
    """Write fresh keys in random order."""
    store = plyvel.DB(str(place / f"store-{time.monotonic_ns()}"), create_if_missing=True, write_buffer_size=64 << 20)
    try:
        for start in range(0, STORED, STORE_BATCH):
            with store.write_batch() as batch:
                for number in range(start, start + STORE_BATCH):
                    batch.put(xxhash.xxh64_digest(b"%d" % number), values[number % VALUES])
    finally:
        store.close()


def _interpreted() -> float:
    """CPU microseconds per turn of a loop. A Python built without optimizations takes a third more."""
    began_s = time.thread_time()
    for number in range(TURNS):
        pair = number, str(number)
        turn: dict[str, Any] = {"a": pair, "b": [pair]}
        len(turn["b"][0])
    return (time.thread_time() - began_s) / TURNS * 1e6


def _hash(values: list[bytes]) -> None:
    for number in range(100_000):
        xxhash.xxh64_intdigest(values[number % VALUES])


def _sync(path: Path, values: list[bytes]) -> float:
    """Microseconds of wall time of the sync of one append."""
    with path.open("ab", buffering=0) as file:
        file.write(values[0])
        began_s = time.perf_counter()
        os.fdatasync(file.fileno())
        return (time.perf_counter() - began_s) * 1e6


def _requests() -> Figure:
    """Measure PUTs of 1 KB to a server that ignores them, with the load generator of the other benchmarks."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.yardstick", "--serve"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        port = child.stdout.readline().strip()
        if not port:
            raise BenchFailed("the bare server did not start; see its output above")
        with LoadProcess(f"http://127.0.0.1:{port}") as load:
            load.run(Phase("put", 0, REQUESTS // 10, connections=CONNECTIONS))
            before = cpu_time(child.pid)
            result = load.run(Phase("put", 0, REQUESTS, connections=CONNECTIONS))
            after = cpu_time(child.pid)
        micros = (after.total - before.total) / result.objects * 1e6
        work = "PUT of 1 KB to a bare uvicorn application"
        return Figure(
            work, "client on the other core", result.objects, result.seconds, values=_compared("request", micros)
        )
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


async def _serve() -> None:
    """Serve until killed: print the port, read requests and answer 204."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": [CONTEXT]})
        await send({"type": "http.response.body", "body": b""})

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, lifespan="off", log_level="critical", loop="uvloop")
    await uvicorn.Server(config).serve([listener])


@contextmanager
def _busy() -> Iterator[None]:
    """Keep a core busy with another process while the context is open, at most two minutes."""
    code = "import time\nend = time.time() + 120\nwhile time.time() < end:\n    sum(range(10000))"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
