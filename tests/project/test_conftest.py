"""Tests of tests/conftest.py: leaks fail a test, and skipped and deselected tests are reported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]

LEAKS: Final = """
import subprocess, threading, time
import pytest

@pytest.fixture(scope="session")
def shared():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    child = subprocess.Popen(["sleep", "60"])
    yield
    stop.set()
    thread.join()
    child.kill()
    child.wait()

@pytest.fixture
def late(request):
    return request.getfixturevalue("shared")

def test_a_fixture_of_the_session_may_go_on(late):
    pass

def test_thread_is_left():
    threading.Thread(target=time.sleep, args=(1.5,), name="forgotten").start()

def test_child_is_left():
    global child
    child = subprocess.Popen(["sleep", "1.5"])

def test_all_is_ended():
    thread = threading.Thread(target=time.sleep, args=(0.05,))
    thread.start()

def test_children_are_reaped():
    child.wait()
"""

MARKED: Final = """
import pytest

@pytest.mark.slow
def test_long():
    pass

@pytest.mark.root
@pytest.mark.strace
def test_traced():
    pass

@pytest.mark.promtool
def test_rules():
    pass

@pytest.mark.browser
def test_pages():
    pass

def test_plain():
    pass

def test_lacking():
    pytest.skip("no such thing here")
"""

MEASURING: Final = """
import os, time
from pathlib import Path
import pytest

def note(kind):
    time.sleep(0.05)
    with open(Path(__file__).with_name(kind), "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")

def noted(kind):
    return set(Path(__file__).with_name(kind).read_text().split())

@pytest.mark.timing
@pytest.mark.parametrize("number", range(5))
def test_measures(number):
    note("timing")

@pytest.mark.timing
async def test_measures_too():
    note("timing")

@pytest.mark.parametrize("number", range(8))
def test_plain(number):
    note("plain")
    end = time.monotonic() + 20  # a worker that is slow with other tests comes to these, too
    while len(noted("plain")) < 2 and time.monotonic() < end:
        time.sleep(0.01)
"""

MISPLACED: Final = """
import pytest

pytestmark = pytest.mark.timing

def test_measures():
    pass
"""

STUCK: Final = """
import threading

def waits_for_ever():
    threading.Event().wait()

def test_stuck():
    waits_for_ever()
"""


def run(
    folder: Path, tests: str, *arguments: str, at: str = "tests/test_them.py", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs pytest on one module, `at` its path, with a copy of the conftest that has short time limits. The run has
    temporary files of its own; otherwise it would also delete those of earlier runs, concurrently with others, which is
    slow or ends with a warning."""
    (folder / "tests").mkdir()
    shutil.copy(REPOSITORY / "pyproject.toml", folder / "pyproject.toml")
    conftest = (REPOSITORY / "tests" / "conftest.py").read_text()
    assert "GRACE_S: Final = 5.0" in conftest
    (folder / "tests" / "conftest.py").write_text(conftest.replace("GRACE_S: Final = 5.0", "GRACE_S: Final = 0.5"))
    (folder / "tests" / "support").mkdir()
    for name in ("samples.py", "log_watch.py"):
        shutil.copy(REPOSITORY / "tests" / "support" / name, folder / "tests" / "support")
    (folder / at).parent.mkdir(exist_ok=True)
    (folder / at).write_text(tests)
    outside = {name: value for name, value in os.environ.items() if name != "ISTHMUS_NO_SKIPS"}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder / 'temporary'}",
            *arguments,
        ],
        cwd=folder,
        env={**outside, **environ},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


NODES: Final = """
import asyncio
import json
import pytest
import structlog

log = structlog.get_logger("node")

def test_nothing():
    log.info("isr.ready")

def test_error():
    log.error("storage.full")

@pytest.mark.logs_errors("storage.full")
def test_named_error():
    log.error("storage.full")

def test_exception():
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("push.bug")

async def test_never_retrieved():
    async def fails():
        raise KeyError("x")
    task = asyncio.ensure_future(fails())
    await asyncio.sleep(0.01)
    del task

def test_process(tmp_path):
    (tmp_path / "node.log").write_text(json.dumps({"level": "error", "event": "isr.role"}) + "\\n")
"""


