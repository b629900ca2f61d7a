"""A test whose nodes log an error that it does not name fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import structlog

from isthmus.repl.unforeseen import UnforeseenErrors
from tests.support.log_watch import LogFiles, LoggedError, LogWatch, captured, unexpected


def test_errors_and_exceptions_of_nodes_in_this_process_are_collected() -> None:
    """Events of level error, exceptions of any level, unforeseen ones, and those in a list that a fixture captures;
    nothing else."""
    log = structlog.get_logger("x")
    watch = LogWatch()
    with watch.watching():
        log.info("fine")
        log.warning("storage.low")
        log.error("storage.full")
        UnforeseenErrors().exception("push.bug", KeyError("x"))
        with captured() as events:
            log.error("isr.role")
        assert [each["event"] for each in events] == ["isr.role"]
    log.error("after")
    assert [(each.event, each.unforeseen) for each in watch.errors] == [
        ("storage.full", False),
        ("push.bug", True),
        ("isr.role", False),
    ]


async def test_exceptions_that_nobody_retrieved_are_collected() -> None:
    """Of a callback of the loop, and of a task that nobody awaited."""

    async def fails() -> None:
        raise KeyError("x")

    def raises() -> None:
        raise ValueError("y")

    watch = LogWatch()
    with watch.watching():
        asyncio.get_running_loop().call_soon(raises)
        task = asyncio.ensure_future(fails())
        await asyncio.sleep(0.01)
        del task
    assert {each.event for each in watch.errors} == {"asyncio"}
    assert len(watch.errors) == 2
    assert all(each.unforeseen for each in watch.errors)


def test_errors_of_processes_are_read_from_their_files_once(tmp_path: Path) -> None:
    """Lines in JSON that were added since the last reading; other text, and files of entries, are passed over."""
    folder = tmp_path / "east-1"
    folder.mkdir()
    (folder / "0000000000000001.log").write_bytes(b'{"level":"error","event":"no"}\n')
    (folder / "node.log").write_text('{"level":"info","event":"a"}\nTraceback\n[1]\n{"level":"error","event":"b"}\n')
    files = LogFiles(tmp_path)
    assert [each.event for each in files.errors()] == ["b"]
    told = {"level": "error", "event": "library.message", "library": "asyncio", "exception": "Traceback"}
    with (folder / "node.log").open("a") as file:
        file.write(json.dumps(told) + "\n")
    assert [(each.event, each.unforeseen) for each in files.errors()] == [("asyncio", True)]
    assert files.errors() == []


@pytest.mark.parametrize(
    ("allowed", "left"),
    [(set(), 2), ({"push.bug"}, 1), ({"storage.*"}, 1), ({"*"}, 1), ({"storage.full", "push.bug"}, 0)],
)
def test_a_test_names_the_errors_that_it_causes(allowed: set[str], left: int) -> None:
    """A name stands for itself; a pattern stands for no exception that nobody foresaw."""
    errors = [LoggedError("storage.full", False, ""), LoggedError("push.bug", True, "")]
    assert len(unexpected(errors, allowed)) == left
