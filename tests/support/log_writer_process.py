"""A process that writes a log and prints each call and each report on its standard output; to be killed at any system
call.

    log_writer_process.py DIRECTORY

Each line is JSON: {"appended": [partition, first, count, epoch, size]}, {"truncated": [partition, to, epoch]} and
{"floors": {partition: offset}} before the call, {"durable": {partition: offset}} as reported, {"done": true} last.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from isthmus.repl.replog.log import FileLog
from tests.support.log_history import CLUSTER, entries

SETTINGS = {
    "cluster_uuid": CLUSTER,
    "durability": "fsync",
    "size_limit_bytes": 2500,
    "file_bytes": 1200,
    "batch_bytes": 600,
    "reserve_bytes": 0,
}


def report(**what: object) -> None:
    """Print one line, in one system call."""
    os.write(1, json.dumps(what).encode() + b"\n")


class Writer:
    """Calls the log and waits after each call until that is durable."""

    def __init__(self, directory: Path) -> None:
        self.log = FileLog.open(directory, **SETTINGS)
        self.durable: dict[int, int] = {}
        self.changed = threading.Condition()
        self.log.start(self.on_report, lambda error: os._exit(3))

    def on_report(self, durable: Mapping[int, int], _truncated: Mapping[int, int]) -> None:
        report(durable=durable)
        with self.changed:
            self.durable.update(durable)
            self.changed.notify_all()

    def wait(self, partition: int) -> None:
        with self.changed:
            while self.durable.get(partition) != self.log.leo(partition):
                self.changed.wait(10)

    def append(self, partition: int, epoch: int, count: int, size: int = 30) -> None:
        first = self.log.leo(partition)
        report(appended=[partition, first, count, epoch, size])
        self.log.append(partition, entries(epoch, first, count, size=size, tag=partition))
        self.wait(partition)

    def truncate(self, partition: int, to_offset: int, epoch: int) -> None:
        report(truncated=[partition, to_offset, epoch])
        self.log.truncate(partition, to_offset, epoch)
        self.wait(partition)

    def trim(self, floors: dict[int, int]) -> None:
        report(floors=floors)
        self.log.trim(floors)


def main(directory: Path) -> None:
    """Twice: open, write, close."""
    writer = Writer(directory)
    writer.append(0, 1, 2)
    writer.append(1, 1, 3, 100)
    writer.append(0, 1, 2, 200)
    writer.truncate(1, 2, 2)
    writer.append(1, 2, 2)
    writer.append(2, 1, 1)
    for _ in range(5):
        writer.append(0, 2, 1, 500)
    writer.trim({0: 8, 1: 3})
    writer.append(0, 3, 1)
    writer.log.close()
    with max(directory.glob("*.log")).open("ab") as newest:
        newest.write(b"the beginning of a frame")  # as if killed while writing; the next opening cuts it off
    writer = Writer(directory)
    writer.append(2, 4, 2)
    writer.append(0, 4, 2, 300)
    writer.log.close()
    report(done=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
