"""Counts in many threads, and shows that no increment is lost. Run: python examples/counter.py [URL ...]"""

import sys
from concurrent.futures import ThreadPoolExecutor

from isthmus.client import Client

THREADS = 8
INCREMENTS = 25


def main(urls: list[str]) -> None:
    """Increment one counter from several threads, which share a client."""
    with Client(urls) as client, ThreadPoolExecutor(THREADS) as pool:
        client.overwrite("examples", "counter", 0)

        def count(_: int) -> None:
            for _ in range(INCREMENTS):
                client.update("examples", "counter", lambda value: value + 1)

        list(pool.map(count, range(THREADS)))
        print(f"{THREADS} threads, {INCREMENTS} increments each: {client.get('examples', 'counter').value}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["http://127.0.0.1:18098"])
