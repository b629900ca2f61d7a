"""Tests that open pages and tests that give this machine addresses take turns."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import machine_addresses
from tests.support.machine_addresses import addresses_change, addresses_stay

WAITER = """
import sys
from pathlib import Path
from tests.support import machine_addresses
machine_addresses._LOCK, machine_addresses._QUEUE = Path(sys.argv[1]), Path(sys.argv[2])
print("asks", file=sys.stderr, flush=True)
with getattr(machine_addresses, sys.argv[3])():
    print("has it", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Locks of this test alone: the machine's may be held by the run that it belongs to."""
    monkeypatch.setattr(machine_addresses, "_LOCK", tmp_path / "lock")
    monkeypatch.setattr(machine_addresses, "_QUEUE", tmp_path / "queue")
    return str(tmp_path / "lock"), str(tmp_path / "queue")


def start(locks: tuple[str, str], wanted: str) -> subprocess.Popen[str]:
    """A process that requests the lock, prints a line when it has it, and holds it until its standard input ends."""
    command = [sys.executable, "-c", WAITER, *locks, wanted]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert other.stderr is not None
    assert other.stderr.readline() == "asks\n"
    return other


def waits(other: subprocess.Popen[str]) -> bool:
    """True if the process does not exit although its input has ended, since it still waits for the lock."""
    try:
        other.communicate("", timeout=0.5)
    except subprocess.TimeoutExpired:
        return True
    return False


def is_held(lock: str) -> bool:
    """True if a process holds the lock."""
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_pages_are_open_at_the_same_time(locks: tuple[str, str]) -> None:
    """Two processes may rely on the addresses at once."""
    with addresses_stay():
        other = start(locks, "addresses_stay")
        assert other.communicate("", timeout=20)[0] == "has it\n"


def test_a_change_waits_for_pages_and_pages_for_a_change(locks: tuple[str, str]) -> None:
    """The second process continues when the first one releases its lock."""
    for held, wanted in ((addresses_stay, "addresses_change"), (addresses_change, "addresses_stay")):
        with held():
            other = start(locks, wanted)
            assert waits(other)
        assert other.communicate(timeout=20)[0] == "has it\n"


def test_pages_that_come_later_wait_behind_a_change(locks: tuple[str, str]) -> None:
    """Processes that open pages in turns cannot block a change of addresses for ever."""
    with addresses_stay():
        change = start(locks, "addresses_change")
        while not is_held(locks[1]):
            time.sleep(0.01)
        page = start(locks, "addresses_stay")
        assert waits(page)
    assert change.communicate(timeout=20)[0] == "has it\n"
    assert page.communicate(timeout=20)[0] == "has it\n"
