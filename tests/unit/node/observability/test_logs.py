"""A log line may be lost, but a failure to write it never fails the operation."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from isthmus.node.observability import logs
from isthmus.repl.log_limit import KEYS_MAX, LogLimit
from isthmus.repl.security.tls import shown_address

PROGRAM = """
import sys
import pytest
import structlog
from isthmus.config.settings import LogSettings
from isthmus.node.observability import logs

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
import pytest
import structlog
from isthmus.config.settings import LogSettings
from isthmus.node.observability import logs

logs.configure(LogSettings(format="json"), "n1")
log = structlog.get_logger("x")
log.info("one")
with ThreadPoolExecutor(1) as pool:
    pool.submit(log.info, "two").result()
log.info("three", node="n2")
"""


def test_a_full_disk_under_the_log_stops_nothing():
    """An event that cannot be written raises nothing in its caller; the failures are counted."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, text=True, timeout=30, check=False
        )
    assert done.stdout == "goes on, 3 failures\n"


def test_lines_are_written_again_once_there_is_space(monkeypatch):
    """After a failed line the next one is written to the file again; the metric counts the lost ones."""

    class Refusing(io.StringIO):
        full = True

        def flush(self):
            if self.full:
                raise OSError(28, "No space left on device")

    file = Refusing()
    monkeypatch.setattr(sys, "stderr", file)
    lines = logs.LineSink()
    lines.warning("a")
    file.full = False
    lines.warning("b")
    assert file.getvalue().endswith("b\n")
    assert ("isthmus_log_failures_total", {}, 1) in list(lines.samples())


def test_events_of_every_thread_bear_the_node():
    """Events from the loop and from threads have the name of the writing node in `node`, whatever the event passes."""
    done = subprocess.run([sys.executable, "-c", THREADS], stderr=subprocess.PIPE, text=True, timeout=30, check=True)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(event["event"], event["node"]) for event in told] == [("one", "n1"), ("two", "n1"), ("three", "n1")]


LIBRARIES = """
import logging
import pytest
import structlog
from isthmus.config.settings import LogSettings
from isthmus.node.observability import logs

logs.configure(LogSettings(format="json"), "n1")
library = logging.getLogger("apscheduler.scheduler")
for number in range(3):
    library.warning("run of %s skipped", number)
library.error("broken %d", "no number")
library.info("not shown")
log = structlog.get_logger("x")
log.debug("no")
logs.set_level("debug")
log.debug("yes")
logs.set_level("error")
log.info("no")
log.error("last")
"""


def test_lines_of_libraries_are_events_and_the_level_changes_while_loggers_are_in_use():
    """A library's warning is one JSON line, its repetitions are suppressed for a while, and mismatching arguments raise
    nothing; a new level applies to loggers that are in use."""
    done = subprocess.run([sys.executable, "-c", LIBRARIES], stderr=subprocess.PIPE, text=True, timeout=30, check=True)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(event["event"], event.get("message"), event["level"]) for event in told] == [
        ("library.message", "run of 0 skipped", "warning"),
        ("library.message", "broken %d", "error"),
        ("yes", None, "debug"),
        ("last", None, "error"),
    ]
    assert (told[0]["library"], told[0]["suppressed"]) == ("apscheduler.scheduler", 0)


PYTHON = """
import asyncio
import threading
import warnings
from isthmus.config.settings import LogSettings
from isthmus.node.observability import logs

logs.configure(LogSettings(format="json"), "n1")
for _ in range(3):
    warnings.warn("old", DeprecationWarning)

class Leaves:
    def __del__(self):
        raise RuntimeError("at its end")

def raises():
    raise OSError("in a thread")

thread = threading.Thread(target=raises, name="worker")
thread.start()
thread.join()
Leaves()

async def main():
    asyncio.get_running_loop().call_soon(raises)
    await asyncio.sleep(0)

asyncio.run(main())
raise ValueError("at the top")
"""