def test_an_error_that_a_test_does_not_name_fails_it(tmp_path: Path) -> None:
    """Errors and exceptions in the logs of nodes, in this process or in files, fail the test during which they were
    logged, unless it names them."""
    done = run(tmp_path, NODES, at="tests/component/test_nodes.py")
    failed = set(re.findall(r"^ERROR \S+::(\w+)", done.stdout, re.MULTILINE))
    assert failed == {"test_error", "test_exception", "test_never_retrieved", "test_process"}, done.stdout
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are seen in /proc only")
def test_what_a_test_leaves_running_fails_it(tmp_path: Path) -> None:
    """A thread and a child process that outlive their test are named; those of wider fixtures may stay."""
    done = run(tmp_path, LEAKS)
    failed = {
        line.split()[1].partition("::")[2] for line in done.stdout.splitlines() if line.startswith(("ERROR", "FAILED"))
    }
    assert failed == {"test_thread_is_left", "test_child_is_left"}, done.stdout
    assert "left running: thread forgotten" in done.stdout
    assert "(sleep 1.5)" in done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_deselected_tests_are_counted_at_the_end(tmp_path: Path, workers: str) -> None:
    """The end of a run counts what `-m` left out, by marker and each test once, and a skip alone fails nothing."""
    done = run(
        tmp_path, MARKED, "-n", workers, "-m", "not slow and not root and not strace and not promtool and not browser"
    )
    assert done.returncode == 0, done.stdout
    assert (
        "left out by marker: 1 browser, 1 promtool, 1 root, 1 slow, 1 strace (`make test-all` runs them)" in done.stdout
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_skip_can_be_made_to_fail_the_run(tmp_path: Path, workers: str) -> None:
    """With ISTHMUS_NO_SKIPS, a run fails if a test was skipped because the machine lacks something."""
    done = run(
        tmp_path,
        MARKED,
        "-n",
        workers,
        "-m",
        "not slow and not root and not strace and not promtool and not browser",
        ISTHMUS_NO_SKIPS="1",
    )
    assert done.returncode == 1, done.stdout
    assert "ISTHMUS_NO_SKIPS: 1 skipped tests fail this run" in done.stdout


def test_a_test_that_takes_too_long_is_named_with_its_stacks(tmp_path: Path) -> None:
    """With workers, too, a time-out ends the run and names the test that was stuck, with its stack. The limit is that
    of one process, multiplied by the number of workers per core."""
    done = run(tmp_path, STUCK, "-n", "3", "--max-worker-restart=0", "-o", "timeout=1")
    assert done.returncode == 1, done.stdout
    assert f"test_stuck takes longer than {max(1.0, 3 / (os.cpu_count() or 1)):g} s" in done.stderr
    assert re.search(r"test_them.py\"?, line \d+ in waits_for_ever", done.stderr), done.stderr
    assert "crashed while running 'tests/test_them.py::test_stuck'" in done.stdout


def test_tests_that_measure_time_share_one_process(tmp_path: Path) -> None:
    """They run one after the other in one worker, so that they do not disturb each other; others are spread."""
    done = run(tmp_path, MEASURING, "-n", "2", "--dist", "loadscope")
    assert done.returncode == 0, done.stdout
    workers = {kind: (tmp_path / "tests" / kind).read_text().split() for kind in ("timing", "plain")}
    assert (len(workers["timing"]), len(set(workers["timing"]))) == (6, 1)
    assert (len(workers["plain"]), len(set(workers["plain"]))) == (8, 2)


def test_a_marker_of_timing_that_would_not_be_seen_is_refused(tmp_path: Path) -> None:
    """Tests are grouped by the decorators of their functions, so a timing marker for a whole module would group
    nothing."""
    done = run(tmp_path, MISPLACED)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "test_measures: the marker timing belongs to the function itself" in done.stderr
