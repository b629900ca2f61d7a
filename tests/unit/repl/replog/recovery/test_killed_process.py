"""A real process on a real disk is killed at every system call that changes the log, and its log recovered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.replog.log import FileLog
from tests.support import log_writer_process
from tests.support.log_history import History, Listener, entries

ROOT = Path(__file__).parents[5]
SYSCALLS = [
    "pwritev,pwritev2",
    "fallocate",
    "fdatasync",
    "fsync",
    "rename,renameat,renameat2",
    "unlink,unlinkat",
    "ftruncate",
    "write",
    "openat",
    "mkdir,mkdirat",
]
"""Calls that do one thing, by the names that they have on different machines; of each group one is used."""

ONCE = ("ftruncate", "mkdir,mkdirat")


def run_until(directory: Path, syscall: str, nth: int) -> tuple[list[dict[str, Any]], bool]:
    """Runs the writer and kills it at its n-th `syscall` on the log; returns its output lines and whether it ended by
    itself."""
    command = [sys.executable, str(ROOT / "tests/support/log_writer_process.py"), str(directory)]
    options = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={syscall}"]
    if syscall in ("openat", "mkdir,mkdirat"):  # not those of Python's own start
        options += ["-P", str(directory)]
    done = subprocess.run(
        ["strace", *options, "-e", f"inject={syscall}:signal=SIGKILL:when={nth}", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines(keepends=True) if line.endswith(b"\n")]
    ended = bool(said) and "done" in said[-1]
    assert ended or done.returncode in (-9, 137), f"the writer failed with {done.returncode}"
    return said, ended


def history_of(said: list[dict[str, Any]]) -> History:
    """The log's history, from the writer's output."""
    history = History()
    for line in said:
        match line:
            case {"appended": [partition, first, count, epoch, size]}:
                history.append(partition, entries(epoch, first, count, size=size, tag=partition))
            case {"truncated": [partition, to_offset, _]}:
                history.truncate(partition, to_offset)
            case {"durable": durable}:
                history.reported({int(partition): end for partition, end in durable.items()})
            case {"floors": floors}:
                history.floors |= {int(partition): floor for partition, floor in floors.items()}
    return history


@pytest.mark.strace
@pytest.mark.timeout(900)
@pytest.mark.parametrize("syscall", SYSCALLS)
def test_killed_at_any_system_call_it_keeps_what_was_durable(syscall: str, tmp_path: Path) -> None:
    """After a kill at any system call, every reported entry is found again, and there is no entry that was not appended
    (R-FSYNC)."""
    assert shutil.which("strace"), "this test needs strace: apt-get install strace"
    ended = False
    nth = 0
    while not ended:
        nth += 1
        directory = tmp_path / f"log-{nth}"
        said, ended = run_until(directory, syscall, nth)
        history = history_of(said)
        log = FileLog.open(directory, **log_writer_process.SETTINGS)
        history.recovered_as(log)
        listener = Listener(log)
        wanted = {}
        for partition in range(3):
            log.append(partition, entries(9, log.leo(partition), 1))
            wanted[partition] = log.leo(partition)
        assert listener.wait(wanted)
        log.close()
        again = FileLog.open(directory, **log_writer_process.SETTINGS)
        assert {p: (found.leo, found.damage) for p, found in again.recovered().items()} == {
            p: (end, "") for p, end in wanted.items()
        }
        again.close()
        shutil.rmtree(directory)
    assert nth > (1 if syscall in ONCE else 3)