def test_warnings_and_exceptions_of_the_interpreter_are_events():
    """With `python -W always`, a warning is logged once and not for each repetition; exceptions of a thread, of a
    finalizer, of a callback of the loop, and one that ends the process are logged with their tracebacks."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PYTHON], stderr=subprocess.PIPE, text=True, timeout=30, check=False
    )
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(event["event"], event["level"], event["node"]) for event in told] == [
        ("python.warning", "warning", "n1"),
        ("python.uncaught", "critical", "n1"),
        ("python.uncaught", "critical", "n1"),
        ("library.message", "error", "n1"),
        ("python.uncaught", "critical", "n1"),
    ]
    assert (told[0]["category"], told[0]["message"]) == ("DeprecationWarning", "old")
    assert (told[1]["thread"], told[1]["exception_type"]) == ("worker", "OSError")
    assert "Leaves.__del__" in told[2]["where"]
    assert [event["exception"].splitlines()[-1] for event in told[1:]] == [
        "OSError: in a thread",
        "RuntimeError: at its end",
        "OSError: in a thread",
        "ValueError: at the top",
    ]
    assert done.returncode == 1


def test_lines_that_repeat_are_held_back_and_counted():
    """Ten lines of one event about one subject are written in ten seconds; another subject has a limit of its own; the
    next line has the number of suppressed ones. Debug events are not limited."""
    now_s = [0.0]
    sink = logs.LineSink()
    limit = logs.RepeatLimit(sink, lambda: now_s[0])

    def passes(method: str = "info", **fields: object) -> dict[str, object] | None:
        try:
            return dict(limit(None, method, {"event": "isr.role", **fields}))
        except structlog.DropEvent:
            return None

    assert [passes(partition=1) is not None for _ in range(13)] == [True] * 10 + [False] * 3
    assert passes(partition=2) == {"event": "isr.role", "partition": 2}
    assert all(passes("debug", partition=1) for _ in range(20))
    assert sink.suppressed == 3
    assert ("isthmus_log_suppressed_total", {}, 3) in list(sink.samples())
    now_s[0] = 10.0
    assert passes(partition=1) == {"event": "isr.role", "partition": 1, "suppressed": 3}


def test_an_event_of_many_subjects_has_a_limit_of_its_own():
    """Only a thousand lines are written in ten seconds, so that an endless number of subjects does not fill the
    disk."""
    limit = logs.RepeatLimit(logs.LineSink(), lambda: 0.0)
    passed = 0
    for number in range(logs.BURST_EVENT + 50):
        with contextlib.suppress(structlog.DropEvent):
            limit(None, "warning", {"event": "isr.record_not_written", "partition": number})
            passed += 1
    assert passed == logs.BURST_EVENT


def test_a_limit_forgets_subjects_instead_of_growing():
    """Subjects whose interval is over are dropped first; a dropped subject is logged again."""
    now_s = [0.0]
    limit = LogLimit(lambda: now_s[0])
    assert [limit.due(number) for number in range(KEYS_MAX)] == [0] * KEYS_MAX
    now_s[0] = 9.0
    assert limit.due(0) is None
    now_s[0] = 10.0
    assert (limit.due("new"), limit.due("new")) == (0, None)
    assert limit.due(0) == 0  # its count went with it


def test_an_event_whose_cause_lasts_is_logged_once_in_ten_seconds_with_what_was_left_out():
    """The first event is logged at once, then one for each interval, with the number of suppressed ones."""
    now_s = [0.0]
    limit = LogLimit(lambda: now_s[0])
    assert [limit.due(), limit.due(), limit.due()] == [0, None, None]
    now_s[0] = 9.9
    assert limit.due() is None
    now_s[0] = 10.0
    assert limit.due() == 3


OTHER_WORDS = ("node", "follower", "holder", "member", "suspect", "with_node", "sink_node", "remote")


def test_no_event_overwrites_the_node_that_writes_it():
    """No module passes `node=` to a logger: the processor sets it, and another node is always named `peer`."""
    calls = []
    may_be_wrong = re.compile(rf"\blog\.\w.*\b({'|'.join(OTHER_WORDS)})\s*=", re.DOTALL)
    for package in ("aae", "config", "node", "queues", "repl", "sink"):
        for path in (Path(__file__).parents[4] / package).rglob("*.py"):
            text = path.read_text()
            for call in ast.walk(ast.parse(text)) if may_be_wrong.search(text) else ():
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                    of = call.func.value
                    if isinstance(of, ast.Name) and of.id == "log" and any(k.arg in OTHER_WORDS for k in call.keywords):
                        calls.append(f"{path}:{call.lineno}")
    assert calls == []


def test_addresses_are_shown_as_host_and_port():
    """Addresses of all socket families are shown; an unknown one is an empty text."""
    assert shown_address(("127.0.0.1", 44002)) == "127.0.0.1:44002"
    assert shown_address(("::1", 44002, 0, 0)) == "[::1]:44002"
    assert shown_address(None) == ""


HOSTILE = """
import json
import pytest
import structlog
from isthmus.config.settings import LogSettings
from isthmus.node.observability import logs
from isthmus.node.observability.events import recent

