"""What is logged may be lost; what is done may not fail by it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

from node import logs

PROGRAM = """
import sys
import structlog
from config.settings import LogSettings
from node import logs

logs.configure(LogSettings(format="json"), "n1")
structlog.get_logger("x").warning("disk.full", bytes=1)
try:
    raise KeyError("x")
except KeyError:
    structlog.get_logger("x").exception("http.bug")
logs.lines.msg("last words")
print("goes on,", logs.lines.failures, "failures", flush=True)
"""

THREADS = """
from concurrent.futures import ThreadPoolExecutor
import structlog
from config.settings import LogSettings
from node import logs

logs.configure(LogSettings(format="json"), "n1")
log = structlog.get_logger("x")
log.info("one")
with ThreadPoolExecutor(1) as pool:
    pool.submit(log.info, "two").result()
log.info("three", node="n2")
"""


def test_a_full_disk_under_the_log_stops_nothing():
    """Events that no disk takes raise nothing in who tells them; they are counted."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, text=True, timeout=30, check=False
        )
    assert done.stdout == "goes on, 3 failures\n"


def test_lines_come_again_with_room(monkeypatch):
    """A file that refuses one line is asked for the next; what could not be told stands in the metric."""

    class Refusing(io.StringIO):
        full = True

        def flush(self):
            if self.full:
                raise OSError(28, "No space left on device")

    file = Refusing()
    monkeypatch.setattr(sys, "stderr", file)
    lines = logs.Lines()
    lines.warning("a")
    file.full = False
    lines.warning("b")
    assert file.getvalue().endswith("b\n")
    assert list(lines.samples()) == [("isthmus_log_failures_total", {}, 1)]


def test_events_of_every_thread_bear_the_node():
    """Whoever logs, from the loop or from a thread of its own; an event about another node keeps that one's name."""
    done = subprocess.run([sys.executable, "-c", THREADS], stderr=subprocess.PIPE, text=True, timeout=30, check=True)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(event["event"], event["node"]) for event in told] == [("one", "n1"), ("two", "n1"), ("three", "n2")]