class Mute:
    def __repr__(self):
        raise OSError("not shown")
    def __eq__(self, other):
        raise OSError("not compared")
    __hash__ = None

class Name(str):
    def __str__(self):
        raise OSError("not shown")

deep = []
for _ in range(100_000):
    deep = [deep]
ring = {}
ring["ring"] = ring
values = {
    "integer_keys": {3: 7}, "tuple_keys": {(1, 2): 3}, "mixed_keys": {1: 2, "a": 3, None: 4}, "bytes": b"\\xff",
    "surrogate": "\\ud800", "control": "a\\x00\\x1b[2J\\nb", "ring": ring, "deep": deep, "huge": "x" * 5_000_000,
    "mute": Mute(), "in_list": [Mute()], "name": Name("n"), "nan": float("nan"), "big": 10**5000,
}
logs.configure(LogSettings(format=FORMAT), "n1")
for event in ("attaching.new_copies", "http.bug"):
    for field, value in values.items():
        structlog.get_logger("x").warning(event, **{field: value})
        structlog.get_logger("x").info(event, partition=value)
        try:
            raise RuntimeError(value)
        except RuntimeError:
            structlog.get_logger("x").exception(event, path=field)
structlog.get_logger("x").warning(Mute())
structlog.get_logger("x").info("the.end", replaced=logs.lines.replaced)
print(len(recent.all()), logs.lines.failures)
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_value_of_an_event_raises_into_its_caller(form: str) -> None:
    """Integer keys, rings, huge and deep values, and objects that cannot be shown or compared: each event becomes a
    line, itself or a short one that names it, no longer than the limit; the node's recent events go on, too."""
    program = HOSTILE.replace("FORMAT", repr(form))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    written = done.stderr.splitlines()
    assert "the.end" in written[-1]
    assert max(map(len, written)) <= logs.LINE_MAX
    kept, failures = map(int, done.stdout.split())
    assert kept >= 28
    assert failures == 0
    if form == "json":
        told = [json.loads(line) for line in written]
        assert told[0]["integer_keys"] == {"3": 7}
        short = [each for each in told if each["event"].startswith("logging.line_")]
        assert {each["event"] for each in short} == {"logging.line_failed", "logging.line_cut"}
        assert {each["of"] for each in short} == {"attaching.new_copies", "http.bug", "Mute"}
        assert all(each["node"] == "n1" and each["level"] and each["why"] for each in short)
        assert told[-1]["replaced"] >= len(short)


def test_a_library_that_cannot_show_its_message_goes_on() -> None:
    """A message whose text or arguments raise is a line that says so."""
    program = """
import logging
import warnings
from isthmus.config.settings import LogSettings
from isthmus.node.observability import logs

class Mute(UserWarning):
    def __str__(self):
        raise OSError("not shown")

logs.configure(LogSettings(format="json"), "n1")
logging.getLogger("kazoo.client").error(Mute())
logging.getLogger("kazoo.client").error("broken %s", Mute())
warnings.showwarning(Mute(), Mute, "module.py", 3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    messages = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert messages == ["(a Mute that cannot be shown)", "broken %s", "(a Mute that cannot be shown)"]
